"""Every state of a job, read aloud."""

import pytest
from builders import MB, counters, job, reason, sampled, started, submitted, suspended
from tracing import measured, then, timeslice

from iodaemon.core import event as ev
from iodaemon.core.decision import Evidence, Weighed
from iodaemon.core.explain import explain
from iodaemon.core.job import JobId, JobState, Phase, Reason
from iodaemon.core.rule import Mode

ANN = Reason(code="Suspended", text="suspended by ann", cure="'iod resume 1'")
AGAIN = "'iod requeue 1' runs it again from its beginning"
BOUND = Reason(code="IoBound", text="all jobs move 90 MB/s, io_bound is 40 MB/s")
FITS = Reason(code="Fits", text="predicted to fit")
TURN = Reason(code="IoTurn", text="moved 50.0 MB/s out of its turn: job 3 has it")
CANCELLED = reason("Cancelled", "cancelled by ann")
STUCK = reason("StopDelayed", "process 7 waits for the disk")
SAFETY = "this is looked at every 1 s, and at the latest in"


def explained(rig, made, now_s=10.0, **known):
    if made.id not in rig.state.jobs:
        rig.state.add(made)
    return explain(rig.state, rig.controller.rules, made, now_s, **known)


def told(rig, made, now_s=10.0):
    """What is said of a job: as it is, and until when."""
    found = explained(rig, made, now_s)
    return found.is_so, found.until


def evidence(signal, quantity, part, allowed, verdict="suspend"):
    row = Weighed(job_id=JobId(1), rate_bytes_per_s=MB, load=part, verdict=verdict, why="x")
    ones = dict.fromkeys(("at_s", "value", "threshold", "load", "total_bytes_per_s"), 1.0)
    said = {"signal": signal, "quantity": quantity, "allowed": allowed, "fits": None}
    return Evidence(jobs=(row,), **ones, **said)


# -- as a job stands there -------------------------------------------------------------------------


def running(**fields):
    return job(state=JobState.RUNNING, **fields)


def held(**fields):
    return job(state=JobState.SUSPENDED_IO, **{"reason": BOUND} | fields)


def released(**fields):
    return held(io_hold=False, io_held_since_s=None, **fields)


def still(**fields):
    return job(state=JobState.SUSPENDED_USER, reason=ANN, **fields)


def ending(left_s, why=CANCELLED):
    kill_at_s = None if left_s is None else 10.0 + left_s
    return job(state=JobState.STOPPING, kill_at_s=kill_at_s, reason=why, stop_reason=CANCELLED)


def ended(state, *why):
    return job(state=JobState[state], at_s=5.0, reason=reason(*why) if why else None)


BY_IO = {"io_hold": True, "io_held_since_s": 1.0, "hold_reason": BOUND}
FREEZING = {"freeze_asked": True}
STILL = "its processes stand still; one that waits for a disk first gets its answer"
AGAIN_S = "its processes run again, usually within a second"
GONE = "all are gone; one that waits for a disk goes when the disk has answered"
ASKED = "is being ended: cancelled by ann; its processes were"
SAID = [
    (
        job(state=JobState.HELD, user_hold=True, reason=ANN),
        "waits to be released: suspended by ann",
        "'iod resume 1'",
    ),
    (job(), "is the next to start", "1 CPU of one socket is free"),
    (
        job(state=JobState.STARTING),
        "is being started on socket 0, attempt 1",
        "its command runs, usually within a second",
    ),
    (
        running(immune_until_s=400.0),
        "runs on socket 0; it stood still for long, so it is not suspended again for 6 min",
        "its own end",
    ),
    (
        running(reason=Reason(code="SuspendFailed", text="it forks")),
        "runs on socket 0; could not be suspended: it forks",
        "its own end",
    ),
    (
        running(phase=Phase(asked_s=4.0, granted_s=7.0)),
        "runs on socket 0; it has its turn to do I/O, for 3 s",
        "its own end",
    ),
    (running(**FREEZING, **BY_IO), f"is being suspended: {BOUND.text}", STILL),
    (
        running(**FREEZING, user_hold=True, user_hold_reason=ANN),
        "is being suspended: suspended by ann",
        STILL,
    ),
    (running(**FREEZING, user_hold=True), "is being suspended", STILL),
    (
        held(max_suspend_s=30.0),
        f"stands still so that the others' I/O gets on: {BOUND.text}",
        f"there is room for its I/O; {SAFETY} 20 s it runs in any case",
    ),
    (
        held(reason=TURN, hold_reason=TURN),
        f"stands still so that the others' I/O gets on: {TURN.text}",
        f"it is its turn to do I/O; {SAFETY} 10 min it runs in any case",
    ),
    (released(), f"stood still for others' I/O and is being resumed: {BOUND.text}", AGAIN_S),
    (
        released(release_reason=FITS),
        "stood still for others' I/O and is being resumed: predicted to fit",
        AGAIN_S,
    ),
    (still(user_hold_reason=ANN), "stands still: suspended by ann", "'iod resume 1'"),
    (
        still(**BY_IO),
        f"stands still: suspended by ann; the regulation holds it as well: {BOUND.text}",
        "'iod resume 1', and then until there is room for its I/O",
    ),
    (ending(7.0), f"{ASKED} asked to end", "they have ended, or are killed in 7 s"),
    (ending(None), f"{ASKED} killed", GONE),
    (ending(None, STUCK), f"{ASKED} killed, but not all are gone: {STUCK.text}", GONE),
    (ended("COMPLETED"), "ended well, with exit code 0", ""),
    (ended("COMPLETED", "Note", "adopted"), "ended well, with exit code 0; adopted", ""),
    (ended("FAILED", "ExitCode", "exit code 3"), "failed: exit code 3", ""),
    (ended("FAILED"), "failed", ""),
    (
        ended("FAILED", "StartFailed", "no such file"),
        "failed, its command could not be run: no such file",
        "",
    ),
    (ended("CANCELLED", "Cancelled", "cancelled by ann"), "was ended: cancelled by ann", ""),
    (ended("TIMEOUT", "Walltime", "ran for 5 s"), "was ended: ran for 5 s", ""),
    (ended("OUT_OF_MEMORY", "OutOfMemory", "killed"), "ran out of memory: killed", ""),
    (ended("LOST"), f"was lost sight of: its exit could not be learned; {AGAIN}", ""),
]


