"""What ``iod show`` says that was copied, and was not, of a job with space; and how much it had."""

from pathlib import Path

import msgspec
import pytest
from builders import Rig, exited, job, platform, reason

from iodaemon.cli.show import scratch_pairs
from iodaemon.core import event as ev
from iodaemon.core.handlers import END_GRACE_S
from iodaemon.core.job import DiskId, Job, JobId, JobState, ScratchRequest, Share, Staged, TierName
from iodaemon.core.state import State
from iodaemon.core.storage import Disk, Storage, StorageNode, Tier
from iodaemon.daemon.http.record import job_record

MIB = 2**20
MACHINE = platform(4)
DISK = Disk(
    id=DiskId("/fast"), capacity_bytes=99 * MIB, read_bytes_per_s=1e9, write_bytes_per_s=1e9
)
TIERS = (
    Tier(
        name=TierName("fast"),
        storage=Storage(nodes=(StorageNode(id="fast", disks=(DISK,)),)),
        bandwidth_bytes_per_s=1e9,
    ),
    Tier(name=TierName("slow"), storage=None, bandwidth_bytes_per_s=2e8),
)
SHARES = (Share(tier=TierName("fast"), disk=DiskId("/fast"), size_bytes=20 * MIB),)
REQUEST = ScratchRequest(size_bytes=20 * MIB, input_path="/in", output_path="/out")
RAN = {"tier": TierName("fast"), "attempt": 1, "started_s": 1.0, "scratch": REQUEST}


def staged(came, went, **more):
    done = {"has_come": came, "has_gone": went, **more}
    return Staged(came_bytes=5, went_bytes=5, moved_bytes=20, **done)


def record_of(made):
    state = State(MACHINE, TIERS)
    state.restore([made], JobId(9))
    return job_record(made, state, 9.0, Path("/x"))


def shown(state, **fields):
    """By its labels."""
    return dict(scratch_pairs(record_of(job(1, state=state, **{**RAN, **fields}))))


def copying_of(told):
    """What is said of input and output."""
    return [f"{label}: {text}" for label, text in told.items() if "/in" in text or "/out" in text]


@pytest.mark.parametrize("state", [JobState.PENDING, JobState.HELD])
def test_of_a_job_that_has_not_started_nothing_was_copied_yet(state):
    told = shown(state, tier=None, attempt=0, started_s=None)

    assert ["Input comes: from /in", "Output goes: to /out"] == copying_of(told)


def test_while_it_runs_its_output_is_to_go_somewhere():
    always = msgspec.structs.replace(REQUEST, output_on="always")
    told = shown(JobState.RUNNING, shares=SHARES, scratch=always)

    assert "to /out, also if it fails" == told["Output goes"]


def test_a_job_that_was_cancelled_before_it_started_had_nothing_copied():
    told = shown(JobState.CANCELLED, tier=None, attempt=0, started_s=None)

    assert ["Not copied in: from /in", "Not copied out: /out"] == copying_of(told)


def test_what_was_copied_is_told_so():
    told = shown(JobState.COMPLETED, staged=staged(True, True))

    assert ["Copied in: from /in", "Copied out: to /out"] == copying_of(told)


def test_input_that_did_not_come_is_told_so_and_no_output_went():
    told = shown(JobState.FAILED, staged=staged(False, False))

    assert ["Not copied in: from /in", "Not copied out: /out"] == copying_of(told)


def test_output_that_is_kept_was_not_copied_out():
    had = {"staged": staged(True, False), "shares": SHARES}
    kept = shown(JobState.FAILED, scratch_kept=reason("ScratchKept", "full"), **had)

    assert ("/out", "full") == (kept["Not copied out"], kept["Kept"])


