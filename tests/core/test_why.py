"""Every state of a job, read aloud."""

import pytest
from builders import MB, counters, job, reason, sampled, started, submitted, suspended

from iodaemon.core import event as ev
from iodaemon.core.decision import Evidence, Weighed
from iodaemon.core.explain import explain
from iodaemon.core.job import JobId, JobState, Phase, Reason
from iodaemon.core.rule import Mode

ANN = Reason(code="Suspended", text="suspended by ann", cure="'iod resume 1'")
AGAIN = "'iod requeue 1' runs it again from its beginning"
BOUND = Reason(code="IoBound", text="all jobs move 90 MB/s, io_bound is 40 MB/s")


def told(rig, made, now_s=10.0):
    """What is said of a job: as it is, and until when."""
    if made.id not in rig.state.jobs:
        rig.state.add(made)
    found = explain(rig.state, rig.controller.rules, made, now_s)
    return found.is_so, found.until


def evidence(signal, quantity, part, allowed, verdict="suspend"):
    row = Weighed(job_id=JobId(1), rate_bytes_per_s=MB, load=part, verdict=verdict, why="x")
    return Evidence(
        at_s=1.0,
        signal=signal,
        quantity=quantity,
        value=1.0,
        threshold=1.0,
        load=1.0,
        allowed=allowed,
        fits=None,
        total_bytes_per_s=1.0,
        jobs=(row,),
    )


# -- before it runs ------------------------------------------------------------------------------


def test_a_held_job_says_who_holds_it_and_how_it_is_released(rig):
    assert ("waits to be released: suspended by ann", "'iod resume 1'") == told(
        rig, job(state=JobState.HELD, user_hold=True, reason=ANN)
    )


def test_the_first_in_the_queue_says_what_it_needs_and_who_has_it(rig):
    rig.run(job(1, cpus=2), job(2, cpus=2), job(3, cpus=2))

    assert (
        "waits: no room",
        "2 CPUs of one socket are free; CPUs are held by jobs 1, 2",
    ) == told(rig, rig.job(3))


def test_the_first_in_an_empty_machine_is_about_to_start(rig):
    assert ("is the next to start", "1 CPU of one socket is free") == told(rig, job())


def test_who_waits_behind_others_says_behind_how_many(rig):
    rig.run(job(1, cpus=2), job(2, cpus=2), job(3, cpus=2), job(4))

    assert (
        "waits behind 1 job submitted earlier",
        "those have started and 1 CPU of one socket is free",
    ) == told(rig, rig.job(4))


def test_a_job_that_fits_nowhere_says_so(rig):
    is_so, until = told(rig, job(cpus=64))

    assert is_so.startswith("can never start: asks for 64 CPUs, the largest socket has 2")
    assert "the machine is changed, or 'iod cancel 1'" == until


def test_a_job_that_cannot_start_for_now_says_what_is_in_the_way(rig):
    rig.step(ev.StartsBlocked(at_s=1.0, problem="the disk is full"))

    assert (
        "waits, as every job now: the disk is full",
        "that is mended; it then starts by itself",
    ) == told(rig, job())


def test_a_start_that_failed_for_now_is_tried_again(rig):
    rig.step(submitted(job()))
    rig.backend.take()
    rig.step(ev.StartFailed(at_s=4.0, job_id=JobId(1), attempt=1, problem="no process"))

    assert (
        "could not be started: no process; its command has not run",
        "the next attempt, in 4 s",
    ) == told(rig, rig.job())


def test_a_job_that_is_being_started_says_where(rig):
    assert (
        "is being started on socket 0, attempt 1",
        "its command runs, usually within a second",
    ) == told(rig, job(state=JobState.STARTING))


# -- while it runs -------------------------------------------------------------------------------


def measured(rig, **fields):
    rig.run(job(**fields))
    rig.regulate(1.0)
    rig.regulate(2.0)


def test_a_job_that_runs_says_where(rig):
    measured(rig)

    assert ("runs on socket 0", "its own end") == told(rig, rig.job())