@pytest.mark.parametrize(("made", "is_so", "until"), SAID, ids=[each[1] for each in SAID])
def test_a_job_says_how_it_is_and_until_when(rig, made, is_so, until):
    assert (is_so, until) == told(rig, made)


@pytest.mark.parametrize(
    ("left_s", "text"),
    [
        (0.0, "0 s"),
        (0.314, "0.31 s"),
        (1.8, "1.8 s"),
        (90.0, "90 s"),
        (600.0, "10 min"),
        (9e3, "2.5 h"),
    ],
)
def test_durations_are_told_in_one_unit(rig, left_s, text):
    assert f"they have ended, or are killed in {text}" == told(rig, ending(left_s))[1]


# -- as it came there ------------------------------------------------------------------------------


def test_a_job_that_only_the_journal_knows_is_explained(rig):
    made = ended("FAILED", "ExitCode", "exit code 3")

    assert "failed: exit code 3" == explain(rig.state, rig.controller.rules, made, 9.0).is_so


def test_the_first_in_the_queue_says_what_it_needs_and_those_behind_how_many_are_before(rig):
    rig.run(job(1, cpus=2), job(2, cpus=2), job(3, cpus=2), job(4))

    needs = "2 CPUs of one socket are free; CPUs are held by jobs 1, 2"
    assert ("waits: no room", needs) == told(rig, rig.job(3))
    behind = "those have started and 1 CPU of one socket is free"
    assert ("waits behind 1 job submitted earlier", behind) == told(rig, rig.job(4))


def test_a_job_that_fits_nowhere_says_so(rig):
    is_so, until = told(rig, job(cpus=64))

    assert is_so.startswith("can never start: asks for 64 CPUs, the largest socket has 2")
    assert "the machine is changed, or 'iod cancel 1'" == until


def test_a_job_that_cannot_start_for_now_says_what_is_in_the_way(rig):
    then(rig, ev.StartsBlocked(at_s=1.0, problem="the disk is full"))

    waits = "waits, as every job now: the disk is full"
    assert (waits, "that is mended; it then starts by itself") == told(rig, job())


def test_a_start_that_failed_for_now_is_tried_again(rig):
    then(rig, submitted(job()), "start 1")
    then(rig, ev.StartFailed(at_s=4.0, job_id=JobId(1), attempt=1, problem="no process"))

    is_so = "could not be started: no process; its command has not run"
    assert (is_so, "the next attempt, in 4 s") == told(rig, rig.job())

    then(rig, ev.DrainBegun(at_s=7.0, by="root", reason="a new disk"))
    drained = "nothing starts, the node is drained by root: a new disk"
    assert f"waits, as every job now: {drained}, for 3 s" == told(rig, rig.job())[0]