@pytest.mark.parametrize(
    ("why", "by", "words"),
    [
        (reason("ScratchRemove", "'iod scratch remove' by root"), "root", "removed by root"),
        (
            reason("ScratchRemove", "'iod scratch remove' by root"),
            "",  # the journal of a daemon that did not keep it apart
            "removed: 'iod scratch remove' by root",
        ),
        (
            reason("ScratchKeep", "nobody had it copied for 30 days (scratch_keep)"),
            "",
            "removed: nobody had it copied for 30 days (scratch_keep)",
        ),
    ],
)
def test_who_had_it_removed_uncopied_is_told(why, by, words):
    fields = {"staged": staged(True, False), "scratch_unwanted": why, "scratch_unwanted_by": by}

    assert f"/out; {words}" == shown(JobState.FAILED, **fields)["Not copied out"]
    going = shown(JobState.FAILED, shares=SHARES, **fields)["Not copied out"]
    assert f"/out; is {words}" == going


@pytest.mark.parametrize("state", [JobState.COMPLETED, JobState.FAILED])
def test_of_a_job_of_the_journal_of_which_nothing_was_told_nothing_is_said(state):
    """Whether its tier had disks is not known any more."""
    record = job_record(job(1, state=state, **RAN), None, 9.0, Path("/x"))

    assert ["Input from: /in", "Output to: /out"] == copying_of(dict(scratch_pairs(record)))


# -- what it had -----------------------------------------------------------------------------------


def used(mib, *, at_s=2.0, is_over=True, is_all=True):
    about = {"at_s": at_s, "job_id": JobId(1), "attempt": 1}
    return ev.ScratchUsed(**about, used_bytes=mib * MIB, is_over=is_over, is_all=is_all)


def running():
    rig = Rig(State(MACHINE, TIERS))
    made = job(1, state=JobState.RUNNING, **RAN, shares=SHARES)
    rig.state.restore([made], JobId(9))
    return rig


def end(rig, at_s=9.0):
    rig.step(exited(at_s))
    return dict(scratch_pairs(job_record(rig.job(), rig.state, 9.0, Path("/x"))))


def test_that_a_job_had_too_much_is_told_once_it_has_ended():
    rig = running()
    rig.step(used(30))
    assert "has 30 MiB in its scratch space and asked for 20 MiB" in rig.job().scratch_over.text

    assert "had 30 MiB of 20 MiB" == end(rig)["Too much"]


def test_the_most_that_was_seen_is_kept_while_it_has_less_again():
    rig = running()
    for event in (used(30), used(5, is_over=False), used(25), used(5, is_over=False)):
        rig.step(event)

    assert 30 * MIB == rig.job().scratch_most_bytes
    assert "had 30 MiB of 20 MiB" == end(rig)["Too much"]


def test_of_a_job_that_had_no_more_nothing_is_said():
    rig = running()
    rig.step(used(3, is_all=False))

    assert "Too much" not in end(rig)


def test_a_job_that_is_being_ended_is_killed_sooner_when_it_has_too_much():
    rig = running()
    rig.step(ev.CancelRequested(at_s=1.0, job_id=JobId(1), by="ann", grace_s=500.0))

    plan = rig.step(msgspec.structs.replace(used(30), ends=True))

    assert 2.0 + END_GRACE_S == plan.wake_at_s == rig.job().kill_at_s
    rig.backend.take()


def test_a_job_that_runs_again_begins_with_nothing():
    rig = running()
    rig.step(used(30))
    rig.step(ev.RequeueRequested(at_s=3.0, job_id=JobId(1), by="ann", grace_s=1.0))
    end(rig)

    assert (JobState.PENDING, 0) == (rig.job().state, rig.job().scratch_most_bytes)


# -- journals of before ---------------------------------------------------------------


def test_records_of_before_are_read():
    staging = {"came_bytes": 1, "went_bytes": 2, "moved_bytes": 6}
    made = job(1, state=JobState.COMPLETED, **RAN, staged=staged(True, True))
    record = {**msgspec.to_builtins(made), "staged": {**staging, "took_s": 1.5, "others": 3}}
    read = msgspec.json.decode(msgspec.json.encode(record), type=Job)

    assert Staged(**staging) == read.staged
    assert read.staged.has_gone is None
    assert made == msgspec.json.decode(msgspec.json.encode(made), type=Job)