def test_a_walltime_counts_running_alone(rig):
    measured(rig, walltime_s=600.0)

    assert "its own end, or its walltime: 10 min of running are left" == told(rig, rig.job())[1]


@pytest.mark.parametrize(
    ("after_s", "moved", "what"),
    [
        (5.0, None, "its I/O has not been measured yet"),
        (0.5, None, "its I/O cannot be read, so it is never suspended for it"),
        (0.5, counters(None, None), "its I/O cannot be read, so it is never suspended for it"),
        (0.5, counters(1), "its I/O has not been measured yet"),
    ],
)
def test_unknown_io_is_told(rig, after_s, moved, what):
    rig.step(submitted(job()))
    rig.backend.take()
    rig.state.put(rig.job())
    rig.step(started(after_s), sampled(1.0, {} if moved is None else {1: moved}))
    if after_s > 1.0:
        assert f"runs on socket 0; {what}" == told(rig, rig.job())[0]
    else:
        rig.state.meter._bandwidth.clear()
        assert f"runs on socket 0; {what}" == told(rig, rig.job())[0]


def test_a_job_that_may_not_be_suspended_says_so(rig):
    measured(rig, no_suspend=True)

    assert "runs on socket 0; it asked never to be suspended for I/O" == told(rig, rig.job())[0]


def test_a_job_that_stood_still_for_long_says_how_long_it_is_left_alone(rig):
    made = job(state=JobState.RUNNING, immune_until_s=400.0)

    assert (
        "runs on socket 0; it stood still for long, so it is not suspended again for 6 min"
        == told(rig, made)[0]
    )


def test_a_suspend_that_failed_is_told(rig):
    made = job(state=JobState.RUNNING, reason=Reason(code="SuspendFailed", text="it forks"))

    assert "runs on socket 0; could not be suspended: it forks" == told(rig, made)[0]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"io_hold": True, "io_held_since_s": 1.0, "hold_reason": BOUND}, f": {BOUND.text}"),
        ({"user_hold": True, "user_hold_reason": ANN}, ": suspended by ann"),
        ({"user_hold": True}, ""),
    ],
)
def test_a_suspend_that_is_on_its_way_says_for_what(rig, fields, why):
    made = job(state=JobState.RUNNING, freeze_asked=True, **fields)

    assert (
        f"is being suspended{why}",
        "its processes stand still; one that waits for a disk first gets its answer",
    ) == told(rig, made)


def test_a_job_that_was_resumed_lately_says_why_and_shows_the_table(rig):
    measured(rig)
    rig.state.evidence[JobId(1)] = evidence("total of all jobs", "bandwidth", MB, MB, "resume")

    found = explain(rig.state, rig.controller.rules, rig.job(), 10.0)
    assert "runs on socket 0; it came back 9 s ago: x" == found.is_so
    assert 1.0 == found.evidence.at_s
    assert "runs on socket 0" == told(rig, rig.job(), now_s=700.0)[0]


def test_in_shadow_a_job_says_since_when_it_would_stand_still(rig):
    measured(rig)
    rig.step(ev.ModeChanged(at_s=2.0, mode=Mode.SHADOW, by="ann"))
    rig.regulate(3.0, suspends=(1,))

    def seen(now_s):
        shadow = rig.controller.regulator.shadow
        return explain(rig.state, rig.controller.rules, rig.job(), now_s, shadow=shadow).is_so

    assert (
        "runs on socket 0; in shadow it would stand still, since 1.8 s ago: "
        "suspended by the regulation"
    ) == seen(4.8)
    rig.regulate(6.0, resumes=(1,))
    assert "runs on socket 0; in shadow it would have stood still for 3 s in all" == seen(9.0)
    rig.regulate(7.0, suspends=(1,))
    assert "would stand still, since 1 s ago, 4 s in all: " in seen(8.0)


