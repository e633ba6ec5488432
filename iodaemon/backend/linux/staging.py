"""Staging: ``cp -a --reflink=auto`` before a job's command (prolog) and after it (epilog).

Both run as the job's user and in the job's cgroup: what they read and write is the job's, and they
are suspended and ended with it. The prolog is run by the job's first process before it becomes the
command; the epilog by a process like it, after all others have ended. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import stat
import subprocess
from collections.abc import Callable, Container, Iterator, Sequence
from typing import BinaryIO, Final, NoReturn

from iodaemon.backend.linux import launch as launching
from iodaemon.backend.linux import scratch
from iodaemon.backend.linux.freezer import Freezer
from iodaemon.backend.linux.protocol import STAGE_FILE, Message, encode, write_json
from iodaemon.backend.linux.trouble import parse_trouble
from iodaemon.fault import reach

STAGE_FAILED: Final = 74
"""EX_IOERR of sysexits.h: the exit code of a job whose input or output could not be copied."""
_STAGING: Final = b"staging\n"
_COPY: Final = ("cp", "-a", "--reflink=auto")
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_TARGET: Final = "/proc/self/fd/{}"
_SYNC: Final = ("sync", "--file-system", "--")
_MOST_WORDS_BYTES: Final = 96 << 10
"""Paths of one cp, without the last; below the least that execve(2) takes."""
_LINE_BYTES: Final = 1024
_BLOCK_BYTES: Final = 512  # of ru_inblock and ru_oublock, getrusage(2)
_CHUNK_BYTES: Final = 65536


class News:
    """What a step reports over a pipe.

    Attributes:
        fd: the end to read.
        report: of the step, None while it is at work: ``failed`` (None: it succeeded),
            ``read_bytes`` and ``written_bytes``.
        problem: why the command could not be executed after a prolog that succeeded.
    """

    def __init__(self, fd: int, go_on: Callable[[], None]) -> None:
        self.fd = fd
        self.report: Message | None = None
        self.problem = ""
        self._go_on = go_on
        self._unread = b""

    def hear(self) -> bool:
        """Take in what there is; False, and closed, when the step will report nothing more."""
        data = os.read(self.fd, _CHUNK_BYTES)
        self.take(data)
        if not data:
            os.close(self.fd)
        return bool(data)

    def take(self, data: bytes) -> None:
        """Take in what was read already."""
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            if self.report is None:
                try:
                    self.report = json.loads(line)
                except ValueError:  # it could not even begin
                    self.report = {"failed": {"line": line.decode(errors="backslashreplace")}}
                self._go_on()
            else:
                self.problem = str(parse_trouble(line.decode(errors="replace"))["never_ran"])


class Steps:
    """Scratch directories and staging of one attempt."""

    def __init__(self, key: str, directory: str, launch: launching.Launch) -> None:
        """Plan.

        Args:
            key: of the attempt.
            directory: of the attempt.
            launch: its ``scratch`` (of each directory ``path`` and ``size``) and ``staging``
                (``input``, ``output``, ``on``: ``success`` or ``always``), if any.
        """
        self._key = key
        self._stage_file = os.path.join(directory, STAGE_FILE)
        self._directory = directory
        self._shares = scratch.plan(key, launch.get("scratch") or [])
        self._paths = scratch.paths_of(self._shares)
        staging: Message = (launch.get("staging") or {}) if self._shares else {}
        self._input: str | None = staging.get("input")
        self._output: str | None = staging.get("output")
        self._is_always = staging.get("on") == "always"
        self._reports: dict[str, Message] = {}
        self._marks: BinaryIO | None = None
        if self._input is not None and self._output is not None:
            self._marks = open(os.memfd_create("came"), "w+b")  # noqa: SIM115 - for both steps
        self.launch: launching.Launch = launch
        if told := scratch.environment_of(self._shares):
            self.launch = {**launch, "environment": {**launch["environment"], **told}}

    def make(self) -> tuple[Message | None, bool]:
        """Make the directories.

        Returns:
            What is in the way, as a status (a job is held by what is not its disk's fault), and
            whether a child is left that its disk holds.
        """
        if not self._shares:
            return None, False
        uid = self.launch["uid"] if launching.has_submitter(self.launch) else os.geteuid()
        if type(uid) is not int or uid < (self.launch.get("min_uid") or 0):
            return _never(f"no scratch space is given to uid {uid!a}", holds=True), False
        on = "always" if self._is_always else "success"
        output = None if self._output is None else {"path": self._output, "on": on}
        try:
            if self._input is not None:
                write_json(self._stage_file, {"step": "in"}, durable=True)
            record = {"uid": uid, "shares": self._shares, "output": output}
            scratch.make(self._directory, record)
        except scratch.ScratchError as error:
            if error.disk:  # no job that comes later need meet it
                return _never(str(error), disk=error.disk), error.is_silent
            return _never(f"scratch space cannot be had: {error}", holds=True), False
        except scratch.LostHelperError:
            return _never("what makes its scratch space was killed; it is tried again"), False
        except OSError as error:
            return _never(f"scratch space cannot be had: {error}", holds=True), False
        return None, False

    # -- in the job's first process, as the user -------------------------------------------------

    def copy_in(self, news: int, go: int) -> None:
        """Run the prolog, report, and go on when the shim has written down that it succeeded.

        Without its shim no command begins: nobody would copy out what it makes. The directories,
        which root made, get the user's group: on some disks (grpid) all files in them have it.
        """
        for path in self._paths:
            with contextlib.suppress(OSError):
                os.chown(path, -1, os.getegid())
        if self._input is None:
            return
        _hear_signals()
        os.write(news, _STAGING)
        reach("stage.in_begun")
        failed = _attempt(self._come_in)
        _report(news, failed)
        if failed or os.read(go, 1) != b"g":
            os._exit(STAGE_FAILED)

    def _come_in(self) -> Message | None:
        if failed := _copy_in(str(self._input), self._paths[0]):
            return failed
        if self._marks is not None:
            for _, entries in _walk(self._paths[0]):
                self._marks.writelines(mark + b"\0" for _, mark in entries)
            self._marks.flush()
        return None

    def _read_marks(self) -> frozenset[bytes]:
        if self._marks is None:
            return frozenset()
        self._marks.seek(0)
        return frozenset(self._marks.read().split(b"\0"))

    # -- in the shim -----------------------------------------------------------------------------

    def news_of(self, data: bytes, fd: int, go: int) -> News | None:
        """The news that begin with these bytes; None: they are something else.

        Args:
            data: what the job's first process said.
            fd: where it says more.
            go: where it waits for leave to become the command; closed here.
        """
        if not data.startswith(_STAGING):
            os.close(go)
            return None

        def go_on() -> None:
            try:
                if news.report is not None and not news.report["failed"]:
                    write_json(self._stage_file, {"step": "run"}, durable=True)
                    with contextlib.suppress(BrokenPipeError):
                        os.write(go, b"g")
            except OSError as error:
                news.report = {"failed": {"line": f"{self._stage_file}: {error.strerror}"}}
            finally:
                os.close(go)

        news = News(fd, go_on)
        news.take(data.removeprefix(_STAGING))
        return news

    def end(self, step: str, report: Message | None) -> None:
        """Note what a step reported; None: it was killed before it did."""
        self._reports[step] = report or {}

    def wants_out(self, *, is_success: bool) -> bool:
        """Whether what the job left is to be copied out: never after a prolog that failed."""
        return self._output is not None and self._has_come() and (is_success or self._is_always)

    def _has_come(self) -> bool:
        return self._input is None or self._has_succeeded("in")

    def _has_succeeded(self, step: str) -> bool:
        return self._reports.get(step, {}).get("failed", True) is None

    def begin_out(self, freezer: Freezer) -> tuple[int, News]:
        """Fork the epilog.

        Returns:
            Its number, and its news.

        Raises:
            OSError: it cannot be forked.
        """
        write_json(self._stage_file, {"step": "out"}, durable=True)
        reach("stage.out_begun")
        read, write = os.pipe2(os.O_CLOEXEC)
        try:
            pid, is_inside = freezer.fork(self._key)
            if pid == 0:
                enter = None if is_inside else lambda: freezer.enter(self._key)
                self._be_the_epilog(enter, write)
        except OSError:
            os.close(read)
            raise
        finally:
            os.close(write)
        return pid, News(read, lambda: None)

    def _be_the_epilog(self, enter: Callable[[], None] | None, news: int) -> NoReturn:
        signal.set_wakeup_fd(-1)
        _hear_signals()

        def work() -> Message | None:
            launching.become(self.launch, enter)
            if (account := launching.find_submitter(self.launch)) is not None:
                launching.be_user(account)
            target = os.path.join(self.launch["cwd"], self._output or "")
            os.makedirs(target, exist_ok=True)
            failed = _copy_out(self._paths, target, self._read_marks())
            return failed or _run((*_SYNC, target), "/")

        try:
            failed = _attempt(work)
            reach("stage.out_done")
            _report(news, failed)
            os._exit(STAGE_FAILED if failed else 0)
        finally:
            os._exit(STAGE_FAILED)

    def told(self, *, out_signal: int | None) -> Message:
        """For the status: what was copied, and which step failed and how; empty: nothing was.

        Args:
            out_signal: what killed the epilog; None: nothing.
        """
        if self._marks is not None:
            self._marks.close()
        if not self._reports:
            return {}
        came, went = (self._reports.get(step, {}) for step in ("in", "out"))
        moved = [each.get(f"{name}_bytes", 0) for each in (came, went) for name in _MOVED]
        staged = {
            "came_bytes": came.get("written_bytes", 0),
            "went_bytes": went.get("written_bytes", 0),
            "moved_bytes": sum(moved),
            "has_come": None if self._input is None else self._has_succeeded("in"),
            "has_gone": None if self._output is None else self._has_succeeded("out"),
        }
        for step, report in self._reports.items():
            if (failed := report.get("failed")) is not None:
                return {"staged": staged, "stage_failed": {"step": step, **failed}}
        if "out" in self._reports and not staged["has_gone"]:
            killed = {"program": "cp", "code": None, "signal": out_signal, "line": ""}
            return {"staged": staged, "stage_failed": {"step": "out", **killed}}
        return {"staged": staged}


_MOVED: Final = ("read", "written")


def _never(text: str, *, disk: str = "", holds: bool = False) -> Message:
    status: Message = {"never_ran": text, "exit_code": None, "of_user": True}
    return {**status, **({"disk": disk} if disk else {}), **({"holds": True} if holds else {})}


# -- in a step, as the user ------------------------------------------------------------------------


def _hear_signals() -> None:
    """From now on a signal ends this process as it would end a command."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _attempt(work: Callable[[], Message | None]) -> Message | None:
    """How the work failed; None: it did not."""
    try:
        return work()
    except OSError as error:
        at = f"{error.filename}: " if error.filename else ""
        return {"line": f"{at}{error.strerror or error}"}
    except launching.LaunchError as error:
        return {"line": error.problem}
    except BaseException as error:  # noqa: BLE001 - nothing may go on in its place
        return {"line": repr(error)}


def _report(news: int, failed: Message | None) -> None:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    moved = {"read_bytes": usage.ru_inblock, "written_bytes": usage.ru_oublock}
    told = {name: blocks * _BLOCK_BYTES for name, blocks in moved.items()}
    with contextlib.suppress(OSError):  # the shim is gone
        os.write(news, encode({"failed": failed, **told}))


def _copy_in(source: str, target: str) -> Message | None:
    """Copy what is in a directory into another one, whose own mode and times stay."""
    for names in _some(sorted(os.listdir(source))):
        if failed := _run((*_COPY, f"--target-directory={target}", "--", *names), source):
            return failed
    return None


def _copy_out(sources: Sequence[str], target: str, came: Container[bytes]) -> Message | None:
    """Copy what is new or changed into the target, whose own mode and times stay.

    Args:
        sources: the job's directories.
        target: a directory. What is a link there is replaced, and nothing written through it.
        came: marks of what came in; what still has its mark is left out.
    """
    made: list[tuple[str, str]] = []
    tops: dict[str, str] = {}
    root = os.open(target, _DIRECTORY & ~os.O_NOFOLLOW)
    try:
        for source in sources:
            for at, names in _find_news(source, came):
                for top in [at.partition("/")[0]] if at else names:
                    if tops.setdefault(top, source) != source:
                        return {"line": f"{top!a} is in two of the job's directories"}
                fd = _enter(root, at, source, made)
                try:
                    for some in _some(sorted(names)):
                        if failed := _copy_to(fd, some, os.path.join(source, at)):
                            shown = os.path.join(target, at)
                            failed["line"] = failed["line"].replace(_TARGET.format(fd), shown)
                            return failed
                finally:
                    os.close(fd)
        for source, at in reversed(made):  # once nothing more is put into them
            fd = _enter(root, at, source, [])
            was = os.stat(os.path.join(source, at))
            os.fchmod(fd, stat.S_IMODE(was.st_mode))
            os.utime(fd, ns=(was.st_atime_ns, was.st_mtime_ns))
            os.close(fd)
    finally:
        os.close(root)
    return None


def _copy_to(fd: int, names: Sequence[str], source: str) -> Message | None:
    target = f"--target-directory={_TARGET.format(fd)}"
    return _run((*_COPY, "--remove-destination", target, "--", *names), source, fd)


def _enter(root: int, at: str, source: str, made: list[tuple[str, str]]) -> int:
    """Open the directory of this path below the root, made where it is missing; never a link."""
    fd = os.dup(root)
    path = ""
    for name in filter(None, at.split("/")):
        path = os.path.join(path, name)
        try:
            try:
                below = os.open(name, _DIRECTORY, dir_fd=fd)
            except FileNotFoundError:
                os.mkdir(name, 0o700, dir_fd=fd)
                made.append((source, path))
                below = os.open(name, _DIRECTORY, dir_fd=fd)
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from error
        finally:
            os.close(fd)
        fd = below
    return fd


def _find_news(source: str, came: Container[bytes]) -> Iterator[tuple[str, list[str]]]:
    """Each directory of the source that has something new or changed, and the names of that."""
    for at, entries in _walk(source):
        news = [entry.name for entry, mark in entries if mark not in came]
        if news:
            yield at, news
        entries[:] = [each for each in entries if each[1] in came]


def _walk(source: str) -> Iterator[tuple[str, list[tuple[os.DirEntry[str], bytes]]]]:
    """Each directory with its entries and their marks; only those left in the list are entered."""
    waiting = [""]
    while waiting:
        at = waiting.pop()
        with os.scandir(os.path.join(source, at)) as found:
            entries = [(entry, _mark(os.path.join(at, entry.name), entry)) for entry in found]
        yield at, entries
        waiting += [
            os.path.join(at, entry.name)
            for entry, _ in entries
            if entry.is_dir(follow_symlinks=False)
        ]


def _mark(path: str, entry: os.DirEntry[str]) -> bytes:
    """What changes with a file: nobody can set its time of change. A directory is entered."""
    is_directory = entry.is_dir(follow_symlinks=False)
    found = entry.stat(follow_symlinks=False)
    changed = "d" if is_directory else f"{found.st_ctime_ns}"
    return f"{found.st_ino} {changed} ".encode() + os.fsencode(path)


def _some(names: Sequence[str]) -> Iterator[Sequence[str]]:
    """Cut into so many at a time as one command may have."""
    some: list[str] = []
    size = 0
    for name in names:
        some.append(name)
        size += len(os.fsencode(name)) + 1
        if size > _MOST_WORDS_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some


def _run(command: Sequence[str], directory: str, *fds: int) -> Message | None:
    """Run it to its end; how it failed, with the last line of its stderr; None: it did not."""
    process = subprocess.Popen(
        command,
        cwd=directory,
        pass_fds=fds,
        env=scratch.TOOLS,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    said = b""
    while data := os.read(process.stderr.fileno(), _CHUNK_BYTES):
        said = (said + data)[-_LINE_BYTES:]
    code = process.wait()
    if code == 0:
        return None
    line = said.rstrip(b"\n").rpartition(b"\n")[2].decode(errors="backslashreplace")
    number = -code if code < 0 else None
    ended = {"code": None if code < 0 else code, "signal": number}
    return {"program": command[0], **ended, "line": line}
