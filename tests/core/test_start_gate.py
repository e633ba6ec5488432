"""How many more jobs start until regulation decides again, whatever rule admits them."""

import pytest
from builders import MB, counters, exited, hold, job, reason, sampled, submitted, suspended
from hypothesis import given
from hypothesis import strategies as st

from iodaemon.core import event as ev
from iodaemon.core.decision import RegulationPlan, StartLimit
from iodaemon.core.job import JobId, JobKind, JobState
from iodaemon.core.rule import Mode
from iodaemon.core.similarity import kind_of
from iodaemon.core.view import StartGate

WHY = reason("Contention", "one more would read the cache away from those that run")
FREE = JobKind("1000 like:free")


def limited(rig, at_s, **fields):
    """A timeslice ends, and regulation limits what may start."""
    rig.regulation.plan = RegulationPlan(starts=StartLimit(why=WHY, **fields))
    return rig.step(sampled(at_s))


def started_by(rig):
    return [start.job_id for start in rig.backend.take()]


def test_no_more_start_than_regulation_lets_whatever_the_rule_wants(rig):
    rig.run(job(1))
    limited(rig, 1.0, most=1)

    rig.step(submitted(job(2)), submitted(job(3)))

    assert ([2], WHY) == (started_by(rig), rig.state.reason(JobId(3)))


def test_what_has_started_since_counts_until_regulation_decides_again(rig):
    rig.run(job(1))
    limited(rig, 1.0, free=0.5, share=0.25)

    for number in (2, 3, 4):
        rig.step(submitted(job(number)))

    assert [2, 3] == started_by(rig)
    limited(rig, 2.0, free=0.3, share=0.25)
    assert [4] == started_by(rig)


def test_the_place_of_a_job_that_ended_is_taken_at_once(rig):
    rig.run(job(1), job(2))
    limited(rig, 1.0, most=0, free=0.0, share=0.5)
    rig.step(submitted(job(3)), submitted(job(4)))
    rig.backend.take()

    rig.step(exited(1.5, 1))

    assert [3] == started_by(rig)


def test_a_job_that_regulation_held_leaves_no_place(rig):
    rig.run(job(1), job(2))
    rig.regulate(1.0)
    limit = StartLimit(most=0, why=WHY)
    rig.regulation.plan = RegulationPlan(suspends=(JobId(1),), starts=limit)
    rig.step(sampled(2.0, {number: counters(MB) for number in (1, 2)}))
    rig.step(suspended(2.1, 1), submitted(job(3)))
    rig.backend.take()

    rig.step(exited(2.5, 1))

    assert [] == started_by(rig)


def test_a_start_that_failed_gives_its_place_back(rig):
    rig.run(job(1))
    limited(rig, 1.0, most=1)
    rig.step(submitted(job(2)), submitted(job(3)))
    rig.backend.take()

    failed = ev.StartFailed(at_s=1.2, job_id=JobId(2), attempt=1, problem="gone", exit_code=127)
    rig.step(failed)

    assert [3] == started_by(rig)


def test_a_start_that_was_never_durable_gives_its_place_back(rig):
    rig.run(job(1))
    limited(rig, 1.0, most=1)
    rig.step(submitted(job(2)), submitted(job(3)))
    rig.backend.take()

    rig.step(ev.SubmitRevoked(at_s=1.2, job_id=JobId(2)))

    assert [3] == started_by(rig)


@pytest.mark.parametrize("limit", [{"most": 0}, {"free": -2.0, "share": 0.5}])
def test_a_job_that_is_alone_starts(rig, limit):
    limited(rig, 1.0, **limit)

    rig.step(submitted(job(1)), submitted(job(2)))

    assert [1] == started_by(rig)


def test_a_kind_that_takes_nothing_is_never_refused_for_its_share(rig):
    rig.run(job(1))
    made = job(2, name="free", command=("free",))
    shares = {kind_of(made): 0.0}
    limited(rig, 1.0, free=-1.0, share=0.5, shares=shares)

    rig.step(submitted(made), submitted(job(3)))

    assert [2] == started_by(rig)


def test_sums_of_shares_may_be_wrong_by_rounding(rig):
    rig.run(job(1))
    limited(rig, 1.0, free=0.1 + 0.2 - 1e-12, share=0.1)

    rig.step(*(submitted(job(number)) for number in (2, 3, 4)))

    assert [2, 3, 4] == started_by(rig)


@pytest.mark.parametrize("mode", [Mode.OFF, Mode.SHADOW])
def test_with_regulation_switched_off_nothing_limits(rig, mode):
    rig.run(job(1))
    limited(rig, 1.0, most=0)
    rig.step(submitted(job(2)))
    rig.backend.take()

    rig.step(ev.ModeChanged(at_s=1.5, mode=mode, by="ann"))

    assert ([2], None) == (started_by(rig), rig.state.start_limit)


def test_a_rule_that_says_nothing_more_of_starts_limits_none(rig):
    rig.run(job(1))
    limited(rig, 1.0, most=0)
    rig.step(submitted(job(2)))
    rig.backend.take()

    rig.step(sampled(2.0))

    assert [2] == started_by(rig)


def test_a_job_that_a_person_holds_is_live_and_starts_wait_for_regulation(rig):
    rig.run(job(1))
    limited(rig, 1.0, most=0)
    rig.step(hold(1.1), submitted(job(2)))
    rig.backend.take()

    assert JobState.PENDING is rig.job(2).state


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
