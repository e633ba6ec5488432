"""Space of tiers: who gets it, who waits for it, when it is given back, and disks that are out."""

import math
import random

import msgspec
import pytest
from builders import Rig, cancel, exited, job, platform, requeue, started, submitted, timer
from hypothesis import given
from hypothesis import strategies as st
from tracing import then

from iodaemon.core import event as ev
from iodaemon.core.decision import AdmissionPlan, Placed, clearing_of
from iodaemon.core.error import InvariantError
from iodaemon.core.explain import explain
from iodaemon.core.job import DiskId, Exit, JobId, JobState, ScratchRequest, Share, TierName
from iodaemon.core.platform import PartitionId
from iodaemon.core.state import State
from iodaemon.core.stock import (
    Sketch,
    allot,
    candidates,
    could_ever_fit,
    free_of,
    largest_directory_bytes,
    split,
    why_never,
)
from iodaemon.core.storage import (
    Disk,
    Refusal,
    Storage,
    StorageLedger,
    StorageNode,
    StorageRequest,
    Tier,
)
from iodaemon.core.words import told_bytes
from iodaemon.registry import find_rule

GIB = 2**30
RULES = ("balanced", "best_bandwidth", "random", "round_robin", "worst_fit")


def tier(name="fast", *sizes, rule="balanced", block=None):
    """Disks of so many GiB, named after the tier; without sizes a tier without disks."""
    rates = {"read_bytes_per_s": 1e9, "write_bytes_per_s": 1e9}
    disks = tuple(
        Disk(id=DiskId(f"{name}{number}"), capacity_bytes=size * GIB, **rates)
        for number, size in enumerate(sizes)
    )
    return Tier(
        name=TierName(name),
        storage=Storage(nodes=(StorageNode(id=name, disks=disks),)) if disks else None,
        bandwidth_bytes_per_s=1e9,
        split_bytes=None if block is None else block * GIB,
        rule=None if rule is None else find_rule("allocation", rule)(),
    )


def wants(size, **fields):
    return ScratchRequest(size_bytes=size * GIB, **fields)


def come(*requests):
    """Jobs 1, 2, ... that ask for so much; None: for nothing."""
    sizes = (wants(each) if isinstance(each, int) else each for each in requests)
    return tuple(submitted(job(n, scratch=each)) for n, each in enumerate(sizes, start=1))


def removed(at_s, job_id=1, attempt=1):
    return ev.ScratchRemoved(at_s=at_s, job_id=JobId(job_id), attempt=attempt)


def kept(at_s, job_id=1, problem="its output could not be copied"):
    return ev.ScratchKept(at_s=at_s, job_id=JobId(job_id), attempt=1, problem=problem)


def unwanted(at_s, job_id=1):
    return ev.ScratchUnwanted(at_s=at_s, job_id=JobId(job_id), by="ann")


def machine(*tiers, slots=4, admission=None):
    """With this admission, or else that of the tests."""
    rig = Rig(State(platform(slots), tiers))
    if admission is not None:
        rig.controller.use(msgspec.structs.replace(rig.controller.rules, admission=admission))
    return rig


def fcfs(*tiers, slots=4):
    """A machine on which jobs start in order, with the reasons that the placement gives."""
    return machine(*tiers, slots=slots, admission=find_rule("admission", "fcfs")())


