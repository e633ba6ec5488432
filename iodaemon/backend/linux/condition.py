"""Conditions of the machine that keep iodaemon from its work: one finder and one sentence each.

The daemon, the keeper, ``iod doctor`` and ``iod calibrate`` all tell them from here. Standard
library only.
"""

from __future__ import annotations

from typing import NamedTuple

from iodaemon.backend.linux.process import find_state


class Condition(NamedTuple):
    """One condition; as text ``FACT; CURE``, which ``split`` takes apart.

    Attributes:
        fact: what is so: a sentence that names the path or the process.
        cure: what to do.
    """

    fact: str
    cure: str

    def __str__(self) -> str:
        return f"{self.fact}; {self.cure}"


def find_standstill(who: str, pid: int) -> Condition | None:
    """A process of ours that is stopped; None: it is not.

    Args:
        who: ``daemon`` or ``keeper``.
        pid: of it.
    """
    if find_state(pid) not in ("T", "t"):
        return None
    return Condition(f"the {who} (pid {pid}) is stopped", f"'kill -CONT {pid}' lets it go on")


def why_silent(pid: int) -> Condition:
    """Why the keeper with this number does not answer."""
    return find_standstill("keeper", pid) or Condition(
        f"the keeper (pid {pid}) does not answer",
        f"after 'kill -9 {pid}' another takes its jobs over",
    )
