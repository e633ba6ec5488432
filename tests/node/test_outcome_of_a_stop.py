"""What a job's end means when its machine, or the unit of all jobs, was stopped under it."""

import pytest

from iodaemon.backend.linux.outcome import ended
from iodaemon.core.job import JobId

STATUS = {
    "exit": {"code": None, "signal": None},
    "io": {"read_bytes": 1, "written_bytes": 2},
    "started_s": 1.0,
    "ended_s": 2.0,
}


def last_event(exit_, **fields):
    return ended(JobId(1), 1, {**STATUS, "exit": exit_, **fields}, 5.0)[-1]


@pytest.mark.parametrize(
    ("code", "signal", "is_lost"),
    [(None, 15, True), (None, 9, True), (143, None, True), (0, None, False), (None, 11, False)],
)
def test_only_what_died_of_the_stop_is_lost_with_it(code, signal, is_lost):
    event = last_event({"code": code, "signal": signal}, stopped_from_outside=True)

    assert is_lost == event.by_reboot
    assert is_lost == (event.exit.code is None and event.exit.signal is None)


def test_a_signal_from_anybody_else_is_an_end_like_any_other():
    event = last_event({"code": None, "signal": 15})

    assert (15, False) == (event.exit.signal, event.by_reboot)