def sizes_of(rig, job_id=1):
    return {share.disk: share.size_bytes // GIB for share in rig.job(job_id).shares}


def free_gib(rig, disk="fast0"):
    return free_of(rig.state.stock.ledger("fast"), disk) // GIB


# -- taken and given back --------------------------------------------------------------------------


def test_space_is_taken_with_the_start_and_named_in_the_decision():
    rig = machine(tier("fast", 100), tier("slow"))
    rig.step(*come(60))
    [start] = rig.backend.take()

    assert ({"fast0": 60}, rig.job().shares) == (sizes_of(rig), start.shares)
    assert ("fast", 40) == (rig.job().tier, free_gib(rig))


def test_it_is_given_back_when_nothing_is_left_of_it_and_not_when_the_job_is_stopped_or_ends():
    rig = fcfs(tier("fast", 100))
    then(rig, come(60, 60), "start 1")
    then(rig, started(1.0))
    then(rig, cancel(2.0, grace_s=1.0), "stop 1")
    then(rig, timer(3.0), "kill 1", job_id=2, state="PENDING")
    rig.step(exited(5.0))
    assert [clearing_of(rig.job())] == rig.backend.take()
    assert {"fast0": 60} == sizes_of(rig)
    then(rig, removed(7.0), "start 2", shares=(), tier="fast")  # that is known for ever


def test_what_is_told_of_another_attempt_or_of_a_job_that_runs_frees_nothing():
    rig = machine(tier("fast", 100))
    then(rig, come(60), "start 1")
    then(rig, started(1.0))
    then(rig, (removed(2.0), kept(2.0), unwanted(2.0)))
    then(rig, exited(3.0), "free 1")
    then(rig, removed(4.0, attempt=7))

    assert {"fast0": 60} == sizes_of(rig)


def test_a_requeued_job_starts_only_when_its_last_attempt_has_left_nothing():
    rig = fcfs(tier("fast", 100))
    then(rig, come(30), "start 1")
    then(rig, started(1.0))
    then(rig, requeue(2.0), "stop 1")
    then(rig, exited(3.0), "free 1", waits="OldScratch")
    then(rig, removed(4.0), "start 1", attempt=2)

    assert {"fast0": 30} == sizes_of(rig)


def test_what_is_kept_takes_space_until_somebody_has_it_removed():
    rig = fcfs(tier("fast", 100))
    then(rig, come(80, 80), "start 1")
    then(rig, started(1.0))
    then(rig, exited(2.0, end=Exit(code=1)), "free 1")
    then(rig, kept(3.0), job_id=2, state="PENDING")
    assert "its output could not be copied" == rig.job().scratch_kept.text
    then(rig, unwanted(4.0), "free 1", scratch_kept=None)  # it is being cleared now
    assert clearing_of(rig.job()).is_wanted
    then(rig, kept(5.0))
    assert "its output could not be copied" == rig.job().scratch_kept.text
    then(rig, removed(6.0), "start 2", scratch_kept=None)


def test_a_finished_job_is_not_forgotten_while_it_holds_space():
    rig = Rig(State(platform(2), [tier("fast", 100)], kept_finished=0))
    then(rig, come(30), "start 1")
    then(rig, started(1.0))
    then(rig, exited(2.0), "free 1")
    then(rig, timer(3.0), state="COMPLETED")
    then(rig, removed(4.0))
    then(rig, timer(5.0))

    assert {} == rig.state.jobs


def test_a_start_that_could_not_be_written_down_gives_its_space_back():
    rig = fcfs(tier("fast", 100))
    then(rig, come(30), "start 1")
    then(rig, ev.SubmitRevoked(at_s=1.0, job_id=JobId(1)))

    assert 100 == free_gib(rig)


def test_restored_jobs_hold_what_they_held_and_what_is_gone_counts_nowhere():
    shares = tuple(
        Share(tier=TierName(name), disk=DiskId(disk), size_bytes=GIB)
        for name, disk in (("fast", "fast0"), ("fast", "gone"), ("old", "old0"))
    )
    ran = job(1, state=JobState.RUNNING, shares=shares)
    done = job(2, state=JobState.COMPLETED, shares=shares[:1])
    rig = Rig(State(platform(2), [tier("fast", 2)]))
    rig.state.restore([ran, done], JobId(3))

    rig.state.check()
    assert 0 == free_gib(rig)
    assert {JobId(1): shares, JobId(2): shares[:1]} == rig.state.stock.holders


def test_a_promise_of_space_that_is_not_there_is_a_bug():
    state = State(platform(2), [tier("fast", 2)])
    too_much = (Share(tier=TierName("fast"), disk=DiskId("fast0"), size_bytes=3 * GIB),)

    assert not state.stock.has_room(too_much)
    state.add(job(1, state=JobState.RUNNING, shares=too_much))
    state.stock.ledger("fast").give_back(*state.stock.taken_by(JobId(1)))

    with pytest.raises(InvariantError, match="disk fast0 has the shares of its jobs"):
        state.check()


# -- who gets it -----------------------------------------------------------------------------------


def test_a_job_that_waits_for_space_is_told_how_much_there_is():
    rig = fcfs(tier("fast", 100, 80, block=50), tier("slow"))
    then(rig, come(60, 140), "start 1", job_id=2, waits="Storage")

    assert rig.state.reason(JobId(2)).text == (
        "needs 140 GiB of tier fast in parts of 50 GiB; 120 GiB of it are free, at most 70 GiB on "
        "one disk"
    )


def test_a_job_that_asked_to_fail_without_room_does_not_hold_up_those_behind_it():
    rig = fcfs(tier("fast", 100), tier("slow"))
    why = (
        "needs 30 GiB of tier fast on one disk; 20 GiB of it are free; it asked to fail then "
        "(--scratch-fallback)"
    )
    jobs = come(80, wants(30, fallback="fail"), None)
    then(rig, jobs, "start 1", "reject 2", "start 3", job_id=2, state="FAILED", why=why)


def test_a_job_that_falls_back_goes_to_the_slow_tier_with_or_without_disks():
    falls_back = wants(40, fallback="slow", tier="fast")
    rig = fcfs(tier("fast", 100), tier("slow"))
    then(rig, come(80, falls_back), "start 1", "start 2", job_id=2, tier="slow", shares=())

    rig = fcfs(tier("fast", 100), tier("slow", 50))
    then(rig, come(*[falls_back] * 4), "start 1", "start 2", "start 3", job_id=4, state="PENDING")
    assert ["fast0", "fast0", "slow0"] == [rig.job(i).shares[0].disk for i in (1, 2, 3)]
    told = "needs 40 GiB of tier fast on one disk; 20 GiB of it are free"
    assert told == rig.state.reason(JobId(4)).text


def test_a_request_that_can_never_be_met_keeps_nobody_waiting_behind_it():
    rig = fcfs(tier("fast", 100))
    then(rig, come(200, None), "start 2", waits="Infeasible")

    told = "asks for 200 GiB of tier fast, which has 100 GiB; ask for less, or of another tier"
    assert told == rig.state.reason(JobId(1)).text


def test_a_request_that_names_no_tier_gets_the_fastest_that_is_large_enough():
    rig = fcfs(tier("fast", 30), tier("middle", 50), tier("slow"))
    then(rig, come(20, 40), "start 1", "start 2")

    assert [{"fast0": 20}, {"middle0": 40}] == [sizes_of(rig, i) for i in (1, 2)]


class Naming:
    """Asks for space on each tier, and starts on the middle one."""

    def __init__(self):
        self.asked = {}

    def decide(self, view, memory):
        draft, [each] = view.draft(), view.pending
        self.asked = {name: draft.place(each, name) for name in ("fast", "middle", "slow")}
        start = draft.start(each, self.asked["middle"], tier="middle")
        return AdmissionPlan(starts=(start,)), memory


def test_a_rule_that_names_a_tier_gets_that_one_and_no_other():
    rule = Naming()
    rig = machine(tier("fast", 30), tier("middle", 50), tier("slow"), admission=rule)
    then(rig, come(wants(40, fallback="fail")), "start 1", tier="middle")

    assert ("Storage", 0) == (rule.asked["fast"].reason.code, rule.asked["slow"])
    assert {"middle0": 40} == sizes_of(rig)


class Careless:
    """Looks at no space."""

    def decide(self, view, memory):
        starts = (Placed(job_id=each.id, partition=PartitionId(0)) for each in view.pending)
        return AdmissionPlan(starts=tuple(starts)), memory


@pytest.mark.parametrize(
    ("fallback", "state", "decided"),
    [("wait", "PENDING", []), ("slow", "STARTING", ["start 2"]), ("fail", "FAILED", ["reject 2"])],
)
def test_a_rule_that_looks_at_no_space_starts_nobody_without_it(fallback, state, decided):
    rig = machine(tier("fast", 100), tier("slow"), admission=Careless())
    then(rig, come(60), "start 1")
    then(rig, come(60, wants(60, fallback=fallback))[1], *decided, job_id=2, state=state)

    assert {"fast0": 60} == sizes_of(rig)
    if fallback == "wait":
        assert "Storage" == rig.state.reason(JobId(2)).code


class Mixing:
    """Looks at space for the last that waits, and starts all: the last one last."""

    def decide(self, view, memory):
        *others, last = view.pending
        starts = [Placed(job_id=each.id, partition=PartitionId(0)) for each in others]
        draft = view.draft()
        starts.append(draft.start(last, draft.place(last)))
        return AdmissionPlan(starts=tuple(starts)), memory


@pytest.mark.parametrize("disks", [(100,), (100, 70)])
def test_space_that_went_to_an_earlier_start_of_the_same_plan_is_not_given_twice(disks):
    rig = machine(tier("fast", *disks), tier("slow"), admission=Mixing())
    rig.step(*come(60, 60))
    rig.backend.take()

    assert 60 in sizes_of(rig, 1).values()
    if len(disks) == 2:
        assert 60 in sizes_of(rig, 2).values()
    else:
        assert ("PENDING", "Storage") == (rig.job(2).state, rig.state.reason(2).code)
        assert "needs 60 GiB of tier fast on one disk" in rig.state.reason(2).text


def test_round_robin_goes_on_where_it_was_from_one_decision_to_the_next():
    rig = fcfs(tier("fast", 100, 100, 100, rule="round_robin"))
    for number, each in enumerate(come(10, 10, 10, 10), start=1):
        then(rig, each, f"start {number}")

    assert ["fast0", "fast1", "fast2", "fast0"] == [rig.job(i).shares[0].disk for i in (1, 2, 3, 4)]


@pytest.mark.parametrize("named", [None, "fast"])
def test_who_has_too_large_a_file_for_a_split_tier_goes_to_the_next_that_holds_it(named):
    tiers = (tier("fast", 20, 20, block=2), tier("whole", 30), tier("slow"))
    asked = wants(10, tier=named, fallback="slow", input_path="/in", input_bytes=7 * GIB)
    rig = fcfs(*tiers)
    then(rig, come(asked), "start 1")

    assert (["slow"] if named else ["whole", "slow"]) == [t.name for t in candidates(tiers, asked)]
    assert "fast" not in {share.tier for share in rig.job().shares}


# -- disks that are out ----------------------------------------------------------------------------

READ_ONLY = "tier fast: disk /x is read-only; mount it writable"


def failed(at_s, job_id=1, attempt=1, *, disk="fast0"):
    of = {"job_id": JobId(job_id), "attempt": attempt}
    return ev.StartFailed(at_s=at_s, problem=READ_ONLY, disk=disk, **of)


def seen(at_s, disk="fast0", problem=""):
    return ev.DiskSeen(at_s=at_s, disk=DiskId(disk), problem=problem)


def met(*tiers, disk="fast0", **fields):
    """A machine on which job 1 could not have its directory on a disk."""
    rig = fcfs(*tiers)
    then(rig, come(wants(30, **fields)), "start 1")
    then(rig, failed(1.0, disk=disk), "free 1", state="PENDING")
    return rig


def test_who_met_it_is_put_on_another_disk_at_once():
    rig = met(tier("fast", 100, 90))
    then(rig, removed(1.1), "start 1", state="STARTING", attempt=2)

    assert {"fast1": 30} == sizes_of(rig)


def test_who_met_it_falls_back_as_it_asked():
    rig = met(tier("fast", 100), tier("slow"), fallback="slow")
    then(rig, removed(1.1), "start 1", state="STARTING", shares=(), tier="slow")


def test_who_asked_to_fail_then_fails_and_is_told():
    rig = met(tier("fast", 100), tier("slow"), fallback="fail")
    then(rig, removed(1.1), "reject 1", state="FAILED")

    assert READ_ONLY in rig.job().reason.text


def test_who_waits_is_told_which_disk_and_keeps_its_place():
    rig = met(tier("fast", 100))
    then(rig, (removed(1.1), submitted(job(2, scratch=wants(10), submitted_s=1.1))))
    told = explain(rig.state, rig.controller.rules, rig.job(), 2.0)

    assert READ_ONLY in told.is_so
    assert f"a disk is mended, which is seen within a minute ({READ_ONLY})" in told.until
    assert 0 == rig.state.stock.free_bytes()["fast0"]

    then(rig, seen(60.0), "start 1", "start 2")

    assert [{"fast0": 30}, {"fast0": 10}] == [sizes_of(rig, i) for i in (1, 2)]


def test_what_others_hold_of_it_they_keep_and_give_back():
    rig = fcfs(tier("fast", 100))
    then(rig, come(30, 30), "start 1", "start 2")
    then(rig, started(0.5))
    then(rig, failed(1.0, job_id=2), "free 2")
    then(rig, (removed(1.1, job_id=2), submitted(job(3, scratch=wants(30), submitted_s=1.1))))
    assert {"fast0": 30} == sizes_of(rig)
    then(rig, (exited(2.0), removed(2.1)), "free 1")

    assert ["PENDING"] * 2 == [rig.job(2).state, rig.job(3).state]


def test_a_disk_that_no_tier_has_delays_the_job_alone():
    rig = met(tier("fast", 100), disk="/gone")
    then(rig, removed(1.1))

    assert ({}, READ_ONLY) == (rig.state.stock.unusable, rig.state.reason(JobId(1)).text)


@pytest.mark.parametrize(("attempt", "state"), [(1, "CANCELLED"), (7, "STOPPING")])
def test_a_job_that_ended_meanwhile_or_an_old_attempt_still_tells_of_the_disk(attempt, state):
    rig = fcfs(tier("fast", 100))
    then(rig, come(30), "start 1")
    then(rig, cancel(0.5), "stop 1")
    then(rig, failed(1.0, attempt=attempt), *(["free 1"] if attempt == 1 else []), state=state)

    assert {"fast0"} == rig.state.stock.unusable.keys()


@pytest.mark.parametrize("rule", RULES)
@given(data=st.data())
def test_whatever_is_seen_of_disks_nothing_is_given_of_those_that_are_out(rule, data):
    rig = Rig(State(platform(8), [tier("fast", 20, 20, rule=rule, block=7)]))
    out = set()
    for number in range(1, 9):
        disk = data.draw(st.sampled_from(["fast0", "fast1"]))
        problem = data.draw(st.sampled_from(["", "read-only"]))
        (out.add if problem else out.discard)(disk)
        made = job(number, scratch=wants(data.draw(st.integers(1, 20))), submitted_s=1.0)
        rig.step(seen(float(number), disk, problem), submitted(made))

        assert out == rig.state.stock.unusable.keys()
        if rig.job(number).state is JobState.STARTING:
            assert not out & sizes_of(rig, number).keys()
        if data.draw(st.booleans()) and rig.job(number).shares:
            rig.step(started(number + 0.2, job_id=number))
            rig.step(exited(number + 0.3, job_id=number), removed(number + 0.4, job_id=number))
    rig.step(*(seen(20.0, disk) for disk in sorted(out)))


# -- for every machine and every life --------------------------------------------------------------

SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=4)
BLOCKS = st.none() | st.integers(1, 20)
PARTS_TAKEN = st.lists(st.integers(0, 100), min_size=4, max_size=4)
ACTS = {
    "start": started,
    "end": exited,
    "remove": removed,
    "keep": lambda at_s, job_id, _: kept(at_s, job_id),
    "cancel": lambda at_s, job_id, _: cancel(at_s, job_id),
    "requeue": lambda at_s, job_id, _: requeue(at_s, job_id),
    "wish": lambda at_s, job_id, _: unwanted(at_s, job_id),
}
HISTORIES = st.lists(
    st.tuples(
        st.sampled_from(["submit", *ACTS]),
        st.integers(1, 12),
        st.integers(1, 60),
        st.sampled_from(["slow", "wait", "fail"]),
    ),
    max_size=40,
)


