"""Events in, journal, decisions out, clients answered: in that order, on a full disk too."""

import asyncio
import logging
import time

import pytest
from bench import BIG, drive, driven
from builders import cancel, counters, exited, hold, release, resumed, sampled, suspended

from iodaemon.core import event as ev
from iodaemon.core.decision import Kill, Resume, Start, Stop, Suspend
from iodaemon.core.job import Exit, IoTotals, JobId, JobState
from iodaemon.daemon.driver import JOURNAL_RETRY_S, Watch
from iodaemon.daemon.timeline import WallTimeline
from iodaemon.errors import JournalError
from iodaemon.simulator.timeline import VirtualTimeline


def kinds(decisions):
    return [(type(decision), decision.job_id) for decision in decisions]


async def refusal(task):
    with pytest.raises(JournalError) as caught:
        await task
    return str(caught.value)


# -- a journal that answers --------------------------------------------------------------------


@driven
async def test_a_client_is_answered_and_a_start_performed_after_the_commit_and_not_before(bench):
    with bench.stuck():
        task = bench.submitting(2)
        await bench.taken()

        assert not task.done()
        assert {} == bench.stored()
        assert JobState.STARTING is bench.job().state
        assert [] == bench.backend.take()
    assert [1, 2] == await task
    assert [(Start, 1), (Start, 2)] == kinds(bench.backend.take())
    assert {1: "STARTING", 2: "STARTING"} == bench.stored()


@driven
async def test_a_stop_and_a_kill_are_performed_after_their_commits(bench):
    await bench.run()
    with bench.stuck():
        bench.post(cancel(bench.now_s, grace_s=5.0))
        await bench.taken()

        assert [] == bench.backend.take()
    await bench.settle()
    assert [(Stop, 1)] == kinds(bench.backend.take())
    await bench.after(5.0)
    assert [(Kill, 1)] == kinds(bench.backend.take())


@driven
async def test_suspend_and_resume_are_performed_at_once_while_the_journal_is_stuck(bench):
    await bench.run()
    with bench.stuck():
        bench.post(hold(bench.now_s))
        await bench.breathe()

        assert [(Suspend, 1)] == kinds(bench.backend.take())
        bench.post(suspended(bench.now_s), release(bench.now_s))
        await bench.breathe()
        assert [(Resume, 1)] == kinds(bench.backend.take())
        bench.post(resumed(bench.now_s))
        await bench.breathe()
    await bench.settle()


def test_a_suspend_is_performed_before_anything_is_logged(tmp_path):
    performed = []

    async def scenario(bench):
        await bench.run()
        log = logging.getLogger("iodaemon")
        handler = logging.Handler()
        handler.emit = lambda _: performed.append(bench.backend.take())
        log.addHandler(handler)
        log.setLevel(logging.DEBUG)
        try:
            bench.post(hold(bench.now_s))
            await bench.settle()
        finally:
            log.removeHandler(handler)
            log.setLevel(logging.NOTSET)

    drive(tmp_path, scenario)

    assert [(Suspend, 1)] == kinds(performed[0])


@driven
async def test_the_end_of_a_job_is_durable_before_it_counts_as_such(bench):
    await bench.run()
    with bench.stuck():
        bench.post(exited(bench.now_s))
        await bench.taken()

        assert JobState.COMPLETED is bench.job().state
        assert not bench.driver.is_durable(JobId(1))
    await bench.settle()
    assert bench.driver.is_durable(JobId(1))
    assert {1: "COMPLETED"} == bench.stored()


@driven
async def test_what_arrives_in_one_instant_is_one_step_and_one_batch(bench):
    before = bench.journal.commits
    tasks = [bench.submitting() for _ in range(50)]
    ids = await asyncio.gather(*tasks)

    assert [[i] for i in range(1, 51)] == ids
    assert 1 == bench.journal.commits - before
    bench.backend.take()


def test_events_that_came_before_the_start_are_dealt_with_at_the_start(tmp_path):
    async def first(bench):
        await bench.run()

    async def second(bench):
        bench.post(exited(bench.now_s))
        await bench.settle()

    drive(tmp_path, first)
    assert JobState.COMPLETED is drive(tmp_path, second)[1].state


# -- time ----------------------------------------------------------------------------------------


@driven
async def test_a_job_is_stopped_when_its_walltime_is_over(bench):
    await bench.run(walltime_s=5.0)
    await bench.after(4.9)

    assert [] == bench.backend.take()
    await bench.after(0.1)
    assert [(Stop, 1)] == kinds(bench.backend.take())
    bench.post(exited(bench.now_s, end=Exit(signal=15)))
    await bench.settle()
    assert JobState.TIMEOUT is bench.job().state


