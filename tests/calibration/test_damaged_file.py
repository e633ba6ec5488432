"""Whatever stands in the kept file, it is refused in one line, or everybody can live with it."""

import json
import logging
import re

import msgspec
import pytest
from calibrating import calibration, leaf, point
from hypothesis import given
from hypothesis import strategies as st

from iodaemon.calibration.knee import recommended
from iodaemon.calibration.record import (
    MOST_KEPT,
    MOST_TEXT,
    Calibration,
    Kept,
    calibrated,
    decode,
    encode,
    find_problem,
    known_leaves,
    plain,
)
from iodaemon.calibration.store import kept_file
from iodaemon.cli.calibrate import lines_of
from iodaemon.core.platform import Device
from iodaemon.daemon.calibrating import Measured
from iodaemon.doctor.disks import judge_calibration
from iodaemon.errors import ConfigError

RIGHT = json.loads(
    encode(Kept(calibrations=(calibration(leaf(points=[point(), point("write")])),)))
)
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
NUMBERS = st.one_of(
    st.integers(-(10**30), 10**30),
    st.floats(),
    st.sampled_from([0, -1, 1e300, -1e300, 2**63, 1e308, 5e-324]),
)
WORDS = st.one_of(st.text(), st.text(st.characters(codec="utf-8")), st.just("x" * (MOST_TEXT + 1)))
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, WORDS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(), inner, max_size=4)
    ),
    max_leaves=8,
)


def places(value, at=()):
    """The ways to all that lies in it."""
    yield at
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in items:
            yield from places(inner, (*at, key))


def with_value(whole, at, value):
    if not at:
        return value
    copied = whole.copy()
    copied[at[0]] = with_value(whole[at[0]], at[1:], value)
    return copied


def live_with(text):
    """What the daemon, ``iod node``, ``iod doctor`` and ``--show`` do with it, or a refusal."""
    try:
        kept = decode(text, "there")
    except ConfigError as error:
        refusal = str(error)
    else:
        refusal = ""
    if refusal:
        assert "\n" not in refusal
        return False
    assert decode(encode(kept), "there") == kept
    for made in kept.calibrations:
        "\n".join(lines_of(made)).encode()
        assert not CONTROL.search("".join(lines_of(made)))
        recommended(made.knees)
        find_problem(made, "6.1.0")
        identities = {each.name: each.identity for each in made.leaves}
        known = known_leaves(kept, identities)
        devices = calibrated([Device(id=name) for name in identities], known)
        assert all((each.capacity_bytes_per_s or 0.0) >= 0.0 for each in devices)
        row = {"device": "sda", "measured_s": made.at_s, "problem": ""}
        row["loaded_bytes_per_s"] = made.loaded_bytes_per_s
        list(judge_calibration([row]))
    return True


def test_the_right_one_is_taken():
    assert live_with(json.dumps(RIGHT).encode())


@given(st.data())
def test_a_nearly_right_one_is_refused_or_does_no_harm(data):
    whole = RIGHT
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.sampled_from(list(places(whole))))
        whole = with_value(whole, at, data.draw(VALUES))

    live_with(json.dumps(whole).encode(errors="surrogatepass"))


@given(st.one_of(VALUES.map(lambda value: json.dumps(value).encode()), st.binary()))
def test_anything_else_is_refused(text):
    assert not live_with(text)


@given(st.data())
def test_one_that_was_cut_off_or_has_a_byte_changed_is_refused_or_does_no_harm(data):
    text = bytearray(encode(Kept(calibrations=(calibration(),))))
    place = data.draw(st.integers(0, len(text) - 1))
    live_with(bytes(text[:place]))
    text[place] = data.draw(st.integers(0, 255))
    live_with(bytes(text))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("at_s", 1e300),
        ("loaded_bytes_per_s", -5),
        ("random_block_bytes", 0),
        ("path", "\x1b[2J"),
        ("leaves", [msgspec.to_builtins(leaf())] * 1025),
        *(
            ("leaves", [{**msgspec.to_builtins(leaf()), of_leaf: wrong}])
            for of_leaf, wrong in (("width", 0.5), ("name", "\x07"), ("most_bytes_per_s", 1e200))
        ),
    ],
)
def test_what_cannot_be_is_refused(field, value):
    made = {**RIGHT["calibrations"][0], field: value}

    assert not live_with(json.dumps({"version": 1, "calibrations": [made]}).encode())


def test_parts_in_one_another_without_end_are_refused_and_the_daemon_goes_on(tmp_path, caplog):
    deep = b'{"version": 1, "x": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    assert not live_with(deep)
    kept_file(tmp_path).write_bytes(deep)
    caplog.set_level(logging.WARNING)
    measured = Measured(tmp_path, {"sda": "wwid 1, 100 sectors"})

    assert measured.read([Device(id="sda")]) == (Device(id="sda"),)

    assert measured.report() == []
    assert "too deeply" in caplog.text


def test_a_control_character_is_told_in_words():
    made = {**RIGHT["calibrations"][0], "path": "\x1b[2J"}
    with pytest.raises(ConfigError) as caught:
        decode(json.dumps({"version": 1, "calibrations": [made]}).encode(), "here")

    assert str(caught.value) == (
        "here: no calibration: Expected `str` without control characters - at "
        "`$.calibrations[0].path`; remove it, 'iod calibrate PATH' makes a new one"
    )


def test_the_oldest_goes_when_there_are_too_many():
    kept = Kept()
    for number in range(MOST_KEPT + 3):
        kept = kept.with_new(calibration(leaf(identity=f"wwid {number}")))

    assert len(kept.calibrations) == MOST_KEPT
    assert kept.calibrations[-1].identities == {f"wwid {MOST_KEPT + 2}"}
    assert decode(encode(kept), "there") == kept


@given(st.text(st.characters()))
def test_any_text_can_be_made_one_that_may_be_kept(text):
    made = msgspec.structs.replace(calibration(), path=plain(text))

    found = msgspec.json.decode(msgspec.json.encode(made), type=Calibration)

    assert found == made
