"""One small process a job, between the keeper and the job; outlives daemon and keeper.

It forks the job's child, claims the job's directory for both of them, and lets the child go on
only when the directory says who they are; it reaps everything below it (child subreaper), and
leaves ``status.json``. It is not in the job's cgroup, so freezing or killing the job never reaches
it. When the keeper dies it thaws its own job: a job never stays frozen because nobody is there to
thaw it.

Standard library only; forked from the keeper, so that its memory is shared with it. Each page that
it writes to is copied, and that is what its start costs: it does little, and little of it afresh.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import signal
import time
from collections.abc import Callable
from typing import Final, NoReturn

from iodaemon.backend.linux import launch as launching
from iodaemon.backend.linux.freezer import CgroupFreezer, Freezer
from iodaemon.backend.linux.process import (
    Identity,
    become_subreaper,
    do_nothing,
    drain,
    identify,
    is_alive,
    open_pidfd,
    read_own_io,
    wake_on_signals,
)
from iodaemon.backend.linux.protocol import (
    LOCK_FILE,
    SHIM_FILE,
    STATUS_FILE,
    Message,
    claim,
    encode,
    read_json,
    read_line,
    write_json,
)
from iodaemon.fault import reach

_RETRY_S: Final = 1.0
"""Between attempts to write the status on a full disk, and to find the next keeper."""
_DISK_TROUBLE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})


class Shim:
    """The life of one job. ``run`` never returns."""

    def __init__(
        self,
        *,
        key: str,
        directory: str,
        launch: launching.Launch,
        freezer: Freezer,
        keeper_fd: int,
        keeper_file: str,
        report: int,
    ) -> None:
        self._key = key
        self._directory = directory
        self._launch = launch
        self._freezer = freezer
        self._keeper_file = keeper_file
        self._report = report
        self._keeper_fd: int | None = keeper_fd
        self._thawed_for: Identity | None = None
        self._main_pid = 0
        self._main_status: int | None = None
        self._largest_rss_kib = 0
        self._baseline = (0, 0, 0)
        self._started_s = time.time()

    def run(self) -> NoReturn:
        """Start the job, wait for all of it, write the status, exit."""
        reach("shim.begun")
        wake = self._prepare()
        record = self._record()
        pipes = self._fork_main(record)
        reach("shim.forked")
        if pipes is None:
            os._exit(0)
        record["baseline"] = read_own_io()
        if not claim(os.path.join(self._directory, SHIM_FILE), record):
            os._exit(1)  # another keeper gave this attempt up: its child sees that and never runs
        record["baseline"] = self._baseline = read_own_io()
        reach("shim.claimed")
        problem = self._let_go(pipes)
        reach("shim.let_go")
        if problem is None:
            self._tell({"shim": record})
        reach("shim.told")
        self._reap_until_empty(wake)
        reach("shim.emptied")
        self._finish(problem)

    def _prepare(self) -> int:
        """Own session, orphans below come to it; returns the end to read when a child has ended."""
        os.setsid()
        become_subreaper()
        signal.signal(signal.SIGTERM, do_nothing)  # the keeper's other signals are so already
        return wake_on_signals()

    def _record(self) -> Message:
        me = identify(os.getpid())
        assert me is not None
        cgroup = self._freezer.path(self._key) if isinstance(self._freezer, CgroupFreezer) else None
        return {
            "pid": me.pid,
            "start_ticks": me.start_ticks,
            "boot_id": me.boot_id,
            "main_pid": None,
            "main_start_ticks": None,
            "freezer": self._freezer.name,
            "cgroup": cgroup,
            "started_s": self._started_s,
            "baseline": [0, 0, 0],
        }

    def _fork_main(self, record: Message) -> tuple[int, int] | None:
        """Fork the child that will be the job; it waits for a byte before it touches any file.

        Returns:
            The end to write that byte to, and the end on which a problem would be told.
        """
        go_read, go_write = os.pipe2(os.O_CLOEXEC)
        trouble_read, trouble_write = os.pipe2(os.O_CLOEXEC)
        try:
            pid, is_inside = self._freezer.fork(self._key)
        except OSError as error:
            self._tell({"error": f"fork: {error.strerror}"})
            self._write_status({"never_ran": f"fork: {error.strerror}", "exit_code": None})
            return None
        if pid == 0:
            os.close(go_write)
            enter = None if is_inside else lambda: self._freezer.enter(self._key)
            _be_the_job(self._launch, enter, go_read, trouble_write)
        os.close(go_read)
        os.close(trouble_write)
        child = identify(pid)
        self._main_pid = pid
        record["main_pid"] = pid
        record["main_start_ticks"] = None if child is None else child.start_ticks
        return go_write, trouble_read

    def _let_go(self, pipes: tuple[int, int]) -> Message | None:
        """Let the child exec; None once it has, else what was in the way."""
        go_write, trouble_read = pipes
        with contextlib.suppress(BrokenPipeError):
            os.write(go_write, b"g")
        os.close(go_write)
        trouble = read_line(trouble_read).decode(errors="replace").rstrip("\n")
        if not trouble:
            return None
        code, _, text = trouble.partition(" ")
        problem: Message = {"never_ran": text, "exit_code": int(code) if code != "-" else None}
        return problem

    def _reap_until_empty(self, wake: int) -> None:
        """Reap until no child is left: with a subreaper that means no descendant either."""
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        watched: int | None = None
        while self._reap():
            if self._keeper_fd is None:
                self._seek_keeper()
            if self._keeper_fd is not None and watched is None:
                poll.register(self._keeper_fd, select.POLLIN)
                watched = self._keeper_fd
            ready = {fd for fd, _ in poll.poll(_RETRY_S * 1000 if watched is None else None)}
            if wake in ready:
                drain(wake)
            if watched is not None and watched in ready:
                poll.unregister(watched)
                os.close(watched)
                self._keeper_fd = watched = None

    def _reap(self) -> bool:
        """Collect all children that have ended; False when none is left at all."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            self._largest_rss_kib = max(self._largest_rss_kib, usage.ru_maxrss)
            if pid == self._main_pid:
                self._main_status = status
                reach("shim.reaped")

    def _seek_keeper(self) -> None:
        """Watch the next keeper; while there is none, nobody would thaw the job but its shim."""
        record = read_json(self._keeper_file)
        last = record and Identity(record["pid"], record["start_ticks"], record["boot_id"])
        if last and is_alive(last):
            self._keeper_fd = open_pidfd(last)
            self._thawed_for = None
        elif last and last != self._thawed_for and self._thaw():
            self._thawed_for = last
            reach("shim.thawed")

    def _thaw(self) -> bool:
        """Thaw the job unless a keeper lives, also one that is only just beginning.

        The keeper's lock makes sure of it: one that has it finds the job as it is and answers for
        it, and none can begin while the shim has it.
        """
        path = os.path.join(os.path.dirname(self._keeper_file), LOCK_FILE)
        try:
            lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.lockf(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            self._freezer.thaw(self._key, os.getpid())
        except OSError:
            return False
        finally:
            os.close(lock)
        return True

    def _finish(self, problem: Message | None) -> NoReturn:
        read, written, operations = (
            max(0, now - before) for now, before in zip(read_own_io(), self._baseline, strict=True)
        )
        times = os.times()
        status: Message = {
            "exit": _exit_of(self._main_status),
            "io": {"read_bytes": read, "written_bytes": written, "operations": operations},
            "cpu_s": times.children_user + times.children_system,
            "largest_rss_bytes": self._largest_rss_kib * 1024,
            "started_s": self._started_s,
            "ended_s": time.time(),
            "ended_monotonic_s": time.monotonic(),
            **(problem or {}),
        }
        self._write_status(status)
        reach("shim.written")
        if problem is not None:
            self._tell({"status": status})
        os._exit(0)

    def _write_status(self, status: Message) -> None:
        """Durable, however long that takes: on a full disk the shim waits for space."""
        path = os.path.join(self._directory, STATUS_FILE)
        while True:
            try:
                write_json(path, status, durable=True)
            except OSError as error:
                if error.errno not in _DISK_TROUBLE:
                    os._exit(1)  # the job's directory itself is gone: nobody will ask
                time.sleep(_RETRY_S)
            else:
                return

    def _tell(self, message: Message) -> None:
        with contextlib.suppress(OSError):
            os.write(self._report, encode(message))
        os.close(self._report)


def _be_the_job(
    launch: launching.Launch, enter: Callable[[], None] | None, go: int, trouble: int
) -> NoReturn:
    """The forked child: becomes the job and execs, or tells why not and exits."""
    signal.set_wakeup_fd(-1)
    try:
        reach("job.forked")
        launching.become(launch, enter)
        if os.read(go, 1) != b"g":
            os._exit(launching.NOT_RUNNABLE)  # the shim died, or had no right to start us
        launching.open_files(launch)
        reach("job.ready")
        launching.execute(launch)
    except launching.LaunchError as error:
        os.write(trouble, f"{error.exit_code} {error.problem}\n".encode())
        os._exit(error.exit_code)
    except OSError as error:
        os.write(trouble, f"- {error}\n".encode())
        os._exit(launching.NOT_RUNNABLE)
    finally:
        os._exit(launching.NOT_RUNNABLE)


def _exit_of(status: int | None) -> Message:
    if status is None:
        return {"code": None, "signal": None}
    if os.WIFSIGNALED(status):
        return {"code": None, "signal": os.WTERMSIG(status)}
    return {"code": os.WEXITSTATUS(status), "signal": None}