class Sluggish(VirtualTimeline):
    """Makes every call this much later than asked for."""

    late_s = 0.0

    def call_at(self, time_s, call, **options):
        return super().call_at(time_s + self.late_s, call, **options)


@pytest.mark.parametrize(
    ("late_s", "expected"),
    [
        (0.0, [1.0, 2.0, 3.0, 4.0]),
        (0.75, [1.75, 2.75, 3.75, 4.75]),
        (2.5, [3.5, 6.5, 9.5, 12.5]),
    ],
)
def test_samples_keep_to_a_grid_whose_slices_are_skipped_but_never_shifted(
    tmp_path, late_s, expected
):
    timeline = Sluggish(start_s=0.0)
    timeline.late_s = late_s
    taken = []

    async def scenario(bench):
        bench.backend.sample = lambda: taken.append(bench.now_s)
        timeline.run_until(expected[-1])

        assert pytest.approx(expected) == taken

    drive(tmp_path, scenario, timeline=timeline)


def test_wall_time_agrees_with_the_clock_and_calls_back_in_time():
    async def scenario():
        loop = asyncio.get_running_loop()
        timeline = WallTimeline(loop)
        fired = loop.create_future()
        due_s = timeline.now_s + 0.05
        timeline.call_at(due_s, lambda: fired.set_result(timeline.now_s))

        before_s, now_s, after_s = time.time(), timeline.now_s, time.time()
        assert before_s - 1.0 < now_s < after_s + 1.0
        assert await fired >= due_s - 0.001

    asyncio.run(scenario())


def test_after_the_halt_nothing_is_decided_or_performed(tmp_path):
    async def scenario(bench):
        await bench.run(walltime_s=5.0)
        with bench.stuck():
            task = bench.submitting()
            await bench.breathe()
            bench.driver.halt()
        await task
        bench.timeline.run_until(bench.now_s + 100.0)
        bench.post(exited(bench.now_s))
        await bench.settle()

        assert [] == bench.backend.take()
        assert JobState.RUNNING is bench.job(1).state

    found = drive(tmp_path, scenario)

    assert JobState.STARTING is found[2].state


# -- a journal that cannot be written ------------------------------------------------------------


def test_a_refused_job_never_exists_and_its_id_is_never_used_again(tmp_path):
    async def scenario(bench):
        bench.fill()
        message = await refusal(bench.submitting(2, command=(BIG,)))
        await bench.settle()

        assert "\n" not in message
        assert f"no space is left on the file system of {tmp_path}" in message

        assert {} == bench.state.jobs
        assert [] == bench.backend.take()
        bench.mend()
        await bench.after(JOURNAL_RETRY_S)
        assert [3] == await bench.submitting()
        assert [(Start, 3)] == kinds(bench.backend.take())

    found = drive(tmp_path, scenario)

    assert [3] == list(found)


def test_a_refused_job_that_changed_meanwhile_does_not_come_back(tmp_path):
    """Its cancelling is in a batch of its own, which fails after the client was told no."""

    async def scenario(bench):
        await bench.run()
        bench.hurry(0.2)
        with bench.stuck():
            task = bench.submitting()
            await bench.taken()
            bench.post(cancel(bench.now_s, 2))
            await refusal(task)
            await bench.settle()
        await bench.after(JOURNAL_RETRY_S)
        await bench.settle()

        assert [1] == list(bench.state.jobs)
        bench.backend.take()

    found = drive(tmp_path, scenario)

    assert [1] == list(found)


def test_a_start_that_cannot_be_written_down_is_taken_back_and_made_later(tmp_path):
    async def scenario(bench):
        await bench.run(5)
        bench.spoil()
        bench.post(exited(bench.now_s, 2))
        await bench.settle()

        assert [] == bench.backend.take()
        assert JobState.PENDING is bench.job(5).state
        assert 1 == bench.state.slots_free(0)
        await bench.after(60.0)
        assert [] == bench.backend.take()
        bench.mend()
        await bench.after(JOURNAL_RETRY_S)
        assert [(Start, 5)] == kinds(bench.backend.take())

    found = drive(tmp_path, scenario)

    assert JobState.STARTING is found[5].state
    assert JobState.COMPLETED is found[2].state


