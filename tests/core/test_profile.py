"""A profile from the words of a command."""

import pytest

from iodaemon.errors import ConfigError
from iodaemon.model.node import (
    Compute,
    Hold,
    Profile,
    Read,
    Stage,
    Transfer,
    Write,
    parse_profile,
)

TEN_S = Profile(steps=(Compute(10.0),))
WORDS = {
    "./job.sh compute=5s read=1GiB write=200MB compute=500ms exit=3": Profile(
        steps=(Compute(5.0), Read(2**30), Write(200_000_000), Compute(0.5)), exit_code=3
    ),
    "job compute=1s transfer=1GiB stage=1kB repeat=10": Profile(
        steps=(Compute(1.0), Transfer(2**30, "pfs"), Stage(1000, "pfs")), repeat=10
    ),
    "exit=0": Profile(steps=(), exit_code=0),
    "job read=1kB speaks=yes": Profile(steps=(Read(1000),), speaks=True),
    "job read=1kB speaks=no": Profile(steps=(Read(1000),)),
    **dict.fromkeys(["", "sleep 5", "dd if=/dev/zero bs=1M count=10 of=/dev/null"], TEN_S),
    **dict.fromkeys(["job state=done", "job --rate=5", "job N=3"], TEN_S),  # no slips of a word
}


@pytest.mark.parametrize(("command", "profile"), WORDS.items())
def test_words_are_steps_in_their_order(command, profile):
    assert profile == parse_profile(command.split())


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("compte=5s", "compute=5s"),
        ("wirte=1GB", "write=1GB"),
        ("trasfer=1GiB", "transfer=1GiB"),
        ("repaet=10", "repeat=10"),
        ("exti=3", "exit=3"),
        ("speks=yes", "speaks=yes"),
    ],
)
def test_a_slip_is_refused_with_the_word_that_was_meant(word, meant):
    with pytest.raises(ConfigError, match=f"{word}: no such step; did you mean {meant}?"):
        parse_profile(["job", "read=1GB", word])


@pytest.mark.parametrize(
    "fields",
    [
        {"steps": (Compute(-1.0),)},
        {"steps": (Transfer(float("inf"), "pfs"),)},
        {"steps": (Transfer(1.0, "pfs", 0.0),)},
        {"steps": (Stage(1.0, "pfs", None, 0.0),)},
        {"steps": (), "repeat": 0},
        {"steps": (), "holds": (Hold("bb", 1), Hold("bb", 2))},
        {"steps": (), "holds": (Hold("bb", -1),)},
    ],
)
def test_a_profile_that_makes_no_sense_is_refused(fields):
    with pytest.raises(ValueError):  # noqa: PT011 - the fields are the reason
        Profile(**fields)


@pytest.mark.parametrize(
    "word",
    ["compute=often", "read=much", "write=-5", "exit=-1", "exit=256", "repeat=0", "speaks=1"],
)
def test_a_quantity_that_cannot_be_read_is_refused(word):
    with pytest.raises(ConfigError):
        parse_profile(["job", word])
