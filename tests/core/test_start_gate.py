"""How many more jobs start until regulation decides again, whatever rule admits them."""

import pytest
from builders import MB, counters, exited, hold, job, reason, sampled, submitted, suspended
from hypothesis import given
from hypothesis import strategies as st
from tracing import then, timeslice

from iodaemon.core import event as ev
from iodaemon.core.decision import StartLimit
from iodaemon.core.job import JobId, JobKind
from iodaemon.core.rule import Mode
from iodaemon.core.similarity import kind_of
from iodaemon.core.view import StartGate

WHY = reason("Contention", "one more would read the cache away from those that run")
FREE = JobKind("1000 like:free")


def limited(rig, at_s, **fields):
    """The event that ends a timeslice in which regulation limits what may start."""
    timeslice(rig, at_s, starts=StartLimit(why=WHY, **fields))
    return sampled(at_s)


@pytest.fixture
def busy(rig):
    rig.run(job(1))
    return rig


def come(*numbers):
    return tuple(submitted(job(number)) for number in numbers)


def test_no_more_start_than_regulation_lets_whatever_the_rule_wants(busy):
    then(busy, limited(busy, 1.0, most=1))
    then(busy, come(2, 3), "start 2")
    assert busy.state.reason(JobId(3)) == WHY


def test_what_has_started_since_counts_until_regulation_decides_again(busy):
    then(busy, limited(busy, 1.0, free=0.5, share=0.25))
    then(busy, come(2), "start 2")
    then(busy, come(3), "start 3")
    then(busy, come(4))
    then(busy, limited(busy, 2.0, free=0.3, share=0.25), "start 4")


def test_the_place_of_a_job_that_ended_is_taken_at_once(rig):
    rig.run(job(1), job(2))
    then(rig, limited(rig, 1.0, most=0, free=0.0, share=0.5))
    then(rig, come(3, 4))
    then(rig, exited(1.5, 1), "start 3")


def test_a_job_that_regulation_held_leaves_no_place(rig):
    rig.run(job(1), job(2))
    then(rig, timeslice(rig, 1.0))
    timeslice(rig, 2.0, suspends=(1,), starts=StartLimit(most=0, why=WHY))
    then(rig, sampled(2.0, {number: counters(MB) for number in (1, 2)}), "suspend 1")
    then(rig, (suspended(2.1, 1), *come(3)))
    then(rig, exited(2.5, 1))


@pytest.mark.parametrize("is_revoked", [False, True])
def test_a_start_that_came_to_nothing_gives_its_place_back(busy, is_revoked):
    then(busy, limited(busy, 1.0, most=1))
    then(busy, come(2, 3), "start 2")
    of = {"at_s": 1.2, "job_id": JobId(2)}
    failed = ev.StartFailed(**of, attempt=1, problem="gone", exit_code=127)
    then(busy, ev.SubmitRevoked(**of) if is_revoked else failed, "start 3")


@pytest.mark.parametrize("limit", [{"most": 0}, {"free": -2.0, "share": 0.5}])
def test_a_job_that_is_alone_starts(rig, limit):
    then(rig, limited(rig, 1.0, **limit))
    then(rig, come(1, 2), "start 1")


def test_a_kind_that_takes_nothing_is_never_refused_for_its_share(busy):
    made = job(2, name="free", command=("free",))
    then(busy, limited(busy, 1.0, free=-1.0, share=0.5, shares={kind_of(made): 0.0}))
    then(busy, (submitted(made), *come(3)), "start 2")


def test_sums_of_shares_may_be_wrong_by_rounding(busy):
    then(busy, limited(busy, 1.0, free=0.1 + 0.2 - 1e-12, share=0.1))
    then(busy, come(2, 3, 4), "start 2", "start 3", "start 4")


@pytest.mark.parametrize("after", [Mode.OFF, Mode.SHADOW, None])
def test_with_another_mode_or_a_rule_that_says_nothing_more_of_starts_none_are_limited(busy, after):
    then(busy, limited(busy, 1.0, most=0))
    then(busy, come(2))
    event = sampled(2.0) if after is None else ev.ModeChanged(at_s=2.0, mode=after, by="ann")
    then(busy, event, "start 2")
    assert busy.state.start_limit is None


def test_a_job_that_a_person_holds_is_live_and_starts_wait_for_regulation(busy):
    then(busy, limited(busy, 1.0, most=0))
    then(busy, (hold(1.1), *come(2)), "suspend 1", job_id=2, state="PENDING")


class Seen:
    """As much of a view as the gate looks at."""

    def __init__(self, limit, live):
        self.start_limit, self.live = limit, live

    def kind(self, job_id):
        return FREE if job_id == 9 else JobKind("other")


@given(
    most=st.none() | st.integers(0, 3),
    free=st.floats(-1.0, 1.5),
    share=st.sampled_from([0.0, 0.25, 0.5]),
    other=st.sampled_from([0.0, 0.4]),
    live=st.booleans(),
)
def test_the_gate_is_shut_only_to_all_and_open_only_to_all(most, free, share, other, live):
    limit = StartLimit(most=most, free=free, share=share, shares={FREE: other}, why=WHY)
    gate = StartGate(Seen(limit, [job(1)] if live else []))

    refused = [gate.refusal(job(number)) is not None for number in (8, 9)]

    assert (gate.shut_by is not None, gate.lets_all) == (all(refused), not any(refused))


def test_an_end_undoes_a_start():
    limit = StartLimit(most=3, free=0.5, why=WHY)

    assert limit == limit.after(1, 0.25).after(-1, 0.25)
