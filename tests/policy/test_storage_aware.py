"""Storage-aware admission: each job on the tier with which it ends first, and what is promised."""

import math

import msgspec
import pytest
from builders import Rig, submitted
from builders import job as waiting
from exploring import tries
from hypothesis import given, settings
from hypothesis import strategies as st
from scene import platform, run

from iodaemon.core import event as ev
from iodaemon.core.job import DiskId, JobId, JobSpec, JobState, ScratchRequest, TierName
from iodaemon.core.state import State
from iodaemon.core.stock import why_never
from iodaemon.core.storage import Disk, Storage, StorageNode, Tier
from iodaemon.model.node import Compute, Profile
from iodaemon.policy.admission.storage_aware import Rule, Wishes, extra_s
from iodaemon.policy.shadow_time import have_room
from iodaemon.registry import find_rule
from iodaemon.simulator.sas import FAST, SLOW, SasJob, Site
from iodaemon.simulator.sas_run import COMPUTE, World

MID = TierName("mid")
UNIT = 1000
"""Bytes: with 1,000 bytes/s of the slow tier, so many seconds."""


def tier(name, ratio, *disks, stage=5.0, split=None, rule=None):
    """So many times as fast as the slow one."""
    made = tuple(
        Disk(
            id=DiskId(f"{name}{number}"),
            capacity_bytes=size,
            read_bytes_per_s=1.0,
            write_bytes_per_s=1.0,
        )
        for number, size in enumerate(disks)
    )
    storage = Storage(nodes=(StorageNode(id=name, disks=made),)) if made else None
    return Tier(
        name=TierName(name),
        storage=storage,
        bandwidth_bytes_per_s=ratio * UNIT,
        staging_bytes_per_s=stage * UNIT if made else math.inf,
        split_bytes=split,
        rule=find_rule("allocation", rule)() if rule else None,
    )


SLOWEST = tier(SLOW, 1.0)
TWO = (tier(FAST, 10.0, 100), SLOWEST)
THREE = (tier(FAST, 10.0, 100), tier(MID, 5.0, 100), SLOWEST)


def job(arrive_s=0.0, *, nodes=1, lasts_s=100.0, space=60, data=0, staged=0, **fields):
    """Bytes are given in seconds of the slow tier."""
    return SasJob(
        arrive_s=arrive_s,
        nodes=nodes,
        walltime_s=lasts_s,
        compute_s=0.0,
        input_bytes=staged * UNIT,
        output_bytes=0,
        checkpoint_bytes=data * UNIT,
        checkpoints=1,
        space_bytes=space,
        **fields,
    )


def as_reckoned(tiers, part=1.0):
    """Jobs take what the rule reckons, or a part of that."""
    by_name = {each.name: each for each in tiers}

    def doing(each, name, slowest):
        extra = extra_s(each.asks(None), by_name[name], by_name[slowest])
        return [(COMPUTE, part * (each.walltime_s + extra))]

    return doing


def world(*jobs, tiers=TWO, nodes=4, rule=None, asking=None, part=1.0):
    return World(
        Site(nodes=nodes),
        rule or Rule(),
        jobs,
        asking or (lambda each, _: each.asks(None)),
        tiers=tiers,
        doing=as_reckoned(tiers, part),
    )


def lived(*jobs, **options):
    """Start and tier of each, in the order given."""
    found = {id(life.job): life for life in world(*jobs, **options).run()}
    return [(found[id(each)].start_s, found[id(each)].tier) for each in jobs]


