"""The whole way, in virtual time: jobs of which it is known how much they suffer.

The disk serves all streams in equal parts, so a request takes as many times as long as there are
streams, and a job that waits for its requests suffers by the part of its time alone that it reads.
"""

import pytest
from builders import MB, FirstFit, InOrder, Script, platform

from iodaemon.core.job import JobSpec, JobState
from iodaemon.core.recollection import Recollection
from iodaemon.core.rule import Rules
from iodaemon.core.signature import keys_of
from iodaemon.model.node import Compute, Model, Profile, Read, SimulatedDisk, Write
from iodaemon.simulator.run import simulate

RATE = 100.0 * MB
DISK = SimulatedDisk(capacity_bytes_per_s=RATE)
OTHERS = 7
FINE_S, COARSE_S = 0.02, 6.0
"""A round of computing and reading alone: far shorter than a slice, and longer than some."""


def program(share, alone_s, round_s=FINE_S):
    """Computes and reads by turns, and needs so long alone."""
    read = round(share * round_s * RATE)
    steps = [step for step in (Compute((1.0 - share) * round_s), Read(read)) if step != Read(0)]
    return Profile(steps=tuple(steps), repeat=round(alone_s / round_s))


def submitted(at_s, profile, name="app"):
    return at_s, JobSpec(command=(name,), name=name), profile


def crowd(at_s, seconds, count=OTHERS):
    """So many readers; together they keep the disk busy for about so long."""
    size = round(seconds * RATE / count)
    return [submitted(at_s, Profile(steps=(Read(size),)), "other") for _ in range(count)]


def lone(at_s=0.0):
    """A reader beside nobody, from whom it is learned how long a request takes alone."""
    return submitted(at_s, Profile(steps=(Read(round(5.0 * RATE)),)), "lone")


def run(knowledge, *jobs, look=lambda view: None):
    """Without regulation, so that all that happens to the jobs is others' I/O.

    Args:
        knowledge: that learns of it.
        jobs: all.
        look: what a rule does with its view, each slice.
    """
    script = Script()
    script.look = look
    rules = Rules(name="t", admission=InOrder(), placement=FirstFit(), regulation=script)
    return simulate(
        platform(OTHERS + 2),
        rules,
        jobs,
        model=Model(disk=DISK),
        experience=knowledge,
    )


def learned(result, knowledge, name="app"):
    job = next(job for job in result.jobs if job.spec.name == name)
    return knowledge.sensitivity(job, None, result.ended_s)


@pytest.mark.slow
@pytest.mark.parametrize("round_s", [FINE_S, COARSE_S])
@pytest.mark.parametrize("share", [0.1, 0.3, 0.6, 1.0])
def test_a_job_that_waits_for_its_requests_suffers_by_its_share_of_io(share, round_s):
    knowledge = Recollection()

    result = run(knowledge, submitted(0.0, program(share, 240.0, round_s)), *crowd(100.0, 120.0))

    found = learned(result, knowledge)
    assert result.jobs[0].run_s > 240.0 + 60.0 * share, "it was hindered for long"
    assert pytest.approx(share, rel=0.15) == found.value
    assert found.low <= share <= found.high


def test_a_job_that_only_computes_does_not_suffer_and_that_is_known():
    knowledge = Recollection()
    result = run(knowledge, lone(), submitted(0.0, program(0.0, 200.0)), *crowd(100.0, 80.0))

    found = learned(result, knowledge)
    assert pytest.approx(0.0, abs=0.01) == found.value
    assert found.high < 0.1


def test_a_job_that_writes_to_memory_hardly_suffers_where_one_that_writes_to_the_disk_does():
    values = []
    for direct in (False, True):
        knowledge = Recollection()
        steps = (Compute(0.06), Write(4 * MB, direct=direct))
        job = submitted(0.0, Profile(steps=steps, repeat=2400))
        result = run(knowledge, lone(), job, *crowd(120.0, 120.0))
        values.append(learned(result, knowledge).value)

    assert values[0] < 0.05
    assert pytest.approx(0.4, rel=0.15) == values[1]


def test_alone_it_is_not_known_and_a_later_run_beside_others_makes_it_known():
    knowledge = Recollection()
    alone = run(knowledge, submitted(0.0, program(0.5, 60.0)))
    before = learned(alone, knowledge)

    others = crowd(10.0, 120.0)
    beside = run(knowledge, lone(), *others, submitted(20.0, program(0.5, 30.0)))

    assert before is None
    assert pytest.approx(0.5, rel=0.15) == learned(beside, knowledge).value


def test_a_rule_sees_it_of_a_job_that_runs_and_of_one_like_it_that_waits():
    knowledge, seen = Recollection(), {}

    def look(view):
        for job in (*view.running, *view.pending):
            found = view.sensitivity(job.id)
            if found is not None:
                seen.setdefault(job.id, []).append((view.now_s, found.value))

    run(knowledge, submitted(0.0, program(0.5, 120.0)), *crowd(40.0, 60.0), look=look)
    first = seen[1]
    assert 40.0 < first[0][0] < 70.0, "not before it was hindered"
    assert pytest.approx(0.5, rel=0.15) == first[-1][1]

    seen.clear()
    run(knowledge, submitted(0.0, program(0.5, 20.0)), look=look)
    assert pytest.approx(0.5, rel=0.15) == seen[1][0][1]


def test_without_experience_nothing_is_watched_and_nothing_known():
    seen = []
    result = run(
        None,
        submitted(0.0, program(0.5, 60.0)),
        *crowd(20.0, 40.0),
        look=lambda view: seen.extend(view.sensitivity(job.id) for job in view.running),
    )

    assert {None} == set(seen)
    assert {""} == {job.work for job in result.jobs}


def test_a_job_without_counters_is_not_known_which_is_not_nothing():
    knowledge = Recollection()
    profile = Profile(steps=(Compute(60.0),), hides_io=True)
    result = run(knowledge, submitted(0.0, profile), *crowd(20.0, 30.0))

    assert JobState.COMPLETED is result.jobs[0].state
    assert learned(result, knowledge) is None


def test_all_keys_of_the_job_know_it():
    knowledge = Recollection()
    result = run(knowledge, submitted(0.0, program(0.5, 120.0)), *crowd(40.0, 60.0))

    rows = {row.key: row.sensitivity for row in knowledge.remembered(result.ended_s)}
    values = [rows[key].value for key in keys_of(result.jobs[0])]
    assert 4 == len(values)
    assert [pytest.approx(0.5, rel=0.15)] * 4 == values
