"""Per-user limits and the fair order, over all that users may submit."""

from collections import Counter

import pytest
from builders import exited, job, platform, started, submitted
from hypothesis import given
from hypothesis import strategies as st

from iodaemon.config import load_policy
from iodaemon.core.controller import Controller
from iodaemon.core.decision import Start
from iodaemon.core.explain import explain
from iodaemon.core.job import JobId, JobState, QueuePlace
from iodaemon.core.limits import USER_LIMIT, Sharing, Users
from iodaemon.core.state import State
from iodaemon.registry import shipped

UIDS = st.integers(1000, 1003)
RULES = load_policy("default", overrides={}, search=[shipped("policies")]).rules
LIMIT = st.none() | st.integers(1, 4)
SHARINGS = st.builds(Sharing, max_running=LIMIT, max_slots=LIMIT, fair=st.booleans())
QUEUES = st.lists(st.tuples(UIDS, st.integers(1, 4)), max_size=12)


def made(sharing, *, live=(), queue=()):
    """Live jobs from id 1 on, one slot each, then the queue of (uid, cpus)."""
    state = State(platform(8, 8), sharing=sharing)
    for number, uid in enumerate(live, 1):
        state.add(job(number, state=JobState.RUNNING, uid=uid))
    for number, (uid, cpus) in enumerate(queue, len(live) + 1):
        state.add(job(number, uid=uid, cpus=cpus))
    state.check()
    return state


def ids(state):
    return [waiting.id for waiting in state.queue]


LIVE = st.lists(UIDS, max_size=6)


@given(SHARINGS, LIVE, QUEUES, st.randoms(use_true_random=False))
def test_the_queue_is_all_that_limits_let_start_in_each_users_own_order(
    sharing, live, queue, random
):
    state = made(sharing, live=live, queue=queue)
    shown = list(state.queue)
    chosen = [waiting for waiting in shown if random.random() < 0.7]

    for uid in range(1000, 1004):
        mine = [w for w in state.pending if w.uid == uid and not state.users.is_too_large(w)]
        seen = [w for w in shown if w.uid == uid]
        picked = [w for w in chosen if w.uid == uid]
        held = live.count(uid)
        assert mine[: len(seen)] == seen, "nobody is passed by an own later job"
        assert not picked or sharing.is_within(
            held + len(picked), held + sum(w.spec.cpus for w in picked)
        )
        if len(seen) < len(mine):  # only a limit keeps a job out of the queue
            more = [*seen, mine[len(seen)]]
            assert not sharing.is_within(held + len(more), held + sum(w.spec.cpus for w in more))


@given(LIVE, QUEUES)
def test_in_fair_order_each_is_the_poorest_of_those_who_still_wait(live, queue):
    state = made(Sharing(fair=True), live=live, queue=queue)
    slots = Counter(live)
    left = {uid: [w for w in state.pending if w.uid == uid] for uid in range(1000, 1004)}

    for waiting in state.queue:
        poorest = min((slots[uid], mine[0].id) for uid, mine in left.items() if mine)
        assert poorest == (slots[waiting.uid], waiting.id)
        left[waiting.uid].pop(0)
        slots[waiting.uid] += waiting.spec.cpus


@given(LIVE, QUEUES)
def test_without_limits_and_turns_the_queue_is_by_age(live, queue):
    state = made(Sharing(), live=live, queue=queue)

    assert sorted(ids(state)) == ids(state) == [waiting.id for waiting in state.pending]


@given(st.integers(1, 40), st.integers(1, 5))
def test_a_flood_delays_another_users_job_by_no_more_than_one(flood, cpus):
    queue = [(1000, cpus)] * flood + [(1001, 1)]
    state = made(Sharing(fair=True), queue=queue)

    assert ids(state).index(flood + 1) <= 1


@given(
    SHARINGS,
    st.lists(st.tuples(st.integers(0, 7), st.sampled_from(list(JobState))), max_size=40),
)
def test_counts_follow_every_change_of_any_job(sharing, changes):
    users, records = Users(sharing), {}
    for number, state in changes:
        after = job(number + 1, state=state, uid=1000 + number % 3)
        users.note(records.get(number), after)
        records[number] = after

    fresh = Users(sharing)
    for record in records.values():
        fresh.note(None, record)
    assert users.is_same(fresh)


