"""The life of one daemon: lock, restore, adopt, serve, let go."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, Final

import msgspec

import iodaemon
from iodaemon.config import Config, check_offers
from iodaemon.core.controller import Controller
from iodaemon.core.decision import Start, Throttle
from iodaemon.core.job import SUSPENDED, Job, JobId, JobState
from iodaemon.core.platform import Platform
from iodaemon.core.rule import Mode
from iodaemon.core.state import State
from iodaemon.core.storage import DiskFacts
from iodaemon.daemon.backends import Door, LinuxDoor, SimulatedDoor, raise_open_files
from iodaemon.daemon.calibrating import Measured, find_identities
from iodaemon.daemon.driver import Driver
from iodaemon.daemon.http.context import Context
from iodaemon.daemon.http.server import Server
from iodaemon.daemon.journal.record import Batch, Passed, Restored
from iodaemon.daemon.journal.writer import Journal
from iodaemon.daemon.knowledge import Knowledge
from iodaemon.daemon.launching import launch_record
from iodaemon.daemon.metrics.page import MetricsPage
from iodaemon.daemon.metrics.table import Scene
from iodaemon.daemon.outputs import find_running, find_strangers, highest_job
from iodaemon.daemon.place import (
    Places,
    is_same_boot,
    note_boot,
    noted_ledger,
    prepare_places,
    spoken_of,
)
from iodaemon.daemon.preflight import Preflight, startup_warnings
from iodaemon.daemon.reload import InForce, Read, Reloading, fallback_of
from iodaemon.daemon.rule_watch import RuleWatch, watch_path
from iodaemon.daemon.telltale import LogWriter, begin_log
from iodaemon.daemon.tiering import ask_at_the_start, live_tiers, watch_disks
from iodaemon.daemon.timeline import (
    WallTimeline,
    count_on,
    expired_before_s,
    keep_time,
    not_after,
    read_clocks,
)
from iodaemon.errors import BackendError, ConfigError, HopelessError, IodaemonError
from iodaemon.node.linux import STRANGER
from iodaemon.supervisor.failpoint import reach
from iodaemon.supervisor.ledger import read_boot_id
from iodaemon.systemd import find_watchdog_s, notify, take_socket
from iodaemon.text import quoted

log = logging.getLogger(__name__)

_PRUNE_EVERY_S: Final = 3600.0
_KEEP_SAMPLES_S: Final = 86400.0
"""Raw samples are kept for a day: they are large, and only written when asked for."""
_TELL_EVERY_S: Final = 60.0
"""That connections are not accepted."""
_SOCKET_EVERY_S: Final = 1.0
_GC_THRESHOLDS: Final = (20_000, 20, 50)
"""Python's own are 700, 10, 10."""