@given(SIZES, BLOCKS, st.sampled_from(RULES), HISTORIES)
def test_no_disk_is_ever_promised_twice_and_nothing_is_lost(sizes, block, rule, history):
    rig = fcfs(tier("fast", *sizes, rule=rule, block=block), tier("slow"), slots=3)
    ledger = rig.state.stock.ledger("fast")
    count = 0
    for at_s, (act, number, size, fallback) in enumerate(history):
        if act == "submit":
            count += 1
            asked = wants(size, fallback=fallback)
            rig.step(submitted(job(count, scratch=asked, submitted_s=float(at_s))))
        elif number in rig.state.jobs:
            rig.step(ACTS[act](float(at_s), number, rig.job(number).attempt))
        for each in ledger.storage.disks:
            assert 0 <= free_of(ledger, each.id) <= each.capacity_bytes
    for number in range(1, count + 1):
        for _ in range(3):  # whatever it is, it ends, and nothing is left of it
            attempt = rig.job(number).attempt
            rig.step(cancel(100.0, number), exited(100.0, number, attempt))
            rig.step(removed(100.0, number, attempt))

    assert {} == rig.state.stock.holders
    assert ledger.storage.capacity_bytes == sum(free_of(ledger, d.id) for d in ledger.storage.disks)


def sketch_of(made, taken):
    """Of the tier, of whose disks these parts in a hundred are taken."""
    sketch = Sketch(StorageLedger(made.storage, random.Random(1)))
    for disk, part in zip(made.storage.disks, taken, strict=False):
        if held := part * disk.capacity_bytes // 100:
            sketch.take(Share(tier=made.name, disk=disk.id, size_bytes=held))
    return sketch


