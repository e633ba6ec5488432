"""The process that is examined: started, told what to do, and ended in any case."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

ANSWER_WITHIN_S: Final = 2.0
"""What takes milliseconds; a machine that needs longer is told to be at fault."""
LOOK_S: Final = 0.0005
_END_WITHIN_S: Final = 0.5
_CPU_CLOCK: Final = 2
"""CPUCLOCK_SCHED of a whole process; the clock's id is ``~pid << 3 | 2`` (clock_getcpuclockid)."""


class Child:
    """One living child and the line to it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid = process.pid

    def ask(self, verb: str, **fields: object) -> dict[str, Any]:
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
        answer: dict[str, Any] = json.loads(self._process.stdout.readline() or '{"problem": ""}')
        if "problem" in answer:
            raise OSError(answer.get("errno", 5), answer["problem"] or f"it ended during '{verb}'")
        return answer


@contextmanager
def a_child() -> Iterator[Child]:
    """A child that waits to be told what to do; gone, with all that it forked, at the end."""
    root = Path(__file__).resolve().parents[2]
    code = (
        f"import sys; sys.path.append({str(root)!r}); "
        "from iodaemon.doctor.program import main; sys.exit(main())"
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


def cpu_s(pid: int) -> float:
    """CPU time that a process has used (its own clock, to the ns)."""
    return time.clock_gettime((~pid << 3) | _CPU_CLOCK)


def wait_for(holds: Callable[[], bool], within_s: float) -> float | None:
    """How long it took until it held, s; None: it did not within this time."""
    start_s = time.monotonic()
    while not holds():
        if time.monotonic() - start_s > within_s:
            return None
        time.sleep(LOOK_S)
    return time.monotonic() - start_s
