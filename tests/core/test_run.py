"""The driver of virtual time: the controller of the daemon over a simulated node."""

import pytest
from builders import MB, FirstFit, InOrder, Script, platform

from iodaemon.core.decision import RegulationPlan
from iodaemon.core.job import Exit, JobSpec, JobState
from iodaemon.core.rule import Rules
from iodaemon.model.node import Compute, Model, Profile, Read, SimulatedDisk, Write
from iodaemon.simulator.run import simulate
from iodaemon.simulator.workload import Mix, random_workload

DISK = SimulatedDisk(capacity_bytes_per_s=100.0 * MB)


def rules(regulation=None, **fields):
    return Rules(
        name="test",
        admission=InOrder(),
        placement=FirstFit(),
        regulation=Script() if regulation is None else regulation,
        **fields,
    )


def submission(submit_s, *steps, **spec):
    return submit_s, JobSpec(command=("simulated",), **spec), Profile(steps=steps)


def run(*jobs, machine=None, by=None, **options):
    machine = platform(1) if machine is None else machine
    return simulate(machine, rules() if by is None else by, jobs, model=Model(disk=DISK), **options)


class Heaviest:
    """Regulation: the job with the most I/O stands still, in every slice, for ever."""

    timeslice_s = 1.0

    def decide(self, view, memory):
        rates = [(view.bandwidth(job.id), job.id) for job in view.running]
        known = [(-rate.total_bytes_per_s, job_id) for rate, job_id in rates if rate is not None]
        return RegulationPlan(suspends=tuple(job_id for _, job_id in sorted(known)[:1])), memory


def test_jobs_run_one_after_the_other_on_one_slot():
    result = run(submission(1.0, Compute(5.0)), submission(0.0, Compute(3.5)))

    assert [(job.submitted_s, job.started_s, job.ended_s) for job in result.jobs] == [
        (0.0, 0.0, 3.5),
        (1.0, 3.5, 8.5),
    ]
    assert result.ended_s == 9.0, "the last tick finds nothing to sample"


def test_ids_count_in_the_order_of_submit_times():
    result = run(submission(5.0, name="late"), submission(0.0, name="a"), submission(0.0, name="b"))

    assert [job.spec.name for job in result.jobs] == ["a", "b", "late"]


def test_a_slice_ends_at_each_whole_timeslice_while_jobs_are_live():
    result = run(submission(0.5, Compute(2.0)), submission(1000.0, Read(300 * MB)))

    rates = {each.at_s: each.jobs_bytes_per_s for each in result.slices}
    moving = {
        1001.0: 100.0 * MB,
        1002.0: 100.0 * MB,
    }  # after an idle time they count from the start
    idle = dict.fromkeys((0.5, 1.0, 2.0, 1000.0, 1003.0), 0.0)
    assert pytest.approx(idle | moving) == rates


def test_slices_show_what_jobs_and_devices_moved():
    result = run(submission(0.0, Read(50 * MB), Write(100 * MB), Compute(9.0)))

    second = result.slices[1]
    assert second.jobs_bytes_per_s == pytest.approx(150.0 * MB)
    assert second.device_bytes_per_s == pytest.approx(50.0 * MB, rel=1e-4)
    assert (second.running, second.suspended) == ((1,), ())


def test_a_walltime_is_kept_to_the_moment():
    result = run(submission(0.25, Compute(50.0), walltime_s=7.3))

    job = result.jobs[0]
    assert job.state is JobState.TIMEOUT
    assert job.ended_s == pytest.approx(7.55)
    assert job.exit == Exit(signal=15)


def test_the_guard_lets_a_suspended_job_go_on():
    jobs = [submission(0.0, Read(200 * MB), walltime_s=50.0)]

    result = run(*jobs, by=rules(Heaviest(), max_suspend_s=10.0))

    job = result.jobs[0]
    assert job.state is JobState.COMPLETED
    assert job.suspended_io_s == pytest.approx(10.0)
    assert job.ended_s == pytest.approx(12.0)
    assert sum(1 in each.suspended for each in result.slices) == 10


def test_a_run_may_be_ended_early():
    result = run(submission(0.0, Compute(50.0)), submission(0.0, Compute(1.0)), until_s=20.0)

    assert result.ended_s == 20.0
    assert [job.state for job in result.jobs] == [JobState.RUNNING, JobState.PENDING]
    assert result.finished == ()


def test_a_job_that_never_fits_does_not_keep_the_run_going():
    result = run(submission(0.0, Compute(1.0), cpus=2), submission(0.0, Compute(1.0)))

    assert [job.state for job in result.jobs] == [JobState.PENDING, JobState.COMPLETED]
    assert tuple(job.id for job in result.finished) == (2,)


def test_each_step_can_be_watched_and_nothing_to_do_is_done_at_once():
    seen = []
    run(submission(0.0, Compute(1.5)), on_step=lambda state, plan: seen.append(len(state.jobs)))
    result = run()

    assert (True, {1}) == (len(seen) >= 4, set(seen))
    assert ((), (), (), 0.0) == (result.jobs, result.transitions, result.slices, result.ended_s)


def test_a_random_workload_is_ordered_within_its_ranges_and_depends_on_the_seed_alone():
    mix = Mix(jobs=50, cpus=(2, 3), steps=(1, 2))
    jobs = random_workload(mix, 1)

    times = [submit_s for submit_s, _, _ in jobs]
    assert (50, sorted(times)) == (len(jobs), times)
    assert {2, 3} == {spec.cpus for _, spec, _ in jobs}
    assert {1, 2} == {len(profile.steps) for _, _, profile in jobs}
    assert {0.0} == {submit_s for submit_s, _, _ in random_workload(Mix(mean_gap_s=0.0), 1)}
    assert jobs == random_workload(mix, 1) != random_workload(mix, 2)