def asked_of(made, size, sketch=None):
    wanted = StorageRequest(id="a", size_bytes=size * GIB, start_s=0.0, end_s=math.inf)
    return allot(made, sketch or sketch_of(made, ()), wanted, None)[0]


@given(SIZES, BLOCKS, PARTS_TAKEN, st.integers(1, 200), st.sampled_from((None, *RULES)))
def test_shares_are_of_different_disks_and_make_up_the_request(sizes, block, taken, size, rule):
    """What could ever fit does on an empty tier, and a directory is as large as is promised."""
    made = tier("fast", *sizes, rule=rule, block=block)

    assert could_ever_fit(made, size * GIB) == (not isinstance(asked_of(made, size), Refusal))

    found = asked_of(made, size, sketch_of(made, taken))
    least = largest_directory_bytes(made, size * GIB)
    assert min(size, block or size) * GIB <= least <= size * GIB
    if not isinstance(found, Refusal):
        assert size * GIB == sum(share.size_bytes for share in found)
        assert len(found) == len({share.disk for share in found})
        assert all(made.storage.by_id[s.disk].capacity_bytes >= s.size_bytes for s in found)
        assert max(share.size_bytes for share in found) >= least


@given(SIZES, PARTS_TAKEN, st.integers(1, 60), st.sampled_from(RULES))
def test_no_rule_refuses_what_one_disk_has_room_for(sizes, taken, size, rule):
    made = tier("fast", *sizes, rule=rule)
    sketch = sketch_of(made, taken)
    has_room = any(free_of(sketch, d.id) >= size * GIB for d in made.storage.disks)

    assert has_room == (not isinstance(asked_of(made, size, sketch), Refusal))


