"""Quantities as people write them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iodaemon.errors import ConfigError
from iodaemon.units import (
    format_bytes,
    format_duration,
    format_rate,
    parse_bytes,
    parse_duration_s,
    parse_rate_bytes_per_s,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("4096", 4096),
        (4096.4, 4096),
        ("16 GiB", 16 * 2**30),
        ("2G", 2 * 2**30),
        ("500 MB", 500_000_000),
        ("1.5 kB", 1500),
        ("1.5K", 1536),
        ("  7 B ", 7),
        ("1 PB", 10**15),
        ("1e3", 1000),
        (".5 KiB", 512),
        ("9007199254740993", 9007199254740993),
        ("9223372036854775807", 2**63 - 1),
    ],
)
def test_a_size_is_read_in_bytes(text, expected):
    actual = parse_bytes(text)

    assert expected == actual
    assert isinstance(actual, int)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("40 MB/s", 40e6),
        ("40MB/s", 40e6),
        ("40M", 40e6),
        ("2G/s", 2e9),
        ("40 MiB/s", 40 * 2**20),
        ("1.5 GiB/s", 1.5 * 2**30),
        ("512 B/s", 512.0),
        ("100 /s", 100.0),
        (40_000_000, 40e6),
        (0.5, 0.5),
    ],
)
def test_a_rate_is_read_in_bytes_per_second(text, expected):
    actual = parse_rate_bytes_per_s(text)

    assert expected == actual


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 s", 1.0),
        (1, 1.0),
        ("500 ms", 0.5),
        ("1h30m", 5400.0),
        ("1 h 30 min", 5400.0),
        ("1.5 hours", 5400.0),
        ("1 week", 604800.0),
        ("01:30:00", 5400.0),
        ("90:30", 5430.0),
        ("1-12:30", 131400.0),
        ("1-12:30:15", 131415.0),
        ("0", 0.0),
    ],
)
def test_a_duration_is_read_in_seconds(text, expected):
    actual = parse_duration_s(text)

    assert expected == actual


@pytest.mark.parametrize(
    ("text", "expected"), [("90", 5400.0), (90, 5400.0), ("90 s", 90.0), ("1:30", 90.0)]
)
def test_a_bare_walltime_is_in_minutes(text, expected):
    actual = parse_duration_s(text, bare_unit_s=60.0)

    assert expected == actual


NONSENSE = [
    "", " ", "-1", "-1 GiB", "nan", "inf", "1e999", "one", "1 2", "1 GiB x", "1,5 G", "0x10", "G",
    "1 Gi", "1 XB", "1 bytes", "9223372036854775808", "8 EiB", "1\n2", "١", -1, math.nan, math.inf,
    True, None, [], {}, b"1",
]  # fmt: skip


@pytest.mark.parametrize("text", NONSENSE)
@pytest.mark.parametrize("parse", [parse_bytes, parse_rate_bytes_per_s])
def test_what_is_no_size_is_refused_in_one_line_with_an_example(parse, text):
    with pytest.raises(ConfigError, match=r"^.* is not a (size|rate); write for example .*$") as e:
        parse(text)

    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "-1", "-1 s", "-1:00", "nan", "inf", "1e999", "1 parsec", "1h 30", "s", "1:60",
        "1:2:3:4", "١", "1-24", "1-2:60", "1:2.5", -1, math.nan, math.inf, True, None, [], b"1",
    ],
)  # fmt: skip
def test_what_is_no_duration_is_refused_in_one_line_with_an_example(text):
    with pytest.raises(ConfigError, match=r"^.* is not a duration; write for example .*$"):
        parse_duration_s(text)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "0 B"),
        (1024, "1 KiB"),
        (16 * 2**30, "16 GiB"),
        (2**20 - 1, "1 MiB"),
        (2**63, "8192 PiB"),
        (-2048, "-2 KiB"),
    ],
)
def test_a_size_is_shown_in_powers_of_1024(value, expected):
    actual = format_bytes(value)

    assert expected == actual


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.0, "0 B/s"), (61_234_567.0, "61.2 MB/s"), (40e6, "40 MB/s"), (999_990.0, "1 MB/s")],
)
def test_a_rate_is_shown_in_powers_of_1000(value, expected):
    actual = format_rate(value)

    assert expected == actual


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.0, "0 s"),
        (0.5, "500 ms"),
        (0.9999, "1 s"),
        (1.0, "1 s"),
        (59.99, "1m"),
        (5400.0, "1h30m"),
        (7_776_000.0, "90d"),
        (90061.4, "1d1h1m1s"),
        (-90.0, "-1m30s"),
    ],
)
def test_a_duration_is_shown_with_its_units(value, expected):
    actual = format_duration(value)

    assert expected == actual


@given(st.floats(min_value=0, max_value=2**62))
def test_what_is_shown_can_be_read_again(value):
    assert parse_bytes(format_bytes(value)) == pytest.approx(value, rel=0.06, abs=1)
    assert parse_rate_bytes_per_s(format_rate(value)) == pytest.approx(value, rel=0.06, abs=0.1)


@given(st.floats(min_value=0, max_value=1e9))
def test_a_duration_shown_can_be_read_again(value):
    assert parse_duration_s(format_duration(value)) == pytest.approx(value, rel=0.06, abs=1e-9)


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text):
    for parse in (parse_bytes, parse_rate_bytes_per_s, parse_duration_s):
        try:
            value = parse(text)
        except ConfigError:
            continue
        assert value >= 0
        assert math.isfinite(value)
