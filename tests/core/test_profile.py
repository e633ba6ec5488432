"""A profile from the words of a command."""

import pytest

from iodaemon.errors import ConfigError
from iodaemon.model.fair_link import FairLink
from iodaemon.model.flow import Flow
from iodaemon.model.node import (
    Compute,
    Hold,
    Profile,
    Read,
    Stage,
    Transfer,
    Write,
    parse_profile,
    table_scaling,
)


def test_words_are_steps_in_their_order():
    command = ["./job.sh", "compute=5s", "read=1GiB", "write=200MB", "compute=500ms", "exit=3"]

    profile = parse_profile(command)

    steps = (Compute(5.0), Read(2**30), Write(200_000_000), Compute(0.5))
    assert Profile(steps=steps, exit_code=3) == profile


@pytest.mark.parametrize("command", [[], ["sleep", "5"], ["dd", "if=/dev/zero", "bs=1M"]])
def test_a_command_that_says_nothing_computes_for_10_s(command):
    assert Profile(steps=(Compute(10.0),)) == parse_profile(command)


def test_an_exit_code_alone_ends_at_once():
    assert Profile(steps=(), exit_code=0) == parse_profile(["exit=0"])


def test_steps_over_links_and_the_number_of_rounds_are_words():
    profile = parse_profile(["job", "compute=1s", "transfer=1GiB", "stage=1kB", "repeat=10"])

    steps = (Compute(1.0), Transfer(2**30, "pfs"), Stage(1000, "pfs"))
    assert Profile(steps=steps, repeat=10) == profile


@pytest.mark.parametrize(("word", "speaks"), [("speaks=yes", True), ("speaks=no", False)])
def test_that_a_job_tells_of_its_io_is_a_word(word, speaks):
    profile = parse_profile(["job", "read=1kB", word])

    assert Profile(steps=(Read(1000),), speaks=speaks) == profile


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


@pytest.mark.parametrize("word", ["count=10", "of=/dev/null", "state=done", "--rate=5", "N=3"])
def test_words_of_plain_commands_are_no_slips(word):
    assert Profile(steps=(Compute(10.0),)) == parse_profile(["job", word])


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


def share(capacity, caps):
    """What flows with these caps get, what one without a cap would get, and is nothing left."""
    link = FairLink(capacity)
    flows = [Flow(1.0, number=number, cap_bytes_per_s=cap) for number, cap in enumerate(caps)]
    for flow in flows:
        link.add(flow)
    link.settle()
    return tuple(link.rate(flow) for flow in flows), link.level, link.is_full


def test_equal_shares_without_caps():
    assert share(90.0, [float("inf")] * 3) == ((30.0, 30.0, 30.0), 30.0, True)


def test_caps_below_the_level_raise_it_for_the_others():
    assert share(100.0, [50.0, 10.0, float("inf")]) == ((45.0, 10.0, 45.0), 45.0, True)


def test_where_all_are_capped_something_is_left():
    assert share(100.0, [20.0, 10.0]) == ((20.0, 10.0), 90.0, False)


def test_without_flows_all_is_left():
    assert share(100.0, []) == ((), 100.0, False)


def test_a_table_of_factors_holds_beyond_its_end():
    scaling = table_scaling([1.0, 0.8, 0.5])

    assert [scaling(streams) for streams in (1, 2, 3, 9)] == [1.0, 0.8, 0.5, 0.5]


@pytest.mark.parametrize("factors", [[], [1.0, 0.0]])
def test_a_table_that_stops_the_disk_is_refused(factors):
    with pytest.raises(ValueError, match="at least one factor, each above 0"):
        table_scaling(factors)
