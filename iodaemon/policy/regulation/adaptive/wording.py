"""What the rule says to people."""

from __future__ import annotations

from iodaemon.core.decision import TrialVerdict
from iodaemon.policy.regulation.adaptive.contender import MEMORY
from iodaemon.policy.regulation.adaptive.limiter import Limiter


def told_trial(
    resource: str, verdict: TrialVerdict, before: int, tried: int, gain: float | None, sign: str
) -> str:
    """One step of a trial, a sentence without its end."""
    if verdict == "began":
        return f"{resource}: {sign}; {_at_once(tried)} instead of {before} are tried"
    if gain is None:
        found = "what that brought cannot be told"
    else:
        found = f"{_at_once(tried)} got {gain:.2g} times as much done as {before}"
    return f"{resource}: {found}; {'that is kept' if verdict == 'kept' else 'that is undone'}"


def told_limit(resource: str, limiter: Limiter) -> str:
    """What is believed of a resource, a sentence without its end."""
    tries = "once" if limiter.tries == 1 else f"{limiter.tries} times"
    if limiter.limit is None:
        return f"{resource}: no limit is needed" + (f", tried {tries}" if limiter.tries else "")
    if limiter.too_many is None:
        return f"{resource}: {_at_once(limiter.limit)} are known to do well"
    if limiter.gain == 1.0 or not limiter.tries:
        return f"{resource}: {_at_once(limiter.limit)}, {limiter.too_many} were too many"
    return (
        f"{resource}: {_at_once(limiter.limit)} got {limiter.gain:.2g} times as much done as "
        f"{limiter.too_many}, tried {tries}"
    )


def told_stop(resource: str, many: int, target: int) -> str:
    """Why a job stands still."""
    what = "the memory" if resource == MEMORY else resource
    return f"{many} jobs contend for {what}, {target} at a time get more done"


def told_slow(device: str, many: int, target: int) -> str:
    """Why a job is slowed down."""
    return f"{told_stop(device, many, target)}, and it asked never to be suspended"


def told_room(resource: str) -> str:
    """Why a job comes back."""
    return f"there is room for it at {resource}"


def told_cap(moved_bytes_per_s: float, bound_bytes_per_s: float) -> str:
    """How the operator's cap stands."""
    moved, bound = moved_bytes_per_s / 1e6, bound_bytes_per_s / 1e6
    return f"all jobs move {moved:.1f} MB/s, io_bound is {bound:.1f} MB/s"


def _at_once(many: int) -> str:
    return f"{many} at a time"
