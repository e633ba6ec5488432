"""Space of tiers over the API: refused at submission, shown with the job, kept over a restart."""

import asyncio
import json
from pathlib import Path

import msgspec
import pytest
from builders import Rig, exited, job, platform, reason
from decoding import decode_submission
from hypothesis import given
from hypothesis import strategies as st

from iodaemon.cli.output import local_time
from iodaemon.cli.show import scratch_pairs, why_lines
from iodaemon.core import event as ev
from iodaemon.core.decision import Free, Start
from iodaemon.core.explain import explain
from iodaemon.core.handlers import END_GRACE_S
from iodaemon.core.job import (
    DiskId,
    IoTotals,
    JobId,
    JobState,
    ScratchRequest,
    Share,
    Staged,
    TierName,
)
from iodaemon.core.state import State
from iodaemon.core.storage import Disk, Storage, StorageNode, Tier, slow_tier_s
from iodaemon.daemon.http.record import find_stage, job_record
from iodaemon.daemon.http.report import node_report
from iodaemon.daemon.http.submission import job_maker
from iodaemon.daemon.launching import launch_record
from iodaemon.errors import RequestError
from iodaemon.node.scratch import Scratch, ScratchError
from iodaemon.policy.admission.storage_aware import extra_s
from iodaemon.supervisor.ledger import Key

GIB = 2**30
MACHINE = platform(4)
S = JobState


def tier(name, *sizes, bandwidth=1e9, staging=1e9, **fields):
    """A tier with disks of these sizes; without any it has none of its own."""
    disks = tuple(
        Disk(
            id=DiskId(f"/{name}{number or ''}"),
            capacity_bytes=size,
            read_bytes_per_s=1e9,
            write_bytes_per_s=1e9,
        )
        for number, size in enumerate(sizes)
    )
    return Tier(
        name=TierName(name),
        storage=Storage(nodes=(StorageNode(id=name, disks=disks),)) if disks else None,
        bandwidth_bytes_per_s=bandwidth,
        staging_bytes_per_s=staging,
        **fields,
    )


TIERS = (tier("fast", 100 * GIB), tier("slow", bandwidth=2e8, staging=float("inf")))
"""As it is by default: what is staged passes the slower of the two."""


def share(size_bytes=GIB, name="fast"):
    return Share(tier=TierName(name), disk=DiskId(f"/{name}"), size_bytes=size_bytes)


SHARES = (share(),)


def decoded(tiers=TIERS, **scratch):
    body = json.dumps({"jobs": [{"command": ["x"], "scratch": scratch}]}).encode()
    return decode_submission(body, MACHINE, tiers).jobs[0]


# -- submission ------------------------------------------------------------------------------------


def test_what_is_asked_for_arrives_as_it_was_said():
    said = {"size_bytes": GIB, "tier": "fast", "fallback": "slow", "input_path": "/in"}
    made = job_maker(decoded(**said, input_bytes=5), 1000, "")(JobId(1), 0.0)

    assert made.spec.scratch == ScratchRequest(**said, input_bytes=5)
    assert decoded(size_bytes=999 * GIB, fallback="slow").scratch.size_bytes == 999 * GIB


