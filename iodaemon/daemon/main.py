"""The life of one daemon: lock, restore, adopt, serve, let go."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

import iodaemon
from iodaemon.backend.simulated import default_platform
from iodaemon.config import Config, check_offers, config_document
from iodaemon.core.controller import Controller
from iodaemon.core.decision import Start
from iodaemon.core.job import SUSPENDED, Job, JobId, JobState
from iodaemon.core.platform import Platform
from iodaemon.core.rule import Mode
from iodaemon.core.state import State
from iodaemon.daemon.backends import (
    Door,
    LinuxDoor,
    SimulatedDoor,
    linux_platform,
)
from iodaemon.daemon.batch import Restored
from iodaemon.daemon.boot import is_same_boot, note_boot
from iodaemon.daemon.calibrating import Measured, find_identities
from iodaemon.daemon.clock import keep_time
from iodaemon.daemon.driver import Driver
from iodaemon.daemon.exporter import Exporter
from iodaemon.daemon.host import startup_warnings
from iodaemon.daemon.journal import Journal
from iodaemon.daemon.knowledge import Knowledge
from iodaemon.daemon.launching import launch_record
from iodaemon.daemon.metric import Scene
from iodaemon.daemon.place import prepare_places, spoken_of
from iodaemon.daemon.reload import InForce, Read, Reloading, policy_of
from iodaemon.daemon.report import node_report, policy_report
from iodaemon.daemon.rights import rights_of
from iodaemon.daemon.scrape import MetricsPage
from iodaemon.daemon.server import Server
from iodaemon.daemon.stranger import STRANGER, find_strangers, highest_job
from iodaemon.daemon.telltale import begin_log
from iodaemon.daemon.tiering import live_tiers, watch_disks
from iodaemon.daemon.timeline import WallTimeline
from iodaemon.daemon.watchdog import feed_watchdog
from iodaemon.errors import BackendError, ConfigError, IodaemonError
from iodaemon.fault import reach
from iodaemon.systemd import notify, take_socket

log = logging.getLogger(__name__)

_PRUNE_EVERY_S: Final = 3600.0
_GC_THRESHOLDS: Final = (20_000, 20, 50)
"""Python's own are 700, 10, 10."""


