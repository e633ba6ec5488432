"""Children that have ended and cannot be waited for, because somebody else traces them.

Of a traced process the tracer is told first, and the parent only once that has taken it in, which
it need never do (ptrace(2), Linux 6.18 kernel/exit.c: wait_consider_task). Nor need it take in the
end of a single thread, without which the process has not ended. Standard library only.
"""

from __future__ import annotations

import os
from typing import Final

from iodaemon.backend.linux.process import children_of

_EXIT_CODE: Final = 49
"""Field 52 of /proc/PID/stat, counted from the state: as wait(2) has it (Linux 3.5)."""


def find_ends(parent: int) -> dict[int, int]:
    """How each child ended, by its number, where all have and every one of them is traced.

    Args:
        parent: the process itself, or one that it may look into.

    Returns:
        Empty: one still runs, can be waited for, or there is none.
    """
    ends: dict[int, int] = {}
    for pid in children_of(parent):
        status = _find_end(pid)
        if status is None:
            return {}
        ends[pid] = status
    return ends


def _find_end(pid: int) -> int | None:
    """Of the process, with all its threads; None: it goes on, or nobody traces it."""
    is_traced, status = False, 0
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/status", "rb") as file:
                lines = dict(line.split(b":", 1) for line in file if b":" in line)
            if lines[b"State"].split()[0] not in (b"Z", b"X"):
                return None
            is_traced |= int(lines[b"TracerPid"]) != 0
        with open(f"/proc/{pid}/stat", "rb") as file:
            status = int(file.read().rpartition(b")")[2].split()[_EXIT_CODE])
    except (OSError, KeyError):  # it is gone: somebody has waited for it
        return None
    return status if is_traced else None
