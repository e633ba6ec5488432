"""The process that is examined: started, told what to do line by line, and killed in any case.

The kernel kills it with the examiner, and it starts no other: nothing outlives an examination.
Standard library only: it is imported by the child as well.
"""

from __future__ import annotations

import json
import mmap
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from iodaemon.supervisor.syscalls import end_with_parent, prefer_memory_nodes

ANSWER_WITHIN_S: Final = 4.0
"""What takes milliseconds; a machine that needs longer is told to be at fault."""
_BLOCK_BYTES: Final = 1 << 20

Answer = dict[str, Any]


# -- the examiner's end ----------------------------------------------------------------------------


class Child:
    """One living child and the line to it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid = process.pid

    def ask(self, verb: str, **fields: object) -> Answer:
        """What it answers; OSError: as it met it, or TimeoutError."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"verb": verb, **fields}).encode() + b"\n")
        readable, _, _ = select.select([self._process.stdout], [], [], ANSWER_WITHIN_S)
        if not readable:
            raise TimeoutError(110, f"'{verb}' is not done after {ANSWER_WITHIN_S:g} s")
        answer: Answer = json.loads(self._process.stdout.readline() or '{"problem": ""}')
        if "problem" in answer:
            raise OSError(answer.get("errno", 5), answer["problem"] or f"it ended during '{verb}'")
        return answer


@contextmanager
def a_child() -> Iterator[Child]:
    """A child that waits to be told what to do; gone at the end, also one that stands still."""
    root = Path(__file__).resolve().parents[2]
    code = (
        f"import sys; sys.path.append({str(root)!r}); "
        "from iodaemon.doctor.child import main; main()"
    )
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code, str(os.getpid())],
        bufsize=0,
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
            process.kill()


# -- the child's end -------------------------------------------------------------------------------


def _move(path: str, blocks: int) -> Answer:
    """Write so many MiB to a new file and read them back, past the page cache where one may.

    The file has no name from its beginning on.
    """
    buffer = mmap.mmap(-1, _BLOCK_BYTES)  # a page's alignment, as O_DIRECT asks
    buffer.write(os.urandom(_BLOCK_BYTES))
    flags, is_direct = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, True
    try:
        fd = os.open(path, flags | os.O_EXCL | os.O_DIRECT, 0o600)
    except OSError:  # a filesystem without O_DIRECT may have made it before it refused
        fd, is_direct = os.open(path, flags, 0o600), False
    os.unlink(path)
    moved = [os.write(fd, buffer) for _ in range(blocks)]
    if not is_direct:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    moved += [os.preadv(fd, [buffer], block * _BLOCK_BYTES) for block in range(blocks)]
    if (least := min(moved)) < _BLOCK_BYTES:
        raise OSError(5, f"{least} of {_BLOCK_BYTES} bytes were moved at a time")
    return {"is_direct": is_direct}


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


def main() -> None:
    """Do what standard input says, a JSON object a line, and answer each one."""
    end_with_parent()
    if os.getppid() != int(sys.argv[1]):  # it ended before that was said
        return
    verbs: Mapping[str, Callable[..., Answer]] = {
        "hello": dict,
        "move": _move,
        "enter": _enter,
        "pin": _pin,
        "prefer": _prefer,
        "spin": dict,
    }
    for line in sys.stdin:
        request = json.loads(line)
        verb = request.pop("verb")
        try:
            answer = verbs[verb](**request)
        except OSError as error:
            answer = {"errno": error.errno, "problem": error.strerror or str(error)}
        print(json.dumps(answer), flush=True)
        while verb == "spin":
            pass
