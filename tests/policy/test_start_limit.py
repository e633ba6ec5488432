"""What regulation says of how many jobs may start is heeded by every rule of admission."""

import msgspec
import pytest
from exploring import tries
from hypothesis import given, settings
from hypothesis import strategies as st
from scene import MB, Scene, platform, queued, started

from iodaemon.core.decision import RegulationPlan, StartLimit
from iodaemon.core.job import JobId, JobSpec, JobState, Reason
from iodaemon.core.rule import Rules
from iodaemon.core.similarity import kind_of
from iodaemon.core.state import with_fields
from iodaemon.model.node import Compute, Profile
from iodaemon.policy.admission import easy, equilibrio, fcfs, pack, storage_aware
from iodaemon.policy.admission.easy import Rule
from iodaemon.policy.placement.least_io import Rule as LeastIo
from iodaemon.simulator.run import simulate

WHY = Reason(code="Contention", text="more at once would get less done")
EXTREME = equilibrio.Rule(longest_wait_s=3.0)
RULES = [
    easy.Rule(),
    equilibrio.Rule(),
    EXTREME,
    fcfs.Rule(),
    easy.Rule(demand="mean"),
    pack.Rule(),
]
RULES += [storage_aware.Rule()]
IDS = [f"{rule.__module__.rpartition('.')[2]}-{place}" for place, rule in enumerate(RULES)]
NEVER_S = 5000.0
each_rule = pytest.mark.parametrize("rule", RULES, ids=IDS)


def under(limit, *jobs, sockets=(4, 4)):
    """A job runs on the first socket; these wait."""
    scene = Scene(platform(*sockets)).live(1, 0, moved=MB).queue(*jobs)
    scene.state.start_limit = limit
    return scene.view()


def told(plan, job_id):
    return plan.reasons.get(JobId(job_id)) or plan.rest


LIMITED = [
    ({"most": 2}, [2, 3]),
    ({"free": 0.75, "share": 0.25}, [2, 3, 4]),
    ({"most": 0}, []),
]


@each_rule
@pytest.mark.parametrize(("fields", "starts"), LIMITED)
def test_as_many_start_as_may_and_the_next_says_why(rule, fields, starts):
    view = under(StartLimit(**fields, why=WHY), *(queued(number) for number in range(2, 7)))
    plan, _ = rule.decide(view, None)

    assert (starts, WHY) == (started(plan), told(plan, 2 + len(starts)))


def with_command(job, *words):
    return with_fields(job, spec=msgspec.structs.replace(job.spec, command=words))


@pytest.mark.parametrize("rule", [r for r in RULES if not isinstance(r, fcfs.Rule)])
def test_one_that_takes_nothing_passes_those_that_wait_for_it(rule):
    light = with_command(queued(4), "light")
    limit = StartLimit(free=0.0, share=0.5, shares={kind_of(light): 0.0}, why=WHY)
    view = under(limit, queued(2), queued(3), light)

    plan, _ = rule.decide(view, None)

    assert ([4], WHY) == (started(plan), told(plan, 2))


def test_the_slots_of_the_first_that_may_not_start_yet_are_kept():
    light = [with_command(queued(number), "light") for number in (3, 4, 5)]
    limit = StartLimit(free=0.0, share=0.5, shares={kind_of(light[0]): 0.0}, why=WHY)
    view = under(limit, queued(2), *light, sockets=(4,))

    plan, _ = easy.Rule().decide(view, None)

    text = "fits beside job 2, which regulation does not let start yet: takes nothing that one"
    assert [3, 4] == started(plan)
    assert f"{text} needs; passes 1 earlier job" == plan.starts[0].why.text