SPLIT = (tier("fast", 100 * GIB, 100 * GIB, split_bytes=GIB // 128), TIERS[1])
"""Requests of its first tier are split over two disks."""
PARTS = {"size_bytes": GIB // 16, "tier": "fast", "input_path": "/in"}


ONE = {"size_bytes": 1}


@pytest.mark.parametrize(
    ("scratch", "line"),
    [
        ({"size_bytes": 101 * GIB}, "asks for 101 GiB of tier fast, which has 100 GiB; ask for"),
        ({**ONE, "tier": "nvme"}, "tier nvme, which is not configured; there are: fast, slow"),
        ({**ONE, "input_bytes": 2 * GIB}, "its input has 2 GiB, more than the 1 B of scratch"),
        ({**ONE, "input_path": "/a/../b"}, "has '..' in it"),
        ({**ONE, "output_path": "/" + 5000 * "a"}, "too long"),
        ({**ONE, "output_path": "/a\0"}, "NUL"),
        ({**ONE, "output_path": "a"}, "scratch.output_path must begin with /"),
        ({"size_bytes": 0}, "scratch.size_bytes must be at least 1"),
        ({"size_bytes": 2**63}, "scratch.size_bytes must be at most"),
        ({**ONE, "fallback": "run"}, "scratch.fallback cannot be 'run'"),
        ({**ONE, "disk": "a"}, "there is no 'disk'"),
    ],
)
def test_what_can_never_be_met_or_means_nothing_is_refused_in_a_line(scratch, line):
    with pytest.raises(RequestError) as caught:
        decoded(**scratch)

    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_input_has_to_fit_the_largest_directory_of_a_split_request():
    with pytest.raises(RequestError, match="no tier of storage is configured; go without"):
        decoded((), **ONE)
    with pytest.raises(RequestError) as caught:
        decoded(SPLIT, **PARTS, input_bytes=GIB * 5 // 128)

    assert (
        "its input has 40 MiB, and of 64 MiB on tier fast, which come in parts of 8 MiB, "
        "one directory may have no more than 32 MiB; ask for more, or for a tier that is "
        "not split, or read the input where it is"
    ) in str(caught.value)
    falls_back = {**PARTS, "tier": None, "fallback": "slow"}
    for asked, size in ((PARTS, GIB // 32), (falls_back, GIB * 5 // 128)):
        assert size == decoded(SPLIT, **asked, input_bytes=size).scratch.input_bytes


# -- the launch ------------------------------------------------------------------------------------


def launched(shares, **request):
    made = job(1, state=S.STARTING, scratch=ScratchRequest(size_bytes=GIB, **request), tier="fast")
    made = msgspec.structs.replace(made, shares=shares)
    start = Start(job_id=made.id, attempt=1, partition=0, slots=made.slots, shares=shares)
    disk = msgspec.structs.replace(TIERS[0].disks[0], filesystem="2049")
    storage = Storage(nodes=(StorageNode(id="fast", disks=(disk,)),))
    tiers = (msgspec.structs.replace(TIERS[0], storage=storage), TIERS[1])
    return launch_record(made, start, MACHINE, {}, api_socket="/s", open_files=1, tiers=tiers)


def test_the_node_is_told_of_the_disks_and_of_what_is_copied():
    record = launched(SHARES, input_path="/in", output_path="/out", output_on="always")

    told = {"input": "/in", "output": "/out", "on": "always", "filesystems": {"/fast": 2049}}
    assert told == record["scratch"]
    told = {"IOD_TIER": "fast", "IOD_INPUT": "/in", "IOD_OUTPUT": "/out"}
    assert told.items() <= record["environment"].items()
    copied = launched(SHARES)["scratch"]
    assert (None, None) == (copied["input"], copied["output"])
    without = launched((), input_path="/in")
    assert ("/in", False) == (without["environment"]["IOD_INPUT"], "scratch" in without)


# -- the record, and what ``iod show`` says of it --------------------------------------------------

REQUEST = ScratchRequest(size_bytes=GIB, input_path="/in", output_path="/out")
RAN = {"tier": TierName("fast"), "attempt": 1, "started_s": 1.0, "scratch": REQUEST}
WAITS = {"tier": None, "attempt": 0, "started_s": None}
BY_ROOT = reason("ScratchRemove", "'iod scratch remove' by root")
BY_AGE = reason("ScratchKeep", "nobody had it copied for 30 days (scratch_keep)")
FULL = reason("ScratchKept", "full")


def staged(came, went):
    return Staged(came_bytes=5, went_bytes=5, moved_bytes=20, has_come=came, has_gone=went)


def shown(state, *, keep_s=None, **fields):
    """By its labels; and the record."""
    made = job(1, state=state, **{**RAN, **fields})
    node = State(MACHINE, TIERS)
    node.stock.keep_s = keep_s
    node.restore([made], JobId(9))
    record = job_record(made, node, 9.0, Path("/x"))
    return dict(scratch_pairs(record)), record


ALWAYS = msgspec.structs.replace(REQUEST, output_on="always")
LOST, KEEPS = {"staged": staged(True, False)}, {"shares": SHARES}


REMOVED_BY_ROOT = {**LOST, "scratch_unwanted": BY_ROOT, "scratch_unwanted_by": "root"}
COMES = "Input comes: from /in"
CAME, CAME_NOT = "Copied in: from /in", "Not copied in: from /in"
WENT_NOT = "Not copied out: /out"
IN_PLACE = "in place: nothing is copied"


@pytest.mark.parametrize(
    ("state", "fields", "told"),
    [
        (S.PENDING, WAITS, [COMES, "Output goes: to /out"]),
        (S.RUNNING, {"scratch": ALWAYS}, [COMES, "Output goes: to /out, also if it fails"]),
        (S.CANCELLED, WAITS, [CAME_NOT, WENT_NOT]),
        (
            S.COMPLETED,
            {"staged": staged(True, True)},
            [CAME, "Copied out: to /out", "Scratch is: tier fast, given back"],
        ),
        (S.FAILED, {**LOST, **KEEPS, "scratch_kept": FULL}, [CAME, WENT_NOT, "Kept: full"]),
        (
            S.COMPLETED,
            {"tier": TierName("slow")},
            [
                *(f"Input: /in, {IN_PLACE}", f"Output: /out, {IN_PLACE}"),
                "Scratch is: tier slow, no space of its own",
            ],
        ),
        (
            S.FAILED,
            REMOVED_BY_ROOT,
            [CAME, f"{WENT_NOT}; removed by root", f"Removed: {BY_ROOT.text}"],
        ),
        (
            S.FAILED,
            {**REMOVED_BY_ROOT, **KEEPS},
            [CAME, f"{WENT_NOT}; is removed by root", f"Is removed: {BY_ROOT.text}"],
        ),
        (
            S.FAILED,
            {**LOST, "scratch_unwanted": BY_AGE},
            [CAME, f"{WENT_NOT}; removed: {BY_AGE.text}", f"Removed: {BY_AGE.text}"],
        ),
    ],
)
def test_what_was_copied_and_what_became_of_the_space_is_told(state, fields, told):
    pairs, _ = shown(state, **fields)

    assert set(told) <= {f"{label}: {text}" for label, text in pairs.items()}


def test_until_when_it_is_kept_is_told_on_the_clock_of_the_place():
    kept = {"scratch_kept": FULL, "scratch_kept_since_s": 1e9, "shares": SHARES}
    at = f"{local_time(1e9 + 30 * 86400.0)}, then removed (scratch_keep)"
    for keep_s, expected in ((30 * 86400.0, at), (None, None)):
        told, record = shown(S.FAILED, keep_s=keep_s, **kept)
        answer = {"job": record, "is_so": "x", "since_s": 0, "until": "", "evidence": None}
        lines = why_lines({**answer, "history": []}, 9.0)

        assert ("full", expected) == (told["Kept"], told.get("Kept until"))
        assert (f"Kept until  {at}" in lines) == (expected is not None)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"step": "in"}\n', "copies its input in"),
        ('{"step": "in"}\n{"step": "run"}\n', None),
        ('{"step": "run"}\n{"step": "out"}\n{"st', "copies its output out"),
        ('{"step": "out"}\n{"step": "else"}\n[]\n5\n', "copies its output out"),
        ("{", None),
        (None, None),
    ],
)
def test_which_step_copies_stands_in_the_queue(tmp_path, text, told):
    if text is not None:
        (tmp_path / "1.1.report").write_text(text)
    request = ScratchRequest(size_bytes=GIB, input_path="/in")
    made = job(1, state=S.RUNNING, scratch=request, shares=SHARES)
    record = job_record(made, None, 10.0, tmp_path)

    assert told == (record["reason"] and record["reason"]["text"])
    assert (told is None) == (record["scratch"]["stage"] is None)
    assert find_stage(job(1, state=S.COMPLETED, scratch=request), tmp_path) is None


# -- why -------------------------------------------------------------------------------------------


def why(made, *others):
    state = State(MACHINE, TIERS)
    for each in (made, *others):
        state.add(each)
    state.check()
    if made.state is S.PENDING and not made.shares:
        state.reasons[made.id] = reason("Storage", "needs 90 GiB of tier fast; 1 GiB are free")
    told = explain(state, None, made, 10.0)
    return told.is_so, told.until


def test_who_waits_for_space_is_told_who_has_it():
    waiting = job(9, scratch=ScratchRequest(size_bytes=90 * GIB))
    runs = job(1, state=S.RUNNING, shares=(share(9 * GIB),))
    ended = job(2, state=S.COMPLETED, shares=SHARES)
    kept = job(3, state=S.FAILED, shares=SHARES, scratch_kept=reason("ScratchKept", "no"))

    assert (
        "waits: needs 90 GiB of tier fast; 1 GiB are free",
        (
            "space of tier fast is given back: job 1 has 9 GiB, job 2 has 1 GiB (ended, is being "
            "cleared), job 3 has 1 GiB (ended, kept until 'iod scratch remove 3')"
        ),
    ) == why(waiting, runs, ended, kept)


# -- too much --------------------------------------------------------------------------------------


def used(gib, *, at_s=2.0, is_over=True, is_all=True, **fields):
    about = {"at_s": at_s, "job_id": JobId(1), "attempt": 1, "used_bytes": gib * GIB}
    return ev.ScratchUsed(**about, is_over=is_over, is_all=is_all, **fields)


@pytest.fixture
def using():
    """Job 1 runs, with 1 GiB of space."""
    rig = Rig(State(MACHINE, TIERS))
    rig.state.restore([job(1, state=S.RUNNING, **RAN, shares=SHARES)], JobId(9))
    return rig


def told_of(rig):
    return dict(scratch_pairs(job_record(rig.job(), rig.state, 9.0, Path("/x"))))


COVERED = "what else it has cannot be measured: something may be mounted there"


@pytest.mark.parametrize(
    ("gib", "is_all", "words"),
    [
        (4, True, "has 4 GiB in its scratch space and asked for 1 GiB"),
        (4, False, "has at least 4 GiB in its scratch space and asked for 1 GiB"),
        (0, False, f"has at least 0 B in its scratch space and asked for 1 GiB; {COVERED}"),
    ],
)
def test_a_use_that_was_not_measured_whole_is_told_as_at_least(using, gib, is_all, words):
    using.step(used(gib, is_all=is_all))
    [row] = node_report(using.state, "simulated", {}, {})["allocated"]

    assert f"it {words}" in explain(using.state, using.controller.rules, using.job(), 10.0).is_so
    assert words == told_of(using)["Too much"] == row["over"]


@pytest.mark.parametrize(
    ("uses", "most"),
    [
        ([used(3)], 3),
        ([used(3), used(0, is_over=False), used(2), used(0, is_over=False)], 3),
        ([used(0, is_over=False, is_all=False)], 0),
    ],
)
def test_the_most_that_a_job_had_is_told_once_it_has_ended(using, uses, most):
    for event in uses:
        using.step(event)
    using.step(exited(9.0))

    assert most * GIB == using.job().scratch_most_bytes
    assert (f"had {most} GiB of 1 GiB" if most else None) == told_of(using).get("Too much")


def test_a_job_that_is_being_ended_is_killed_sooner_when_it_has_too_much(using):
    using.step(ev.CancelRequested(at_s=1.0, job_id=JobId(1), by="ann", grace_s=500.0))

    plan = using.step(used(3, ends=True))

    assert 2.0 + END_GRACE_S == plan.wake_at_s == using.job().kill_at_s
    using.backend.take()


# -- what is charged -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run_s", "moved", "where", "charged_s"),
    [
        (50.0, 10**12, "slow", 50.0),
        (50.0, 10**12, "gone", 50.0),
        # 10 GB at 1 GB/s are 10 s of its 30; at 200 MB/s they are 50.
        (30.0, 10 * 10**9, "fast", 70.0),
    ],
)
def test_it_is_charged_what_its_bytes_take_on_the_slowest_tier(run_s, moved, where, charged_s):
    io = IoTotals(read_bytes=0, written_bytes=moved)
    asked = ScratchRequest(size_bytes=GIB)
    ended = job(1, state=S.COMPLETED, run_s=run_s, io=io, tier=where, scratch=asked)

    assert pytest.approx(charged_s) == slow_tier_s(ended, TIERS)


SLOW_BANDWIDTH, FAST_BANDWIDTH, STAGING = 2e8, 1e9, 1e9
"""Of TIERS, bytes/s."""
SIZES = st.integers(0, 10**12)


@given(st.floats(0.0, 1e5), SIZES, SIZES, SIZES, st.floats(0.0, 1.0))
def test_who_ran_fast_is_charged_what_the_very_job_takes_on_the_slow_tier(
    compute_s, came, data, went, in_memory
):
    """It reads its input once, of which a part is in memory yet, and writes all else once.

    Also where nobody counted its I/O, by what it said; and as the rule reckoned that chose:
    equation 2 of ``storage_aware`` says by how much it is shorter on the fast tier.
    """
    on_slow_s = compute_s + (came + data + went) / SLOW_BANDWIDTH
    sizes = {"input_bytes": came, "output_bytes": went, "data_bytes": data}
    request = ScratchRequest(size_bytes=GIB, input_path="/i", output_path="/o", **sizes)

    def on_fast(unread, **told):
        """As it ends there, where it did not read so much: what is copied is read and written."""
        read, written, copied = came - unread, data + went, came + went
        run_s = copied / STAGING + compute_s + (read + written) / FAST_BANDWIDTH
        io = IoTotals(read_bytes=copied + read, written_bytes=copied + written)
        fields = {"run_s": run_s, "io": io, "tier": "fast", "scratch": request, **told}
        return job(1, state=S.COMPLETED, **fields)

    staged = Staged(came_bytes=came, went_bytes=went, moved_bytes=2 * (came + went))
    ended = on_fast(int(came * in_memory), staged=staged)
    unread, all_read = on_fast(came, io=IoTotals()), on_fast(0)
    assert pytest.approx(on_slow_s) == slow_tier_s(ended, TIERS)
    assert pytest.approx(on_slow_s) == slow_tier_s(
        msgspec.structs.replace(ended, staged=None), TIERS
    )
    assert pytest.approx(on_slow_s) == slow_tier_s(unread, TIERS)
    saved_s = extra_s(request, *TIERS)
    assert pytest.approx(all_read.run_s - saved_s) == slow_tier_s(all_read, TIERS)


# -- directories on disks --------------------------------------------------------------------------


class Client:
    """A supervisor that answers with one of these after the other, then not at all."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []

    async def ask_scratch(self, **fields):
        self.asked.append(fields)
        if not self.answers:
            await asyncio.Event().wait()
        return self.answers.pop(0)


class Clock:
    now_s = 7.0


@pytest.fixture
def heard(monkeypatch):
    """What is posted and asked; nobody waits between two attempts."""
    sleep = asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", lambda _: sleep(0))

    def hear(act, *answers, outputs=Path("/none"), jobs=()):
        client, posted = Client(*answers), []
        job_of = {each.id: each for each in jobs}.get

        async def run():
            scratch = Scratch(client, Path("/state"), outputs, job_of, Clock(), posted.append)
            scratch.ends_over = True
            made = act(scratch)
            if made is not None:
                await made
            for _ in range(200):
                await sleep(0)
            scratch.close()

        asyncio.run(run())
        return posted, client.asked

    return hear


DONE = {"done": True, "filesystem": 5}
GONE = {"done": False, "problem": "is gone", "is_disk": True}
UNDONE = {"done": False, "problem": ""}
KEPT, REMOVED = ev.ScratchKept, ev.ScratchRemoved


def free(scratch, **fields):
    scratch.free(Free(job_id=JobId(1), attempt=2, shares=SHARES, **fields))


def make(scratch, *names):
    shares = [share(name=name) for name in names or ("fast",)]
    return scratch.make(Key(1, 2), 1000, shares, {"/fast": 9})


def follow(scratch):
    return scratch.follow(Key(1, 2), SHARES)


def test_a_directory_is_made_on_the_file_system_that_its_disk_was_found_with(heard):
    _, asked = heard(lambda scratch: make(scratch, "fast", "other"), DONE, DONE)

    assert [("make", "/fast", 1000, 9), ("make", "/other", 1000, None)] == [
        (each["do"], each["disk"], each["uid"], each.get("filesystem")) for each in asked
    ]
    assert len({each["name"] for each in asked}) == 1


@pytest.mark.parametrize(
    ("answer", "problem", "disk"),
    [
        (GONE, "tier fast: disk /fast is gone", "/fast"),
        (UNDONE | {"problem": "x: no"}, "scratch space cannot be had: x: no", None),
    ],
)
def test_a_directory_that_cannot_be_made_is_the_disks_fault_or_not(heard, answer, problem, disk):
    with pytest.raises(ScratchError) as refused:
        heard(make, *3 * [answer])

    assert (problem, disk) == (str(refused.value), refused.value.disk)


def test_what_is_kept_is_told_and_tried_again_until_it_is_removed(heard):
    """For the first attempt there was no time for all of it."""
    [first, last], asked = heard(lambda scratch: free(scratch, is_wanted=True), UNDONE, GONE, DONE)

    assert KEPT is type(first)
    assert ("tier fast: disk /fast is gone", False) == (first.problem, first.is_result)
    assert (REMOVED, 1, 2, 7.0) == (type(last), last.job_id, last.attempt, last.at_s)
    assert ["remove"] * 3 == [each["do"] for each in asked]


def test_what_could_not_be_made_is_kept_by_no_disk_that_is_of_no_use(heard):
    async def fail_and_free(scratch):
        with pytest.raises(ScratchError):
            await make(scratch)
        free(scratch)

    [told], asked = heard(fail_and_free, GONE, GONE)

    assert REMOVED is type(told)
    assert ["make", "remove"] == [each["do"] for each in asked]


def test_what_one_made_is_removed_from_the_same_file_system_only(heard):
    async def make_and_free(scratch):
        await make(scratch)
        free(scratch)

    _, asked = heard(make_and_free, DONE, DONE)

    assert [9, 5] == [each.get("filesystem") for each in asked]
    assert asked[0]["name"] == asked[1]["name"]


COPIES = ScratchRequest(size_bytes=GIB, output_path="/out")
COPIES_ALWAYS = msgspec.structs.replace(COPIES, output_on="always")
OUT = '{"step": "run"}\n{"step": "out"}\n'
FAILED = '{"out": {"failed": {"line": "no room"}, "read_bytes": 0, "written_bytes": 0}}\n'
EMPTY = {"done": True, "used_bytes": 0, "is_all": True}


@pytest.mark.parametrize(
    ("request_", "state", "report", "expected"),
    [
        (COPIES, S.FAILED, OUT + FAILED, KEPT),
        (COPIES, S.FAILED, OUT, KEPT),  # it was killed
        (COPIES, S.FAILED, '{"step": "run"}\n{"status": 256}', REMOVED),
        (COPIES, S.FAILED, '{"step": "run"}', KEPT),  # its own process was killed
        (COPIES, S.CANCELLED, '{"step": "run"}', REMOVED),
        (COPIES, S.COMPLETED, '{"step": "run"}', REMOVED),  # its disk was full
        (COPIES, S.LOST, '{"step": "run"}', KEPT),  # it may have been good
        (COPIES, S.LOST, None, KEPT),  # its report was removed
        (COPIES_ALWAYS, S.FAILED, '{"step": "run"}', KEPT),
        (COPIES_ALWAYS, S.FAILED, '{"step": "in"}', REMOVED),  # it never began
        (COPIES, S.PENDING, '{"step": "run"}', REMOVED),  # it runs again
        (ScratchRequest(size_bytes=GIB), S.LOST, '{"step": "run"}', REMOVED),
    ],
)
def test_a_result_that_was_not_copied_out_is_kept(
    tmp_path, heard, request_, state, report, expected
):
    """Unless its user took it away."""
    if report is not None:
        (tmp_path / "1.2.report").write_text(report + "\n")
    made = job(1, state=state, scratch=request_, shares=SHARES, attempt=2, started_s=1.0)
    place = {"outputs": tmp_path, "jobs": [made]}
    if expected is REMOVED:
        [told], asked = heard(free, DONE, **place)
        assert (REMOVED, "remove") == (type(told), asked[0]["do"])
        return
    [told], asked = heard(free, EMPTY | {"used_bytes": 5}, **place)
    [taken], _ = heard(free, EMPTY, DONE, **place)

    assert (KEPT, REMOVED, "measure") == (type(told), type(taken), asked[0]["do"])
    assert told.is_result
    assert "not copied to /out" in told.problem
    assert f"; it lies in /fast/.iodaemon/{asked[0]['name']}" in told.problem


def test_a_job_with_too_much_is_told_of_and_ended_where_that_is_configured(heard):
    held = EMPTY | {"used_bytes": 1}
    over = {"done": True, "used_bytes": 2 * GIB, "is_all": False}
    events, asked = heard(follow, held, over, over, held)

    assert [(2 * GIB, True, True, False), (1, False, True, True)] == [
        (each.used_bytes, each.is_over, each.ends, each.is_all) for each in events
    ]
    assert {"measure"} == {each["do"] for each in asked}