class Asking:
    """Asks for the space of each that waits three times over."""

    def __init__(self, rule):
        self.rule, self.answers = rule, set()

    def decide(self, view, memory):
        draft = view.draft()
        for each in view.pending:
            self.answers.add(len({str(draft.find_space(each)) for _ in range(3)}))
        return self.rule.decide(view, memory)


@given(SIZES, st.sampled_from(RULES), st.lists(st.integers(1, 60), min_size=1, max_size=6))
def test_the_same_question_on_the_same_draft_has_the_same_answer(sizes, rule, wanted):
    asking = Asking(type(machine().admission)())
    rig = machine(tier("fast", *sizes, rule=rule), tier("slow"), admission=asking)
    for each in come(*(wants(size, fallback="slow") for size in wanted)):
        rig.step(each)

    assert {1} == asking.answers


# -- what fits -------------------------------------------------------------------------------------


def test_parts_are_whole_blocks_and_the_rest():
    assert ((5, 5, 2), (12,)) == (split(12, 5), split(12, None))


@pytest.mark.parametrize(
    ("size", "text"), [(1, "1 B"), (1536, "1.5 KiB"), (200 * GIB, "200 GiB"), (0, "0 B")]
)
def test_sizes_are_told_in_powers_of_1024(size, text):
    assert text == told_bytes(size)


