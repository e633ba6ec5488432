"""Stopping the tree of processes below a shim by signals, letting it go on, ending it.

SIGSTOP root first, SIGCONT leaf first; the other orders make a job-control shell believe that its
child ended. A signal goes to a pidfd of which it was seen, after it was opened, that its process
belongs to the tree: a number that was used again is told nothing. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Container, Iterable
from typing import Final

from iodaemon.backend.linux.process import (
    children_of,
    find_kin,
    find_living_state,
    find_state,
    read_status,
)

States = dict[int, str | None]
"""The one-letter state of each process, parents first; None: gone."""
Inside = Callable[[], Container[int]]
"""The processes of the tree that something else holds, now: they are passed, and left alone."""

ENDED: Final = frozenset({"Z", "X", None})
"""States of what has ended, or is about to."""
_STILL: Final = frozenset({"T", "t", "Z", "X"})
_MOST_SCANS: Final = 20
"""Rescans of a tree that keeps forking while it is being killed."""
_STOP_WITHIN_S: Final = 0.02
"""What a tree may take to stop before the answer is 'not yet'; the keeper waits meanwhile."""
_LOOK_S: Final = 0.0005


def _nobody() -> Container[int]:
    return ()


def stop_below(shim_pid: int, inside: Inside = _nobody) -> States | None:
    """SIGSTOP root first, again for what was forked meanwhile, until nothing is new.

    A child is stopped only once its parent stands still: a parent that is just on its way there
    still sees in wait4(2) that its child was stopped.

    Returns:
        What stands still by now; None: not yet.

    Raises:
        PermissionError: one of them is another user's.
    """
    until_s = time.monotonic() + _STOP_WITHIN_S
    before: States = {}
    while not _are_still(states := _scan(shim_pid, inside(), stop=True)) or states != before:
        if time.monotonic() > until_s:
            return None
        before = states
        time.sleep(_LOOK_S)
    return states


def look_below(shim_pid: int, inside: Inside = _nobody) -> States | None:
    """What is there, if all of it stands still; None: it does not.

    One look may miss what was handed on to the shim meanwhile.
    """
    states = _scan(shim_pid, inside(), stop=False)
    is_still = _are_still(states) and states == _scan(shim_pid, inside(), stop=False)
    return states if is_still else None


def kill_below(
    shim_pid: int,
    members: Callable[[], list[int]],
    inside: Inside = _nobody,
    *,
    session: int | None = None,
) -> None:
    """SIGKILL, again for what was forked or handed on meanwhile; what stands still cannot fork.

    Args:
        shim_pid: 0: it is dead, and nothing can be stopped before.
        members: lists whom to end.
        inside: as above.
        session: of the members of a dead shim.

    Raises:
        PermissionError: one of them is another user's.
    """
    looks, refused = 0, None
    for _ in range(_MOST_SCANS):
        with contextlib.suppress(PermissionError):
            stop_below(shim_pid, inside)
        pids = members()
        alive = [pid for pid in pids if find_living_state(pid) not in ENDED]
        looks = 0 if alive else looks + 1
        if looks == 2:
            return
        try:
            tell(alive, signal.SIGKILL, {shim_pid, *pids}, session)
        except PermissionError as error:
            refused = error
    if refused is not None:
        raise refused


def tell(
    pids: Iterable[int], number: signal.Signals, parents: Container[int], session: int | None = None
) -> int:
    """Send it to those that are there, and still children of one of these; to how many.

    Args:
        pids: in this order.
        number: what to send.
        parents: of them, or more.
        session: whoever is in it is told as well.

    Raises:
        PermissionError: one of them is another user's, and all others are told; not of SIGCONT.
    """
    count, refused = 0, None
    for pid in pids:
        try:
            count += _tell(pid, number, parents, session)
        except PermissionError as error:
            refused = error
    if refused is not None and number is not signal.SIGCONT:
        raise refused
    return count


def _tell(pid: int, number: signal.Signals, parents: Container[int], session: int | None) -> bool:
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        # Should it have ended since, this is of another process, but nobody is told then.
        kin = find_kin(pid)
        if kin is None or not (kin.parent in parents or kin.session == session):
            return False
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(pidfd)
    return True


def _scan(shim_pid: int, inside: Container[int], *, stop: bool) -> States:
    """The states of all below the shim; with ``stop``, SIGSTOP to all whose parents stand still.

    A process in uninterruptible sleep (D) is in no wait4, and stops before it returns from there.
    """
    found: States = {}
    seen = {shim_pid}
    level = children_of(shim_pid)
    while level := [pid for pid in dict.fromkeys(level) if pid not in seen]:
        seen.update(level)
        states = {pid: _state_of(pid) for pid in level if pid not in inside}
        found.update(states)
        if stop:
            moving = [pid for pid, state in states.items() if state not in (None, *_STILL)]
            tell(moving, signal.SIGSTOP, seen)
        passed = [
            pid for pid in level if not stop or pid in inside or states[pid] in ("D", *_STILL)
        ]
        level = [child for pid in passed for child in children_of(pid)]
    return found


def _state_of(pid: int) -> str | None:
    """Its state; one that has been told to stop and waits in vfork(2) for a stopped child: T."""
    state = find_living_state(pid)
    status = read_status(pid) if state == "D" else None
    if status is not None and status.is_stop_pending:
        return "T" if any(find_state(child) == "T" for child in children_of(pid)) else "D"
    return state


def _are_still(states: States) -> bool:
    return all(state in _STILL for state in states.values())
