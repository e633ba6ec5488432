"""What an administrator orders becomes durable first, and then takes effect."""

from __future__ import annotations

import asyncio

import msgspec

from iodaemon.daemon.batch import Batch
from iodaemon.daemon.driver import Driver
from iodaemon.daemon.notebook import Order, note_of
from iodaemon.errors import JournalError


async def decree(driver: Driver, batch: Batch, *orders: Order) -> None:
    """Write the batch and a note of each order, then post the orders, all in one instant.

    Args:
        driver: takes them.
        batch: what the orders leave in the journal besides.
        orders: what is ordered.

    Raises:
        JournalError: it cannot be made durable now; nothing is ordered.
    """
    if driver.problem:
        raise JournalError(driver.problem)
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[JournalError | None] = loop.create_future()

    def written(error: JournalError | None) -> None:
        if error is None:
            for order in orders:
                driver.post(order)  # also where the client is gone: the journal has it
        if not answer.done():
            answer.set_result(error)

    batch = msgspec.structs.replace(batch, notes=tuple(map(note_of, orders)))
    driver.journal.write(batch, lambda error: loop.call_soon_threadsafe(written, error))
    if (error := await answer) is not None:
        raise error