def test_what_is_left_of_a_pack_follows_when_it_may():
    rule = pack.Rule()
    scene = Scene(platform(4)).queue(*(queued(number) for number in (1, 2, 3, 4)))
    scene.state.start_limit = StartLimit(most=2, why=WHY)
    view = scene.view()
    plan, memory = rule.decide(view, None)
    assert [1, 2] == started(plan)
    later = Scene(platform(4)).live(1, 0, moved=0.0).live(2, 0, moved=0.0)
    later.queue(*(queued(number) for number in (3, 4, 5)))
    later.state.start_limit = StartLimit(most=1, why=WHY)
    view = later.view()

    plan, memory = rule.decide(view, memory)

    assert ([3], WHY) == (started(plan), told(plan, 4))
    assert [(4,)] == [each.jobs for each in memory.waiting]


class Limiting(msgspec.Struct, frozen=True):
    """Says the same of starts at the end of each slice."""

    limit: StartLimit
    timeslice_s: float = 1.0

    def decide(self, view, memory):
        return RegulationPlan(starts=self.limit), memory


class AtMost:
    """Checks after each step that no more run at once than may."""

    def __init__(self, most: int | None) -> None:
        self.most = most
        self.seen = 0

    def __call__(self, state, plan) -> None:
        state.check()
        live = sum(1 for _ in state.live)
        self.seen = max(self.seen, live)
        if state.start_limit is not None and self.most is not None:
            assert live <= self.most


LIMITS = st.builds(
    StartLimit,
    most=st.none() | st.integers(0, 2),
    free=st.sampled_from([-1.0, 0.0, 0.3, 1.0]),
    share=st.sampled_from([0.0, 0.3, 2.0]),
    why=st.just(WHY),
)


@each_rule
@settings(max_examples=tries(15))
@given(
    limit=LIMITS,
    jobs=st.lists(
        st.tuples(st.sampled_from([0.0, 0.5, 3.0]), st.integers(1, 3), st.floats(0.1, 3.0)),
        min_size=1,
        max_size=10,
    ),
)
def test_every_job_ends_whatever_regulation_says(rule, limit, jobs):
    workload = []
    at_s = 0.0
    for gap_s, cpus, lasts_s in jobs:
        at_s += gap_s
        spec = JobSpec(command=(f"job{cpus}",), cpus=cpus)
        workload.append((at_s, spec, Profile(steps=(Compute(seconds=lasts_s),))))

    result = run(rule, limit, workload, AtMost(None))

    assert [JobState.COMPLETED] * len(jobs) == [job.state for job in result.jobs]


def run(rule, limit, workload, watch):
    rules = Rules(name="limited", admission=rule, placement=LeastIo(), regulation=Limiting(limit))
    return simulate(platform(2, 4), rules, workload, until_s=NEVER_S, on_step=watch)


@each_rule
def test_an_array_of_jobs_runs_one_by_one_where_none_may_start(rule):
    spec, profile = JobSpec(command=("true",)), Profile(steps=(Compute(seconds=0.7),))
    first = (0.0, spec, Profile(steps=(Compute(seconds=2.0),)))
    watch = AtMost(1)

    result = run(
        rule,
        StartLimit(most=0, free=-1.0, share=0.5, why=WHY),
        [first, *((1.5, spec, profile) for _ in range(50))],
        watch,
    )

    assert 1 == watch.seen
    assert [JobState.COMPLETED] * 51 == [job.state for job in result.jobs]


# -- what regulation leaves of the storage ---------------------------------------------------------

BUDGET = easy.Rule(bandwidth_bytes_per_s=60.0 * MB)
NONE_NOW = "regulation leaves room for none now"


def under_headroom(left, *jobs):
    scene = Scene(platform(4)).live(1, 0, moved=50.0 * MB).queue(*jobs)
    scene.state.io_headroom_bytes_per_s = left
    return scene.view()


