"""How long what could not be copied out of an ended job's space is kept, in virtual time."""

import msgspec
import pytest
from builders import Rig, exited, job, platform, reason, requeue, started, submitted, timer
from hypothesis import given
from hypothesis import strategies as st
from test_tiers import tier, wants
from tracing import then

from iodaemon.core import event as ev
from iodaemon.core.controller import Controller
from iodaemon.core.decision import Free
from iodaemon.core.explain import explain
from iodaemon.core.job import JobId
from iodaemon.core.lifecycle import shifted
from iodaemon.core.state import State

DAY_S = 86400.0
KEEP_S = 30 * DAY_S
REQUEST = wants(60, output_path="/out")


def machine(keep_s=KEEP_S, *records):
    rig = Rig(State(platform(4), (tier("fast", 100),)))
    rig.state.restore(records, JobId(9))
    rig.controller = Controller(rig.state, rig.controller.rules, seed=1, scratch_keep_s=keep_s)
    return rig


def kept(at_s, is_result=True, problem="full"):
    told = {"problem": problem, "is_result": is_result}
    return ev.ScratchKept(at_s=at_s, job_id=JobId(1), attempt=1, **told)


def unwanted(at_s):
    return ev.ScratchUnwanted(at_s=at_s, job_id=JobId(1), by="ann")


def removed(at_s):
    return ev.ScratchRemoved(at_s=at_s, job_id=JobId(1), attempt=1)


def reloaded(at_s, **limits):
    return ev.Reconfigured(at_s=at_s, by="ann", changes=("x",), **limits)


def keeping(keep_s=KEEP_S, word=None):
    """Job 1 has ended, and what it left could not be copied out at 10 s; the plan of that word."""
    rig = machine(keep_s)
    then(rig, submitted(job(1, scratch=REQUEST)), "start 1")
    then(rig, started(1.0))
    then(rig, exited(5.0), "free 1")
    return rig, then(rig, word or kept(10.0))


def freeing(rig, *, is_wanted=True):
    """The decision by which the space of job 1 is freed."""
    shares = rig.job().shares
    return Free(job_id=JobId(1), attempt=1, shares=shares, is_wanted=is_wanted)


def why(rig, now_s, job_id=1):
    told = explain(rig.state, rig.controller.rules, rig.job(job_id), now_s)
    return told.is_so + told.until


def test_after_that_time_it_is_removed_as_if_somebody_had_asked_and_that_is_told():
    rig, plan = keeping()
    wanted = freeing(rig)

    assert 10.0 + KEEP_S == plan.wake_at_s == rig.state.stock.kept_until_s(rig.job())
    assert "frees it; in 29 days it is removed by itself (scratch_keep)" in why(rig, 10.0 + DAY_S)

    then(rig, timer(9.9 + KEEP_S))
    plan = rig.step(timer(10.0 + KEEP_S))

    assert ([wanted], None) == (rig.backend.take(), plan.wake_at_s)
    assert "is being cleared: nobody had it copied for 30 days" in why(rig, 11.0 + KEEP_S)

    then(rig, removed(12.0 + KEEP_S), shares=(), scratch_unwanted_by="", staged=None)

    assert "ScratchKeep" == rig.job().scratch_unwanted.code
    assert (
        "; what it left in its scratch space was removed: nobody had it copied for 30 days "
        "(scratch_keep)"
    ) in why(rig, 13.0 + KEEP_S)


def test_without_a_time_it_is_kept_until_somebody_has_it_removed():
    rig, plan = keeping(None)
    wanted = freeing(rig)
    then(rig, timer(1e12))

    assert plan.wake_at_s is None
    assert "by itself" not in why(rig, 1e12)

    rig.step(unwanted(1e12))
    assert [wanted] == rig.backend.take()
    then(rig, kept(2e12, is_result=False, problem="something is mounted there"))
    then(rig, removed(3e12), scratch_unwanted_by="ann", staged=None)

    assert "ScratchRemove" == rig.job().scratch_unwanted.code
    assert "was removed: 'iod scratch remove' by ann" in why(rig, 3e12)


@pytest.mark.parametrize("is_result", [False, None])
def test_what_stays_for_another_reason_has_no_end(is_result):
    rig, plan = keeping(word=kept(10.0, is_result, "something is mounted there"))
    then(rig, timer(1e12))

    assert plan.wake_at_s is None