SLOW = tier("slow")
INPUT_OF_7 = {"input_path": "/in", "input_bytes": 7 * GIB}
SPLIT = tier("fast", 20, 20, block=2)
NEVER = [
    ((), wants(1), "asks for scratch space, and no tier of storage is configured; go without"),
    (
        (tier("fast", 10), SLOW),
        wants(1, tier="nvme"),
        "asks for tier nvme, which is not configured; there are: fast, slow",
    ),
    (
        (tier("fast", 10, 20),),
        wants(25),
        (
            "asks for 25 GiB of tier fast, whose largest disk has 20 GiB and which is not split; "
            "ask for less, or of another tier"
        ),
    ),
    (
        (tier("fast", 10, 20, block=5),),
        wants(31),
        (
            "asks for 31 GiB of tier fast, which has 30 GiB on 2 disks; ask for less, or of "
            "another tier"
        ),
    ),
    (
        (SPLIT, SLOW),
        wants(10, tier="fast", **INPUT_OF_7),
        (
            "its input has 7 GiB, and of 10 GiB on tier fast, which come in parts of 2 GiB, one "
            "directory may have no more than 6 GiB; ask for more, or for a tier that is not split, "
            "or read the input where it is"
        ),
    ),
    ((SPLIT,), wants(10, input_path="/in", input_bytes=6 * GIB), None),
    ((tier("fast", 20, block=2),), wants(10, input_path="/in", input_bytes=10 * GIB), None),
    ((SPLIT, SLOW), wants(10, fallback="slow", **INPUT_OF_7), None),
    ((tier("fast", 10), SLOW), wants(31, fallback="slow"), None),
    ((tier("fast", 10, 20, block=5),), wants(30), None),
    ((tier("fast", 10), tier("middle", 50), SLOW), wants(30), None),
]


