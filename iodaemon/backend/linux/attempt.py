"""One attempt at a job in the hands of its shim, from the fork of the child to the status.

The child is forked first, then the job's directory is claimed for both of them, and the child
goes on only when the directory says who they are. Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from collections.abc import Callable
from typing import Final, NoReturn

from iodaemon.backend.linux import launch as launching
from iodaemon.backend.linux.condition import NO_ANSWER
from iodaemon.backend.linux.fence import find_memory_end
from iodaemon.backend.linux.freezer import CgroupFreezer, Freezer
from iodaemon.backend.linux.holder import hold
from iodaemon.backend.linux.process import (
    Identity,
    OwnIo,
    children_cpu_s,
    do_nothing,
    exit_of,
    identify,
    is_readable,
    read_own_io,
)
from iodaemon.backend.linux.protocol import (
    OUTPUT_FILE,
    SHIM_FILE,
    SHIM_LOCK_FILE,
    STATUS_FILE,
    TOLD_FILE,
    Message,
    claim,
    read_line,
    write_json,
)
from iodaemon.backend.linux.staging import STAGE_FAILED, News, Steps
from iodaemon.backend.linux.traced import find_ends
from iodaemon.backend.linux.trouble import NOBODY, NOT_NOW, parse_trouble, tell_trouble
from iodaemon.fault import reach
from iodaemon.systemd import await_turn

_RETRY_S: Final = 1.0
"""Between attempts to write the status on a full disk."""
_STOP_WITHIN_S: Final = 2.0
"""Between the first and the last process of a unit that gets its SIGTERM; milliseconds. The wait
where there is no systemd to ask, or it does not answer."""
_LOOK_S: Final = 0.01
_SHELL_SIGTERM: Final = 128 + signal.SIGTERM
"""A shell's exit code when its last command died of it."""
ACCOUNT_WITHIN_S: Final = 10.0
"""For the databases to say who the submitter is. sssd gives up on its servers within about 10 s."""
_KNOWN: Final = b"known\n"
"""What the child says once they did; anything else is its trouble."""
_DISK_TROUBLE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})


