"""What the supervisor's report of an end means to the controller."""

import time

import pytest

from iodaemon.core.sample import JobCounters
from iodaemon.node.outcome import Report, ended, failed, totals_of, was_killed
from iodaemon.supervisor.ledger import Key

USE = {"read_bytes": 1, "written_bytes": 2, "calls": 3, "cpu_us": 4, "logical_bytes": 5}
NOTHING = JobCounters()
LIMIT = {"killed": 1, "at_limit": 1, "limit_bytes": 96 << 20, "nodes": "1"}
SOCKET = {**LIMIT, "at_limit": 0, "killed": 3}
MACHINE = {**SOCKET, "nodes": "", "limit_bytes": None}


def report(code=None, signal=9, **fields):
    """Of a job that ran until now."""
    now_us = int(time.monotonic() * 1e6)
    how = {"exit": {"code": code, "signal": signal}, "use": USE, "whole": True}
    return {**how, "started_us": now_us - 5_000_000, "ended_us": now_us, **fields}


def told(found, *, oom_kills=0, staging=None, seen=NOTHING):
    """Its start and its end."""
    start, end = ended(
        Key(1, 1), found, 100.0, staging=staging, request=None, seen=seen, oom_kills=oom_kills
    )
    assert start.at_s == pytest.approx(end.at_s - 5.0, abs=0.5)
    return end


@pytest.mark.parametrize(
    ("memory", "text"),
    [
        (LIMIT, "1 process was killed: its limit of 96 MiB (--mem) was reached"),
        (
            SOCKET,
            "3 processes were killed: no memory was left on NUMA node 1, which is its socket's",
        ),
        (MACHINE, "3 processes were killed: the machine had no memory left"),
    ],
)
def test_whose_memory_ran_out_is_told_apart(memory, text):
    end = told(report(memory=memory))

    assert (text, True) == (end.note, end.exit.out_of_memory)


def test_a_job_that_went_on_without_the_killed_is_completed_with_a_note():
    end = told(report(code=0, signal=None, memory=MACHINE))

    assert not end.exit.out_of_memory
    assert "3 processes were killed" in end.note


@pytest.mark.parametrize(("cancelled", "written"), [(1, 1), (5, 0)])
def test_what_was_deleted_before_it_reached_the_disk_was_not_written(cancelled, written):
    """More than it wrote itself: another job's, or that of a process that runs on."""
    totals = totals_of({"use": {**USE, "cancelled_bytes": cancelled}})

    assert written == totals.written_bytes


@pytest.mark.parametrize("fields", [{}, {"memory": None}])
def test_any_other_kill_is_no_want_of_memory(fields):
    end = told(report(**fields))

    assert ("", False, 9) == (end.note, end.exit.out_of_memory, end.exit.signal)


def test_want_of_memory_that_is_not_counted_by_cgroup_is_told_as_probable():
    end = told(report(), oom_kills=2, staging=Report(problem="stage-out: no"))

    assert end.exit.out_of_memory
    assert (
        "stage-out: no; probably killed because memory ran out: the kernel killed 2 processes of "
        "this machine for that as it ended, and iodaemon sent it no signal"
    ) == end.note


@pytest.mark.parametrize(
    ("code", "number", "expected"),
    [(None, 9, True), (137, None, True), (None, 15, False), (1, None, False), (0, None, False)],
)
def test_a_job_or_its_last_command_may_have_been_killed(code, number, expected):
    assert expected is was_killed(report(code, number))


def test_what_never_ran_was_not_killed():
    assert not was_killed({"state": "failed", "code": "system", "problem": "fork: no memory"})


def test_a_job_that_was_stopped_with_all_jobs_is_lost_and_not_failed():
    end = told(report(signal=15, from_outside=True))

    assert (None, None, True) == (end.exit.code, end.exit.signal, end.by_reboot)
    assert (1, 2) == (end.io.read_bytes, end.io.written_bytes)


@pytest.mark.parametrize(
    ("code", "is_lasting", "expected"),
    [
        ("no_account", False, (None, True)),
        ("no_answer", False, (None, False)),
        ("output", True, (126, False)),
        ("no_account", True, (126, False)),
    ],
)
def test_a_start_that_failed_ends_or_holds_its_job_or_is_tried_again(code, is_lasting, expected):
    found = {"code": code, "is_lasting": is_lasting, "problem": "so\udcff"}
    event = failed(Key(1, 2), found, 5.0)

    assert expected == (event.exit_code, event.holds)
    assert (2, "so\\udcff") == (event.attempt, event.problem)


@pytest.mark.parametrize(("whole", "expected"), [(False, 10**9), (True, 4096)])
def test_a_total_that_may_be_too_low_is_not_below_what_was_seen(whole, expected):
    use = {**USE, "written_bytes": 4096, "cancelled_bytes": 0}
    found = report(code=0, signal=None, use=use, whole=whole)
    end = told(found, seen=JobCounters(written_bytes=10**9))

    assert (expected, not whole) == (end.io.written_bytes, end.io.at_least)