@driven
async def test_cancelling_works_while_the_disk_takes_nothing(bench):
    await bench.run(5)
    bench.spoil()
    bench.post(cancel(bench.now_s, 1), cancel(bench.now_s, 5))
    await bench.settle()

    assert [(Stop, 1)] == kinds(bench.backend.take())
    assert JobState.CANCELLED is bench.job(5).state
    bench.post(exited(bench.now_s, 1, end=Exit(signal=15)))
    await bench.settle()
    assert JobState.CANCELLED is bench.job(1).state
    assert bench.driver.is_durable(JobId(1))
    bench.mend()
    await bench.after(JOURNAL_RETRY_S)
    assert ("CANCELLED", "CANCELLED") == (bench.stored()[1], bench.stored()[5])


@driven
async def test_a_later_batch_that_gets_through_does_not_hide_what_is_owed(bench):
    """The end of job 1 needs room, that of job 2 does not."""

    await bench.run(2)
    end = ev.JobExited(
        at_s=bench.now_s,
        job_id=JobId(1),
        attempt=1,
        exit=Exit(code=1),
        io=IoTotals(),
        note=BIG,
    )
    bench.fill()
    with bench.stuck():
        bench.post(end)
        await bench.taken()
        bench.post(hold(bench.now_s, 2))
        await bench.breathe()
    await bench.settle()

    assert "RUNNING" == bench.stored()[1]
    bench.mend()
    await bench.after(JOURNAL_RETRY_S)
    assert "FAILED" == bench.stored()[1]
    assert "" == bench.driver.problem
    bench.backend.take()


def test_everything_that_happened_meanwhile_is_on_the_disk_after_the_recovery(tmp_path):
    async def scenario(bench):
        await bench.run(4)
        bench.post(sampled(bench.now_s, {1: counters(0, 0)}))
        await bench.settle()
        bench.spoil()
        bench.post(hold(bench.now_s, 2), cancel(bench.now_s, 3))
        await bench.after(1.0)
        totals = IoTotals(read_bytes=70, written_bytes=5)
        bench.post(
            suspended(bench.now_s, 2),
            ev.JobExited(
                at_s=bench.now_s, job_id=JobId(1), attempt=1, exit=Exit(code=7), io=totals
            ),
        )
        await bench.after(7.0)
        bench.mend()
        await bench.after(JOURNAL_RETRY_S)

        expected = {1: "FAILED", 2: "SUSPENDED_USER", 3: "STOPPING", 4: "RUNNING"}
        assert expected == bench.stored()
        steps = [step.after for _, step in bench.journal.steps(JobId(1))]
        assert ["PENDING", "STARTING", "RUNNING", "FAILED"] == steps
        assert [(70, 5)] == [
            (row.read_bytes, row.written_bytes) for row in bench.journal.minutes(JobId(1))
        ]
        bench.backend.take()

    found = drive(tmp_path, scenario)

    assert 7 == found[1].exit.code


@driven
async def test_while_the_disk_takes_nothing_it_is_asked_once_every_two_seconds(bench):
    await bench.run(2)
    bench.spoil()
    bench.post(hold(bench.now_s))
    await bench.settle()
    asked = []
    write = bench.journal.write
    bench.journal.write = lambda *args, **more: (
        asked.append(bench.now_s),
        write(*args, **more),
    )
    for _ in range(20):
        bench.post(cancel(bench.now_s, 2), hold(bench.now_s), release(bench.now_s))
        await bench.settle()

    assert [] == asked
    await bench.after(10 * JOURNAL_RETRY_S)
    assert 10 == len(asked)
    bench.mend()
    bench.backend.take()


def test_an_environment_comes_with_every_job_until_it_is_known_to_be_stored(tmp_path):
    """The first submission fails, the second is on its way already and gets through."""

    async def scenario(bench):
        await bench.run(4, environment={}, key="other")
        bench.fill()
        with bench.stuck():
            first = bench.submitting(command=(BIG,))
            await bench.taken()
            second = bench.submitting()
            await bench.breathe()
        await refusal(first)
        await second

        assert {"A": "1"} == bench.journal.environment("env")
        bench.mend()
        await bench.after(JOURNAL_RETRY_S)
        bench.backend.take()

    found = drive(tmp_path, scenario)

    assert [1, 2, 3, 4, 6] == sorted(found)


# -- waiting ---------------------------------------------------------------------------------------


def test_who_waits_is_told_whether_it_came_true():
    async def scenario():
        watch, seen = Watch(), []
        given_up = await watch.until(lambda: False, 0.0)
        task = asyncio.ensure_future(watch.until(lambda: bool(seen)))
        await asyncio.sleep(0)
        seen.append(1)
        watch.notify()
        return await watch.until(lambda: True, 0.0), given_up, await task

    assert (True, False, True) == asyncio.run(scenario())