class Attempt:
    """``start``, then ``reap`` until nothing is left, then ``finish``.

    Attributes:
        is_told_to_end: the jobs' unit, or the machine, is being stopped.
        news: of a step that is under way; None: there is none. ``hear`` when there is some.
        has_left: what has ended, and will never be waited for: the process is of no more use.
    """

    def __init__(
        self,
        key: str,
        directory: str,
        launch: launching.Launch,
        *,
        freezer: Freezer,
        shim: Identity,
        tell: Callable[[Message], None],
    ) -> None:
        """Prepare.

        Args:
            key: of the attempt.
            directory: of the attempt; it exists.
            launch: what to run.
            freezer: knows where the job belongs.
            shim: the calling process.
            tell: takes what the keeper is to know.
        """
        self.key = key
        self._directory = directory
        self._steps = Steps(
            key, directory, {**launch, "output": os.path.join(directory, OUTPUT_FILE)}
        )
        self._launch = self._steps.launch
        self._freezer = freezer
        self._shim = shim
        self._tell = tell
        self.is_told_to_end = False
        self.has_left = False
        self._lock = hold(os.path.join(directory, SHIM_LOCK_FILE))
        self._main_pid = 0
        self._main_status: int | None = None
        self._largest_rss_kib = 0
        self._baseline = OwnIo()
        self._children_cpu_s = children_cpu_s()
        self._started_s, self._started_monotonic_s = time.time(), time.monotonic()
        self._problem: Message | None = None
        self.news: News | None = None
        self._note = ""
        self._out_pid = 0
        self._out_status: int | None = None
        self._is_stuck = False

    def start(self) -> bool:
        """Make the child the job, or note why not; False: there never was a child.

        Ends the process when another keeper gave the attempt up: the child sees that and never
        runs.
        """
        record = self._record()
        pipes = self._fork_main(record)
        reach("shim.forked")
        if pipes is None:
            return False
        _note_baseline(record, read_own_io())
        if not claim(os.path.join(self._directory, SHIM_FILE), record):
            os._exit(1)
        self._baseline = read_own_io()
        _note_baseline(record, self._baseline)
        reach("shim.claimed")
        self._problem, self._is_stuck = self._steps.make()
        reach("shim.prepared")
        if self._problem is None:
            self._problem = self._let_go(pipes)
        else:
            for pipe in pipes:
                os.close(pipe)  # the child goes no further
        reach("shim.let_go")
        if self._problem is None:
            self._tell({"shim": record})
        reach("shim.told")
        return True

    def reap(self) -> bool:
        """Collect all children that have ended; False when none is left at all."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                if self._is_stuck and self._main_status is not None:
                    self.has_left = True  # only a helper that its disk holds is left
                return not self.has_left
            self._largest_rss_kib = max(self._largest_rss_kib, usage.ru_maxrss)
            self._take_end(pid, status)

    def _take_end(self, pid: int, status: int) -> None:
        if pid == self._main_pid:
            self._main_status = status
            reach("shim.reaped")
        if pid == self._out_pid:
            self._out_status = status

    def leave(self) -> bool:
        """True where all that is left has ended, and only who traces it has not taken that in."""
        ends = find_ends(os.getpid())
        for pid, status in ends.items():
            self._take_end(pid, status)
        self.has_left |= bool(ends)
        return bool(ends)

    def open_main(self) -> int | None:
        """A descriptor that is readable once the job's first process has ended; None: it has."""
        return None if self._main_status is not None else os.pidfd_open(self._main_pid)

    def hear(self) -> bool:
        """Take in what a step says; False when it will say nothing any more."""
        if self.news is None or self.news.hear():
            return self.news is not None
        self._steps.end("out" if self._out_pid else "in", self.news.report)
        self._note = self.news.problem or self._note
        self.news = None
        return False

    def begin_stage_out(self) -> bool:
        """Begin the epilog, if there is to be one; then ``reap``, and ask again."""
        while self.hear():
            pass
        is_success = exit_of(self._main_status)["code"] == 0
        if self._problem or self._out_pid or not self._steps.wants_out(is_success=is_success):
            return False
        try:
            self._out_pid, self.news = self._steps.begin_out(self._freezer)
        except OSError as error:
            self._out_pid = -1
            self._steps.end("out", {"failed": {"line": error.strerror or str(error)}})
            return False
        reach("stage.out_forked")
        return True

    def finish(self) -> None:
        """Write the status; it is on the disk on return."""
        self._hear_of_a_stop()
        while self.hear():
            pass
        staged = self._steps.told(out_signal=exit_of(self._out_status)["signal"])
        ended = exit_of(self._main_status)
        if "stage_failed" in staged and ended["code"] == 0:
            ended = {"code": STAGE_FAILED, "signal": None}
        read, written, operations, _ = (
            max(0, now - before) for now, before in zip(read_own_io(), self._baseline, strict=True)
        )
        status: Message = {
            "exit": ended,
            "io": {"read_bytes": read, "written_bytes": written, "operations": operations},
            "cpu_s": max(0.0, children_cpu_s() - self._children_cpu_s),
            "largest_rss_bytes": self._largest_rss_kib * 1024,
            "boot_id": self._shim.boot_id,
            "started_s": self._started_s,
            "started_monotonic_s": self._started_monotonic_s,
            "ended_s": time.time(),
            "ended_monotonic_s": time.monotonic(),
            "memory_end": find_memory_end(self._cgroup()),
            **({"stopped_from_outside": True} if self.is_told_to_end else {}),
            **staged,
            **({"note": self._note} if self._note else {}),
            **(self._problem or {}),
        }
        self._write_status(status)
        if self._lock is not None:
            os.close(self._lock)
        reach("shim.written")
        if self._problem is not None:
            self._tell({"status": status})

    def _hear_of_a_stop(self) -> None:
        """Wait for our own SIGTERM where the job died of one that the keeper did not send.

        systemd sends one to all processes of what it stops, job or shim first as it comes, and
        does nothing else meanwhile: once it answers, this process has its own, or gets none.
        """
        ended = exit_of(self._main_status)
        is_terminated = ended["signal"] == signal.SIGTERM or ended["code"] == _SHELL_SIGTERM
        is_service = self._launch.get("min_uid") is not None
        if not (is_service and is_terminated):
            return
        told = os.path.join(self._directory, TOLD_FILE)
        if self.is_told_to_end or os.path.exists(told) or await_turn(_STOP_WITHIN_S):
            return
        until_s = time.monotonic() + _STOP_WITHIN_S
        while not (self.is_told_to_end or os.path.exists(told)) and time.monotonic() < until_s:
            time.sleep(_LOOK_S)

    def _cgroup(self) -> str | None:
        return self._freezer.path(self.key) if isinstance(self._freezer, CgroupFreezer) else None

    def _record(self) -> Message:
        return {
            **self._shim._asdict(),
            "main_pid": None,
            "main_start_ticks": None,
            "uid": self._launch.get("uid", os.geteuid()),
            "freezer": self._freezer.name,
            "cgroup": self._cgroup(),
            "started_s": self._started_s,
            "started_monotonic_s": self._started_monotonic_s,
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
            pid, is_inside = self._freezer.fork(self.key)
        except OSError as error:
            for fd in (go_read, go_write, trouble_read, trouble_write):
                os.close(fd)
            self._tell({"error": f"fork: {error.strerror}"})
            self._write_status({"never_ran": f"fork: {error.strerror}", "exit_code": None})
            return None
        if pid == 0:
            os.close(go_write)
            os.close(trouble_read)  # so that it notices when its shim is gone
            enter = None if is_inside else lambda: self._freezer.enter(self.key)
            _be_the_job(self._steps, enter, go_read, trouble_write)
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
        _say_go(go_write)
        if launching.has_submitter(self._launch):
            if not is_readable(trouble_read, ACCOUNT_WITHIN_S):
                os.close(go_write)  # it goes no further, also if it is answered just now
                os.close(trouble_read)
                os.kill(self._main_pid, signal.SIGKILL)
                return self._unanswered()
            data = read_line(trouble_read)
            if data == _KNOWN:
                _say_go(go_write)
                data = read_line(trouble_read)
        else:
            data = read_line(trouble_read)
        self.news = self._steps.news_of(data, trouble_read, go_write)
        if self.news is not None:
            return None
        os.close(trouble_read)
        return parse_trouble(data.decode(errors="replace").rstrip("\n")) if data else None

    def _unanswered(self) -> Message:
        """Nobody said who the submitter is: the start is tried again, and holds up no other's."""
        text = (
            f"{NO_ANSWER.fact} for uid {self._launch['uid']} within {ACCOUNT_WITHIN_S:g} s; "
            "it is tried again"
        )
        return {"never_ran": text, "exit_code": None, "of_user": True}

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


def _be_the_job(steps: Steps, enter: Callable[[], None] | None, go: int, trouble: int) -> NoReturn:
    """The forked child: becomes the job and execs, or tells why not and exits."""
    launch = steps.launch
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, do_nothing)  # the shim's is not its child's
    try:
        reach("job.forked")
        launching.become(launch, enter)
        if os.read(go, 1) != b"g":
            os._exit(launching.NOT_RUNNABLE)  # the shim died, or had no right to start us
        account = launching.find_submitter(launch)
        if account is not None:
            os.write(trouble, _KNOWN)
            if os.read(go, 1) != b"g":
                os._exit(launching.NOT_RUNNABLE)  # it came too late
        launch = launching.be_the_submitter(launch, account)
        steps.copy_in(trouble, go)
        reach("job.ready")
        launching.execute(launch)
    except launching.LaunchError as error:
        code = NOBODY if error.exit_code is None else str(error.exit_code)
        tell_trouble(trouble, code, error.problem)
        os._exit(error.exit_code or launching.NOT_RUNNABLE)
    except OSError as error:
        tell_trouble(trouble, NOT_NOW, str(error))
        os._exit(launching.NOT_RUNNABLE)
    finally:
        os._exit(launching.NOT_RUNNABLE)


def _note_baseline(record: Message, own: OwnIo) -> None:
    """Note what the shim moved itself. Older readers want three counts in ``baseline``."""
    *counts, logical_bytes = own
    record["baseline"], record["baseline_logical_bytes"] = counts, logical_bytes


def _say_go(pipe: int) -> None:
    with contextlib.suppress(BrokenPipeError):
        os.write(pipe, b"g")
