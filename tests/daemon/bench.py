"""A driver over a real journal and a fake backend, in a running loop; ways to hurt the journal."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from builders import FakeBackend, FirstFit, InOrder, Script, platform, started

from iodaemon.core import event as ev
from iodaemon.core.controller import Controller
from iodaemon.core.job import Job, JobId, JobSpec, JobState
from iodaemon.core.rule import Rules
from iodaemon.core.state import State
from iodaemon.daemon.driver import Driver
from iodaemon.daemon.journal.writer import Journal
from iodaemon.simulator.timeline import VirtualTimeline

PLENTY = 2**30
"""SQLite's usual bound on pages."""
BIG = "x" * 200_000
"""A word whose job needs pages of its own."""


class Bench:
    """What a test of the driver holds; ``drive`` makes and closes it."""

    def __init__(
        self, journal: Journal, *, timeline=None, slots=(2, 2), backend=None, tiers=()
    ) -> None:
        self.journal = journal
        self.timeline = VirtualTimeline(start_s=1000.0) if timeline is None else timeline
        restored = journal.restore()
        self.state = State(platform(*slots), tiers)
        self.state.restore(restored.jobs, restored.next_id, lessons=restored.lessons)
        self.backend = FakeBackend(self.state.platform)
        self.regulation = Script()
        rules = Rules(
            name="test",
            admission=InOrder(),
            placement=FirstFit(),
            regulation=self.regulation,
            max_suspend_s=600.0,
        )
        self.driver = Driver(
            Controller(self.state, rules), journal, self.timeline, restored.environments
        )
        if backend is not None:
            self.backend = backend(self)

    @property
    def now_s(self) -> float:
        return self.timeline.now_s

    def job(self, job_id: int = 1) -> Job:
        return self.state.jobs[JobId(job_id)]

    def post(self, *events: ev.Event) -> None:
        for event in events:
            self.driver.post(event)

    def submitting(self, count: int = 1, environment=None, key="env", **spec) -> asyncio.Task:
        """A submission that has been made and is not answered yet."""
        made = JobSpec(**{"command": ("true",), "environment_id": key, **spec})

        def make(job_id: JobId, now_s: float) -> Job:
            return Job(
                id=job_id,
                spec=made,
                uid=1000,
                state=JobState.PENDING,
                since_s=now_s,
                submitted_s=now_s,
            )

        return asyncio.create_task(
            self.driver.submit([make] * count, environment or {"A": "1"}, key)
        )

    async def run(self, count: int = 1, **spec) -> list[JobId]:
        """Submit so many jobs and let them start."""
        ids = await self.submitting(count, **spec)
        self.backend.take()
        self.post(*(started(self.now_s, i) for i in ids if self.job(i).is_live))
        await self.settle()
        return ids

    async def breathe(self) -> None:
        """Let the loop do all it can do without the journal."""
        for _ in range(10):
            await asyncio.sleep(0)

    async def taken(self) -> None:
        """Until the journal's writer has begun with everything that is queued now."""
        await self.breathe()
        while self.journal._queue.qsize():  # noqa: ASYNC110 - a thread takes them
            await asyncio.sleep(0.001)

    async def settle(self) -> None:
        """Until the journal has answered everything and nothing is left to do."""
        while True:
            await self.breathe()
            await asyncio.to_thread(self.journal.flush)
            await self.breathe()
            if not self.journal.queued:
                return

    async def after(self, seconds: float) -> None:
        """Let virtual time pass."""
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.timeline.run_until(min(until_s, self.now_s + 1.0))
            await self.settle()

    # -- the journal ---------------------------------------------------------------------------

    def stored(self) -> dict[int, str]:
        """Job and state, as another process reads them from the disk now."""
        db = sqlite3.connect(self.journal.path)
        try:
            return dict(db.execute("SELECT job_id, state FROM life ORDER BY job_id"))
        finally:
            db.close()

    @contextmanager
    def stuck(self) -> Iterator[None]:
        """Nothing is written and nothing fails: somebody else holds the database."""
        db = sqlite3.connect(self.journal.path, isolation_level=None)
        try:
            db.execute("BEGIN IMMEDIATE")
            yield
            db.execute("ROLLBACK")
        finally:
            db.close()

    def hurry(self, wait_s: float) -> None:
        """How long the journal waits for somebody who holds the database."""
        self.journal._writer.execute(f"PRAGMA busy_timeout={int(wait_s * 1000)}")

    def fill(self) -> None:
        """No new page: what needs one fails as on a full disk, the rest gets through."""
        self.journal._writer.execute("PRAGMA max_page_count=1")

    def spoil(self) -> None:
        """Every write fails, as on a file system that went read-only."""
        self.journal._writer.execute("PRAGMA query_only=ON")

    def mend(self) -> None:
        self.journal._writer.execute("PRAGMA query_only=OFF")
        self.journal._writer.execute(f"PRAGMA max_page_count={PLENTY}")


def drive(path: Path, scenario: Callable[[Bench], Awaitable[None]], **options) -> dict[JobId, Job]:
    """Run the scenario; every error in a callback is raised. Returns what a next daemon finds."""
    journal = Journal.open(path / "journal.db", seed=1)
    errors: list[BaseException] = []

    async def live() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(
            lambda _, context: errors.append(context.get("exception") or Exception(context))
        )
        bench = Bench(journal, **options)
        bench.driver.run(bench.backend)
        await scenario(bench)
        await bench.breathe()
        bench.state.check()
        bench.driver.halt()
        await asyncio.to_thread(journal.close)
        await bench.breathe()
        bench.backend.check()

    try:
        asyncio.run(live())
    finally:
        journal.close()
    if errors:
        raise errors[0]
    again = Journal.open(path / "journal.db")
    try:
        return {job.id: job for job in again.restore().jobs}
    finally:
        again.close()


def driven(scenario: Callable[[Bench], Awaitable[None]]) -> Callable[[Path], None]:
    """A test that runs this scenario over a journal of its own."""

    def test(tmp_path: Path) -> None:
        drive(tmp_path, scenario)

    test.__name__, test.__doc__ = scenario.__name__, scenario.__doc__
    return test