def test_who_asked_for_its_removal_is_believed_also_after_a_restart():
    rig, _ = keeping()
    then(rig, unwanted(20.0), "free 1")
    again = machine(KEEP_S, rig.job())

    assert [freeing(rig)] == again.state.unfreed
    then(again, kept(30.0))
    then(again, timer(1e12))  # it is asked for already


@pytest.mark.parametrize("down_s", [DAY_S, 2 * KEEP_S])
def test_a_restart_changes_nothing_of_its_time(down_s):
    rig, _ = keeping()
    record = msgspec.json.decode(msgspec.json.encode(rig.job()), type=type(rig.job()))
    again = machine(KEEP_S, record)

    assert [freeing(rig, is_wanted=False)] == again.state.unfreed
    plan = again.step(timer(10.0 + down_s))
    if down_s < KEEP_S:
        assert 10.0 + KEEP_S == plan.wake_at_s
        then(again, kept(10.0 + down_s), wakes=10.0 + KEEP_S)
        again.step(timer(10.0 + KEEP_S))
    assert [freeing(rig)] == again.backend.take()


def test_another_time_counts_at_once():
    rig, _ = keeping(None)
    then(rig, reloaded(20.0, scratch_keep_s=KEEP_S), wakes=10.0 + KEEP_S)
    then(rig, reloaded(30.0, scratch_keep_s=None), wakes=None)
    then(rig, reloaded(40.0, scratch_keep_s=DAY_S), wakes=10.0 + DAY_S)
    then(rig, reloaded(50.0))
    then(rig, reloaded(60.0, scratch_keep_s=50.0), "free 1")


def test_a_requeued_job_starts_when_the_time_of_its_old_result_is_over():
    rig, _ = keeping()
    then(rig, requeue(20.0))
    assert "in 29 days it is removed by itself (scratch_keep)" in why(rig, 10.0 + DAY_S)
    then(rig, timer(10.0 + KEEP_S), "free 1")
    anew = {"state": "STARTING", "attempt": 2, "scratch_unwanted": None}
    then(rig, removed(11.0 + KEEP_S), "start 1", **anew)


def test_who_waits_for_its_space_is_told_for_how_long_at_most():
    rig, _ = keeping()
    then(rig, submitted(job(2, scratch=REQUEST)))
    rig.state.reasons[JobId(2)] = reason("Storage", "needs 60 GiB of tier fast; 40 GiB are free")

    told = "(ended, kept until 'iod scratch remove 1', for 29 days at most)"
    assert told in why(rig, 10.0 + DAY_S, job_id=2)


def test_a_clock_that_was_set_changes_nothing_of_its_time():
    rig, _ = keeping()
    moved = shifted(rig.job(), 1e6)

    assert 10.0 + 1e6 == moved.scratch_kept_since_s
    assert (rig.job().ended_s, rig.job().since_s) == (moved.ended_s, moved.since_s)


WORDS = st.sampled_from(["kept", "elsewhere", "unknown", "remove", "restart", "timer"])


@given(
    st.floats(1.0, 1e6), st.lists(st.tuples(WORDS, st.floats(0.0, 5e5)), max_size=12), st.booleans()
)
def test_it_goes_at_its_time_once_and_never_before_whatever_is_told(keep_s, acts, is_requeued):
    """Nothing is asked for twice, no alarm is set for what is past, and no word delays the end."""
    rig, _ = keeping(keep_s)
    wanted = freeing(rig)
    if is_requeued:
        rig.step(requeue(10.0))
    now_s, since_s, is_kept, is_asked = 10.0, 10.0, True, False
    for act, later_s in acts:
        now_s += later_s
        event = timer(now_s)
        match act:
            case "kept" | "elsewhere" | "unknown":
                is_result = {"kept": True, "elsewhere": False}.get(act)
                event, is_kept = kept(now_s, is_result), True
                if is_result is not None:
                    since_s = (now_s if since_s is None else since_s) if is_result else None
            case "remove":
                event, is_kept, is_asked = unwanted(now_s), False, True
            case "restart":
                rig = machine(keep_s, rig.job())
        has_end = is_kept and not is_asked and since_s is not None
        is_due = has_end and since_s + keep_s <= now_s
        is_asked |= is_due
        is_kept &= not is_due
        plan = rig.step(event)

        assert ([wanted] if is_due or act == "remove" else []) == rig.backend.take()
        assert (since_s + keep_s if has_end and not is_due else None) == plan.wake_at_s
        assert plan.wake_at_s is None or plan.wake_at_s > now_s
        assert rig.job().scratch_unwanted is not None or rig.job().scratch_unwanted_by == ""
