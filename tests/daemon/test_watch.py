"""Waiting without asking again and again."""

import asyncio

from iodaemon.core.decision import Transition
from iodaemon.core.job import JobId, JobState
from iodaemon.daemon import watch
from iodaemon.daemon.watch import Watch


def step(job_id=1):
    return Transition(job_id=JobId(job_id), at_s=0.0, before=None, after=JobState.PENDING)


def test_a_condition_that_holds_is_not_waited_for():
    assert asyncio.run(Watch().until(lambda: True, 0.0))


def test_a_condition_that_never_holds_is_given_up_after_the_timeout():
    assert not asyncio.run(Watch().until(lambda: False, 0.01))


def test_a_condition_is_looked_at_after_every_change():
    async def scenario():
        watching, seen = Watch(), []
        task = asyncio.ensure_future(watching.until(lambda: len(seen) == 2))
        for number in range(2):
            await asyncio.sleep(0)
            assert not task.done()
            seen.append(number)
            watching.notify(())
        return await task

    assert asyncio.run(scenario())


def test_several_wait_for_the_same():
    async def scenario():
        watching, seen = Watch(), []
        tasks = [asyncio.ensure_future(watching.until(lambda: bool(seen))) for _ in range(100)]
        await asyncio.sleep(0)
        seen.append(1)
        watching.notify(())
        return await asyncio.gather(*tasks)

    assert [True] * 100 == asyncio.run(scenario())


def test_who_gave_up_waiting_leaves_nothing_behind():
    async def scenario():
        watching = Watch()
        task = asyncio.ensure_future(watching.until(lambda: False))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return watching._conditions

    assert {} == asyncio.run(scenario())


def test_a_stream_has_every_step_in_order():
    async def scenario():
        watching = Watch()
        with watching.listening() as stream:
            watching.notify([step(1), step(2)])
            watching.notify([step(3)])
            seen = [await anext(stream) for _ in range(3)]
        return [each.job_id for each in seen], watching._streams

    assert ([1, 2, 3], set()) == asyncio.run(scenario())


def test_streams_end_with_the_daemon():
    async def scenario():
        watching = Watch()
        with watching.listening() as stream:
            watching.notify([step(1)])
            watching.end_streams()
            return [each.job_id async for each in stream]

    assert [1] == asyncio.run(scenario())


def test_a_listener_that_does_not_listen_is_dropped_after_what_it_missed(monkeypatch):
    monkeypatch.setattr(watch, "LONGEST_BACKLOG", 10)

    async def scenario():
        watching = Watch()
        with watching.listening() as stream:
            for number in range(1, 100):
                watching.notify([step(number)])
            seen = [each async for each in stream]
            return len(seen), set(watching._streams)

    assert (10, set()) == asyncio.run(scenario())
