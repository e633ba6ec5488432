"""What another rule would have done with what was measured."""

import msgspec
import pytest
from builders import MB, counters, job, platform, sample

from iodaemon.config import load_policy
from iodaemon.core.job import JobSpec, JobState
from iodaemon.registry import shipped
from iodaemon.simulator.replay import Recording, parse_recording, replay


def rules(name="default", **regulation):
    overrides = {"regulation": regulation} if regulation else {}
    return load_policy(name, overrides=overrides, search=(shipped("policies"),)).rules


BOUND = rules(rule="dynamic", io_bound="40 MB/s")


def ran(job_id, started_s=0.5, ended_s=None, **fields):
    """The last record of a job that ran; ``ended_s`` None: it still does."""
    state = JobState.RUNNING if ended_s is None else JobState.COMPLETED
    made = job(job_id, state=state, at_s=ended_s or started_s, partition=0, attempt=1)
    return msgspec.structs.replace(made, started_s=started_s, **fields)


def recording(jobs, rates, slices=10, *, machine=None):
    """Jobs that move so many MB in every slice of 1 s, from time 1 on."""
    samples = [
        sample(float(at_s), {number: counters(rate * at_s * MB) for number, rate in rates.items()})
        for at_s in range(1, slices + 1)
    ]
    return Recording(samples=tuple(samples), jobs=tuple(jobs), platform=machine or platform(2, 2))


BUSY = recording([ran(1), ran(2)], {1: 30, 2: 30})


def test_what_would_have_been_suspended_is_added_up():
    first, second = replay(BUSY, BOUND).jobs

    assert (first.job_id, second.job_id) == (1, 2)
    assert first.suspensions > 1
    assert 1.0 <= first.would_s < 10.0
    assert (0.0, 0.0) == (first.really_s, second.really_s)


def test_a_job_that_would_stand_still_when_it_ended_stood_still_until_then():
    jobs = [ran(1, 0.5, 2.5), ran(2, 0.5)]
    outcome = replay(recording(jobs, {1: 90, 2: 1}, slices=5), BOUND)

    last = [step for step in outcome.steps if step.job_id == 1][-1]
    assert ("resume", "Ended", 2.5) == (last.verdict, last.reason.code, last.at_s)
    assert (0.5, 1) == (outcome.jobs[0].would_s, outcome.jobs[0].suspensions)


def test_a_job_that_would_stand_still_at_the_end_stands_still_until_the_last_sample():
    outcome = replay(recording([ran(1)], {1: 90}, slices=2), BOUND)

    assert [(1, "suspend", 2.0)] == [(s.job_id, s.verdict, s.at_s) for s in outcome.steps]
    assert 0.0 == outcome.jobs[0].would_s


def test_what_really_stood_still_is_told_beside_it():
    held = job(
        2, state=JobState.SUSPENDED_IO, at_s=8.0, started_s=0.5, suspended_io_s=3.0, reason=None
    )
    jobs = [ran(1, 0.5, 9.5, suspended_io_s=4.0), held]
    outcome = replay(recording(jobs, {1: 1, 2: 1}), BOUND)

    assert [4.0, 5.0] == [made.really_s for made in outcome.jobs]


def test_a_walltime_ends_nothing_in_a_replay():
    limited = ran(1)
    limited = msgspec.structs.replace(limited, spec=JobSpec(command=("/bin/true",), walltime_s=2.0))
    outcome = replay(recording([limited, ran(2)], {1: 30, 2: 30}), BOUND)

    assert max(step.at_s for step in outcome.steps if step.job_id == 1) > 5.0
    assert "true" == outcome.jobs[0].name


def test_two_samples_of_which_the_first_is_a_start_are_both_seen():
    """A start in the middle of a timeslice is measured from there; the slice ends as all do."""
    first, second = sample(4.499, {}), sample(5.0, {1: counters(50 * MB)})
    made = ran(1, 4.499)
    seen = Recording(samples=(first, second), jobs=(made,), platform=platform(1))

    assert [5.0] == [step.at_s for step in replay(seen, BOUND).steps]


# -- what the daemon gives -----------------------------------------------------------------------


def page(made):
    return msgspec.json.decode(msgspec.json.encode(made, enc_hook=dict))


def test_pages_are_put_together_and_the_last_record_of_a_job_counts():
    early = Recording(samples=BUSY.samples[:6], jobs=(ran(1),), platform=BUSY.platform)
    late = Recording(
        samples=BUSY.samples[5:], jobs=(ran(1, 0.5, 9.5), ran(2)), platform=BUSY.platform
    )

    read = parse_recording([page(early), page(late)])

    assert BUSY.samples == read.samples
    assert [9.5, None] == [made.ended_s for made in read.jobs]
    assert BUSY.platform == read.platform


@pytest.mark.parametrize("bad", [{"samples": 1}, {"jobs": [{}]}, {"samples": [{"at_s": "x"}]}])
def test_what_has_another_shape_is_refused(bad):
    with pytest.raises(msgspec.ValidationError):
        parse_recording([bad])
