"""EquilibrIO: against a transliteration of the slides, and what it says of itself."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scene import (
    MB,
    NOW_S,
    SOCKETS,
    WORKLOADS,
    Scene,
    platform,
    queued,
    run,
    running,
    started,
    submissions,
)

from iodaemon.core.job import JobId
from iodaemon.policy.admission.equilibrio import Rule, brought_forward, line_of

ALPHAS = st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.75, 1.0])


def decide(scene, **parameters):
    return Rule(**parameters).decide(scene.view(), None)[0]


# -- as the slides have it -----------------------------------------------------------------------


def algorithm(running, queue, free, *, now_s, alpha, bound, system):
    """The slides' pseudocode, step by step, over (id, arrival, nodes, intensity, walltime).

    The sums over running jobs are taken anew each time; what the slides leave open is as in the
    rule's docstring. ``running`` rows have their expected end in place of the walltime.
    """
    jobs_running, qj, admitted = list(running), list(queue), []
    reservations = {row[0]: row[4] for row in running if row[4] is not None}
    known_all = [row[3] for row in (*running, *queue) if row[3] is not None]
    io_w = math.fsum(known_all) / len(known_all) if known_all else 0.0
    blocked, rest = None, []
    while qj and free >= min(row[2] for row in qj):  # line 8
        candidates = best_candidates(jobs_running, qj, io_w, alpha, system)
        c = candidates[0]
        if c[2] <= free:  # line 11
            admitted.append(c[0])
            free -= c[2]
            jobs_running.append(c)
            if c[4] is not None:
                reservations[c[0]] = now_s + c[4]
            qj.remove(c)
        else:
            blocked, rest = c, candidates[1:]  # line 20
            break
    if blocked is None:
        return admitted
    if bound == "max":
        until_s = max(reservations.values(), default=None)
    else:
        until_s = room_at(blocked, jobs_running, reservations, free, now_s)
    for c in rest:  # line 23: backfill pass
        fits = c[2] <= free and c[4] is not None and until_s is not None
        if fits and c[4] <= until_s - now_s:
            admitted.append(c[0])
            free -= c[2]
    return admitted


def best_candidates(jobs_running, qj, io_w, alpha, system):
    arrivals = [row[1] for row in qj]
    known = [row[3] for row in jobs_running if row[3] is not None]

    def distance(row):
        if not system:
            return abs(io_w - row[3])
        return abs(io_w - (math.fsum(known) + row[3]) / (len(known) + 1))

    distances = [distance(row) for row in qj if row[3] is not None]

    def weighted(row):
        lam = 0.0
        if max(arrivals) > min(arrivals):
            lam = (row[1] - min(arrivals)) / (max(arrivals) - min(arrivals))
        if row[3] is None:
            return lam
        delta = 0.0
        if max(distances) - min(distances) > 1e-12 * max(distances):
            delta = (distance(row) - min(distances)) / (max(distances) - min(distances))
        return (1 - alpha) * lam + alpha * delta

    return sorted(qj, key=lambda row: (weighted(row), row[1], row[0]))


def room_at(blocked, jobs_running, reservations, free, now_s):
    ends = sorted((reservations[row[0]], row[2]) for row in jobs_running if row[0] in reservations)
    for end_s, nodes in ends:
        free += nodes
        if free >= blocked[2]:
            return end_s
    return None


INTENSITY = st.none() | st.integers(0, 20) | st.floats(0.0, 20.0)
WALLTIME = st.none() | st.integers(1, 40)
RUNNING = st.tuples(st.integers(1, 4), INTENSITY, WALLTIME)
QUEUED = st.tuples(st.integers(0, 8), st.integers(1, 8), INTENSITY, WALLTIME)


@given(
    st.lists(RUNNING, max_size=4),
    st.lists(QUEUED, max_size=12),
    ALPHAS,
    st.sampled_from(["max", "easy"]),
    st.sampled_from(["system", "candidate"]),
)
def test_it_decides_as_the_slides_do(live, waiting, alpha, bound, delta):
    rows = [
        (n, 0.0, cpus, known(x), None if left_s is None else NOW_S + left_s)
        for n, (cpus, x, left_s) in enumerate(live, start=1)
    ]
    queue = [
        (n, float(at_s), cpus, known(x), walltime_s)
        for n, (at_s, cpus, x, walltime_s) in enumerate(waiting, start=101)
    ]

    found = decide(scene_of(live, waiting), alpha=alpha, bound=bound, intensity_delta=delta)

    free = 20 - sum(cpus for cpus, _, _ in live)
    how = {"now_s": NOW_S, "alpha": alpha, "bound": bound, "system": delta == "system"}
    assert algorithm(rows, queue, free, **how) == started(found)


def known(x):
    return None if x is None else x * MB


def scene_of(live, waiting, *, knows=True):
    """Jobs from 1 on run, those from 101 on wait."""
    made = Scene(platform(20))
    for number, (cpus, x, left_s) in enumerate(live, start=1):
        running(made, number, cpus=cpus, rate=known(x) if knows else None, left_s=left_s)
    for number, (at_s, cpus, x, walltime_s) in enumerate(waiting, start=101):
        rate = known(x) if knows else None
        made.queue(queued(number, at_s=at_s, cpus=cpus, rate=rate, walltime_s=walltime_s))
    return made


# -- one by one ----------------------------------------------------------------------------------


def test_the_job_that_evens_out_what_runs_goes_first():
    scene = running(Scene(platform(2)), 1, rate=0.0)
    scene.queue(queued(2, at_s=1.0, rate=0.0), queued(3, at_s=2.0, rate=30 * MB))

    [placed] = decide(scene, alpha=0.6).starts
    assert 3 == placed.job_id
    assert placed.why.text == (
        "it takes the mean I/O intensity of the running jobs from 0.0 MB/s to 15.0 MB/s, nearest "
        "to the 10.0 MB/s of all; alpha 0.6; passes 1 earlier job"
    )


def test_a_backfilled_job_says_beside_whom_and_for_how_long():
    scene = running(Scene(platform(4)), 1, cpus=2, rate=MB, left_s=600.0)
    scene.queue(queued(2, cpus=4), queued(3, at_s=1.0, walltime_s=60.0))

    plan = decide(scene)

    [placed] = plan.starts
    assert placed.why.text == (
        "fits beside job 2, which finds no room: ends in 60 s at the latest, the last that runs in "
        "10 min; passes 1 earlier job"
    )
    assert "needs 4 free CPUs on one socket; most free now: 2" == plan.reasons[2].text


def test_operations_are_balanced_where_that_is_asked_for():
    scene = Scene(platform(1)).queue(
        queued(1, rate=MB, io_operations_per_s=10.0),
        queued(2, rate=MB, io_operations_per_s=500.0),
        queued(3, rate=900 * MB, io_operations_per_s=400.0),
    )

    assert [3] == started(decide(scene, alpha=1.0, intensity="operations"))


def test_the_waiting_are_told_their_rank_and_who_goes_first():
    scene = running(Scene(platform(1)), 1, rate=0.0)
    scene.queue(queued(2, at_s=1.0, rate=0.0), queued(3, at_s=2.0, rate=30 * MB))
    view = scene.view()

    told = Rule(alpha=0.6).explain(view, view.job(JobId(2)), None)

    assert told == (
        "is number 2 of 2 to start, number 1 by arrival; arrival 0.00 and I/O 1.00 (0 is best, 1 "
        "worst) with alpha 0.6 make 0.60: it does 0.0 MB/s, what runs 0.0 MB/s in the mean, all "
        "jobs 10.0 MB/s; job 3 goes first, with 0.40; needs 1 free CPU; most free now: 0"
    )


# -- what is carried from turn to turn -----------------------------------------------------------


class Twice:
    """Decides with and without memory, and compares; counts how often memory was enough."""

    def __init__(self, rule):
        self.rule = rule
        self.again = 0

    def decide(self, view, memory):
        plan, kept = self.rule.decide(view, memory)
        if kept is not None and kept is memory:  # nothing came and nothing went
            self.again += 1
            assert () == plan.starts
        else:
            assert self.rule.decide(view, None)[0] == plan
        return plan, kept


@given(
    WORKLOADS,
    SOCKETS,
    st.sampled_from([0.0, 0.5, "auto"]),
    st.sampled_from(["max", "easy"]),
    st.sampled_from([None, 0.5, 3.0]),
)
def test_memory_saves_work_and_changes_nothing(workload, sockets, alpha, bound, longest_wait_s):
    twice = Twice(Rule(alpha=alpha, bound=bound, longest_wait_s=longest_wait_s))

    result = run(twice, platform(*sockets), submissions(workload, max(sockets)))

    assert len(result.finished) == len(workload)


class Counted:
    """A view that counts how often it is asked what a job is expected to do."""

    def __init__(self, view):
        self._view = view
        self.asked = 0

    def __getattr__(self, name):
        return getattr(self._view, name)

    def expected(self, job_id):
        self.asked += 1
        return self._view.expected(job_id)


def test_of_a_long_queue_only_those_are_looked_up_that_are_new():
    scene = running(Scene(platform(2)), 1, rate=0.0, left_s=60.0)
    scene.queue(*(queued(i, at_s=i, cpus=2, rate=i * MB) for i in range(2, 502)))
    view = Counted(scene.view())
    _, memory = Rule().decide(view, None)
    before = view.asked

    scene.state.add(queued(600, at_s=600.0, cpus=2, rate=MB))
    plan, _ = Rule().decide(view, memory)

    assert (501, 1) == (before, view.asked - before)
    assert Rule().decide(view, None)[0] == plan


def test_jobs_whose_numbers_are_not_in_the_order_of_their_arrival_are_ranked_by_arrival():
    late, early = queued(2, at_s=9.0), queued(3, at_s=5.0)
    scene = Scene(platform(1)).queue(late, early)

    assert [3] == started(decide(scene))
    assert [3, 2] == [
        job.id for job in brought_forward(line_of([late], _nothing), [late, early], _nothing).jobs
    ]


def _nothing(_):
    return None


# -- an alpha that finds itself ------------------------------------------------------------------


def alpha_of(scene, **parameters):
    """As it says itself, of the queue as it is."""
    view = scene.view()
    told = Rule(alpha="auto", **parameters).explain(view, next(iter(view.pending)), None)
    return float(told.partition("with alpha ")[2].partition(" ")[0])


def two_waiting(rate):
    """One runs at this rate, one that waits does 30 MB/s, another nothing."""
    scene = running(Scene(platform(2)), 1, rate=rate * MB)
    return scene.queue(queued(2, at_s=1.0, rate=30 * MB), queued(3, at_s=2.0, rate=0.0))


def test_the_fuller_the_storage_would_be_the_more_is_reordered_up_to_the_most():
    alphas = [
        alpha_of(two_waiting(rate), bandwidth_bytes_per_s=200 * MB)
        for rate in (0, 30, 60, 100, 300)
    ]

    assert [0.05, 0.15, 0.3, 0.5, 0.5] == alphas


def test_without_a_bandwidth_it_goes_by_how_far_what_runs_is_from_the_whole():
    alphas = [alpha_of(two_waiting(rate)) for rate in (15, 30, 60, 0)]

    assert [0.0, 0.17, 0.25, 0.5] == alphas


def test_operations_are_not_held_against_a_bandwidth_of_bytes():
    scene = Scene(platform(2)).queue(queued(1, rate=MB, io_operations_per_s=9.0))
    view = scene.view()
    rule = Rule(alpha="auto", intensity="operations", bandwidth_bytes_per_s=1e15)

    assert "with alpha 0.5 " in rule.explain(view, next(iter(view.pending)), None)


@given(st.lists(QUEUED, min_size=1, max_size=12), st.lists(RUNNING, max_size=4))
def test_it_is_always_a_weight_and_at_most_its_most(waiting, live):
    known = [(at_s, 1, 0 if x is None else x, None) for at_s, _, x, _ in waiting]

    assert 0.0 <= alpha_of(scene_of(live, known), auto_most=0.7) <= 0.7


# -- nobody waits for ever -----------------------------------------------------------------------


def stream(count):
    """A backlog, and jobs that come as fast as they are served; one moves 100 times as much."""
    row = (1, 100.0, 1.0, 10 * MB)
    backlog = [(0.0, *row)] * 24
    backlog[3] = (0.0, 1, 100.0, 1.0, 1000 * MB)
    return submissions([*backlog, *[(25.0, *row)] * count], 4)


def waited_s(rule, jobs, number):
    job = run(rule, platform(4), jobs).jobs[number - 1]
    return job.started_s - job.submitted_s


@pytest.mark.parametrize("longest_wait_s", [None, 900.0])
def test_as_published_the_job_that_is_unlike_waits_as_long_as_others_come(longest_wait_s):
    rule = Rule(alpha=0.5, longest_wait_s=longest_wait_s)
    few, many = (waited_s(rule, stream(count), 4) for count in (40, 120))

    if longest_wait_s is None:
        assert (few >= 25.0 * 40, many >= 25.0 * 120) == (True, True)
    else:
        assert few == many <= 1000.0


ENDLESS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.5, 1.0, 7.0]),  # after the one before
        st.integers(1, 6),  # CPUs
        st.sampled_from([0.0, 1.0, 2.0, 10.0, 40.0]),  # runs for
        st.sampled_from([None, 1.0, 1.0, 2.0, 4.0]),  # its walltime, in times of that
        st.sampled_from([None, 0.0, 10 * MB, 1000 * MB]),  # I/O
    ),
    min_size=1,
    max_size=8,
)


@given(
    ENDLESS,
    ENDLESS,
    SOCKETS,
    st.sampled_from([0.0, 0.5, 1.0, "auto"]),
    st.sampled_from(["max", "easy"]),
    st.sampled_from([0.5, 5.0, 30.0]),
)
def test_who_has_waited_for_long_waits_only_for_who_runs_or_came_earlier(
    first, again, sockets, alpha, bound, longest_wait_s
):
    jobs = submissions([*first, *(again * 5)], max(sockets))
    rule = Rule(alpha=alpha, bound=bound, longest_wait_s=longest_wait_s)

    done = run(rule, platform(*sockets), jobs).jobs

    lasts = {
        job.id: max(profile.steps[0].seconds, spec.walltime_s or 0.0)
        for job, (_, spec, profile) in zip(done, jobs, strict=True)
    }
    for job in done:
        late_s = job.submitted_s + longest_wait_s
        if job.started_s <= late_s:
            continue
        before = [
            other.id
            for other in done
            if (other.submitted_s, other.id) < (job.submitted_s, job.id)
            or other.started_s <= late_s
        ]
        assert job.started_s <= late_s + sum(lasts[number] for number in before) + 1e-6


def test_who_goes_first_for_its_wait_is_told():
    scene = running(Scene(platform(4)), 1, cpus=2, rate=0.0, left_s=600.0)
    scene.queue(queued(2, cpus=4, rate=900 * MB), queued(3, at_s=990.0, walltime_s=700.0))
    view = scene.view()
    rule = Rule(alpha=1.0, longest_wait_s=500.0)

    plan, _ = rule.decide(view, None)
    told = [rule.explain(view, view.job(JobId(number)), None) for number in (2, 3)]

    assert () == plan.starts
    assert "job 2 goes first, it has waited for longer than 8 min" == plan.rest.text
    assert "; it has waited for longer than 8 min: arrival alone counts; " in told[0]
    assert "; job 2 goes first, it has waited for longer than 8 min" in told[1]
