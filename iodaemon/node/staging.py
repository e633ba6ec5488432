"""The program in which a job with scratch directories runs: prolog, command, epilog.

It is the job's first process, with the job's user and cgroup, so its copies (``cp -a
--reflink=auto``) are counted, suspended and ended with the job. The epilog runs after all processes
of the job have ended, unless it is killed. Without an epilog the command replaces this program.

Arguments: a JSON object (``paths`` of the directories; ``input`` and ``output``, or null; ``on``:
``success`` or ``always``) and the command. Descriptor 3 takes the report, a JSON object a line:
``{"step": "in" | "run" | "out"}`` when each begins, ``{"in" | "out": {"failed", "read_bytes",
"written_bytes"}}`` when it ends, ``{"status": the command's wait(2) status}``, ``{"problem": why it
cannot be executed}``. Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Container, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from iodaemon.supervisor import syscalls
from iodaemon.supervisor.failpoint import reach
from iodaemon.supervisor.launch import NOT_FOUND, NOT_RUNNABLE, exec_problem

STAGE_FAILED: Final = 74
"""EX_IOERR of sysexits.h: the exit code if input or output could not be copied."""
REPORT_FD: Final = 3
_COPY: Final = ("cp", "-a", "--reflink=auto")
_SYNC: Final = ("sync", "--file-system", "--")
_TOOLS: Final = {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_TARGET: Final = "/proc/self/fd/{}"
_MOST_WORDS_BYTES: Final = 96 << 10
"""Of the paths of one cp; below what execve(2) takes at least."""
_LINE_BYTES: Final = 1024
_BLOCK_BYTES: Final = 512  # of ru_inblock and ru_oublock, getrusage(2)
_CHUNK_BYTES: Final = 65536
_ENDING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def command_of(command: Sequence[str], **options: object) -> list[str]:
    """The command that runs a command in this program; ``options`` as above."""
    root = str(Path(__file__).resolve().parents[2])
    code = f"import sys; sys.path.append({root!r}); "
    code += "from iodaemon.node.staging import main; main()"
    return [sys.executable, "-I", "-S", "-c", code, json.dumps(options), *command]


def main() -> NoReturn:
    """Run the steps; exit as the command did, or with ``STAGE_FAILED``."""
    options: dict[str, Any] = json.loads(sys.argv[1])
    command, paths = sys.argv[2:], options["paths"]
    source, output = (
        path and os.path.abspath(path) for path in (options["input"], options["output"])
    )
    os.set_inheritable(REPORT_FD, False)  # noqa: FBT003
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    _hear(signal.SIG_DFL)
    for path in paths:  # root's group until now; on some disks (grpid) all files in it have it
        with contextlib.suppress(OSError):
            os.chown(path, -1, os.getegid())
    came: frozenset[bytes] = frozenset()
    if source is not None:
        if _do("in", lambda: _copy_in(source, paths[0])):
            sys.exit(STAGE_FAILED)
        if output is not None:
            came = _read_marks(paths[0])
    _say({"step": "run"})
    reach("staging.runs")
    if output is None:
        _execute(command)
    status = _run_command(command)
    _say({"status": status})
    is_success = status == 0
    if is_success or options["on"] == "always":
        failed = _do("out", lambda: _come_out(paths, output, came))
        if failed and is_success:
            sys.exit(STAGE_FAILED)
    _exit_as(status)


def _hear(handler: Any) -> None:
    for number in _ENDING:
        signal.signal(number, handler)


def _say(word: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):
        text = json.dumps(word, ensure_ascii=False)  # names of files may be no UTF-8
        os.write(REPORT_FD, text.encode(errors="replace") + b"\n")


def _do(step: str, work: Callable[[], str | None]) -> str | None:
    """Do and report a step, which signals end as they end a command; returns how it failed."""
    _hear(signal.SIG_DFL)
    _say({"step": step})
    if step == "out":  # also after a power failure it is known that there is a result
        with contextlib.suppress(OSError):
            os.fsync(REPORT_FD)
    reach("staging.step_begun")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        failed = work()
    except OSError as error:
        at = f"{error.filename}: " if error.filename else ""
        failed = f"{at}{error.strerror or error}"
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    moved = {
        "read_bytes": (usage.ru_inblock - before.ru_inblock) * _BLOCK_BYTES,
        "written_bytes": (usage.ru_oublock - before.ru_oublock) * _BLOCK_BYTES,
    }
    _say({step: {"failed": failed, **moved}})
    reach("staging.step_done")
    return failed


def _execute(command: Sequence[str]) -> NoReturn:
    try:
        os.execvp(command[0], list(command))  # noqa: S606
    except OSError as error:
        number = error.errno or 0
        of = "interpreter" if "/" in command[0] and os.path.exists(command[0]) else ""
        _say({"problem": exec_problem(command[0], os.environ, number, of)})
        os._exit(NOT_FOUND if number == errno.ENOENT else NOT_RUNNABLE)


def _run_command(command: Sequence[str]) -> int:
    """Run it until no process of the job is left; returns its wait(2) status.

    Signals that ask the job to end are for the command: this program goes on.
    """
    syscalls.become_subreaper()
    _hear(lambda *_: None)
    pid = os.fork()
    if pid == 0:
        _hear(signal.SIG_DFL)
        _execute(command)
    status = 0
    with contextlib.suppress(ChildProcessError):
        while True:
            ended, how = os.wait()
            if ended == pid:
                status = how
    return status


def _exit_as(status: int) -> NoReturn:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the command's own core is enough
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    sys.exit(os.WEXITSTATUS(status))


# -- copies ----------------------------------------------------------------------------------------


def _copy_in(source: str, target: str) -> str | None:
    """Copy the entries of a directory into another one, whose own mode and times stay."""
    for names in _some(sorted(os.listdir(source))):
        if failed := _run((*_COPY, f"--target-directory={target}", "--", *names), source):
            return failed
    return None


def _read_marks(path: str) -> frozenset[bytes]:
    return frozenset(mark for _, entries in _walk(path) for _, mark in entries)


def _come_out(paths: Sequence[str], output: str, came: Container[bytes]) -> str | None:
    os.makedirs(output, exist_ok=True)
    return _copy_out(paths, output, came) or _run((*_SYNC, output), "/")


def _copy_out(sources: Sequence[str], target: str, came: Container[bytes]) -> str | None:
    """Copy what is new or changed into the target, whose own mode and times stay.

    Links in the target are replaced, never followed. What still has its mark of ``came`` stays.
    """
    made: list[tuple[str, str]] = []
    tops: dict[str, str] = {}
    root = os.open(target, _DIRECTORY & ~os.O_NOFOLLOW)
    try:
        for source in sources:
            for at, names in _find_news(source, came):
                for top in [at.partition("/")[0]] if at else names:
                    if tops.setdefault(top, source) != source:
                        return f"{top!a} is in two of the job's directories"
                fd = _enter(root, at, source, made)
                try:
                    for some in _some(sorted(names)):
                        if failed := _copy_to(fd, some, os.path.join(source, at)):
                            return failed.replace(_TARGET.format(fd), os.path.join(target, at))
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


def _copy_to(fd: int, names: Sequence[str], source: str) -> str | None:
    target = f"--target-directory={_TARGET.format(fd)}"
    return _run((*_COPY, "--remove-destination", target, "--", *names), source, fd)


def _enter(root: int, at: str, source: str, made: list[tuple[str, str]]) -> int:
    """Open the directory of this path below the root, never a link; make missing ones."""
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
    """Each directory of the source with new or changed entries, and their names."""
    for at, entries in _walk(source):
        news = [entry.name for entry, mark in entries if mark not in came]
        if news:
            yield at, news
        entries[:] = [each for each in entries if each[1] in came]


def _walk(source: str) -> Iterator[tuple[str, list[tuple[os.DirEntry[str], bytes]]]]:
    """Each directory with its entries and marks; enters those that are left in the list."""
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
    """What changes with a file: nobody can set its ctime. A directory's ctime does not count."""
    is_directory = entry.is_dir(follow_symlinks=False)
    found = entry.stat(follow_symlinks=False)
    changed = "d" if is_directory else f"{found.st_ctime_ns}"
    return f"{found.st_ino} {changed} ".encode() + os.fsencode(path)


def _some(names: Sequence[str]) -> Iterator[Sequence[str]]:
    """Parts that fit into the arguments of one command."""
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


def _run(command: Sequence[str], directory: str, *fds: int) -> str | None:
    """Run it to its end; returns how it failed, with the last line of its stderr, or None."""
    process = subprocess.Popen(
        command,
        cwd=directory,
        pass_fds=fds,
        env=_TOOLS,
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
    ended = f"was killed by signal {-code}" if code < 0 else f"ended with {code}"
    return f"{command[0]} {ended}" + (f": {line}" if line else "")
