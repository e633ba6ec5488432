"""Disks of tiers that are of no use for a while: nobody is sent there, nobody is held for them."""

import pytest
from builders import Rig, exited, job, platform, started, submitted
from hypothesis import given
from hypothesis import strategies as st
from test_tiers import RULES, fcfs, removed, sizes_of, tier, wants

from iodaemon.core import event as ev
from iodaemon.core.explain import explain
from iodaemon.core.job import DiskId, JobId, JobState
from iodaemon.core.state import State

READ_ONLY = "tier fast: disk /x is read-only; mount it writable"


def failed(at_s, job_id=1, attempt=1, *, disk="fast0", **fields):
    return ev.StartFailed(
        at_s=at_s, job_id=JobId(job_id), attempt=attempt, problem=READ_ONLY, disk=disk, **fields
    )


def seen(at_s, disk="fast0", problem=""):
    return ev.DiskSeen(at_s=at_s, disk=DiskId(disk), problem=problem)


def met(*tiers, **fields):
    """A machine on which job 1 could not have its directory on the first disk."""
    rig = fcfs(*tiers)
    rig.step(submitted(job(1, scratch=wants(30, **fields))))
    assert {"fast0": 30} == sizes_of(rig.job())
    rig.step(failed(1.0))
    return rig


def test_who_met_it_is_put_on_another_disk_at_once():
    rig = met(tier("fast", 100, 90))
    assert JobState.PENDING is rig.job().state

    rig.step(removed(1.1))

    assert (JobState.STARTING, 2) == (rig.job().state, rig.job().attempt)
    assert {"fast1": 30} == sizes_of(rig.job())
    rig.state.check()


def test_who_met_it_falls_back_as_it_asked():
    rig = met(tier("fast", 100), tier("slow"), fallback="slow")
    rig.step(removed(1.1))

    assert (JobState.STARTING, (), "slow") == (rig.job().state, rig.job().shares, rig.job().tier)


def test_who_asked_to_fail_then_fails_and_is_told():
    rig = met(tier("fast", 100), tier("slow"), fallback="fail")
    rig.step(removed(1.1))

    assert JobState.FAILED is rig.job().state
    assert READ_ONLY in rig.job().reason.text


def test_who_waits_is_told_which_disk_and_keeps_its_place():
    rig = met(tier("fast", 100))
    rig.step(removed(1.1), submitted(job(2, scratch=wants(10), submitted_s=1.1)))
    told = explain(rig.state, rig.controller.rules, rig.job(), 2.0)

    assert [JobState.PENDING] * 2 == [rig.job(1).state, rig.job(2).state]
    assert READ_ONLY in told.is_so
    assert f"a disk is mended, which is seen within a minute ({READ_ONLY})" in told.until
    assert 0 == rig.state.stock.free_bytes()["fast0"]

    rig.step(seen(60.0))

    assert {"fast0": 30} == sizes_of(rig.job(1))
    assert {"fast0": 10} == sizes_of(rig.job(2))
    rig.state.check()


def test_what_others_hold_of_it_they_keep_and_give_back():
    rig = fcfs(tier("fast", 100))
    rig.step(submitted(job(1, scratch=wants(30))), submitted(job(2, scratch=wants(30))))
    rig.step(started(0.5, job_id=1))
    rig.step(failed(1.0, job_id=2))
    rig.step(removed(1.1, job_id=2), submitted(job(3, scratch=wants(30), submitted_s=1.1)))
    assert {"fast0": 30} == sizes_of(rig.job(1))

    rig.step(exited(2.0, job_id=1), removed(2.1, job_id=1))
    rig.state.check()

    assert [JobState.PENDING] * 2 == [rig.job(2).state, rig.job(3).state]


def test_a_disk_that_no_tier_has_delays_the_job_alone():
    rig = fcfs(tier("fast", 100))
    rig.step(submitted(job(1, scratch=wants(30))))
    rig.step(failed(1.0, disk="/gone"))
    rig.step(removed(1.1))

    assert {} == rig.state.stock.unusable
    assert READ_ONLY == rig.state.reason(JobId(1)).text


def test_a_job_that_ended_meanwhile_still_tells_of_the_disk():
    rig = fcfs(tier("fast", 100))
    rig.step(submitted(job(1, scratch=wants(30))))
    rig.step(ev.CancelRequested(at_s=0.5, job_id=JobId(1), by="ann", grace_s=1.0), failed(1.0))

    assert {"fast0"} == rig.state.stock.unusable.keys()
    assert JobState.CANCELLED is rig.job().state


@pytest.mark.parametrize("rule", RULES)
@given(data=st.data())
def test_whatever_is_seen_of_disks_nothing_is_given_of_those_that_are_out(rule, data):
    rig = Rig(State(platform(8), [tier("fast", 20, 20, rule=rule, block=7)]))
    out = set()
    for number in range(1, 9):
        disk = data.draw(st.sampled_from(["fast0", "fast1"]))
        problem = data.draw(st.sampled_from(["", "read-only"]))
        (out.add if problem else out.discard)(disk)
        rig.step(
            seen(float(number), disk, problem),
            submitted(job(number, scratch=wants(data.draw(st.integers(1, 20))), submitted_s=1.0)),
        )
        rig.state.check()
        assert out == rig.state.stock.unusable.keys()
        if rig.job(number).state is JobState.STARTING:
            assert not out & sizes_of(rig.job(number)).keys()
        if data.draw(st.booleans()) and rig.job(number).shares:
            rig.step(started(number + 0.2, job_id=number))
            rig.step(exited(number + 0.3, job_id=number), removed(number + 0.4, job_id=number))
    for disk in sorted(out):
        rig.step(seen(20.0, disk))
    rig.state.check()


def test_what_an_old_attempt_tells_of_a_disk_is_heard_as_well():
    rig = fcfs(tier("fast", 100))
    rig.step(submitted(job(1, scratch=wants(30))))
    rig.step(failed(1.0, attempt=7))

    assert {"fast0"} == rig.state.stock.unusable.keys()
    assert JobState.STARTING is rig.job().state
