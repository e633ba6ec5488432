"""Points at which a test may let a process die: between any two steps that could be told apart.

Nothing happens unless ``IOD_FAULTS`` names a directory when the process starts. A file in it with
the name of a point arms that point; it holds two numbers: at which passage from now, and the signal
that the process then sends itself (9 kills it, 19 stops it). The file is gone once that is done, so
that one file is one fault, in whichever process comes by first.

Standard library only: daemon and sampler import this.
"""

from __future__ import annotations

import contextlib
import os
from typing import Final

VARIABLE: Final = "IOD_FAULTS"
_DIRECTORY: Final = os.environ.get(VARIABLE)
"""Read once: where it is not set, a point costs a call and nothing else."""


def reach(point: str, detail: str = "") -> None:
    """Pass this point; with a detail it is one point for each.

    Args:
        point: its name, written out where it is passed: the tests find them all by that.
        detail: what it is about, where one line serves several (a verb, a file's name).
    """
    if _DIRECTORY is not None:
        _pass(os.path.join(_DIRECTORY, f"{point}.{detail}" if detail else point))


def _pass(path: str) -> None:
    """One passage. Whoever armed the point may take the file back at any moment: then it is not."""
    taken = f"{path}.{os.getpid()}"
    try:
        os.rename(path, taken)  # one process alone has it
        with open(taken) as file:
            passage, number = map(int, file.read().split())
        if passage > 1:
            with contextlib.suppress(PermissionError), open(taken, "r+") as file:  # makes none
                file.truncate()
                file.write(f"{passage - 1} {number}")
            os.rename(taken, path)
            return
        os.unlink(taken)
    except FileNotFoundError:
        return
    os.kill(os.getpid(), number)