def run(config: Config, read: Read) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code.

    Args:
        config: what to begin with.
        read: reads it again when somebody asks for that.

    Raises:
        ConfigError: it cannot start; one line that says what to do.
    """
    begin_log(config.log_level, os.environ)
    force = InForce(config, policy_of(config))
    with prepare_places(config):
        return asyncio.run(_Daemon(force, read).live())


class _Daemon:
    """Everything that lives as long as the daemon does."""

    def __init__(self, force: InForce, read: Read) -> None:
        self._force = force
        self._read = read
        self._config = config = force.config  # for what needs a restart to change
        self._reloading: Reloading | None = None
        self._tidying = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._state_dir = Path(config.state_dir)
        self._jobs_dir = config.keeper_state / "jobs"
        self._handed = take_socket()
        self._stopping = asyncio.Event()
        self._failure: BaseException | None = None
        self._knowledge = Knowledge()
        self._measured: Measured | None = None

    async def live(self) -> int:
        """Open, serve, close; 1 after a failure of our own, with its traceback in the log."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._on_failure)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(signal.SIGHUP, self._on_hangup)
        journal = Journal.open(self._config.journal_path)
        try:
            await self._serve(journal, WallTimeline(loop))
        finally:
            await asyncio.to_thread(journal.close)
        if self._failure is not None:
            raise self._failure
        return 0

    async def _serve(self, journal: Journal, timeline: WallTimeline) -> None:
        same_boot = is_same_boot(self._state_dir)
        restored = self._restore(journal, timeline, same_boot=same_boot)
        driver, door = self._assemble(journal, timeline, restored)
        self._reloading = self._make_reloading(driver, door)
        metrics = MetricsPage(Exporter(Scene(driver, lambda: door.samples_skipped, door.controls)))
        server = self._make_server(driver, journal, door, metrics)
        try:
            await door.open()
            reach("daemon.opened")
            await door.adopt(list(driver.state.live), same_boot=same_boot)
            reach("daemon.adopted")
            with spoken_of(self._state_dir, "state_dir"):
                note_boot(self._state_dir)
            reach("daemon.noted")
            await metrics.open(self._config)
            _spare_the_collector()
            driver.run(door.backend)
            reach("daemon.runs")
            with spoken_of(self._config.socket_path, "runtime_dir"):
                await server.open(self._config.socket_path, self._handed)
            self._announce(driver, door)
            await self._until_stopped(driver, journal, door)
        except BackendError as error:
            raise ConfigError(str(error)) from error
        finally:
            await metrics.close()
            await server.close()
            reach("daemon.ending")
            driver.halt()
            await door.close()
            reach("daemon.let_go")
            log.info("event=stopped running_jobs=%d", sum(1 for _ in driver.state.live))

    def _restore(self, journal: Journal, timeline: WallTimeline, *, same_boot: bool) -> Restored:
        for warning in (*self._force.policy.notes, *startup_warnings(self._state_dir)):
            log.warning('event=warned text="%s"', warning)
        restored = journal.restore()
        restored = keep_time(journal, restored, timeline.anchor_s, same_boot=same_boot)
        reach("daemon.restored")
        return restored

    def _make_reloading(self, driver: Driver, door: Door) -> Reloading:
        """Raises ConfigError where the policy is none for this backend."""
        rules, offers = self._force.policy.rules, door.backend.offers
        check_offers(rules, offers, self._config.backend)
        for warning in rules.cautions(driver.state.platform):
            log.warning('event=warned text="%s"', warning)
        changed = self._tidying.set
        return Reloading(
            driver,
            self._force,
            read=self._read,
            offers=offers,
            changed=changed,
            measured=self._measured,
        )

    def _announce(self, driver: Driver, door: Door) -> None:
        log.info(
            'event=ready version=%s socket=%s policy=%s backend=%s live_jobs=%d suspend="%s"',
            iodaemon.__version__,
            self._config.socket_path,
            self._force.policy.name,
            self._config.backend,
            sum(1 for _ in driver.state.live),
            door.describe()["suspend"],
        )
        self._tell_status("READY=1")

    def _tell_status(self, *words: str) -> None:
        policy = self._force.policy.name
        notify(*words, f"STATUS=policy {policy}, {self._config.backend} backend")

    async def _until_stopped(self, driver: Driver, journal: Journal, door: Door) -> None:
        """Wait for a signal; meanwhile learn of the past, forget what is older than ``retain``."""
        past = asyncio.create_task(self._knowledge.learn_the_past(journal, driver.state.outlook))
        feeding = asyncio.create_task(feed_watchdog())
        disks = asyncio.create_task(watch_disks(self._config, driver))
        while not self._stopping.is_set():
            self._tidying.clear()
            if not driver.problem:
                before_s = driver.timeline.now_s - self._force.config.retain_s
                journal.prune(before_s)
                await door.retire(before_s)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._tidying.wait(), _PRUNE_EVERY_S)
            self._tell_status()
        past.cancel()
        feeding.cancel()
        disks.cancel()
        notify("STOPPING=1")

    def _assemble(
        self, journal: Journal, timeline: WallTimeline, restored: Restored
    ) -> tuple[Driver, Door]:
        """State as the journal has it, the controller over it, the driver, and the backend."""
        config = self._config
        simulated = config.backend == "simulated"
        platform = default_platform() if simulated else self._measured_platform()
        self._knowledge.recall(restored)
        tiers = live_tiers(config, restored.jobs)
        experience = self._knowledge.recollection
        state = State(platform, tiers, sharing=config.users, experience=experience)
        next_id = restored.next_id if simulated else self._next_id(restored)
        state.restore([_awaken(j) for j in restored.jobs], next_id, restored.drain)
        mode = restored.mode or Mode(config.mode)
        rules = self._force.policy.rules
        controller = Controller(
            state,
            rules,
            seed=restored.seed,
            mode=mode,
            output_max_bytes=config.output_max_bytes,
            scratch_keep_s=config.scratch_keep_s,
        )
        driver = Driver(
            controller,
            journal,
            timeline,
            restored.environments,
            keeps_samples=config.journal_samples,
        )
        if self._measured is not None:
            driver.after_sample = partial(_watch_disks, self._measured, state)
        if simulated:
            commands = _commands(state)
            return driver, SimulatedDoor(platform, timeline, driver.post, commands)
        launches = self._launches(driver, platform)
        return driver, LinuxDoor(config, platform, timeline, driver.post, launches)

    def _measured_platform(self) -> Platform:
        """This machine, with what was measured of its disks."""
        platform = linux_platform(self._config)
        self._measured = Measured(self._state_dir, find_identities(platform.devices))
        devices = self._measured.read(platform.devices)
        return msgspec.structs.replace(platform, devices=devices)

    def _next_id(self, restored: Restored) -> JobId:
        """Above all ids that a keeper knows too; what runs unknown to the journal is told."""
        unfinished = (job for job in restored.jobs if not job.state.is_final)
        try:
            for key, pid in find_strangers(self._jobs_dir, unfinished):
                log.warning("event=stranger attempt=%s pid=%s problem=%r", key, pid, STRANGER)
            return JobId(max(restored.next_id, highest_job(self._jobs_dir) + 1))
        except PermissionError as error:  # what it can do without that, it does
            log.warning('event=warned text="%s may not be read"', error.filename)
            return restored.next_id

    def _launches(
        self, driver: Driver, platform: Platform
    ) -> Callable[[Start, int], Mapping[str, Any]]:
        def launch_of(start: Start, open_files: int) -> Mapping[str, Any]:
            job = driver.state.jobs[start.job_id]
            return launch_record(
                job,
                start,
                platform,
                driver.environments.get(job.spec.environment_id),
                api_socket=self._config.socket_path,
                open_files=open_files,
                fence=self._force.config.topology.fence,
                processes=self._force.config.max_processes,
                tiers=driver.state.stock.tiers,
            )

        return launch_of

    def _make_server(
        self, driver: Driver, journal: Journal, door: Door, metrics: MetricsPage
    ) -> Server:
        return Server(
            driver,
            journal,
            knowledge=self._knowledge,
            jobs_directory=self._jobs_dir,
            cancel_grace_s=lambda: self._force.config.cancel_grace_s,
            rights=rights_of(self._config),
            pids=door.pids,
            reports={
                "node": lambda: node_report(
                    driver.state,
                    self._config.backend,
                    door.describe(),
                    driver.pace.report(door.samples_skipped),
                    self._measured.report() if self._measured else (),
                    calibration_problem=self._measured.problem if self._measured else "",
                ),
                "policy": lambda: policy_report(self._force.policy),
                "config": lambda: config_document(self._force.config),
            },
            reload=self._reloading.reload if self._reloading else None,
            further_routes=metrics.routes(),
        )

    def _stop(self) -> None:
        self._stopping.set()
        self._tidying.set()

    def _on_hangup(self) -> None:
        """SIGHUP: read the configuration again; from a terminal that is closed: stop."""
        if sys.stderr.isatty():
            self._stop()
        elif self._reloading is not None:  # before, what it begins with has just been read
            task = asyncio.get_running_loop().create_task(self._reloading.heed_signal())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _on_failure(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A bug: stop in order, so that nothing stays frozen, and say what it was."""
        error = context.get("exception")
        if _is_about_accepting(context):
            log.warning("event=not_accepted problem=%s", error)
            return
        log.critical("event=failed message=%r", context.get("message"), exc_info=error)
        self._failure = self._failure or error or IodaemonError(str(context.get("message")))
        self._stop()


def _spare_the_collector() -> None:
    """Records are frozen and in no cycles; what looks for cycles need not look at all of them."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


def _is_about_accepting(context: Mapping[str, Any]) -> bool:
    """True where too many connections are open for one more: no bug, asyncio tries again.

    It does so once a second, also when the socket was closed meanwhile (CPython issue 27906 and
    ``BaseSelectorEventLoop._accept_connection``).
    """
    if "_start_serving" in str(context.get("message")):
        return True
    return isinstance(context.get("exception"), OSError) and "socket" in context


def _awaken(job: Job) -> Job:
    """A job as restored: the regulation's holds ended with the daemon that had them.

    A turn that was given is still had; whoever waited for one asks again. What was asked of the
    last keeper may never have reached it: it is asked again, a hold as well as a release. A start
    that failed is tried again at once, so that this is no reason any more.
    """
    if not job.is_live:
        return msgspec.structs.replace(job, reason=None) if job.state is JobState.PENDING else job
    asked = job.state in (JobState.RUNNING, *SUSPENDED) and not job.user_hold
    phase = None if job.waits_for_turn else job.phase
    return msgspec.structs.replace(
        job, io_hold=False, io_held_since_s=None, freeze_asked=asked, phase=phase
    )


def _watch_disks(measured: Measured, state: State) -> None:
    measured.watch(state.meter.devices)


def _commands(state: State) -> Callable[[JobId], tuple[str, ...]]:
    return lambda job_id: state.jobs[job_id].spec.command
