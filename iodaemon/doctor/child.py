"""The process that is examined: started, told what to do line by line, and ended in any case.

It ends, with what it forked, when nobody tells it anything any more, and the kernel kills all of
them with the examiner: nothing outlives an examination. Standard library only: it is imported by
the child as well.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

from iodaemon.supervisor.syscalls import end_with_parent, prefer_memory_nodes

ANSWER_WITHIN_S: Final = 2.0
"""What takes milliseconds; a machine that needs longer is told to be at fault."""
_END_WITHIN_S: Final = 0.5
_BLOCK_BYTES: Final = 1 << 20

Answer = dict[str, Any]


# -- the examiner's end ----------------------------------------------------------------------------


class Child:
    """One living child and the line to it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid = process.pid

    def ask(self, verb: str, **fields: object) -> Answer:
        """What it answers.

        Raises:
            OSError: as it met it, or TimeoutError.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = json.dumps({"verb": verb, **fields}).encode() + b"\n"
        self._process.stdin.write(line)
        self._process.stdin.flush()
        readable, _, _ = select.select([self._process.stdout], [], [], ANSWER_WITHIN_S)
        if not readable:
            raise TimeoutError(110, f"'{verb}' is not done after {ANSWER_WITHIN_S:g} s")
        answer: Answer = json.loads(self._process.stdout.readline() or '{"problem": ""}')
        if "problem" in answer:
            raise OSError(answer.get("errno", 5), answer["problem"] or f"it ended during '{verb}'")
        return answer


@contextmanager
def a_child() -> Iterator[Child]:
    """A child that waits to be told what to do; gone, with all that it forked, at the end."""
    root = Path(__file__).resolve().parents[2]
    code = (
        f"import sys; sys.path.append({str(root)!r}); "
        "from iodaemon.doctor.child import main; sys.exit(main())"
    )
    command = [sys.executable, "-I", "-S", "-c", code, str(os.getpid())]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for the examiner, who ends it
        cwd="/",
    ) as process:
        try:
            child = Child(process)
            child.ask("hello")
            yield child
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Let it end what it forked; one that does not is killed, and the kernel kills the rest."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    try:
        process.wait(_END_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()


# -- the child's end -------------------------------------------------------------------------------


def _end_with(parent_pid: int) -> None:
    end_with_parent()
    if os.getppid() != parent_pid:  # it ended before that was said
        os._exit(1)


class _File:
    """The file that is written and then read back; it has no name from its beginning on."""

    def __init__(self) -> None:
        self.fd = -1
        self._is_direct = False
        self._buffer = mmap.mmap(-1, _BLOCK_BYTES)  # a page's alignment, as O_DIRECT asks
        self._buffer.write(os.urandom(_BLOCK_BYTES))

    def write(self, path: str, blocks: int) -> Answer:
        """Write so many MiB, past the page cache where the filesystem allows."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            self.fd = os.open(path, flags | os.O_DIRECT, 0o600)
            self._is_direct = True
        except OSError:
            flags &= ~os.O_EXCL  # a filesystem without O_DIRECT may have made it before it refused
            self.fd = os.open(path, flags, 0o600)
        os.unlink(path)
        for _ in range(blocks):
            self._whole(os.write(self.fd, self._buffer))
        if not self._is_direct:
            os.fsync(self.fd)
        return {"is_direct": self._is_direct}

    def read(self, blocks: int) -> Answer:
        """Read it back, from the disk where the filesystem allows."""
        if not self._is_direct:
            os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)
        for block in range(blocks):
            self._whole(os.preadv(self.fd, [self._buffer], block * _BLOCK_BYTES))
        return {"is_direct": self._is_direct}

    @staticmethod
    def _whole(moved_bytes: int) -> None:
        if moved_bytes != _BLOCK_BYTES:
            raise OSError(5, f"{moved_bytes} of {_BLOCK_BYTES} bytes were moved at a time")


def _spin(forked: list[int], procs: str | None) -> Answer:
    """Fork a process that uses its CPU; with ``procs`` it first enters that cgroup."""
    parent_pid = os.getpid()
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        _be_busy(parent_pid, procs, told)
    forked.append(pid)
    os.close(told)
    problem = os.read(ready, 200).decode()
    os.close(ready)
    if problem != "in":
        raise PermissionError(13, problem or "it ended")
    return {"pid": pid}


def _be_busy(parent_pid: int, procs: str | None, told: int) -> NoReturn:
    try:
        _end_with(parent_pid)
        if procs is not None:
            _enter(procs)
        os.write(told, b"in")
    except OSError as error:
        os.write(told, (error.strerror or str(error)).encode())
        os._exit(1)
    while True:
        pass


def _enter(procs: str) -> Answer:
    """Move the calling process into a cgroup."""
    with open(procs, "w") as file:
        file.write("0")
    return {}


def _pin(cpus: list[int]) -> Answer:
    os.sched_setaffinity(0, cpus)
    return {"cpus": sorted(os.sched_getaffinity(0))}


def _prefer(nodes: list[int]) -> Answer:
    """Take memory from these NUMA nodes, and what the kernel makes of that."""
    done = prefer_memory_nodes(nodes)
    policies: set[str] = set()
    if os.path.exists("/proc/self/numa_maps"):
        with open("/proc/self/numa_maps") as file:
            policies = {line.split()[1] for line in file}
    return {"done": done, "policies": sorted(policies)}


def main() -> int:
    """Do what standard input says, a JSON object a line, and answer each one."""
    _end_with(int(sys.argv[1]))
    file = _File()
    forked: list[int] = []
    verbs: Mapping[str, Callable[..., Answer]] = {
        "hello": dict,
        "write": file.write,
        "read": file.read,
        "spin": partial(_spin, forked),
        "enter": _enter,
        "pin": _pin,
        "prefer": _prefer,
    }
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = verbs[request.pop("verb")](**request)
        except OSError as error:
            answer = {"errno": error.errno, "problem": error.strerror or str(error)}
        print(json.dumps(answer), flush=True)
    for pid in forked:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return 0