# -- what a tier saves -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stage", "gain"), [(5.0, 0.733), (2.0, 0.433), (10.0, 0.833), (1.0, -0.067)]
)
def test_a_second_of_input_gains_as_the_paper_lets_one_reckon(stage, gain):
    fast = tier(FAST, 15.0, 100, stage=stage)

    assert -extra_s(job(staged=1).asks(None), fast, SLOWEST) == pytest.approx(gain, abs=5e-4)


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=4),
    st.integers(1, 4),
    st.integers(0, 5),
    st.integers(1, 3),
)
def test_blocks_have_room_as_when_they_are_laid_out(free, block, blocks, rest):
    """Whole blocks anywhere, then the rest: that is the best one can do."""
    parts = [block] * blocks + ([min(rest, block)] if rest < block or not blocks else [])
    left, fits = list(free), True
    for part in parts:
        fitting = [place for place, each in enumerate(left) if each >= part]
        best = max(fitting, key=lambda place: left[place] // block, default=None)
        fits = fits and best is not None
        if best is not None:
            left[best] -= part

    if parts:
        assert fits == have_room(free, sorted(parts, reverse=True))


# -- which tier ------------------------------------------------------------------------------------


LARGE = job(data=50, space=101)
EVEN = (tier(FAST, math.inf, 100, stage=1.0), SLOWEST)
FIRST = job(data=80)
"""It is on the fast tier until 100 - 72 = 28 s."""
TAKEN = {
    "it moves much": ({}, [job(data=50)], [(0.0, FAST)]),
    "it says nothing": ({}, [job()], [(0.0, SLOW)]),
    "it is too large": ({}, [LARGE], [(0.0, SLOW)]),
    "a gain that is nothing is none": ({"tiers": EVEN}, [job(staged=50)], [(0.0, SLOW)]),
    "it waits, and saves 45 s": ({}, [FIRST, job(data=50)], [(0.0, FAST), (28.0, FAST)]),
    "it would save 27 s": ({}, [FIRST, job(data=30)], [(0.0, FAST), (0.0, SLOW)]),
    "of three": (
        {"tiers": THREE},
        [FIRST, job(data=30), job(data=30)],
        [(0.0, FAST), (0.0, MID), (0.0, SLOW)],
    ),
    "named, it waits": (
        {"asking": lambda each, number: each.asks(FAST if number else None)},
        [FIRST, job()],
        [(0.0, FAST), (28.0, FAST)],
    ),
}


@pytest.mark.parametrize(("options", "jobs", "found"), TAKEN.values(), ids=TAKEN)
def test_a_job_takes_the_tier_with_which_it_ends_first(options, jobs, found):
    assert found == lived(*jobs, **options)


# -- order -----------------------------------------------------------------------------------------


def test_the_shortest_goes_first_into_a_gap_and_of_equals_that_with_less_space():
    jobs = (
        job(nodes=3, lasts_s=50.0),
        job(nodes=4),
        job(lasts_s=40.0),
        job(lasts_s=20.0, space=30),
        job(lasts_s=20.0, space=20),
    )

    starts = [start for start, _ in lived(*jobs)]

    assert [0.0, 50.0, 150.0, 20.0, 0.0] == starts


@pytest.mark.parametrize(("space", "starts_s"), [(70, None), (60, 0.0)])
def test_the_space_that_the_head_waits_for_is_not_taken_from_it(space, starts_s):
    """The third fits beside the first; beside the second, at 28 s, only if that one takes 60."""
    jobs = job(data=80), job(data=50, space=space), job(data=90, space=40, lasts_s=300.0)
    first, head, third = (at for at, _ in lived(*jobs, asking=lambda each, _: each.asks(FAST)))

    assert (0.0, 28.0) == (first, head)
    assert third >= 28.0 if starts_s is None else third == starts_s


def test_a_job_beside_the_head_says_why_it_may():
    here = world_at_start(job(data=80), job(data=50), job(lasts_s=10.0))

    plan, _ = Rule().decide(here, None)

    [first, last] = plan.starts
    assert (1, 3) == (first.job_id, last.job_id)
    assert last.why.text == (
        "fits beside job 2, which waits for space on tier hps, promised in 28 s: ends in 10 s; "
        "passes 1 earlier job"
    )
    assert plan.reservations == {2: pytest.approx(28.0)}
    assert plan.reasons[JobId(2)].text == (
        "needs 60 B on tier hps; free there now: 40 B; ends 17 s sooner with it than on tier lps"
    )


def world_at_start(*jobs, **options):
    """All have come, nothing has started yet."""

    class Idle(msgspec.Struct, frozen=True):
        def decide(self, view, memory):
            return Rule(depth=0).decide(Empty(view), None)[0], memory

    here = world(*jobs, rule=Idle(), **options)
    here.step()
    return here


class Empty:
    """A view whose queue nobody sees."""

    def __init__(self, view):
        self._view = view
        self.pending = ()

    def __getattr__(self, name):
        return getattr(self._view, name)


def test_those_who_wait_are_told_for_what():
    here = world(job(data=80), job(data=50), job(data=40, lasts_s=300.0, nodes=2))
    here.step()

    told = [Rule().explain(here, here.job(JobId(2)), None)]

    assert told == [
        "with what is free by then it is to run on tier hps, in 28 s, where it takes 45 s less"
    ]


def test_without_an_end_nothing_is_promised_and_nothing_overtakes():
    here = world_at_start(job(nodes=4), job(nodes=4), job())
    endless = msgspec.structs.replace(
        here.job(JobId(1)), spec=msgspec.structs.replace(here.job(JobId(1)).spec, walltime_s=None)
    )
    here._waiting[JobId(1)] = endless

    plan, _ = Rule().decide(here, None)

    assert [1] == [placed.job_id for placed in plan.starts]
    assert {} == plan.reservations
    made = Rule().explain(here, here.job(JobId(2)), None)
    assert made == "no time is known at which there is room for it (--time of the others)"


# -- always ----------------------------------------------------------------------------------------

ALLOCATIONS = [None, "balanced"]
"""Those that take a disk with room wherever there is one; others may refuse, room or not."""
DISKS = st.lists(st.integers(20, 100), min_size=1, max_size=3)
TIERS = st.builds(
    lambda fast, mid, split, rule, has_mid: (
        tier(FAST, 10.0, *fast, split=split, rule=rule),
        *((tier(MID, 4.0, *mid, stage=3.0, split=split),) if has_mid else ()),
        SLOWEST,
    ),
    DISKS,
    DISKS,
    st.sampled_from([None, 7, 30]),
    st.sampled_from(ALLOCATIONS),
    st.booleans(),
)
JOBS = st.lists(
    st.builds(
        lambda gap, nodes, lasts, space, data, staged, again: (
            gap,
            job(
                nodes=nodes,
                lasts_s=lasts,
                space=space,
                data=min(data, lasts / 2),
                staged=min(staged, lasts / 4),
                again=again,
            ),
        ),
        st.sampled_from([0.0, 0.0, 1.0, 30.0]),
        st.integers(1, 4),
        st.sampled_from([10.0, 40.0, 100.0]),
        st.integers(1, 120),
        st.sampled_from([0, 4, 20, 50]),
        st.sampled_from([0, 4, 20]),
        st.sampled_from([0, 0, 1]),
    ),
    min_size=1,
    max_size=12,
)
WAYS = st.lists(
    st.sampled_from([(None, "wait"), (FAST, "wait"), (FAST, "slow"), (SLOW, "wait")]),
    min_size=1,
    max_size=5,
)


def arriving(drawn):
    at_s, found = 0.0, []
    for gap_s, each in drawn:
        at_s += gap_s
        found.append(
            msgspec.structs.replace(
                each,
                arrive_s=at_s,
                input_bytes=round(each.input_bytes),
                checkpoint_bytes=round(each.checkpoint_bytes),
            )
        )
    return found


def asking_for(ways, tiers):
    def asking(each, number):
        name, fallback = ways[number % len(ways)]
        request = msgspec.structs.replace(each.asks(name), fallback=fallback)
        never = name == FAST and fallback == "wait" and not could_fit(each, tiers[0])
        return each.asks(None) if never else request

    return asking


def could_fit(each, of):
    split = of.split_bytes
    sizes = [each.space_bytes]
    if split is not None and each.space_bytes > split:
        whole, rest = divmod(each.space_bytes, split)
        sizes = [split] * whole + [rest] * (rest > 0)
    return have_room([disk.capacity_bytes for disk in of.storage.disks], sizes)


class Watched(msgspec.Struct, frozen=True):
    """A rule, and what must hold of each of its decisions."""

    rule: Rule
    best_s: dict = {}

    def decide(self, view, memory):
        drawn = view.rng.getstate()
        plan, memory = self.rule.decide(view, memory)
        view.rng.setstate(drawn)
        afresh, _ = self.rule.decide(view, None)
        assert plan == afresh, "memory is nothing but a short cut"
        view.rng.setstate(drawn)
        made = self.rule._admit(view, Wishes(view.tiers))
        head = made.head
        if head is not None and head.kept is not None and head.is_promised:
            done_s = head.kept.at_s + head.kept.option.extra_s
            assert done_s <= self.best_s.get(head.job.id, done_s) + 1e-6, "the promise moves later"
            self.best_s[head.job.id] = done_s
        for placed in plan.starts:
            wanted = view.job(placed.job_id)
            longer_s = next(
                (
                    option.extra_s
                    for option in made._wishes.of(wanted).options
                    if placed.shares and option.tier == placed.shares[0].tier
                ),
                0.0,
            )
            promised_s = self.best_s.get(placed.job_id, math.inf)
            assert view.now_s + longer_s <= promised_s + 1e-6, "a promise is broken"
        return plan, memory


def check_space(here):
    for each in here.tiers:
        if each.storage is not None:
            ledger = here.ledger(each.name)
            for disk in each.storage.disks:
                taken = ledger.overlapping(disk.id, -math.inf, math.inf)
                assert sum(a.size_bytes for a in taken) <= disk.capacity_bytes


@given(JOBS, TIERS, WAYS, st.sampled_from(["estimate", "walltime"]))
@settings(max_examples=tries(100), deadline=None)
def test_promises_are_kept_space_is_never_exceeded_and_all_jobs_end(drawn, tiers, ways, ends):
    jobs = arriving(drawn)
    rule = Watched(rule=Rule(ends=ends), best_s={})
    here = world(*jobs, tiers=tiers, rule=rule, asking=asking_for(ways, tiers))

    while here.step():
        check_space(here)

    assert len(here.lives) == sum(1 + each.again for each in jobs)


@given(JOBS, TIERS)
@settings(max_examples=tries(40), deadline=None)
def test_who_says_nothing_goes_as_if_there_were_no_fast_tier(drawn, tiers):
    jobs = arriving(drawn)

    def silent(each, _):
        return each.asks(None, (0.0, 0.0, 0.0))

    told = world(*jobs, tiers=tiers, asking=silent).run()

    assert told == world(*jobs, tiers=tiers[-1:], asking=silent).run()
    assert {SLOW} == {life.tier for life in told}


@given(JOBS, TIERS, WAYS, st.sampled_from([0.3, 1.7]))
@settings(max_examples=tries(40), deadline=None)
def test_all_jobs_end_also_where_the_reckoning_is_wrong(drawn, tiers, ways, part):
    jobs = arriving(drawn)
    here = world(*jobs, tiers=tiers, asking=asking_for(ways, tiers), part=part)

    while here.step():
        check_space(here)

    assert len(here.lives) == sum(1 + each.again for each in jobs)


# -- under the controller --------------------------------------------------------------------------


def submission(each, ways, number):
    name, fallback = ways[number % len(ways)]
    request = msgspec.structs.replace(each.asks(name), fallback=fallback)
    spec = JobSpec(
        command=("simulated",), cpus=each.nodes, walltime_s=each.walltime_s, scratch=request
    )
    return each.arrive_s, spec, Profile(steps=(Compute(each.walltime_s / 2.0),))


def test_who_chooses_the_tier_may_change_while_a_job_waits():
    rig = Rig(State(platform(1), TWO))
    easy = rig.controller.rules
    choosing = msgspec.structs.replace(easy, admission=Rule())
    large = waiting(1, scratch=ScratchRequest(size_bytes=500))
    rig.step(submitted(large))
    reason = rig.state.reason(large.id)
    rig.step(ev.Reconfigured(at_s=1.0, by="root", changes=(), rules=choosing))

    assert "Infeasible" == reason.code
    assert (JobState.STARTING, SLOW) == (rig.job().state, rig.job().tier)
    rig.backend.take()


@given(JOBS, TIERS, WAYS, st.lists(st.integers(1, 4), min_size=1, max_size=3))
@settings(max_examples=tries(60), deadline=None)
def test_under_the_controller_every_job_that_can_run_ends(drawn, tiers, ways, sockets):
    jobs = [
        submission(msgspec.structs.replace(each, nodes=min(each.nodes, max(sockets))), ways, number)
        for number, each in enumerate(arriving(drawn))
    ]

    result = run(Rule(), platform(*sockets), jobs, lambda state, _: state.check(), tiers=tiers)

    never = {each.id for each in result.jobs if why_never(tiers, each.spec.scratch, any_tier=True)}
    assert {each.id for each in result.jobs} == {each.id for each in result.finished} | never
