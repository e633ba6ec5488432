"""Darshan logs, read by Darshan's own library in a process of its own."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, Final, NamedTuple, Self

from iodaemon.errors import ConfigError

SUFFIX: Final = ".darshan"
PATIENCE_S: Final = 60.0
"""For one log; the largest that ship with the library take 0.2 s."""


class Reading(NamedTuple):
    """One log: what its run moved, or why that is not known."""

    path: str
    run: dict[str, Any] | None
    problem: str = ""


def find_logs(names: Iterable[str]) -> Iterator[str]:
    """The files, and of folders all logs in and below them, by name.

    A folder without any is given as it is: reading it says so.
    """
    for name in names:
        logs = list(_logs_below(name)) if os.path.isdir(name) else []
        yield from logs or [name]


def _logs_below(folder: str) -> Iterator[str]:
    for path, folders, files in os.walk(folder):
        folders.sort()
        for file in sorted(files):
            if file.endswith(SUFFIX):
                yield os.path.join(path, file)


def require_library() -> None:
    """Refuse where Darshan's library is not installed.

    Raises:
        ConfigError: says how to get it.
    """
    if find_spec("darshan") is None:
        raise ConfigError("Darshan's library is missing: pip install 'iodaemon[darshan]'")


class Reader:
    """Reads logs one after the other, in a process beside this one.

    Use in a ``with``: no process is left behind.
    """

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def read(self, path: str) -> Reading:
        """What one log tells; never raises for what is in it.

        Raises:
            ConfigError: the library does not even start.
        """
        if problem := _problem_of(path):
            return Reading(path, None, problem)
        process = self._process or self._begin()
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(os.path.abspath(path)).encode() + b"\n")
            process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            raise ConfigError(
                "Darshan's library does not start: 'python -m darshan' says why; install it anew"
            )
        answer = json.loads(line)
        if "problem" in answer:
            return Reading(path, None, answer["problem"])
        return Reading(path, answer)

    def _begin(self) -> subprocess.Popen[bytes]:
        program = ("-P", "-m", "iodaemon.darshan_log")  # -P: nothing of this folder
        self._process = subprocess.Popen(
            [sys.executable, *program, repr(self._patience_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        )
        return self._process


def _problem_of(path: str) -> str:
    """Why it is not even given to the library, or nothing."""
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            return f"no *{SUFFIX} in this folder"
        if not stat.S_ISREG(mode):
            return "no regular file"
        with open(path, "rb") as file:
            is_empty = not file.read(1)
    except OSError as error:
        return error.strerror or str(error)
    return "empty" if is_empty else ""
