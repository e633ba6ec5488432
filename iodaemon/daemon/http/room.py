"""How much a job may bring along: what Linux executes, and what can be passed on."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from iodaemon.core.job import Texts
from iodaemon.errors import RequestError
from iodaemon.supervisor.protocol import LONGEST_LINE as LARGEST_LINE_BYTES
from iodaemon.supervisor.protocol import encode

LONGEST_WORD_BYTES: Final = 128 * 1024 - 1
"""MAX_ARG_STRLEN (include/uapi/linux/binfmts.h) less the NUL: no longer word can be executed."""
LARGEST_EXEC_BYTES: Final = 2 * 2**20
"""Of command and environment: a quarter of the usual stack of 8 MiB (fs/exec.c, bprm_stack_limits).
With a larger stack Linux takes up to 6 MiB; here nobody may, as all of it is kept in memory."""
LONGEST_PATH_BYTES: Final = 4095
"""PATH_MAX of Linux (include/uapi/linux/limits.h) less its NUL: no longer one can be opened."""
_POINTER_BYTES: Final = 8
_LARGEST_LAUNCH_BYTES: Final = LARGEST_LINE_BYTES - 64 * 1024
"""Of one job on its way to the supervisor; the rest is for what the daemon adds."""
_WIDEST_BYTES: Final = 12
"""Of one character as it is passed on: two escapes."""


class Room:
    """What is left for each command beside the environment that all jobs of a submission share.

    Args:
        environment: theirs.

    Raises:
        RequestError: it is too large for any command, or a name in it is none.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        words = [f"{name}={value}" for name, value in environment.items()]
        sizes = [_size_bytes(word) for word in words]
        self._exec_bytes = LARGEST_EXEC_BYTES - _exec_bytes(sizes)
        if self._exec_bytes < 0:
            raise RequestError(_too_large(""))
        for name, word, size in zip(environment, words, sizes, strict=True):
            if not name or "=" in name or "\0" in word:
                raise RequestError(f"environment variable {name[:60]!r} cannot be set; rename it")
            if size > LONGEST_WORD_BYTES:
                raise RequestError(
                    f"environment variable {name[:60]!r} is longer than the {LONGEST_WORD_BYTES} "
                    "bytes that Linux takes; put it into a file"
                )
        self._launch_bytes = _LARGEST_LAUNCH_BYTES - len(encode(dict(environment)))

    def check(self, job: Texts, which: str) -> None:
        """Refuse a job that could not be executed or passed on.

        What the supervisor would not take must not come to it: nobody would hear of it.

        Raises:
            RequestError: says so, ``which`` before it.
        """
        staged = _staged_words(job)
        sizes = [_size_bytes(word) for word in (*job.command, *staged)]
        if _exec_bytes(sizes) > self._exec_bytes:
            raise RequestError(_too_large(which))
        if max(sizes[: len(job.command)], default=0) > LONGEST_WORD_BYTES:
            raise RequestError(
                f"{which}a word of the command is longer than the {LONGEST_WORD_BYTES} bytes that "
                "Linux takes; put it into a file"
            )
        texts = (*job.command, job.cwd, job.stdout or "", job.stderr or "", *2 * staged)
        if _WIDEST_BYTES * sum(map(len, texts)) + 4 * len(texts) <= self._launch_bytes:
            return
        if len(encode({"texts": texts})) > self._launch_bytes:
            raise RequestError(
                f"{which}command and environment are longer than the {_LARGEST_LAUNCH_BYTES} bytes "
                "that can be passed on; put data into a file"
            )


def _staged_words(job: Texts) -> tuple[str, ...]:
    """Where its data comes from and goes to, as its environment has that; passed on twice."""
    if job.scratch is None:
        return ()
    paths = {"IOD_INPUT": job.scratch.input_path, "IOD_OUTPUT": job.scratch.output_path}
    return tuple(f"{name}={path}" for name, path in paths.items() if path)


def _exec_bytes(sizes: Collection[int]) -> int:
    """What Linux counts of words of these sizes: each with its NUL and a pointer to it."""
    return sum(sizes) + len(sizes) * (1 + _POINTER_BYTES)


def _size_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _too_large(which: str) -> str:
    return (
        f"{which}command and environment are larger than {LARGEST_EXEC_BYTES} bytes as Linux "
        "counts them; put data into a file"
    )
