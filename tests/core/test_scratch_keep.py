"""How long what could not be copied out of an ended job's space is kept, in virtual time."""

import msgspec
import pytest
from builders import Rig, exited, job, platform, reason, requeue, started, submitted, timer
from hypothesis import given
from hypothesis import strategies as st

from iodaemon.core import event as ev
from iodaemon.core.controller import Controller
from iodaemon.core.decision import Free, Start
from iodaemon.core.explain import explain
from iodaemon.core.job import DiskId, JobId, JobState, ScratchRequest, Share, TierName
from iodaemon.core.lifecycle import shifted
from iodaemon.core.state import State
from iodaemon.core.storage import Disk, Storage, StorageNode, Tier

DAY_S = 86400.0
KEEP_S = 30 * DAY_S
SHARES = (Share(tier=TierName("fast"), disk=DiskId("/fast"), size_bytes=60),)
WANTED = Free(job_id=JobId(1), attempt=1, shares=SHARES, is_wanted=True)
REQUEST = ScratchRequest(size_bytes=60, output_path="/out")


def tiers():
    disk = Disk(id=DiskId("/fast"), capacity_bytes=100, read_bytes_per_s=1e9, write_bytes_per_s=1e9)
    storage = Storage(nodes=(StorageNode(id="fast", disks=(disk,)),))
    return (Tier(name=TierName("fast"), storage=storage, bandwidth_bytes_per_s=1e9),)


def machine(keep_s=KEEP_S, *records):
    rig = Rig(State(platform(4), tiers()))
    rig.state.restore(records, JobId(9))
    rig.controller = Controller(rig.state, rig.controller.rules, seed=1, scratch_keep_s=keep_s)
    return rig


def kept(at_s, is_result=True, problem="full"):
    return ev.ScratchKept(
        at_s=at_s, job_id=JobId(1), attempt=1, problem=problem, is_result=is_result
    )


def unwanted(at_s):
    return ev.ScratchUnwanted(at_s=at_s, job_id=JobId(1), by="ann")


def removed(at_s):
    return ev.ScratchRemoved(at_s=at_s, job_id=JobId(1), attempt=1)


def keeping(keep_s=KEEP_S, at_s=10.0):
    """Job 1 has ended, and what it left could not be copied out at this time."""
    rig = machine(keep_s)
    rig.step(submitted(job(1, scratch=REQUEST)))
    rig.step(started(1.0))
    rig.step(exited(5.0))
    rig.backend.take()
    return rig, rig.step(kept(at_s))


def why(rig, now_s):
    told = explain(rig.state, rig.controller.rules, rig.job(), now_s)
    return told.is_so + told.until


def test_after_that_time_it_is_removed_as_if_somebody_had_asked_and_that_is_told():
    rig, plan = keeping()

    assert 10.0 + KEEP_S == plan.wake_at_s
    assert 10.0 + KEEP_S == rig.state.stock.kept_until_s(rig.job())
    assert "frees it; in 29 days it is removed by itself (scratch_keep)" in why(rig, 10.0 + DAY_S)

    rig.step(timer(9.9 + KEEP_S))
    assert [] == rig.backend.take()
    plan = rig.step(timer(10.0 + KEEP_S))

    assert [WANTED] == rig.backend.take()
    assert plan.wake_at_s is None
    assert "is being cleared: nobody had it copied for 30 days" in why(rig, 11.0 + KEEP_S)

    rig.step(removed(12.0 + KEEP_S))

    assert () == rig.job().shares
    assert "ScratchKeep" == rig.job().scratch_unwanted.code
    assert (
        "; what it left in its scratch space was removed: nobody had it copied for 30 days "
        "(scratch_keep)"
    ) in why(rig, 13.0 + KEEP_S)


def test_without_a_time_it_is_kept_until_somebody_has_it_removed():
    rig, plan = keeping(None)
    rig.step(timer(1e12))

    assert plan.wake_at_s is None
    assert [] == rig.backend.take()
    assert "by itself" not in why(rig, 1e12)

    rig.step(unwanted(1e12))
    rig.step(removed(1e12))

    assert [WANTED] == rig.backend.take()
    assert "was removed: 'iod scratch remove' by ann" in why(rig, 1e12)


@pytest.mark.parametrize("is_result", [False, None])
def test_what_stays_for_another_reason_has_no_end(is_result):
    rig = machine()
    rig.step(submitted(job(1, scratch=REQUEST)))
    rig.step(started(1.0))
    rig.step(exited(5.0))
    rig.backend.take()
    plan = rig.step(kept(10.0, is_result, "something is mounted there"))
    rig.step(timer(1e12))

    assert plan.wake_at_s is None
    assert [] == rig.backend.take()


