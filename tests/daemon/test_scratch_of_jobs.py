"""Space of tiers over the API: refused at submission, shown with the job, kept over a restart."""

import asyncio
import json
from pathlib import Path

import msgspec
import pytest
from builders import Rig, job, platform, reason
from decoding import decode_submission
from hypothesis import given
from hypothesis import strategies as st
from process import daemon, fails

from iodaemon.api import model as shapes
from iodaemon.cli.output import local_time
from iodaemon.cli.show import scratch_pairs, why_lines
from iodaemon.core import event as ev
from iodaemon.core.decision import Free, Start
from iodaemon.core.explain import explain
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


def tier(name, size=None, bandwidth=1e9, staging=1e9):
    disk = Disk(
        id=DiskId(f"/{name}"),
        capacity_bytes=size or 1,
        read_bytes_per_s=1e9,
        write_bytes_per_s=1e9,
    )
    storage = Storage(nodes=(StorageNode(id=name, disks=(disk,)),))
    return Tier(
        name=TierName(name),
        storage=None if size is None else storage,
        bandwidth_bytes_per_s=bandwidth,
        staging_bytes_per_s=staging,
    )


TIERS = (tier("fast", 100 * GIB), tier("slow", bandwidth=2e8, staging=float("inf")))
"""As it is by default: what is staged passes the slower of the two."""
SHARES = (Share(tier=TierName("fast"), disk=DiskId("/fast"), size_bytes=GIB),)


def decoded(**scratch):
    body = json.dumps({"jobs": [{"command": ["x"], "scratch": scratch}]}).encode()
    return decode_submission(body, MACHINE, TIERS).jobs[0]


# -- submission ------------------------------------------------------------------------------------


def test_what_is_asked_for_arrives_as_it_was_said():
    made = job_maker(
        decoded(size_bytes=GIB, tier="fast", fallback="slow", input_path="/in", input_bytes=5),
        1000,
        "",
    )(JobId(1), 0.0)

    assert made.spec.scratch == ScratchRequest(
        size_bytes=GIB, tier=TierName("fast"), fallback="slow", input_path="/in", input_bytes=5
    )


@pytest.mark.parametrize(
    ("scratch", "line"),
    [
        (
            {"size_bytes": 101 * GIB},
            "asks for 101 GiB of tier fast, which has 100 GiB; ask for less, or of another tier",
        ),
        (
            {"size_bytes": 1, "tier": "nvme"},
            "asks for tier nvme, which is not configured; there are: fast, slow",
        ),
        (
            {"size_bytes": GIB, "input_bytes": 2 * GIB},
            "its input has 2 GiB, more than the 1 GiB of scratch space it asks for; ask for more",
        ),
        ({"size_bytes": 1, "input_path": "/a/../b"}, "has '..' in it"),
        ({"size_bytes": 1, "output_path": "/" + 5000 * "a"}, "too long"),
        ({"size_bytes": 1, "output_path": "/a\0"}, "NUL"),
        ({"size_bytes": 1, "output_path": "a"}, "scratch.output_path must begin with /"),
        ({"size_bytes": 0}, "scratch.size_bytes must be at least 1"),
        ({"size_bytes": 2**63}, "scratch.size_bytes must be at most"),
        ({"size_bytes": 1, "fallback": "run"}, "scratch.fallback cannot be 'run'"),
        ({"size_bytes": 1, "disk": "a"}, "there is no 'disk'"),
    ],
)
def test_what_can_never_be_met_or_means_nothing_is_refused_in_a_line(scratch, line):
    with pytest.raises(RequestError) as caught:
        decoded(**scratch)

    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def spread(*sizes, split, name="fast"):
    """A tier whose requests are split over disks of these sizes."""
    disks = tuple(
        Disk(
            id=DiskId(f"/{name}{number}"),
            capacity_bytes=size,
            read_bytes_per_s=1e9,
            write_bytes_per_s=1e9,
        )
        for number, size in enumerate(sizes)
    )
    storage = Storage(nodes=(StorageNode(id=name, disks=disks),))
    return Tier(name=TierName(name), storage=storage, bandwidth_bytes_per_s=1e9, split_bytes=split)


