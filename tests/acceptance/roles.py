"""Which process has which role. Only this module knows what the processes are called today.

The daemon is the process that was started by hand; the supervisor is the parent of the jobs, which
starts, suspends and ends them for the daemon.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

ROLES: Final = ("daemon", "supervisor", "anchor")
_NAME: Final = {"supervisor": "iod-supervisor", "anchor": "iod-anchor"}
_OURS: Final = (
    "iod-anchor", "iod-supervisor", "iod-launcher", "iod-sampler", "iod-holder", "iod-scratch"
)  # fmt: skip
"""What serves jobs and is part of none."""


def find_role(role: str, pids: Iterable[int]) -> int | None:
    """The process among these that has this role, other than the daemon; None: none has it."""
    return next((pid for pid in pids if _name(pid) == _NAME[role]), None)


def is_ours(pid: int) -> bool:
    """Whether a process serves jobs, rather than being part of one."""
    return _name(pid) in _OURS


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