# -- while it stands still -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("signal", "quantity", "part", "allowed", "room"),
    [
        (
            "total of all jobs",
            "bandwidth",
            50.0 * MB,
            40.0 * MB,
            "all together may bring 40.0 MB/s",
        ),
        (
            "wait of sda",
            "wait",
            8.0,
            4.0,
            "all together may bring 4.0",
        ),
    ],
)
def test_a_job_held_for_io_says_what_it_would_bring(rig, signal, quantity, part, allowed, room):
    made = job(state=JobState.SUSPENDED_IO, at_s=4.0, reason=BOUND)
    rig.state.add(made)
    rig.state.evidence[made.id] = evidence(signal, quantity, part, allowed)

    found = explain(rig.state, rig.controller.rules, made, 10.0)

    assert f"stands still so that the others' I/O gets on: {BOUND.text}" == found.is_so
    assert (
        f"there is room for its I/O ({room}); this is looked at every 1 s, and at the latest in "
        "10 min it runs in any case"
    ) == found.until
    assert (4.0, signal) == (found.since_s, found.evidence.signal)


def test_without_the_table_and_the_guard_less_is_said(rig):
    made = job(state=JobState.SUSPENDED_IO, reason=BOUND, max_suspend_s=30.0)

    assert (
        "there is room for its I/O; this is looked at every 1 s, and at the latest in 20 s it "
        "runs in any case"
    ) == told(rig, made)[1]


def test_a_job_that_is_being_resumed_says_so(rig):
    made = job(
        state=JobState.SUSPENDED_IO, io_hold=False, io_held_since_s=None, reason=BOUND, at_s=4.0
    )

    assert (
        f"stood still for others' I/O and is being resumed: {BOUND.text}",
        "its processes run again, usually within a second",
    ) == told(rig, made)


def test_a_job_that_is_being_resumed_says_why(rig):
    fits = Reason(code="Fits", text="predicted to fit")
    made = job(
        state=JobState.SUSPENDED_IO,
        io_hold=False,
        io_held_since_s=None,
        reason=BOUND,
        release_reason=fits,
    )

    assert told(rig, made)[0].endswith("and is being resumed: predicted to fit")


def test_a_job_that_was_found_standing_still_says_so(rig):
    rig.run(job())
    rig.step(suspended(1.0))
    rig.backend.take()

    assert "was found standing still; it is being resumed" == told(rig, rig.job())[0]


def test_a_job_that_a_person_suspended_says_who(rig):
    made = job(state=JobState.SUSPENDED_USER, reason=ANN, user_hold_reason=ANN)

    assert ("stands still: suspended by ann", "'iod resume 1'") == told(rig, made)


def test_a_job_that_an_administrator_suspended_says_who_may_let_it_go(rig):
    rig.run(job())
    rig.step(ev.SuspendRequested(at_s=1.0, job_id=1, by="root", by_uid=0))
    rig.step(suspended(2.0))
    rig.backend.take()

    assert ("stands still: suspended by root", "an administrator's 'iod resume 1'") == told(
        rig, rig.job()
    )


def test_a_job_that_both_hold_says_so(rig):
    made = job(
        state=JobState.SUSPENDED_USER,
        reason=ANN,
        io_hold=True,
        io_held_since_s=1.0,
        hold_reason=BOUND,
    )

    assert (
        f"stands still: suspended by ann; the regulation holds it as well: {BOUND.text}",
        "'iod resume 1', and then until there is room for its I/O",
    ) == told(rig, made)


# -- its end -------------------------------------------------------------------------------------


def test_a_job_that_is_asked_to_end_says_when_it_is_killed(rig):
    made = job(
        state=JobState.STOPPING,
        kill_at_s=17.0,
        stop_reason=reason("Cancelled", "cancelled by ann"),
    )

    assert (
        "is being ended: cancelled by ann; its processes were asked to end",
        "they have ended, or are killed in 7 s",
    ) == told(rig, made)