@pytest.mark.parametrize(("tiers", "request_", "text"), NEVER)
def test_why_a_request_can_never_be_met_is_a_line(tiers, request_, text):
    assert text == why_never(tiers, request_)


@pytest.mark.parametrize(
    ("sizes", "size", "least"),
    [((20,), 11, 11), ((20, 20), 11, 6), ((20, 20), 9, 5), ((4, 20, 20), 12, 4), ((3, 40), 20, 18)],
)
def test_the_most_even_spread_is_what_one_directory_surely_has(sizes, size, least):
    assert least * GIB == largest_directory_bytes(tier("fast", *sizes, block=2), size * GIB)


@pytest.mark.parametrize("parts", [1001, 2**63 // (4 << 20)])
def test_a_request_of_more_parts_than_are_looked_at_is_refused_without_listing_them(parts):
    size = parts * (4 << 20)
    one = msgspec.structs.replace(tier("fast", 5), split_bytes=4 << 20)
    request = StorageRequest(id="job 1", size_bytes=size, start_s=0.0, end_s=math.inf)
    found, _ = allot(one, StorageLedger(one.storage, random.Random(0)), request, None)
    asked = ScratchRequest(size_bytes=size, fallback="slow")

    assert isinstance(found, Refusal)
    assert why_never([one], asked) is not None
    assert why_never([one, SLOW], asked) is None