def run(config: Config, read: Read) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code.

    ``read`` reads the configuration again when somebody asks for that.

    Raises:
        ConfigError: it cannot start; one line that says what to do.
    """
    writer = begin_log(config.log_level, os.environ)
    try:
        preflight = Preflight(config, sees_disks=not config.is_system)
        preflight.check()
        with prepare_places(config) as places:
            return asyncio.run(_Daemon(config, preflight, read, writer, places).live())
    except BaseException:
        if writer is not None and not writer.takes_more():
            os._exit(1)  # the message would wait for ever where the log does
        raise


class _Daemon:
    """Everything that lives as long as the daemon does."""

    def __init__(
        self,
        config: Config,
        preflight: Preflight,
        read: Read,
        writer: LogWriter | None,
        places: Places,
    ) -> None:
        self._force = InForce(config, preflight.policy)
        self._preflight = preflight
        self._read = read
        self._writer = writer
        self._places = places
        self._config = config  # for what needs a restart to change
        self._reloading: Reloading | None = None
        self._tidying = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._state_dir = Path(config.state_dir)
        self._outputs = config.supervisor_state / "output"
        self._handed = take_socket()
        self._stopping = asyncio.Event()
        self._failure: BaseException | None = None
        self._remains = ""
        self._knowledge = Knowledge()
        self._passed: Passed | None = None
        self._measured: Measured | None = None
        self._rule_watch = RuleWatch(watch_path(config))
        self._accepts_told_s = 0.0

    async def live(self) -> int:
        """Open, serve, close; 1 after a failure of our own, with its traceback in the log.

        Also 1 where suspended jobs could not be let go.
        """
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._on_failure)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(signal.SIGHUP, self._on_hangup)
        journal = Journal.open(self._config.journal_path, backend=self._config.backend)
        try:
            await self._serve(journal, WallTimeline(loop))
        except BackendError as error:
            raise ConfigError(str(error)) from error
        finally:
            await asyncio.to_thread(journal.close)
        if isinstance(self._failure, OSError):  # a bug, and not of a file that somebody named
            raise RuntimeError(str(self._failure)) from self._failure  # noqa: TRY004
        if self._failure is not None:
            raise self._failure
        self._rule_watch.close()
        return 1 if self._remains else 0

    async def _serve(self, journal: Journal, timeline: WallTimeline) -> None:
        same_boot = is_same_boot(self._state_dir)
        restored = self._restore(journal, timeline, same_boot=same_boot)
        driver, door = self._assemble(journal, timeline, restored, await self._find_disks())
        for warning in self._force.policy.cautions(driver.state.platform):
            log.warning('event=warned text="%s"', warning)
        self._reloading = Reloading(
            driver,
            self._force,
            read=self._read,
            offers=lambda: door.backend.offers,
            changed=self._tidying.set,
            measured=self._measured,
            retried=self._rule_watch.forgive,
        )
        async with AsyncExitStack() as opened:
            opened.push_async_callback(self._let_go, driver, door)
            await door.open()
            driver.state.can_cap = Throttle in door.backend.offers  # known only now
            check_offers(self._force.policy.rules, door.backend.offers, self._config.backend)
            reach("daemon.opened")
            ledger = noted_ledger(self._state_dir)
            await door.adopt(list(driver.state.live), same_boot=same_boot, ledger=ledger)
            reach("daemon.adopted")
            with spoken_of(self._state_dir, "state_dir"):
                note_boot(self._state_dir, read_boot_id(), door.ledger)
            reach("daemon.noted")
            scene = Scene(
                driver,
                supervisor_problem=lambda: door.problem,
                is_protected=lambda: door.is_protected,
                log_lines_lost=lambda: 0 if self._writer is None else self._writer.lost,
            )
            metrics = MetricsPage(scene)
            context = Context(
                driver=driver,
                journal=journal,
                knowledge=self._knowledge,
                force=self._force,
                door=door,
                outputs=self._outputs,
                measured=self._measured,
                reload=self._reloading.reload,
            )
            server = Server(context, metrics.routes())
            opened.push_async_callback(server.close)
            opened.push_async_callback(metrics.close)
            await metrics.open(self._config)
            _spare_the_collector()
            driver.run(door.backend)
            reach("daemon.runs")
            with spoken_of(self._config.socket_path, "runtime_dir"):
                await server.open(self._config.socket_path, self._handed)
            self._announce(driver, door)
            await self._until_stopped(driver, journal, door, server)

    async def _let_go(self, driver: Driver, door: Door) -> None:
        reach("daemon.ending")
        driver.halt()
        self._remains = await door.close()
        reach("daemon.let_go")
        if self._remains:
            log.error('event=not_let_go problem="%s"', self._remains)
        log.info("event=stopped running_jobs=%d", sum(1 for _ in driver.state.live))

    async def _find_disks(self) -> Mapping[str, DiskFacts] | None:
        """What is found at the path of each disk of a tier; None: all of them are pretended."""
        config = self._config
        if not config.is_system or config.backend == "simulated":
            return self._preflight.disks
        return await ask_at_the_start(config) if config.tier else {}

    def _restore(self, journal: Journal, timeline: WallTimeline, *, same_boot: bool) -> Restored:
        for warning in startup_warnings(self._state_dir):
            log.warning('event=warned text="%s"', warning)
        reading = read_clocks(timeline.now_s)
        restored = keep_time(
            journal, journal.restore(), timeline.anchor_s, reading, same_boot=same_boot
        )
        self._passed = restored.passed
        reach("daemon.restored")
        return restored

    def _announce(self, driver: Driver, door: Door) -> None:
        drain = driver.state.drain
        log.info(
            "event=ready version=%s socket=%s policy=%s backend=%s live_jobs=%d suspend=%s "
            "mode=%s drained=%s",
            iodaemon.__version__,
            self._config.socket_path,
            driver.controller.rules.name,  # not the configured one where that is set aside
            self._config.backend,
            sum(1 for _ in driver.state.live),
            quoted(str(door.describe()["suspend"])),
            driver.controller.regulator.mode,
            "no" if drain is None else quoted(drain.why.text),
        )
        self._tell_status(driver, "READY=1")

    def _tell_status(self, driver: Driver, *words: str) -> None:
        """What ``systemctl status`` shows."""
        told = [f"policy {driver.controller.rules.name}", f"{self._config.backend} backend"]
        if (mode := driver.controller.regulator.mode) is not Mode.ON:
            told.append(f"regulation {mode}")
        if driver.state.drain is not None:
            told.append("drained")
        notify(*words, f"STATUS={', '.join(told)}")

    async def _until_stopped(
        self, driver: Driver, journal: Journal, door: Door, server: Server
    ) -> None:
        """Wait for a signal; meanwhile learn of the past, forget what is older than ``retain``."""
        meanwhile = [
            asyncio.create_task(work)
            for work in (
                self._knowledge.learn_the_past(journal, driver.state.outlook),
                _feed_watchdog(),
                watch_disks(self._config, driver, door.ask_scratch),
                self._keep_socket(server),
            )
        ]
        began_s = driver.timeline.now_s
        while not self._stopping.is_set():
            self._tidying.clear()
            if not driver.problem:
                await self._forget_old(driver, journal, door)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._tidying.wait(), _PRUNE_EVERY_S)
            if driver.timeline.now_s - began_s >= _PRUNE_EVERY_S:
                self._rule_watch.forgive()
            self._tell_status(driver)
        for task in meanwhile:
            task.cancel()
        notify("STOPPING=1")

    async def _forget_old(self, driver: Driver, journal: Journal, door: Door) -> None:
        """Count what has passed, and forget what has been kept for long enough."""
        retain_s = self._force.config.retain_s
        reading = read_clocks(driver.timeline.now_s)
        passed = count_on(self._passed, reading, max(retain_s, _KEEP_SAMPLES_S))
        self._passed = passed
        journal.write(Batch(meta={"passed": passed}), lambda _: None)
        before_s = expired_before_s(passed, retain_s)
        journal.prune(before_s, samples_before_s=expired_before_s(passed, _KEEP_SAMPLES_S))
        await door.retire(before_s)

    async def _keep_socket(self, server: Server) -> None:
        """Make the socket again, and its directory, where somebody has removed them."""
        problem, path = "", self._config.socket_path
        while True:
            await asyncio.sleep(_SOCKET_EVERY_S)
            if not server.has_lost_socket:
                continue
            try:
                self._places.take("runtime_dir")
                with spoken_of(path, "runtime_dir"):
                    await server.listen(path)
            except ConfigError as error:
                if str(error) != problem:
                    log.warning("event=socket_lost problem=%s", quoted(str(error)))
                problem = str(error)
            else:
                log.warning("event=socket_made_again socket=%s", path)
                problem = ""

    def _assemble(
        self,
        journal: Journal,
        timeline: WallTimeline,
        restored: Restored,
        disks: Mapping[str, DiskFacts] | None,
    ) -> tuple[Driver, Door]:
        """State as the journal has it, the controller over it, the driver, and the backend."""
        config = self._config
        simulated = config.backend == "simulated"
        platform = self._preflight.platform if simulated else self._measured_platform()
        self._knowledge.recall(restored, timeline.now_s)
        tiers = live_tiers(config, disks, restored.jobs)
        experience = self._knowledge.recollection
        state = State(platform, tiers, sharing=config.users, experience=experience)
        next_id = restored.next_id if simulated else self._next_id(restored)
        most_s = config.longest_grace_s
        jobs = [_awaken(job, longest_grace_s=most_s) for job in restored.jobs]
        lessons = not_after(restored.lessons, timeline.now_s)
        state.restore(jobs, next_id, restored.drain, lessons)
        mode = restored.mode or Mode(config.mode)
        rules = self._force.policy.rules
        controller = Controller(
            state,
            rules,
            seed=restored.seed,
            mode=mode,
            output_max_bytes=config.output_max_bytes,
            scratch_keep_s=config.scratch_keep_s,
            fallback=fallback_of(rules),
            limit=self._rule_watch,
        )
        if (fault := self._rule_watch.find_fault(rules)) is not None:
            controller.begin_without(fault, timeline.now_s)
            log.error("event=rule_set_aside text=%s", quoted(fault.text))
        driver = Driver(
            controller,
            journal,
            timeline,
            restored.environments,
            requests=restored.requests,
            keeps_samples=config.journal_samples,
        )
        if (measured := self._measured) is not None:
            driver.after_sample = lambda: measured.watch(state.meter.devices)
        if simulated:
            return driver, SimulatedDoor(
                platform, timeline, driver.post, lambda job_id: state.jobs[job_id].spec.command
            )
        open_files, api_socket = raise_open_files(), str(config.socket_path)

        def launch_of(start: Start) -> Mapping[str, Any]:
            job = state.jobs[start.job_id]
            return launch_record(
                job,
                start,
                platform,
                driver.environments.get(job.spec.environment_id),
                api_socket=api_socket,
                open_files=open_files,
                fence=self._force.config.topology.fence,
                processes=self._force.config.max_processes,
                tiers=state.stock.tiers,
            )

        def find_record(job_id: JobId) -> Job | None:
            return state.jobs.get(job_id) or journal.finished(job_id)

        return driver, LinuxDoor(
            config, platform, timeline, driver.post, launch_of, state.jobs.get, find_record
        )

    def _measured_platform(self) -> Platform:
        """This machine, with what was measured of its disks."""
        platform = self._preflight.platform
        self._measured = Measured(self._state_dir, find_identities(platform.devices))
        devices = self._measured.read(platform.devices)
        return msgspec.structs.replace(platform, devices=devices)

    def _next_id(self, restored: Restored) -> JobId:
        """The next id; what runs unknown to the journal is told.

        Raises:
            HopelessError: there are attempts at jobs that the journal never gave an id to.
        """
        unfinished = (job for job in restored.jobs if not job.state.is_final)
        try:
            running = find_running(Path(self._config.runtime_dir))
            for key, pid in find_strangers(running, unfinished):
                log.warning("event=stranger attempt=%s pid=%s problem=%r", key, pid, STRANGER)
            highest = highest_job(self._outputs, running)
        except PermissionError as error:  # what it can do without that, it does
            log.warning('event=warned text="%s may not be read"', error.filename)
            return restored.next_id
        if highest >= restored.next_id:  # 'iod restore' raises it above all of them
            raise HopelessError(
                f"journal {self._config.journal_path} does not know job {highest}, which has an "
                f"output file in {self._outputs} or runs: it was removed or replaced by an older "
                "one, and ids would be used again; put it back, or restore a copy ('iod restore "
                f"FILE'); to begin anew once no job runs, move {self._outputs} away as well"
            )
        return restored.next_id

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
            if self._accepts_told_s <= (now_s := time.monotonic()):  # 16 come at once
                log.warning("event=not_accepted problem=%s", error)
                self._accepts_told_s = now_s + _TELL_EVERY_S
            return
        log.critical("event=failed message=%r", context.get("message"), exc_info=error)
        self._failure = self._failure or error or IodaemonError(str(context.get("message")))
        self._stop()


async def _feed_watchdog() -> None:
    """Tell systemd, twice in the time that it waits, that the event loop still turns."""
    limit_s = find_watchdog_s()
    while limit_s is not None:
        notify("WATCHDOG=1")
        await asyncio.sleep(limit_s / 2)


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


def _awaken(job: Job, *, longest_grace_s: float) -> Job:
    """A job as restored: the regulation's holds ended with the daemon that had them.

    A turn that was given is still had; whoever waited for one asks again. What was asked of the
    last supervisor may never have reached it: it is asked again, a hold as well as a release. A
    start that failed is tried again at once, so that this is no reason any more. A grace time of an
    earlier version may be longer than any is now.
    """
    if not job.is_live:
        return msgspec.structs.replace(job, reason=None) if job.state is JobState.PENDING else job
    asked = job.state in (JobState.RUNNING, *SUSPENDED) and not job.user_hold
    phase = None if job.waits_for_turn else job.phase
    kill_at_s = job.kill_at_s
    if kill_at_s is not None:
        kill_at_s = min(kill_at_s, job.since_s + longest_grace_s)
    return msgspec.structs.replace(
        job,
        io_hold=False,
        io_held_since_s=None,
        freeze_asked=asked,
        phase=phase,
        kill_at_s=kill_at_s,
    )
