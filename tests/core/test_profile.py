"""A profile from the words of a command."""

import pytest

from iodaemon.backend.disk import share_equally
from iodaemon.backend.simulated import Compute, Profile, Read, Write, parse_profile, table_scaling
from iodaemon.errors import ConfigError


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


@pytest.mark.parametrize("word", ["compute=often", "read=much", "write=-5", "exit=-1", "exit=256"])
def test_a_quantity_that_cannot_be_read_is_refused(word):
    with pytest.raises(ConfigError):
        parse_profile(["job", word])


def test_equal_shares_without_caps():
    shares = share_equally(90.0, [float("inf")] * 3)

    assert (shares.rates, shares.level, shares.is_full) == ((30.0, 30.0, 30.0), 30.0, True)


def test_caps_below_the_level_raise_it_for_the_others():
    shares = share_equally(100.0, [50.0, 10.0, float("inf")])

    assert (shares.rates, shares.level, shares.is_full) == ((45.0, 10.0, 45.0), 45.0, True)


def test_where_all_are_capped_something_is_left():
    shares = share_equally(100.0, [20.0, 10.0])

    assert (shares.rates, shares.level, shares.is_full) == ((20.0, 10.0), 90.0, False)


def test_without_flows_all_is_left():
    shares = share_equally(100.0, [])

    assert (shares.rates, shares.level, shares.is_full) == ((), 100.0, False)


def test_a_table_of_factors_holds_beyond_its_end():
    scaling = table_scaling([1.0, 0.8, 0.5])

    assert [scaling(streams) for streams in (1, 2, 3, 9)] == [1.0, 0.8, 0.5, 0.5]


@pytest.mark.parametrize("factors", [[], [1.0, 0.0]])
def test_a_table_that_stops_the_disk_is_refused(factors):
    with pytest.raises(ValueError, match="at least one factor, each above 0"):
        table_scaling(factors)
