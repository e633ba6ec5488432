"""Waiting without asking again and again."""

import asyncio

from iodaemon.daemon.driver import Watch


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
            watching.notify()
        return await task

    assert asyncio.run(scenario())


def test_several_wait_for_the_same():
    async def scenario():
        watching, seen = Watch(), []
        tasks = [asyncio.ensure_future(watching.until(lambda: bool(seen))) for _ in range(100)]
        await asyncio.sleep(0)
        seen.append(1)
        watching.notify()
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
