"""Space of tiers: who gets it, who waits for it, and when it is given back."""

import math
import random

import msgspec
import pytest
from builders import Rig, cancel, exited, job, platform, requeue, started, submitted, timer
from hypothesis import given
from hypothesis import strategies as st

from iodaemon.core import event as ev
from iodaemon.core.decision import (
    AdmissionPlan,
    Free,
    Kill,
    Placed,
    Reject,
    Start,
    Stop,
    clearing_of,
)
from iodaemon.core.error import InvariantError
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
    disks = tuple(
        Disk(
            id=DiskId(f"{name}{number}"),
            capacity_bytes=size * GIB,
            read_bytes_per_s=1e9,
            write_bytes_per_s=1e9,
        )
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


def removed(at_s, job_id=1, attempt=1):
    return ev.ScratchRemoved(at_s=at_s, job_id=JobId(job_id), attempt=attempt)


def kept(at_s, job_id=1, problem="its output could not be copied"):
    return ev.ScratchKept(at_s=at_s, job_id=JobId(job_id), attempt=1, problem=problem)


def machine(*tiers, slots=4):
    return Rig(State(platform(slots), tiers))


def sizes_of(each):
    return {share.disk: share.size_bytes // GIB for share in each.shares}


def test_space_is_taken_with_the_start_and_named_in_the_decision():
    rig = machine(tier("fast", 100), tier("slow"))
    rig.step(submitted(job(1, scratch=wants(60))))
    [start] = rig.backend.take()

    assert {"fast0": 60} == sizes_of(rig.job())
    assert start.shares == rig.job().shares
    assert "fast" == rig.job().tier
    assert 40 * GIB == free_of(rig.state.stock.ledger("fast"), "fast0")


def test_it_is_given_back_when_nothing_is_left_of_it_and_not_when_the_job_ends():
    rig = machine(tier("fast", 100))
    rig.step(submitted(job(1, scratch=wants(60))), submitted(job(2, scratch=wants(60))))
    rig.step(started(1.0))
    rig.backend.take()

    rig.step(exited(5.0))

    assert [clearing_of(rig.job())] == rig.backend.take()
    assert JobState.PENDING is rig.job(2).state

    rig.step(removed(7.0))

    assert [2] == [each.job_id for each in rig.backend.take()]
    assert () == rig.job(1).shares
    assert "fast" == rig.job(1).tier, "that is known for ever"


def test_what_is_told_of_another_attempt_or_of_a_job_that_runs_frees_nothing():
    rig = machine(tier("fast", 100))
    rig.step(submitted(job(1, scratch=wants(60))))
    rig.step(started(1.0))
    rig.step(removed(2.0), kept(2.0), ev.ScratchUnwanted(at_s=2.0, job_id=JobId(1), by="ann"))

    assert rig.job().shares

    rig.step(exited(3.0))
    rig.step(removed(4.0, attempt=7))

    assert rig.job().shares
    rig.backend.take()


def test_a_job_that_waits_for_space_is_told_how_much_there_is():
    rig = fcfs(tier("fast", 100, 80, block=50), tier("slow"))
    rig.step(submitted(job(1, scratch=wants(60))), submitted(job(2, scratch=wants(140))))
    rig.backend.take()

    reason = rig.state.reason(JobId(2))

    assert "Storage" == reason.code
    assert (
        "needs 140 GiB of tier fast in parts of 50 GiB; 120 GiB of it are free, at most 70 GiB on "
        "one disk"
    ) == reason.text


def test_a_job_that_asked_to_fail_without_room_does_not_hold_up_those_behind_it():
    rig = fcfs(tier("fast", 100), tier("slow"))
    rig.step(submitted(job(1, scratch=wants(80))))
    rig.step(submitted(job(2, scratch=wants(30, fallback="fail"))), submitted(job(3)))
    decisions = rig.backend.take()

    assert [Start, Reject, Start] == [type(each) for each in decisions]
    assert (
        "needs 30 GiB of tier fast on one disk; 20 GiB of it are free; it asked to fail then "
        "(--scratch-fallback)"
    ) == rig.job(2).reason.text


def test_a_job_that_falls_back_to_the_slow_tier_runs_there_without_space():
    rig = fcfs(tier("fast", 100), tier("slow"))
    rig.step(submitted(job(1, scratch=wants(80))))
    rig.step(submitted(job(2, scratch=wants(30, fallback="slow"))))

    assert ("slow", ()) == (rig.job(2).tier, rig.job(2).shares)
    rig.backend.take()


def test_a_slow_tier_with_disks_is_shared_out_too():
    rig = fcfs(tier("fast", 100), tier("slow", 50))
    for number in (1, 2, 3):
        rig.step(submitted(job(number, scratch=wants(40, fallback="slow", tier="fast"))))
    rig.step(submitted(job(4, scratch=wants(40, fallback="slow", tier="fast"))))

    assert ["fast0", "fast0", "slow0"] == [rig.job(i).shares[0].disk for i in (1, 2, 3)]
    assert JobState.PENDING is rig.job(4).state
    assert "needs 40 GiB of tier fast on one disk; 20 GiB of it are free" == (
        rig.state.reason(JobId(4)).text
    )
    rig.backend.take()


def test_a_request_that_can_never_be_met_keeps_nobody_waiting_behind_it():
    rig = fcfs(tier("fast", 100))
    rig.step(submitted(job(1, scratch=wants(200))), submitted(job(2)))

    assert [2] == [each.job_id for each in rig.backend.take()]
    assert (
        "Infeasible",
        "asks for 200 GiB of tier fast, which has 100 GiB; ask for less, or of another tier",
    ) == (rig.state.reason(JobId(1)).code, rig.state.reason(JobId(1)).text)


def test_a_requeued_job_starts_only_when_its_last_attempt_has_left_nothing():
    rig = fcfs(tier("fast", 100))
    rig.step(submitted(job(1, scratch=wants(30))))
    rig.step(started(1.0))
    rig.step(requeue(2.0))
    rig.step(exited(3.0))

    assert [Start, Stop, Free] == [type(each) for each in rig.backend.take()]
    assert "OldScratch" == rig.state.reason(JobId(1)).code

    rig.step(removed(4.0))
    [again] = rig.backend.take()

    assert (2, {"fast0": 30}) == (again.attempt, sizes_of(rig.job()))


def test_what_is_kept_takes_space_until_somebody_has_it_removed():
    rig = fcfs(tier("fast", 100))
    rig.step(submitted(job(1, scratch=wants(80))), submitted(job(2, scratch=wants(80))))
    rig.step(started(1.0))
    rig.step(exited(2.0, end=Exit(code=1)))
    rig.step(kept(3.0))
    rig.backend.take()

    assert "its output could not be copied" == rig.job().scratch_kept.text
    assert JobState.PENDING is rig.job(2).state

    rig.step(ev.ScratchUnwanted(at_s=4.0, job_id=JobId(1), by="ann"))

    assert [clearing_of(rig.job())] == rig.backend.take()
    assert clearing_of(rig.job()).is_wanted
    assert rig.job().scratch_kept is None, "it is being cleared now"

    rig.step(kept(5.0))

    assert "its output could not be copied" == rig.job().scratch_kept.text

    rig.step(removed(6.0))

    assert rig.job().scratch_kept is None
    assert [2] == [each.job_id for each in rig.backend.take()]


def test_a_finished_job_is_not_forgotten_while_it_holds_space():
    state = State(platform(2), [tier("fast", 100)], kept_finished=0)
    rig = Rig(state)
    rig.step(submitted(job(1, scratch=wants(30))))
    rig.step(started(1.0))
    rig.step(exited(2.0))
    rig.step(timer(3.0))

    assert JobId(1) in state.jobs

    rig.step(removed(4.0))
    rig.step(timer(5.0))

    assert JobId(1) not in state.jobs
    rig.backend.take()


def test_a_start_that_could_not_be_written_down_gives_its_space_back():
    rig = fcfs(tier("fast", 100))
    rig.step(submitted(job(1, scratch=wants(30))))
    rig.step(ev.SubmitRevoked(at_s=1.0, job_id=JobId(1)))

    assert 100 * GIB == free_of(rig.state.stock.ledger("fast"), "fast0")
    rig.backend.take()


def test_restored_jobs_hold_what_they_held_and_what_is_gone_counts_nowhere():
    shares = tuple(
        Share(tier=TierName(name), disk=DiskId(disk), size_bytes=GIB)
        for name, disk in (("fast", "fast0"), ("fast", "gone"), ("old", "old0"))
    )
    ran = job(1, state=JobState.RUNNING, shares=shares)
    done = job(2, state=JobState.COMPLETED, shares=shares[:1])
    state = State(platform(2), [tier("fast", 2)])
    state.restore([ran, done], JobId(3))

    state.check()
    assert 0 == free_of(state.stock.ledger("fast"), "fast0")
    assert {JobId(1): shares, JobId(2): shares[:1]} == state.stock.holders


def test_a_promise_of_space_that_is_not_there_is_a_bug():
    state = State(platform(2), [tier("fast", 2)])
    too_much = (Share(tier=TierName("fast"), disk=DiskId("fast0"), size_bytes=3 * GIB),)

    assert not state.stock.has_room(too_much)
    state.add(job(1, state=JobState.RUNNING, shares=too_much))
    state.stock.ledger("fast").give_back(*state.stock.taken_by(JobId(1)))

    with pytest.raises(InvariantError, match="disk fast0 has the shares of its jobs"):
        state.check()


def test_a_request_that_names_no_tier_gets_the_fastest_that_is_large_enough():
    rig = fcfs(tier("fast", 30), tier("middle", 50), tier("slow"))
    for number, size in ((1, 20), (2, 40)):
        rig.step(submitted(job(number, scratch=wants(size))))

    assert [{"fast0": 20}, {"middle0": 40}] == [sizes_of(rig.job(i)) for i in (1, 2)]
    rig.backend.take()


def test_a_rule_that_names_a_tier_gets_that_one_and_no_other():
    rig = machine(tier("fast", 30), tier("middle", 50), tier("slow"))
    asked = {}

    class Naming:
        def decide(self, view, memory):
            draft = view.draft()
            starts = []
            for each in view.pending:
                for name in ("fast", "middle", "slow"):
                    asked[name] = draft.place(each, name)
                starts.append(draft.start(each, asked["middle"], tier="middle"))
            return AdmissionPlan(starts=tuple(starts)), memory

    rig.controller.use(msgspec.structs.replace(rig.controller.rules, admission=Naming()))
    rig.step(submitted(job(1, scratch=wants(40, fallback="fail"))))

    assert "Storage" == asked["fast"].reason.code
    assert (0, "middle", {"middle0": 40}) == (asked["slow"], rig.job().tier, sizes_of(rig.job()))
    rig.backend.take()


@pytest.mark.parametrize(
    ("fallback", "state"),
    [("wait", JobState.PENDING), ("slow", JobState.STARTING), ("fail", JobState.FAILED)],
)
def test_a_rule_that_looks_at_no_space_starts_nobody_without_it(fallback, state):
    class Careless:
        def decide(self, view, memory):
            starts = (Placed(job_id=each.id, partition=PartitionId(0)) for each in view.pending)
            return AdmissionPlan(starts=tuple(starts)), memory

    rig = machine(tier("fast", 100), tier("slow"))
    rig.controller.use(msgspec.structs.replace(rig.controller.rules, admission=Careless()))
    rig.step(submitted(job(1, scratch=wants(60))))
    rig.step(submitted(job(2, scratch=wants(60, fallback=fallback))))
    rig.backend.take()

    assert {"fast0": 60} == sizes_of(rig.job(1))
    assert state is rig.job(2).state
    if state is JobState.PENDING:
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
    rig = machine(tier("fast", *disks), tier("slow"))
    rig.controller.use(msgspec.structs.replace(rig.controller.rules, admission=Mixing()))
    rig.step(*(submitted(job(number, scratch=wants(60))) for number in (1, 2)))
    rig.backend.take()

    assert 60 in sizes_of(rig.job(1)).values()
    if len(disks) == 2:
        assert 60 in sizes_of(rig.job(2)).values()
    else:
        assert (JobState.PENDING, "Storage") == (rig.job(2).state, rig.state.reason(2).code)
        assert "needs 60 GiB of tier fast on one disk" in rig.state.reason(2).text
    rig.state.check()


def fcfs(*tiers, slots=4):
    """A machine on which jobs start in order, with the reasons that the placement gives."""
    rig = machine(*tiers, slots=slots)
    rules = msgspec.structs.replace(
        rig.controller.rules, admission=find_rule("admission", "fcfs")()
    )
    rig.controller.use(rules)
    return rig


# -- for every machine and every life --------------------------------------------------------------

SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=4)
ACTS = st.lists(
    st.tuples(
        st.sampled_from(["submit", "start", "end", "remove", "keep", "cancel", "requeue", "wish"]),
        st.integers(1, 12),
        st.integers(1, 60),
        st.sampled_from(["slow", "wait", "fail"]),
    ),
    max_size=40,
)


@given(SIZES, st.none() | st.integers(1, 20), st.sampled_from(RULES), ACTS)
def test_no_disk_is_ever_promised_twice_and_nothing_is_lost(sizes, block, rule, acts):
    rig = fcfs(tier("fast", *sizes, rule=rule, block=block), tier("slow"), slots=3)
    ledger = rig.state.stock.ledger("fast")
    submitted_yet = 0
    for at_s, (act, number, size, fallback) in enumerate(acts):
        if act == "submit":
            submitted_yet += 1
            made = job(submitted_yet, scratch=wants(size, fallback=fallback))
            rig.step(submitted(msgspec.structs.replace(made, submitted_s=float(at_s))))
        else:
            _act(rig, act, number, float(at_s))
        rig.backend.take()
        for each in ledger.storage.disks:
            assert 0 <= free_of(ledger, each.id) <= each.capacity_bytes
    for number in range(1, submitted_yet + 1):
        _end(rig, number, 100.0 + number)
    rig.backend.take()

    assert {} == rig.state.stock.holders
    assert ledger.storage.capacity_bytes == sum(free_of(ledger, d.id) for d in ledger.storage.disks)


def _act(rig, act, number, at_s):
    known = rig.state.jobs.get(JobId(number))
    if known is None:
        return
    attempt = known.attempt
    event = {
        "start": started(at_s, number, attempt),
        "end": exited(at_s, number, attempt),
        "remove": removed(at_s, number, attempt),
        "keep": kept(at_s, number),
        "cancel": cancel(at_s, number),
        "requeue": requeue(at_s, number),
        "wish": ev.ScratchUnwanted(at_s=at_s, job_id=JobId(number), by="ann"),
    }[act]
    rig.step(event)


def _end(rig, number, at_s):
    """Whatever it is, it ends, and nothing is left of it."""
    for _ in range(3):
        attempt = rig.job(number).attempt
        rig.step(cancel(at_s, number), exited(at_s, number, attempt))
        rig.step(removed(at_s, number, attempt))


@given(
    SIZES,
    st.none() | st.integers(1, 20),
    st.integers(1, 200),
    st.sampled_from((None, *RULES)),
    st.integers(0, 9),
)
def test_what_could_ever_fit_does_on_an_empty_tier_under_every_rule(sizes, block, size, rule, seed):
    made = tier("fast", *sizes, rule=rule, block=block)
    ledger = StorageLedger(made.storage, random.Random(seed))
    wanted = StorageRequest(id="a", size_bytes=size * GIB, start_s=0.0, end_s=math.inf)
    found, _ = allot(made, ledger, wanted, None)

    assert could_ever_fit(made, size * GIB) == (not isinstance(found, Refusal))


@given(
    SIZES,
    st.lists(st.integers(0, 100), min_size=4, max_size=4),
    st.integers(1, 60),
    st.sampled_from(RULES),
)
def test_no_rule_refuses_what_one_disk_has_room_for(sizes, taken, size, rule):
    made = tier("fast", *sizes, rule=rule)
    sketch = Sketch(StorageLedger(made.storage, random.Random(1)))
    for disk, part in zip(made.storage.disks, taken, strict=False):
        held = part * disk.capacity_bytes // 100
        if held:
            sketch.take(Share(tier=made.name, disk=disk.id, size_bytes=held))
    wanted = StorageRequest(id="a", size_bytes=size * GIB, start_s=0.0, end_s=math.inf)
    has_room = any(free_of(sketch, d.id) >= size * GIB for d in made.storage.disks)
    found, _ = allot(made, sketch, wanted, None)

    assert has_room == (not isinstance(found, Refusal))


@given(SIZES, st.none() | st.integers(1, 20), st.integers(1, 200), st.sampled_from(RULES))
def test_shares_are_of_different_disks_and_make_up_the_request(sizes, block, size, rule):
    made = tier("fast", *sizes, rule=rule, block=block)
    sketch = Sketch(StorageLedger(made.storage, random.Random(1)))
    wanted = StorageRequest(id="a", size_bytes=size * GIB, start_s=0.0, end_s=math.inf)
    found, _ = allot(made, sketch, wanted, None)

    if isinstance(found, Refusal):
        return
    assert size * GIB == sum(share.size_bytes for share in found)
    assert len(found) == len({share.disk for share in found})
    for share in found:
        assert made.storage.by_id[share.disk].capacity_bytes >= share.size_bytes


@given(SIZES, st.sampled_from(RULES), st.lists(st.integers(1, 60), min_size=1, max_size=6))
def test_the_same_question_on_the_same_draft_has_the_same_answer(sizes, rule, wanted):
    rig = machine(tier("fast", *sizes, rule=rule), tier("slow"))
    seen = []

    class Asking:
        def decide(self, view, memory):
            draft = view.draft()
            for each in view.pending:
                answers = [draft.find_space(each) for _ in range(3)]
                seen.append(len(set(map(str, answers))))
            return type(rig.admission)().decide(view, memory)

    rig.controller.use(msgspec.structs.replace(rig.controller.rules, admission=Asking()))
    for number, size in enumerate(wanted, 1):
        rig.step(submitted(job(number, scratch=wants(size, fallback="slow"))))
    rig.backend.take()

    assert {1} >= set(seen)


def test_round_robin_goes_on_where_it_was_from_one_decision_to_the_next():
    rig = fcfs(tier("fast", 100, 100, 100, rule="round_robin"))
    for number in (1, 2, 3, 4):
        rig.step(submitted(job(number, scratch=wants(10))))

    assert ["fast0", "fast1", "fast2", "fast0"] == [rig.job(i).shares[0].disk for i in (1, 2, 3, 4)]
    rig.backend.take()


def test_parts_are_whole_blocks_and_the_rest():
    assert (5, 5, 2) == split(12, 5)
    assert (12,) == split(12, None)


@pytest.mark.parametrize(
    ("size", "text"), [(1, "1 B"), (1536, "1.5 KiB"), (200 * GIB, "200 GiB"), (0, "0 B")]
)
def test_sizes_are_told_in_powers_of_1024(size, text):
    assert text == told_bytes(size)


@pytest.mark.parametrize(
    ("tiers", "request_", "text"),
    [
        ((), wants(1), "asks for scratch space, and no tier of storage is configured; go without"),
        (
            (tier("fast", 10), tier("slow")),
            wants(1, tier="nvme"),
            "asks for tier nvme, which is not configured; there are: fast, slow",
        ),
        (
            (tier("fast", 10, 20),),
            wants(25),
            (
                "asks for 25 GiB of tier fast, whose largest disk has 20 GiB and which is not "
                "split; ask for less, or of another tier"
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
            (tier("fast", 20, 20, block=2), tier("slow")),
            wants(10, tier=TierName("fast"), input_path="/in", input_bytes=7 * GIB),
            (
                "its input has 7 GiB, and of 10 GiB on tier fast, which come in parts "
                "of 2 GiB, one directory may have no more than 6 GiB; ask for more, or for a tier "
                "that is not split, or read the input where it is"
            ),
        ),
        ((tier("fast", 20, 20, block=2),), wants(10, input_path="/in", input_bytes=6 * GIB), None),
        ((tier("fast", 20, block=2),), wants(10, input_path="/in", input_bytes=10 * GIB), None),
        (
            (tier("fast", 20, 20, block=2), tier("slow")),
            wants(10, fallback="slow", input_path="/in", input_bytes=7 * GIB),
            None,
        ),
        ((tier("fast", 10), tier("slow")), wants(31, fallback="slow"), None),
        ((tier("fast", 10, 20, block=5),), wants(30), None),
        ((tier("fast", 10), tier("middle", 50), tier("slow")), wants(30), None),
    ],
)
def test_why_a_request_can_never_be_met_is_a_line(tiers, request_, text):
    assert text == why_never(tiers, request_)


@given(
    SIZES,
    st.lists(st.integers(0, 100), min_size=4, max_size=4),
    st.integers(1, 20),
    st.integers(1, 200),
    st.sampled_from((None, *RULES)),
)
def test_a_directory_is_as_large_as_is_promised_whatever_is_taken(sizes, taken, block, size, rule):
    made = tier("fast", *sizes, rule=rule, block=block)
    sketch = Sketch(StorageLedger(made.storage, random.Random(1)))
    for disk, part in zip(made.storage.disks, taken, strict=False):
        if held := part * disk.capacity_bytes // 100:
            sketch.take(Share(tier=made.name, disk=disk.id, size_bytes=held))
    wanted = StorageRequest(id="a", size_bytes=size * GIB, start_s=0.0, end_s=math.inf)
    found, _ = allot(made, sketch, wanted, None)
    least = largest_directory_bytes(made, size * GIB)

    assert min(size, block) * GIB <= least <= size * GIB
    if not isinstance(found, Refusal):
        assert max(share.size_bytes for share in found) >= least


@pytest.mark.parametrize(
    ("sizes", "size", "least"),
    [((20,), 11, 11), ((20, 20), 11, 6), ((20, 20), 9, 5), ((4, 20, 20), 12, 4), ((3, 40), 20, 18)],
)
def test_the_most_even_spread_is_what_one_directory_surely_has(sizes, size, least):
    assert least * GIB == largest_directory_bytes(tier("fast", *sizes, block=2), size * GIB)


@pytest.mark.parametrize("named", [None, "fast"])
def test_who_has_too_large_a_file_for_a_split_tier_goes_to_the_next_that_holds_it(named):
    tiers = (tier("fast", 20, 20, block=2), tier("whole", 30), tier("slow"))
    name = None if named is None else TierName(named)
    asked = wants(10, tier=name, fallback="slow", input_path="/in", input_bytes=7 * GIB)
    rig = fcfs(*tiers)
    rig.step(submitted(job(1, scratch=asked)))

    assert (["slow"] if named else ["whole", "slow"]) == [t.name for t in candidates(tiers, asked)]
    [start] = rig.backend.take()
    assert [] == [share for share in start.shares if share.tier == "fast"]


def test_killing_and_stopping_frees_nothing_before_the_end():
    rig = fcfs(tier("fast", 100))
    rig.step(submitted(job(1, scratch=wants(30))))
    rig.step(started(1.0))
    rig.step(cancel(2.0, grace_s=1.0))
    rig.step(timer(3.0))

    assert [Start, Stop, Kill] == [type(each) for each in rig.backend.take()]
    assert rig.job().shares


@pytest.mark.parametrize("parts", [1001, 2**63 // (4 << 20)])
def test_a_request_of_more_parts_than_are_looked_at_is_refused_without_listing_them(parts):
    size = parts * (4 << 20)
    one = msgspec.structs.replace(tier("fast", 5), split_bytes=4 << 20)
    ledger = StorageLedger(one.storage, random.Random(0))
    request = StorageRequest(id="job 1", size_bytes=size, start_s=0.0, end_s=math.inf)
    found, _ = allot(one, ledger, request, None)
    asked = ScratchRequest(size_bytes=size, fallback="slow")

    assert isinstance(found, Refusal)
    assert why_never([one], asked) is not None
    assert why_never([one, tier("slow")], asked) is None
