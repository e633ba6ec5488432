"""Points at which a test may end or stop a process: between any two steps that can be told apart.

Nothing happens unless ``IOD_FAULTS`` names a directory when the process starts. A file in it with
the name of a point arms that point. It contains two numbers: at which passage from now, and the
signal that the process then sends itself (9 kills it, 19 stops it). The file is removed first, so
one file is one fault, in whichever process passes first.
"""

from __future__ import annotations

import contextlib
import os
from typing import Final

VARIABLE: Final = "IOD_FAULTS"
_DIRECTORY: Final = os.environ.get(VARIABLE)


def reach(point: str, detail: str = "") -> None:
    """Pass this point. The name is written out at the call: the tests find all points by it. Where
    one line serves several, ``detail`` makes one point for each.
    """
    if _DIRECTORY is not None:
        _pass(os.path.join(_DIRECTORY, f"{point}.{detail}" if detail else point))


def _pass(path: str) -> None:
    taken = f"{path}.{os.getpid()}"
    try:
        os.rename(path, taken)  # one process alone has it
        with open(taken) as file:
            passage, number = map(int, file.read().split())
        if passage > 1:
            with contextlib.suppress(PermissionError), open(taken, "r+") as file:
                file.truncate()
                file.write(f"{passage - 1} {number}")
            os.rename(taken, path)
            return
        os.unlink(taken)
    except (FileNotFoundError, PermissionError):  # the job's user may not enter the directory
        return
    os.kill(os.getpid(), number)