def sent_to(tiers, **scratch):
    body = json.dumps({"jobs": [{"command": ["x"], "scratch": scratch}]}).encode()
    return decode_submission(body, MACHINE, tiers).jobs[0].scratch


def test_an_input_larger_than_a_directory_of_a_split_request_is_refused_in_a_line():
    tiers = (spread(100 * GIB, 100 * GIB, split=GIB // 128), TIERS[1])
    size, large, small = GIB // 16, GIB * 5 // 128, GIB // 32
    with pytest.raises(RequestError) as caught:
        sent_to(tiers, size_bytes=size, tier="fast", input_path="/in", input_bytes=large)

    assert (
        "its input has 40 MiB, and of 64 MiB on tier fast, which come in parts of 8 MiB, one "
        "directory may have no more than 32 MiB; ask for more, or for a tier that is not split, "
        "or read the input where it is"
    ) == str(caught.value)
    slow = sent_to(tiers, size_bytes=size, fallback="slow", input_path="/in", input_bytes=large)
    assert large == slow.input_bytes
    assert sent_to(tiers, size_bytes=size, tier="fast", input_path="/in", input_bytes=small)


def test_where_no_tier_is_configured_space_is_refused():
    body = b'{"jobs": [{"command": ["x"], "scratch": {"size_bytes": 1}}]}'

    with pytest.raises(RequestError, match="no tier of storage is configured; go without"):
        decode_submission(body, MACHINE)


def test_too_large_a_request_that_may_fall_back_is_taken():
    assert decoded(size_bytes=999 * GIB, fallback="slow").scratch.size_bytes == 999 * GIB


def test_a_tier_that_is_not_there_is_refused_whatever_was_to_be_done_then():
    with pytest.raises(RequestError, match="asks for tier gone, which is not configured"):
        decoded(size_bytes=GIB, tier="gone", fallback="slow")


def told_of(tier, shares, tiers=TIERS):
    request = ScratchRequest(size_bytes=GIB, input_path="/in", output_path="/out")
    ended = job(1, state=JobState.COMPLETED, scratch=request, shares=shares, tier=tier)
    state = State(MACHINE, tiers)
    state.restore([ended], JobId(9))
    return dict(scratch_pairs(job_record(ended, state, 9.0, Path("/x"))))


def test_of_a_job_without_space_nothing_was_copied_and_nothing_given_back():
    told = told_of("slow", ())

    assert "tier slow, no space of its own" == told["Scratch is"]
    assert "/in, in place: nothing is copied" == told["Input"]
    assert "/out, in place: nothing is copied" == told["Output"]
    assert not told.keys() & {"Copied in", "Copied out"}
    assert "tier fast, given back" == told_of("fast", ())["Scratch is"]
    assert "to /out" == told_of("fast", ())["Copied out"]


# -- the launch ------------------------------------------------------------------------------------


def launched(request, shares):
    made = job(1, state=JobState.STARTING, scratch=request, shares=shares, tier="fast")
    start = Start(job_id=made.id, attempt=1, partition=0, slots=made.slots, shares=shares)
    disk = msgspec.structs.replace(TIERS[0].disks[0], filesystem="2049")
    fast = msgspec.structs.replace(
        TIERS[0], storage=Storage(nodes=(StorageNode(id="fast", disks=(disk,)),))
    )
    return launch_record(
        made, start, MACHINE, {}, api_socket=Path("/s"), open_files=1, tiers=(fast, TIERS[1])
    )


def test_the_node_is_told_of_the_disks_and_of_what_is_copied():
    request = ScratchRequest(
        size_bytes=GIB, input_path="/in", output_path="/out", output_on="always"
    )
    record = launched(request, SHARES)

    told = {"input": "/in", "output": "/out", "on": "always", "filesystems": {"/fast": 2049}}
    assert told == record["scratch"]
    told = {name: record["environment"][name] for name in ("IOD_TIER", "IOD_INPUT", "IOD_OUTPUT")}
    assert {"IOD_TIER": "fast", "IOD_INPUT": "/in", "IOD_OUTPUT": "/out"} == told


def test_without_shares_nothing_is_made_and_nothing_is_copied():
    record = launched(ScratchRequest(size_bytes=GIB, input_path="/in"), ())

    assert "scratch" not in record
    assert "/in" == record["environment"]["IOD_INPUT"]
    copied = launched(ScratchRequest(size_bytes=GIB), SHARES)["scratch"]
    assert (None, None) == (copied["input"], copied["output"])


# -- the record ------------------------------------------------------------------------------------


def shown(made, directory=Path("/none")):
    return job_record(made, None, 10.0, directory)


def test_the_record_has_the_keys_of_the_clients_type():
    asked = job(1, scratch=ScratchRequest(size_bytes=GIB))

    assert list(shown(asked)["scratch"]) == list(shapes.Scratch.__annotations__)
    assert shown(job(1))["scratch"] is None


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
    made = job(1, state=JobState.RUNNING, scratch=request, shares=SHARES)
    record = shown(made, tmp_path)

    assert told == (record["reason"] and record["reason"]["text"])
    assert (told is None) == (record["scratch"]["stage"] is None)
    assert find_stage(job(1, state=JobState.COMPLETED, scratch=request), tmp_path) is None


# -- why -------------------------------------------------------------------------------------------


def why(made, *others):
    state = State(MACHINE, TIERS)
    for each in (made, *others):
        state.add(each)
    state.check()
    if made.state is JobState.PENDING and not made.shares:
        state.reasons[made.id] = reason("Storage", "needs 90 GiB of tier fast; 1 GiB are free")
    told = explain(state, None, made, 10.0)
    return told.is_so, told.until


def test_who_waits_for_space_is_told_who_has_it():
    waiting = job(9, scratch=ScratchRequest(size_bytes=90 * GIB))
    shares = (msgspec.structs.replace(SHARES[0], size_bytes=9 * GIB),)
    runs = job(1, state=JobState.RUNNING, shares=shares)
    ended = job(2, state=JobState.COMPLETED, shares=SHARES)
    kept = job(3, state=JobState.FAILED, shares=SHARES, scratch_kept=reason("ScratchKept", "no"))

    assert (
        "waits: needs 90 GiB of tier fast; 1 GiB are free",
        (
            "space of tier fast is given back: job 1 has 9 GiB, job 2 has 1 GiB (ended, is being "
            "cleared), job 3 has 1 GiB (ended, kept until 'iod scratch remove 3')"
        ),
    ) == why(waiting, runs, ended, kept)


def test_who_leaves_the_tier_to_the_rule_is_told_who_has_space_that_would_do():
    """Promised by what is expected: a rule that chooses does not go by walltimes alone."""
    state = State(MACHINE, (TIERS[0], tier("mid", 50 * GIB), TIERS[1]))
    state.let_choose(any_tier=True)
    waiting = job(9, scratch=ScratchRequest(size_bytes=40 * GIB))
    behind = job(10, scratch=ScratchRequest(size_bytes=40 * GIB))
    share = Share(tier=TierName("mid"), disk=DiskId("/mid"), size_bytes=30 * GIB)
    for each in (job(1, state=JobState.RUNNING, shares=(share,)), waiting, behind):
        state.add(each)
    state.reasons[waiting.id] = reason("Storage", "needs 40 GiB on tier mid; 20 GiB are free")
    state.reservations[waiting.id] = 70.0

    assert (
        "space of tier fast or tier mid is given back: job 1 has 30 GiB; promised in 60 s, "
        "by when those that run are expected to end"
    ) == explain(state, None, waiting, 10.0).until
    assert ("its turn has come and 1 CPU of one socket is free, and so is its space") == explain(
        state, None, behind, 10.0, account="waits behind job 9"
    ).until


def test_what_an_ended_job_has_left_is_told():
    ended = job(2, state=JobState.COMPLETED, shares=SHARES, attempt=1)
    kept = msgspec.structs.replace(ended, scratch_kept=reason("ScratchKept", "disk full"))
    placed = msgspec.structs.replace(
        ended, scratch_kept=reason("ScratchKept", "it lies in /fast/x")
    )

    assert "its scratch space is being cleared" in why(ended)[0]
    assert (
        "its scratch space is kept: disk full; its user may copy it ('cp -a'); "
        "'iod scratch remove 2' frees it"
    ) in why(kept)[0]
    assert "its scratch space is kept: it lies in /fast/x; its user" in why(placed)[0]


def test_a_requeued_job_is_told_what_its_last_attempt_holds():
    again = job(2, shares=SHARES, attempt=1, scratch=ScratchRequest(size_bytes=GIB))
    kept = msgspec.structs.replace(again, scratch_kept=reason("ScratchKept", "kept for ann"))

    assert "waits until the scratch space of its last attempt has been cleared" in why(again)[0]
    assert (
        "waits to run again: kept for ann",
        "'iod scratch remove 2', once nobody needs that any more",
    ) == why(kept)


def test_what_can_never_start_is_told():
    told = why(job(2, scratch=ScratchRequest(size_bytes=999 * GIB)))

    assert told[0].startswith("can never start: asks for 999 GiB of tier fast")


def ended_with(keep_s, **fields):
    """What ``iod show`` has of a job that has ended, by its labels."""
    asked = ScratchRequest(size_bytes=GIB, output_path="/out")
    made = job(1, state=JobState.FAILED, scratch=asked, tier="fast", attempt=1, **fields)
    state = State(MACHINE, TIERS)
    state.stock.keep_s = keep_s
    state.restore([made], JobId(9))
    record = job_record(made, state, 9.0, Path("/x"))
    answer = {
        "job": record,
        "is_so": "x",
        "since_s": 0,
        "until": "",
        "evidence": None,
        "history": [],
    }
    return dict(scratch_pairs(record)), "\n".join(why_lines(answer, 9.0))


def test_until_when_it_is_kept_is_told_on_the_clock_of_the_place():
    fields = {"scratch_kept": reason("ScratchKept", "full"), "scratch_kept_since_s": 1e9}
    told, lines = ended_with(30 * 86400.0, shares=SHARES, **fields)
    at = local_time(1e9 + 30 * 86400.0)

    assert f"{at}, then removed (scratch_keep)" == told["Kept until"]
    assert f"Kept until  {at}, then removed (scratch_keep)" in lines
    told, lines = ended_with(None, shares=SHARES, **fields)
    assert "full" == told["Kept"]
    assert "Kept until" not in {*told, *lines}


def test_that_it_was_removed_unasked_is_told_for_ever():
    why_gone = reason("ScratchKeep", "nobody had it copied for 30 days (scratch_keep)")
    going, _ = ended_with(1.0, shares=SHARES, scratch_unwanted=why_gone)
    gone, _ = ended_with(1.0, scratch_unwanted=why_gone)

    assert why_gone.text == going["Is removed"]
    assert why_gone.text == gone["Removed"]


# -- what is charged -------------------------------------------------------------------------------


def ran(run_s, moved, where="fast", **request):
    asked = ScratchRequest(size_bytes=GIB, **request)
    io = IoTotals(read_bytes=0, written_bytes=moved)
    return job(1, state=JobState.COMPLETED, run_s=run_s, io=io, tier=where, scratch=asked)


def test_on_the_slowest_tier_a_job_is_charged_the_time_that_it_ran():
    assert 50.0 == slow_tier_s(ran(50.0, 10**12, "slow"), TIERS)
    assert 50.0 == slow_tier_s(ran(50.0, 10**12, "gone"), TIERS)


def test_on_a_fast_tier_it_is_charged_what_its_bytes_take_on_the_slow_one():
    # 10 GB at 1 GB/s are 10 s of its 30; at 200 MB/s they are 50.
    assert pytest.approx(70.0) == slow_tier_s(ran(30.0, 10 * 10**9), TIERS)


SLOW_BANDWIDTH, FAST_BANDWIDTH, STAGING = 2e8, 1e9, 1e9
"""Of TIERS, bytes/s."""
SIZES = st.integers(0, 10**12)


class Run(msgspec.Struct, frozen=True):
    """A job that computes, reads its input once, and writes its output and other data once.

    Attributes:
        compute_s: without I/O.
        came: bytes of its input.
        data: bytes that it writes and does not keep.
        went: bytes of its output.
        in_memory: bytes of the input that it finds in memory, for they were just copied.
    """

    compute_s: float
    came: int
    data: int
    went: int
    in_memory: int

    @property
    def on_slow_s(self):
        """How long it takes there."""
        return self.compute_s + (self.came + self.data + self.went) / SLOW_BANDWIDTH

    def on_fast(self, **told):
        """As it ends on the fast tier: what is copied is read once and written once."""
        own_read, own_written = self.came - self.in_memory, self.data + self.went
        copied = self.came + self.went
        run_s = copied / STAGING + self.compute_s + (own_read + own_written) / FAST_BANDWIDTH
        request = ScratchRequest(
            size_bytes=GIB,
            input_path="/i",
            output_path="/o",
            input_bytes=self.came,
            output_bytes=self.went,
            data_bytes=self.data,
        )
        io = IoTotals(read_bytes=copied + own_read, written_bytes=copied + own_written)
        fields = {"run_s": run_s, "io": io, "tier": "fast", "scratch": request, **told}
        return job(1, state=JobState.COMPLETED, **fields)


RUNS = st.builds(
    lambda compute_s, came, data, went, share: Run(compute_s, came, data, went, int(came * share)),
    st.floats(0.0, 1e5),
    SIZES,
    SIZES,
    SIZES,
    st.floats(0.0, 1.0),
)


@given(RUNS)
def test_who_ran_fast_is_charged_what_the_very_job_takes_on_the_slow_tier(run):
    staged = Staged(came_bytes=run.came, went_bytes=run.went, moved_bytes=2 * (run.came + run.went))

    assert pytest.approx(run.on_slow_s) == slow_tier_s(run.on_fast(staged=staged), TIERS)
    assert pytest.approx(run.on_slow_s) == slow_tier_s(run.on_fast(), TIERS)


@given(RUNS)
def test_a_job_whose_io_nobody_counted_is_charged_by_what_it_said(run):
    unread = msgspec.structs.replace(run, in_memory=run.came)

    charged = slow_tier_s(unread.on_fast(io=IoTotals()), TIERS)

    assert pytest.approx(run.on_slow_s) == charged


@given(RUNS)
def test_the_charge_is_what_the_rule_that_chose_reckoned_with(run):
    """Equation 2 of ``storage_aware`` says by how much it is shorter on the fast tier."""
    all_read = msgspec.structs.replace(run, in_memory=0)
    ended = all_read.on_fast()
    on_slow_s = ended.run_s - extra_s(ended.spec.scratch, *TIERS)

    assert pytest.approx(on_slow_s) == slow_tier_s(ended, TIERS)


def test_what_was_really_copied_counts_and_not_what_was_named():
    named = {"input_path": "/i", "input_bytes": 9 * 10**9, "output_path": "/o"}
    copied = Staged(came_bytes=3 * 10**9, went_bytes=10**9, moved_bytes=5 * 10**9)
    ended = msgspec.structs.replace(ran(34.0, 14 * 10**9, **named), staged=copied)

    # 4 GB were staged in 4 s; 9 GB are its own, and it read none of the 3 from the disk.
    assert pytest.approx(30.0 + 9 * 4.0 + 15.0) == slow_tier_s(ended, TIERS)


@given(
    st.floats(0.0, 1e6),
    st.none() | st.integers(0, 10**15),
    st.integers(0, 10**12),
    st.integers(0, 10**12),
)
def test_nobody_is_charged_less_than_nothing_and_writing_more_is_never_cheaper(
    run_s, moved, came, went
):
    fields = {"input_path": "/i", "input_bytes": came, "output_path": "/o", "output_bytes": went}
    charged = slow_tier_s(ran(run_s, moved, **fields), TIERS)

    assert charged >= 0.0
    assert charged <= slow_tier_s(ran(run_s, (moved or 0) + 10**9, **fields), TIERS)


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


def heard(act, *answers, monkeypatch, outputs=Path("/none"), jobs=()):
    """What is posted and asked; nobody waits between two attempts."""
    client, posted, sleep = Client(*answers), [], asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", lambda _: sleep(0))
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


DONE = {"done": True, "filesystem": 5}


def free(number, disk="/fast", **fields):
    share = Share(tier=TierName("fast"), disk=DiskId(disk), size_bytes=GIB)
    return Free(job_id=JobId(number), attempt=2, shares=(share,), **fields)


def make(scratch, *disks):
    shares = [free(1, disk).shares[0] for disk in disks]
    return scratch.make(Key(1, 2), 1000, shares, {"/fast": 9})


def test_a_directory_is_made_on_the_file_system_that_its_disk_was_found_with(monkeypatch):
    _, asked = heard(
        lambda scratch: make(scratch, "/fast", "/other"), DONE, DONE, monkeypatch=monkeypatch
    )

    assert [("make", "/fast", 1000, 9), ("make", "/other", 1000, None)] == [
        (each["do"], each["disk"], each["uid"], each.get("filesystem")) for each in asked
    ]
    assert len({each["name"] for each in asked}) == 1


@pytest.mark.parametrize(
    ("answer", "problem", "disk"),
    [
        ({"problem": "is gone", "is_disk": True}, "tier fast: disk /fast is gone", "/fast"),
        ({"problem": "x: no"}, "scratch space cannot be had: x: no", None),
    ],
)
def test_a_directory_that_cannot_be_made_is_the_disks_fault_or_not(
    monkeypatch, answer, problem, disk
):
    with pytest.raises(ScratchError) as refused:
        heard(
            lambda scratch: make(scratch, "/fast"),
            *3 * [{"done": False, **answer}],
            monkeypatch=monkeypatch,
        )

    assert (problem, disk) == (str(refused.value), refused.value.disk)


def test_what_is_kept_is_told_and_tried_again_until_it_is_removed(monkeypatch):
    [first, last], asked = heard(
        lambda scratch: scratch.free(free(1, is_wanted=True)),
        {"done": False, "problem": ""},  # there was no time for all of it
        {"done": False, "problem": "is gone", "is_disk": True},
        {"done": True},
        monkeypatch=monkeypatch,
    )

    assert ev.ScratchKept is type(first)
    assert ("tier fast: disk /fast is gone", False) == (first.problem, first.is_result)
    assert (ev.ScratchRemoved, 1, 2, 7.0) == (type(last), last.job_id, last.attempt, last.at_s)
    assert ["remove"] * 3 == [each["do"] for each in asked]


def test_what_could_not_be_made_is_kept_by_no_disk_that_is_of_no_use(monkeypatch):
    useless = {"done": False, "problem": "is gone", "is_disk": True}

    async def fail_and_free(scratch):
        with pytest.raises(ScratchError):
            await make(scratch, "/fast")
        scratch.free(free(1))

    [told], asked = heard(fail_and_free, useless, useless, monkeypatch=monkeypatch)

    assert REMOVED is type(told)
    assert ["make", "remove"] == [each["do"] for each in asked]


def test_a_helper_that_is_killed_fails_no_start(monkeypatch):
    died = {"done": False, "problem": ""}

    _, asked = heard(lambda scratch: make(scratch, "/fast"), died, DONE, monkeypatch=monkeypatch)

    assert ["make"] * 2 == [each["do"] for each in asked]


def test_what_one_made_is_removed_from_the_same_file_system_only(monkeypatch):
    async def make_and_free(scratch):
        await make(scratch, "/fast")
        scratch.free(free(1))

    _, asked = heard(make_and_free, DONE, DONE, monkeypatch=monkeypatch)

    assert [9, 5] == [each.get("filesystem") for each in asked]
    assert asked[0]["name"] == asked[1]["name"]


COPIES = ScratchRequest(size_bytes=GIB, output_path="/out")
ALWAYS = msgspec.structs.replace(COPIES, output_on="always")
KEPT, REMOVED = ev.ScratchKept, ev.ScratchRemoved
OUT = '{"step": "run"}\n{"step": "out"}\n'
FAILED = '{"out": {"failed": {"line": "no room"}, "read_bytes": 0, "written_bytes": 0}}\n'


@pytest.mark.parametrize(
    ("request_", "state", "report", "expected"),
    [
        (COPIES, JobState.FAILED, OUT + FAILED, KEPT),
        (COPIES, JobState.FAILED, OUT, KEPT),  # it was killed
        (COPIES, JobState.FAILED, '{"step": "run"}\n{"status": 256}', REMOVED),
        (COPIES, JobState.FAILED, '{"step": "run"}', KEPT),  # its own process was killed
        (COPIES, JobState.CANCELLED, '{"step": "run"}', REMOVED),
        (COPIES, JobState.COMPLETED, '{"step": "run"}', REMOVED),  # its disk was full
        (COPIES, JobState.LOST, '{"step": "run"}', KEPT),  # it may have been good
        (COPIES, JobState.LOST, None, KEPT),  # its report was removed
        (ALWAYS, JobState.FAILED, '{"step": "run"}', KEPT),
        (ALWAYS, JobState.FAILED, '{"step": "in"}', REMOVED),  # it never began
        (COPIES, JobState.PENDING, '{"step": "run"}', REMOVED),  # it runs again
        (ScratchRequest(size_bytes=GIB), JobState.LOST, '{"step": "run"}', REMOVED),
    ],
)
def test_a_result_that_was_not_copied_out_is_kept(
    tmp_path, monkeypatch, request_, state, report, expected
):
    if report is not None:
        (tmp_path / "1.2.report").write_text(report + "\n")
    made = job(1, state=state, scratch=request_, shares=SHARES, attempt=2, started_s=1.0)
    full = {"done": True, "used_bytes": 5, "is_all": True}
    answers = [full] if expected is KEPT else [DONE]
    [told], asked = heard(
        lambda scratch: scratch.free(free(1)),
        *answers,
        monkeypatch=monkeypatch,
        outputs=tmp_path,
        jobs=[made],
    )

    assert expected is type(told)
    assert ("measure" if expected is KEPT else "remove") == asked[0]["do"]
    if expected is KEPT:
        assert told.is_result
        assert "not copied to /out" in told.problem
        assert f"; it lies in /fast/.iodaemon/{asked[0]['name']}" in told.problem


def test_a_result_that_its_user_took_away_keeps_nothing(tmp_path, monkeypatch):
    (tmp_path / "1.2.report").write_text(OUT)
    made = job(1, state=JobState.FAILED, scratch=COPIES, shares=SHARES, attempt=2)
    empty = {"done": True, "used_bytes": 0, "is_all": True}
    [told], _ = heard(
        lambda scratch: scratch.free(free(1)),
        empty,
        DONE,
        monkeypatch=monkeypatch,
        outputs=tmp_path,
        jobs=[made],
    )

    assert REMOVED is type(told)


def test_a_job_with_too_much_is_told_of_and_ended_where_that_is_configured(monkeypatch):
    held = {"done": True, "used_bytes": 1, "is_all": True}
    over = {"done": True, "used_bytes": 2 * GIB, "is_all": False}
    events, asked = heard(
        lambda scratch: scratch.follow(Key(1, 2), free(1).shares),
        *(held, over, over, held),
        monkeypatch=monkeypatch,
    )

    assert [(2 * GIB, True, True, False), (1, False, True, True)] == [
        (each.used_bytes, each.is_over, each.ends, each.is_all) for each in events
    ]
    assert {"measure"} == {each["do"] for each in asked}


def test_what_is_covered_by_a_mount_is_told_as_too_much(monkeypatch):
    covered = {"done": False, "problem": "something else is mounted there", "is_disk": False}
    events, _ = heard(
        lambda scratch: scratch.follow(Key(1, 2), free(1).shares),
        covered,
        monkeypatch=monkeypatch,
    )

    assert [(0, True, False)] == [(each.used_bytes, each.is_over, each.is_all) for each in events]


def use(used_bytes, *, is_all):
    """What ``iod why``, ``iod show`` and ``iod node`` say of a job's use that is too much."""
    made = job(1, state=JobState.RUNNING, scratch=ScratchRequest(size_bytes=GIB), shares=SHARES)
    rig = Rig(State(MACHINE, TIERS))
    rig.state.restore([made], JobId(9))
    rig.step(
        ev.ScratchUsed(
            at_s=1.0,
            job_id=JobId(1),
            attempt=1,
            used_bytes=used_bytes,
            is_over=True,
            is_all=is_all,
        )
    )
    record = job_record(rig.job(), rig.state, 9.0, Path("/x"))
    [row] = node_report(rig.state, "simulated", {}, {})["allocated"]
    told = explain(rig.state, rig.controller.rules, rig.job(), 10.0).is_so
    return told, dict(scratch_pairs(record))["Too much"], row["over"]


@pytest.mark.parametrize(
    ("used_bytes", "is_all", "words"),
    [
        (4 * GIB, True, "has 4 GiB in its scratch space and asked for 1 GiB"),
        (4 * GIB, False, "has at least 4 GiB in its scratch space and asked for 1 GiB"),
        (
            0,
            False,
            (
                "has at least 0 B in its scratch space and asked for 1 GiB; what else it has "
                "cannot be measured: something may be mounted there"
            ),
        ),
    ],
)
def test_a_use_that_was_not_measured_whole_is_told_as_at_least(used_bytes, is_all, words):
    why_words, show, node = use(used_bytes, is_all=is_all)

    assert f"it {words}" in why_words
    assert words == show == node


# -- a daemon --------------------------------------------------------------------------------------

CONFIG = """
backend = "simulated"
[[tier.fast.disk]]
path = "/fast"
capacity = "100 GiB"
[tier.slow]
bandwidth = "200 MB/s"
"""


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text(CONFIG)
    return "--config", str(path)


def asking(size, command, **fields):
    return {"command": [command], "scratch": {"size_bytes": size * GIB, **fields}}


def test_space_outlives_a_killed_daemon_and_is_given_back_afterwards(tmp_path, config):
    places = (tmp_path / "state", tmp_path / "run")
    with daemon(*places, *config) as (client, process):
        [first, second] = client.submit([asking(80, "compute=1h"), asking(80, "compute=0s")], {})
        [row] = client.node()["allocated"]
        why = client.why(second)
        process.kill()
        process.wait()

    assert (first, "fast", "/fast", 80 * GIB) == (
        row["job_id"],
        row["tier"],
        row["disk"],
        row["size_bytes"],
    )
    assert "space of tier fast is given back: job 1 has 80 GiB" in why["until"]

    with daemon(*places, *config) as (client, _):
        client.wait([first, second])
        jobs = {each["id"]: each for each in client.jobs(all_jobs=True)["jobs"]}
        left = client.node()["allocated"]
        with pytest.raises(RequestError, match="job 2 has nothing in any tier's space"):
            client.ask("POST", f"/v1/jobs/{second}/scratch/remove", {})
        with pytest.raises(RequestError, match="asks for 101 GiB of tier fast, which has 100 GiB"):
            client.submit([asking(101, "compute=0s")], {})

    assert ("LOST", "COMPLETED") == (jobs[first]["state"], jobs[second]["state"])
    assert [] == left
    assert "fast" == jobs[second]["scratch"]["tier"]
    assert jobs[second]["scratch"]["charged_s"] is not None


def test_two_tiers_on_one_filesystem_are_refused_at_the_start(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    path = tmp_path / "config.toml"
    lines = (f'[[tier.{name}.disk]]\npath = "{tmp_path / name}"\non_root = true\n' for name in "ab")
    path.write_text("".join(lines))

    code, line = fails(tmp_path / "state", tmp_path / "run", "--config", str(path), backend="linux")

    assert 0 != code
    assert (
        f"tier b: disk {tmp_path}/b is on the same filesystem as disk {tmp_path}/a of tier a"
    ) in line