def test_without_headroom_only_those_start_that_are_not_known_to_do_io():
    jobs = [queued(2, rate=MB), queued(3), queued(4, rate=MB), queued(5, rate=0.0), queued(6)]

    plan, _ = Rule().decide(under_headroom(0.0, *jobs), None)

    assert [3, 5] == started(plan)
    assert {} == plan.reservations
    why = f"would add 1.0 MB/s of I/O; {NONE_NOW}"
    assert Reason(code="IoHeadroom", text=why) == plan.reasons[2]
    text = "fits beside job 2, which waits for the storage: takes nothing that one needs"
    assert f"{text}; passes 1 earlier job" == plan.starts[0].why.text


def test_what_started_since_the_last_sample_has_used_it_too():
    scene = Scene(platform(4)).live(1, 0, moved=50.0 * MB)
    scene.live(2, 0, moved=None, io_rate_bytes_per_s=8.0 * MB)
    scene.queue(queued(3, rate=6 * MB))
    scene.state.io_headroom_bytes_per_s = 10.0 * MB
    view = scene.view()

    before, _ = Rule().decide(view, None)
    late = scene.state.jobs[JobId(2)]
    scene.state.put(with_fields(late, started_s=2.0))
    after, _ = Rule().decide(view, None)

    assert ([3], []) == (started(before), started(after))


def test_a_job_that_never_finds_so_much_room_starts_when_it_is_as_good_as_alone():
    scene = Scene(platform(4)).live(1, 0, moved=0.1 * MB).queue(queued(2, rate=50 * MB))
    scene.state.io_headroom_bytes_per_s = 20.0 * MB

    assert [2] == started(Rule().decide(scene.view(), None)[0])


@pytest.mark.parametrize(
    ("left", "rates", "starts"),
    [
        (10.0 * MB, [6 * MB, 6 * MB, 3 * MB], [2, 4]),  # it is used up by those who start
        (0.0, [0.6 * MB, 0.4 * MB], [3]),  # next to nothing is not held back
    ],
)
def test_those_start_for_whom_there_is_headroom(left, rates, starts):
    jobs = [queued(number, rate=rate) for number, rate in enumerate(rates, start=2)]

    assert starts == started(Rule().decide(under_headroom(left, *jobs), None)[0])


@pytest.mark.parametrize("rule", [easy.Rule(), BUDGET, equilibrio.Rule(alpha=0.0)])
def test_every_rule_but_the_printed_one_heeds_it(rule):
    jobs = [queued(2, rate=9 * MB), queued(3), queued(4, rate=2 * MB)]

    plans = [rule.decide(under_headroom(left, *jobs), None)[0] for left in (0.0, 10.0 * MB, None)]

    assert [[3], [2, 3], [2, 3, 4]] == [sorted(started(plan)) for plan in plans]


def test_equilibrio_ranks_those_for_whom_there_is_room_and_tells_the_others():
    waiting = queued(2, rate=30 * MB), queued(5, rate=20 * MB)
    jobs = [*waiting, queued(3, at_s=1.0), queued(4, at_s=2.0, rate=0.0)]
    plan, _ = equilibrio.Rule().decide(under_headroom(0.0, *jobs), None)

    assert [3, 4] == started(plan)
    assert "passes 2 earlier jobs" in plan.starts[0].why.text
    assert plan.rest is not None
    assert {
        number: Reason(code="IoHeadroom", text=f"would add {mb}.0 MB/s of I/O; {NONE_NOW}")
        for number, mb in ((2, 30), (5, 20))
    } == plan.reasons


def test_who_has_waited_for_long_keeps_its_slots_until_there_is_headroom():
    jobs = [queued(2, cpus=2, rate=30 * MB), *(queued(i, at_s=990.0) for i in (3, 4))]
    rules = [equilibrio.Rule(longest_wait_s=wait_s) for wait_s in (None, 500.0)]

    plans = [rule.decide(under_headroom(0.0, *jobs), None)[0] for rule in rules]

    assert [[3, 4], [3]] == [started(plan) for plan in plans]
    assert ["IoHeadroom"] * 2 == [plan.reasons[2].code for plan in plans]