@pytest.mark.parametrize(
    ("fields", "more", "until"),
    [
        ({}, "", "its own end"),
        ({"walltime_s": 600.0}, "", "its own end, or its walltime: 10 min of running are left"),
        ({"no_suspend": True}, "; it asked never to be suspended for I/O", "its own end"),
    ],
)
def test_a_job_that_runs_says_where(rig, fields, more, until):
    measured(rig, job(**fields))

    assert (f"runs on socket 0{more}", until) == told(rig, rig.job())


HIDDEN = "its I/O cannot be read, so it is never suspended for it"
NOT_YET = "its I/O has not been measured yet"


@pytest.mark.parametrize(
    ("after_s", "moved", "what"),
    [
        (5.0, None, NOT_YET),
        (0.5, None, HIDDEN),
        (0.5, counters(None, None), HIDDEN),
        (0.5, counters(1), NOT_YET),
    ],
)
def test_unknown_io_is_told(rig, after_s, moved, what):
    then(rig, submitted(job()), "start 1")
    then(rig, (started(after_s), sampled(1.0, {} if moved is None else {1: moved})))
    if after_s < 1.0:
        rig.state.meter._bandwidth.clear()

    assert f"runs on socket 0; {what}" == told(rig, rig.job())[0]


def test_a_job_that_was_resumed_lately_says_why_and_shows_the_table(rig):
    measured(rig, job())
    rig.state.evidence[JobId(1)] = evidence("total of all jobs", "bandwidth", MB, MB, "resume")
    found = explained(rig, rig.job())

    assert ("runs on socket 0; it came back 9 s ago: x", 1.0) == (found.is_so, found.evidence.at_s)
    assert "runs on socket 0" == told(rig, rig.job(), now_s=700.0)[0]


def test_in_shadow_a_job_says_since_when_it_would_stand_still(rig):
    measured(rig, job())
    then(rig, ev.ModeChanged(at_s=2.0, mode=Mode.SHADOW, by="ann"))
    seen = []
    for at_s, now_s, plan in ((3, 4.8, "suspends"), (6, 9.0, "resumes"), (7, 8.0, "suspends")):
        then(rig, timeslice(rig, at_s, **{plan: (1,)}))
        shadow = rig.controller.regulator.shadow
        seen.append(explained(rig, rig.job(), now_s, shadow=shadow).is_so)

    for_what = "suspended by the regulation"
    assert [
        f"runs on socket 0; in shadow it would stand still, since 1.8 s ago: {for_what}",
        "runs on socket 0; in shadow it would have stood still for 3 s in all",
        f"runs on socket 0; in shadow it would stand still, since 1 s ago, 4 s in all: {for_what}",
    ] == seen


@pytest.mark.parametrize(
    ("signal", "quantity", "part", "allowed", "room"),
    [
        ("total of all jobs", "bandwidth", 50.0 * MB, 40.0 * MB, "40.0 MB/s"),
        ("wait of sda", "wait", 8.0, 4.0, "4.0"),
    ],
)
def test_a_job_held_for_io_says_what_it_would_bring(rig, signal, quantity, part, allowed, room):
    rig.state.evidence[JobId(1)] = evidence(signal, quantity, part, allowed)
    found = explained(rig, held(at_s=4.0))

    together = f"all together may bring {room}"
    until = f"there is room for its I/O ({together}); {SAFETY} 10 min it runs in any case"
    assert until == found.until
    assert (4.0, signal) == (found.since_s, found.evidence.signal)


def test_a_job_that_was_found_standing_still_says_so(rig):
    rig.run(job())
    then(rig, suspended(1.0), "resume 1")

    assert "was found standing still; it is being resumed" == told(rig, rig.job())[0]


def test_a_job_that_an_administrator_suspended_says_who_may_let_it_go(rig):
    rig.run(job())
    then(rig, ev.SuspendRequested(at_s=1.0, job_id=1, by="root", by_uid=0), "suspend 1")
    then(rig, suspended(2.0))

    until = "an administrator's 'iod resume 1'"
    assert ("stands still: suspended by root", until) == told(rig, rig.job())


def test_a_job_that_waits_for_its_turn_says_behind_whom_and_for_how_long_at_most(rig):
    waiting = running(phase=Phase(asked_s=4.0, expect_bytes=2_000 * MB))
    rig.state.add(waiting)
    rig.state.waits[JobId(1)] = reason("IoTurn", "waits for its turn to do I/O: job 3 has it")
    found = explained(rig, waiting)

    told_of = "waits for its turn to do I/O: job 3 has it; it told of 2000 MB"
    assert f"runs on socket 0; {told_of}" == found.is_so
    assert "its turn, and at the latest in 10 min it goes on in any case" == found.until
    assert 4.0 == found.since_s
