"""Which process has which role. Only this module knows what the processes are called today.

The daemon is the process that was started by hand; the supervisor is the parent of the jobs, which
starts, suspends and ends them for the daemon.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

ROLES: Final = ("daemon", "supervisor")
_TITLE: Final = {"supervisor": "iod-keeper"}
_OURS: Final = ("iod-keeper", "iod-shim")
"""How the command lines begin of what serves jobs and is part of none."""


def find_role(role: str, pids: Iterable[int]) -> int | None:
    """The process among these that has this role, other than the daemon; None: none has it."""
    return next((pid for pid in pids if _title(pid).startswith(_TITLE[role])), None)


def is_ours(pid: int) -> bool:
    """Whether a process serves jobs, rather than being part of one."""
    return _title(pid).startswith(_OURS)


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""