@pytest.mark.parametrize(
    ("why", "more"),
    [
        (reason("Cancelled", "cancelled by ann"), ""),
        (
            reason("StopDelayed", "process 7 waits for the disk"),
            ", but not all are gone: process 7 waits for the disk",
        ),
    ],
)
def test_a_job_that_was_killed_says_what_keeps_it(rig, why, more):
    made = job(
        state=JobState.STOPPING,
        kill_at_s=None,
        reason=why,
        stop_reason=reason("Cancelled", "cancelled by ann"),
    )

    assert (
        f"is being ended: cancelled by ann; its processes were killed{more}",
        "all are gone; one that waits for a disk goes when the disk has answered",
    ) == told(rig, made)


@pytest.mark.parametrize(
    ("end", "why", "text"),
    [
        (JobState.COMPLETED, None, "ended well, with exit code 0"),
        (JobState.COMPLETED, reason("Note", "adopted"), "ended well, with exit code 0; adopted"),
        (JobState.FAILED, reason("ExitCode", "exit code 3"), "failed: exit code 3"),
        (JobState.FAILED, None, "failed"),
        (
            JobState.FAILED,
            reason("StartFailed", "no such file"),
            "failed, its command could not be run: no such file",
        ),
        (
            JobState.CANCELLED,
            reason("Cancelled", "cancelled by ann"),
            "was ended: cancelled by ann",
        ),
        (
            JobState.TIMEOUT,
            reason("Walltime", "ran for its walltime of 5 s"),
            "was ended: ran for its walltime of 5 s",
        ),
        (JobState.OUT_OF_MEMORY, reason("OutOfMemory", "killed"), "ran out of memory: killed"),
        (
            JobState.LOST,
            None,
            f"was lost sight of: its exit could not be learned; {AGAIN}",
        ),
    ],
)
def test_every_end_is_told_and_waits_for_nothing(rig, end, why, text):
    assert (text, "") == told(rig, job(state=end, at_s=5.0, reason=why))


def test_a_job_that_only_the_journal_knows_is_explained(rig):
    made = job(state=JobState.FAILED, at_s=5.0, reason=reason("ExitCode", "exit code 3"))

    assert "failed: exit code 3" == explain(rig.state, rig.controller.rules, made, 9.0).is_so


@pytest.mark.parametrize(
    ("left_s", "text"),
    [
        (0.0, "0 s"),
        (0.314159, "0.31 s"),
        (1.8, "1.8 s"),
        (90.0, "90 s"),
        (600.0, "10 min"),
        (9000.0, "2.5 h"),
    ],
)
def test_durations_are_told_in_one_unit(rig, left_s, text):
    made = job(state=JobState.STOPPING, kill_at_s=10.0 + left_s)

    assert f"they have ended, or are killed in {text}" == told(rig, made)[1]


# -- turns ---------------------------------------------------------------------------------------


def test_a_job_that_waits_for_its_turn_says_behind_whom_and_for_how_long_at_most(rig):
    waiting = job(state=JobState.RUNNING, phase=Phase(asked_s=4.0, expect_bytes=2_000 * MB))
    rig.state.add(waiting)
    rig.state.waits[JobId(1)] = reason("IoTurn", "waits for its turn to do I/O: job 3 has it")

    found = explain(rig.state, rig.controller.rules, waiting, 10.0)
    assert found.is_so == (
        "runs on socket 0; waits for its turn to do I/O: job 3 has it; it told of 2000 MB"
    )
    assert found.until == "its turn, and at the latest in 10 min it goes on in any case"
    assert found.since_s == 4.0


def test_a_job_in_its_turn_says_since_when(rig):
    phase = Phase(asked_s=4.0, granted_s=7.0)

    assert (
        "it has its turn to do I/O, for 3 s"
        in told(rig, job(state=JobState.RUNNING, phase=phase))[0]
    )


def test_a_job_that_stands_still_out_of_its_turn_waits_for_it(rig):
    why = Reason(code="IoTurn", text="moved 50.0 MB/s out of its turn: job 3 has it")
    still = job(state=JobState.SUSPENDED_IO, reason=why, hold_reason=why)

    is_so, until = told(rig, still)
    assert is_so.endswith("gets on: moved 50.0 MB/s out of its turn: job 3 has it")
    assert until.startswith("it is its turn to do I/O; this is looked at every 1 s, and at the ")
