"""JSON of whatever shape, shown to people."""

from __future__ import annotations

import pytest

from iodaemon.cli.output import document_lines, value_words


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("io_bound_bytes_per_s", 4e7, "40 MB/s"),
        ("reads_per_s", 13.25, "13.25/s"),
        ("memory_bytes", 2**30, "1 GiB"),
        ("timeslice_s", 1.0, "1 s"),
        ("load", 0.123456, "0.1235"),
        ("slots", 16, "16"),
        ("is_rotational", True, "yes"),
        ("cpus", [0, 1], "0, 1"),
        ("cpus", [], "none"),
        ("rate", {"a_s": 2, "b": None}, "a_s 2 s, b unknown"),
        ("source", "", "none"),
        ("capacity_bytes", None, "unknown"),
    ],
)
def test_values_carry_the_unit_of_their_name(key, value, words):
    assert words == value_words(key, value, "unknown")


def test_a_large_number_of_seconds_is_a_date():
    assert value_words("boot_s", 1_800_000_000.0, "")[:2] == "20"


def test_parts_stand_below_their_name_and_rows_in_a_table():
    document = {
        "sockets": [{"id": 0, "slots_free": 2}, {"id": 1, "slots_free": None}],
        "devices": [{"id": "vda", "load": {"busy_ratio": 0.5}}],
        "backend": "linux",
        "notes": [["a"], ["b"]],
    }

    expected = [
        "backend  linux",
        "sockets",
        "  ID SLOTS FREE",
        "  0  2",
        "  1  unknown",
        "devices",
        "  id  vda",
        "  load",
        "    busy ratio  0.5",
        "notes",
        "  a",
        "  b",
    ]
    assert expected == document_lines(document)