@pytest.mark.parametrize(
    ("sharing", "cpus", "said"),
    [
        (Sharing(max_running=1), 1, "its user runs 1 of the 1 jobs that one user may run"),
        (Sharing(max_slots=2), 2, "needs 2 CPUs; its user holds 1, and may hold 2"),
        (Sharing(max_slots=2), 3, "asks for 3 CPUs, one user may hold 2 (max_slots)"),
    ],
)
def test_a_job_kept_by_a_limit_says_which(sharing, cpus, said):
    state = made(sharing, live=[1000], queue=[(1000, cpus), (1001, 1)])
    waiting = state.jobs[JobId(2)]

    assert USER_LIMIT == state.reason(waiting.id).code
    assert said in state.reason(waiting.id).text
    assert said in explain(state, None, waiting, 5.0).is_so
    assert [3] == ids(state)


@pytest.mark.parametrize(
    ("waiting", "cpus", "said"),
    [
        (0, [1, 1], ""),
        (2, [1], ""),
        (2, [1, 1], "uid 7 has 2 jobs waiting, with 2 more above the 3"),
        (0, [1, 3], "asks for 3 CPUs, one user may hold 2 (max_slots); lower --cpus to 2"),
    ],
)
def test_a_submission_above_a_limit_is_refused_in_one_line(waiting, cpus, said):
    users = Users(Sharing(max_queued=3, max_slots=2))

    text = users.refusal(7, waiting, cpus)

    assert text.startswith(said)
    assert bool(text) == bool(said)


def test_whoever_waits_in_turn_is_told_so():
    state = made(Sharing(fair=True), live=[1000], queue=[(1000, 1), (1001, 1)])

    told = explain(state, None, state.jobs[JobId(2)], 5.0)

    assert "waits behind 1 job whose turn is before" == told.is_so
    assert "waits its turn" in state.reason(JobId(2)).text
    assert [3, 2] == ids(state)


def test_a_job_that_failed_to_start_holds_nobody_back():
    state = made(Sharing(max_running=1), queue=[(1000, 1), (1000, 1)])
    state.delayed[JobId(1)] = 9.0

    assert [2] == ids(state)


def test_a_held_job_counts_as_waiting_and_not_as_running():
    users = Users(Sharing())
    users.note(None, job(1, state=JobState.HELD))

    assert (1, (0, 0)) == (users.waiting(1000), users.held(1000))
    assert (True, False) == (Sharing().is_plain, Sharing(fair=True).is_plain)


@given(SHARINGS, st.lists(st.tuples(UIDS, st.integers(1, 4)), max_size=20), st.randoms())
def test_every_job_that_may_run_has_its_turn_within_limits(sharing, jobs, random):
    state = State(platform(4, 2), sharing=sharing)
    controller = Controller(state, RULES)
    events = [submitted(job(n, uid=uid, cpus=cpus)) for n, (uid, cpus) in enumerate(jobs, 1)]
    now_s = 0.0
    while events:
        now_s += 1.0
        plan = controller.step(events)
        state.check()
        for uid in range(1000, 1004):
            assert sharing.is_within(*state.users.held(uid))
        events = [started(now_s, d.job_id) for d in plan.decisions if isinstance(d, Start)]
        running = [live.id for live in state.live if live.state is JobState.RUNNING]
        if not events and running:
            events = [exited(now_s, random.choice(running))]

    waiting = list(state.pending)
    assert all(state.users.is_too_large(left) for left in waiting)


def test_in_turns_too_a_requeued_job_waits_behind_those_that_were_there():
    state = State(platform(1), sharing=Sharing(fair=True))
    place = QueuePlace(behind=JobId(3), since_s=5.0)
    state.add(job(2, uid=1))
    state.add(job(3, uid=2))
    state.add(job(1, uid=3, place=place))
    state.add(job(4, uid=4))
    state.check()

    assert [2, 3, 1, 4] == [each.id for each in state.queue]