def test_who_asked_for_its_removal_is_kept_with_the_job():
    rig, _ = keeping()
    rig.step(unwanted(20.0))
    rig.backend.take()
    asked = rig.job()

    assert ("ScratchRemove", "ann") == (asked.scratch_unwanted.code, asked.scratch_unwanted_by)


def test_nobody_is_named_where_its_time_was_over():
    rig, _ = keeping()
    rig.step(timer(1e12))
    rig.backend.take()

    assert ("ScratchKeep", "") == (
        rig.job().scratch_unwanted.code,
        rig.job().scratch_unwanted_by,
    )


def test_who_asked_for_its_removal_is_believed_also_after_a_restart():
    rig, _ = keeping()
    rig.step(unwanted(20.0))
    rig.backend.take()
    again = machine(KEEP_S, rig.job())

    assert [WANTED] == again.state.unfreed
    again.step(kept(30.0))
    again.step(timer(1e12))
    assert [] == again.backend.take(), "it is asked for already"


@pytest.mark.parametrize("down_s", [DAY_S, 2 * KEEP_S])
def test_a_restart_changes_nothing_of_its_time(down_s):
    rig, _ = keeping()
    record = msgspec.json.decode(msgspec.json.encode(rig.job()), type=type(rig.job()))
    again = machine(KEEP_S, record)

    assert [Free(job_id=JobId(1), attempt=1, shares=SHARES)] == again.state.unfreed
    plan = again.step(timer(10.0 + down_s))
    if down_s < KEEP_S:
        assert 10.0 + KEEP_S == plan.wake_at_s
        assert 10.0 + KEEP_S == again.step(kept(10.0 + down_s)).wake_at_s
        again.step(timer(10.0 + KEEP_S))
    assert [WANTED] == again.backend.take()


def reloaded(at_s, keep_s):
    return ev.Reconfigured(at_s=at_s, by="ann", changes=("x",), scratch_keep_s=keep_s)


def test_another_time_counts_at_once():
    rig, _ = keeping(None)

    assert 10.0 + KEEP_S == rig.step(reloaded(20.0, KEEP_S)).wake_at_s
    assert rig.step(reloaded(30.0, None)).wake_at_s is None
    assert 10.0 + DAY_S == rig.step(reloaded(40.0, DAY_S)).wake_at_s
    rig.step(ev.Reconfigured(at_s=50.0, by="ann", changes=("x",)))
    assert [] == rig.backend.take()
    rig.step(reloaded(60.0, 50.0))
    assert [WANTED] == rig.backend.take()


def test_a_requeued_job_starts_when_the_time_of_its_old_result_is_over():
    rig, _ = keeping()
    rig.step(requeue(20.0))
    assert "in 29 days it is removed by itself (scratch_keep)" in why(rig, 10.0 + DAY_S)
    rig.step(timer(10.0 + KEEP_S))
    rig.step(removed(11.0 + KEEP_S))

    assert [WANTED, Start] == [d if d == WANTED else type(d) for d in rig.backend.take()]
    assert (JobState.STARTING, 2) == (rig.job().state, rig.job().attempt)
    assert rig.job().scratch_unwanted is None


def test_who_waits_for_its_space_is_told_for_how_long_at_most():
    rig, _ = keeping()
    rig.step(submitted(job(2, scratch=REQUEST)))
    rig.state.reasons[JobId(2)] = reason("Storage", "needs 60 B of tier fast; 40 B are free")
    told = explain(rig.state, rig.controller.rules, rig.job(2), 10.0 + DAY_S)

    assert "(ended, kept until 'iod scratch remove 1', for 29 days at most)" in told.until


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

        assert ([WANTED] if is_due or act == "remove" else []) == rig.backend.take()
        assert (since_s + keep_s if has_end and not is_due else None) == plan.wake_at_s
        assert plan.wake_at_s is None or plan.wake_at_s > now_s
        assert rig.job().scratch_unwanted is not None or rig.job().scratch_unwanted_by == ""


def test_what_was_removed_was_not_copied_out():
    rig, _ = keeping()
    rig.step(unwanted(20.0))
    rig.step(kept(25.0, is_result=False, problem="something is mounted there"))
    rig.step(removed(30.0))

    assert rig.job().staged is None
