"""How many jobs should contend for one resource at once: a number, found by proof and by trial.

1. Nothing is known: no limit.
2. **Fewer are tried** when there is a sign, or proof, of contention: half of them, or the number
   that was last seen to do no harm. Those who started last stand still for it.
3. When what they keep in memory is in, and the device has done what was under way, what those who
   run get done is compared with what they got done before, each with itself, until the difference
   is more than twice the noise of both. As much as before with fewer, or more: it is kept, and half
   of it is tried next while there are signs. Less: it is undone.
4. **More are tried** likewise: up to halfway to the number that was too many, at most half as many
   again. Proof of contention undoes that at once.
5. The first trial that fails is free. Another is made once all that failed, this one included, has
   cost at most ``budget`` of the time since the first.

What a job gets done (``contender``) does not say how much is left to do, so only one and the same
job is compared with itself: its rate now with its rate before.

Source: logical bytes ordered numbers of jobs at once as their true speed did in all pairs but one,
on beds of re-reading, look-ups in databases, compression and streams; user CPU time, the device's
bytes and pressure did not (docs/regulation.md). The search for a concurrency limit by trial is that
of Heiss and Wagner, "Adaptive load control in transaction processing systems", VLDB 1991, and
Schroeder et al., "How to determine a good multi-programming level for external scheduling", ICDE
2006; that the newest pays, and when to judge: measured (docs/regulation.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from iodaemon.core.decision import TrialVerdict
from iodaemon.core.job import JobId
from iodaemon.policy.regulation.adaptive.contender import Doing

BYTES_PER_CPU_S: Final = 1e6
"""A job that moves fewer bytes than these by system calls for each second of CPU time computes: a
core copies a thousand times as many."""
KEPT_SLICES: Final = 32
"""Slices of a window that are kept to tell its noise."""
LEAST_SLICES: Final = 2
"""Of a window before anything is concluded from it."""
MOST_SLICES: Final = 8
"""After so many slices the trial is decided, however noisy they were."""
SURE: Final = 2.0
"""A difference of more than so many standard errors is no noise."""
LEAST_LOSS: Final = 0.05
"""Part of its time that a trial which is undone is taken to have cost at least."""
UNKNOWN_LOSS: Final = 0.5
"""The same of one that was not looked at to its end."""
UNKNOWN_NOISE: Final = 0.1
"""Of a window of one slice."""


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """A time in which the number of jobs at once stayed the same.

    Attributes:
        done: what each job did in the slices in which it contended.
        slices: what all of them did together in each slice: bytes, or seconds of computing.
        many: how many contended in each.
    """

    done: Mapping[JobId, Doing] = MappingProxyType({})
    slices: tuple[float, ...] = ()
    many: tuple[int, ...] = ()

    @property
    def noise(self) -> float:
        """Standard error of the mean of its slices, as a part of the mean; infinite for one.

        Of few slices it is taken for larger, as Student's distribution does.
        """
        count = len(self.slices)
        mean = sum(self.slices) / count if count else 0.0
        if count < 2 or mean <= 0.0:
            return math.inf
        variance = sum((each - mean) ** 2 for each in self.slices) / (count - 1)
        return math.sqrt(variance / count) / mean * (1.0 + 2.0 / (count - 1))

    @property
    def mean_many(self) -> float:
        """How many contended in the mean."""
        return sum(self.many) / len(self.many) if self.many else 0.0


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """Another number of jobs at once, while it is tried.

    Attributes:
        before: jobs at once before it.
        tried: jobs at once now.
        limit: what was the limit before it.
        began_s: when.
        had: what was done before.
        is_proven: there was proof that it was too many.
        window: since what jobs keep is in; None: it is not yet.
    """

    before: int
    tried: int
    limit: int | None
    began_s: float
    had: Window
    is_proven: bool = False
    window: Window | None = None

    @property
    def is_up(self) -> bool:
        return self.tried > self.before


class Limiter(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one resource.

    Attributes:
        limit: so many at once. None: no limit.
        good: most at once that were seen to do no harm; 0: none was looked at.
        too_few: most at once that got less done than more did.
        too_many: fewest at once that got less done than fewer did; None: none was found.
        gain: how many times as much got done at the limit as at ``too_many``.
        tries: numbers that were tried.
        failures: of these did not pay.
        since_s: when the first was.
        spent_s: time that was lost by those that failed.
        last_s: by the last one.
        fewer_s: when fewer were last tried.
        more_s: when more were last tried.
        lasted_s: how long the last trial lasted.
        window: since the number of jobs at once last changed.
        trial: that is under way.
    """

    limit: int | None = None
    good: int = 0
    too_few: int = 0
    too_many: int | None = None
    gain: float = 1.0
    tries: int = 0
    failures: int = 0
    since_s: float = math.inf
    spent_s: float = 0.0
    last_s: float = 0.0
    fewer_s: float = -math.inf
    more_s: float = -math.inf
    lasted_s: float = 0.0
    window: Window = Window()
    trial: Trial | None = None

    @property
    def target(self) -> int | None:
        """How many are to run now."""
        return self.limit if self.trial is None else self.trial.tried

    def may_try(self, now_s: float, budget: float) -> bool:
        """Whether another trial may fail."""
        if self.failures == 0:
            return True
        return self.spent_s + self.last_s <= budget * (now_s - self.since_s)

    def fewer(self, many: int, now_s: float, budget: float) -> int | None:
        """The number below to try next; None: there is none.

        One that was too few is tried again when that was long ago.
        """
        too_few = 0 if self._is_old(self.fewer_s, now_s, budget) else self.too_few
        if too_few < self.good < many:
            return self.good
        tried = max(1, too_few + 1, -(-many // 2))
        if too_few and tried <= too_few + 1 < many:
            tried = (too_few + many) // 2
        return tried if too_few < tried < many else None

    def more(self, now_s: float, budget: float) -> int | None:
        """The number above the limit to try next; None: there is none.

        One that was too many is tried again when that was long ago.
        """
        if self.limit is None:
            return None
        most = self.limit + max(1, self.limit // 2)
        if self.too_many is None or self.too_many <= self.limit:
            return most
        between = min(most, (self.limit + self.too_many) // 2)
        if between > self.limit:
            return between
        return self.too_many if self._is_old(self.more_s, now_s, budget) else None

    def _is_old(self, ended_s: float, now_s: float, budget: float) -> bool:
        """Whether a trial ended so long ago that to repeat it is within the budget."""
        return budget * (now_s - ended_s) > max(self.lasted_s, self.last_s)


def begin(
    limiter: Limiter,
    tried: int,
    *,
    before: int,
    now_s: float,
    is_proven: bool = False,
) -> Limiter:
    trial = Trial(
        before=before,
        tried=tried,
        limit=limiter.limit,
        began_s=now_s,
        had=limiter.window,
        is_proven=is_proven,
    )
    since_s = min(limiter.since_s, now_s)
    return msgspec.structs.replace(limiter, trial=trial, since_s=since_s, tries=limiter.tries + 1)


def is_sure(trial: Trial, gain: float | None) -> bool:
    """Whether the difference is more than noise."""
    if gain is None or trial.window is None or len(trial.window.slices) < LEAST_SLICES:
        return False
    noise = math.hypot(_finite(trial.had.noise), _finite(trial.window.noise))
    return abs(gain - 1.0) > SURE * noise


def is_decided(trial: Trial, gain: float | None) -> bool:
    if trial.window is not None and len(trial.window.slices) >= MOST_SLICES:
        return True
    return is_sure(trial, gain)


def _finite(noise: float) -> float:
    return noise if noise < math.inf else UNKNOWN_NOISE


def end(limiter: Limiter, gain: float | None, now_s: float) -> tuple[Limiter, TrialVerdict]:
    """What is known once the trial has come to its end.

    Args:
        gain: how many times as much got done as before. None: it cannot be told; then proof
            decides, and without proof it is undone.
    """
    trial = limiter.trial
    assert trial is not None
    if gain is None:
        pays = trial.is_proven and not trial.is_up
    else:
        pays = gain >= 1.0 and (trial.is_proven or is_sure(trial, gain))
    lasted_s = now_s - trial.began_s
    ended = {"more_s" if trial.is_up else "fewer_s": now_s}
    known = msgspec.structs.replace(limiter, trial=None, lasted_s=lasted_s, **ended)
    if pays:
        return _kept(known, trial, gain or 1.0), "kept"
    lost = UNKNOWN_LOSS if gain is None else max(LEAST_LOSS, 1.0 - gain)
    lost_s = lasted_s * lost
    known = msgspec.structs.replace(
        known,
        limit=trial.limit,
        failures=known.failures + 1,
        spent_s=known.spent_s + lost_s,
        last_s=lost_s,
    )
    if trial.is_up:
        too_many = _least(known.too_many, trial.tried)
        gained = known.gain if gain is None else 1.0 / max(gain, 1e-3)
        return msgspec.structs.replace(known, too_many=too_many, gain=gained), "undone"
    good = max(known.good, trial.before)
    too_few = known.too_few
    if gain is None or gain < 1.0:
        too_few = max(too_few, trial.tried)
    return msgspec.structs.replace(known, good=good, too_few=too_few), "undone"


def _kept(known: Limiter, trial: Trial, gain: float) -> Limiter:
    good, too_few, too_many = trial.tried, known.too_few, known.too_many
    if trial.is_up:
        too_few = max(too_few, trial.before)
        if too_many is not None and too_many <= trial.tried:
            too_many = None
        return msgspec.structs.replace(
            known, limit=trial.tried, good=good, too_few=too_few, too_many=too_many
        )
    return msgspec.structs.replace(
        known,
        limit=trial.tried,
        good=good,
        too_few=min(too_few, trial.tried - 1),
        too_many=_least(too_many, trial.before),
        gain=gain,
    )


def _least(one: int | None, other: int) -> int:
    return other if one is None else min(one, other)


def with_slice(window: Window, doing: Mapping[JobId, Doing]) -> Window:
    """The window with one more slice: what those did who contended in the whole of it."""
    if not doing:
        return window
    done = dict(window.done)
    for job_id, now in doing.items():
        done[job_id] = _sum((done.get(job_id, Doing()), now))
    whole = _sum(doing.values())
    moves = whole.moved_bytes >= BYTES_PER_CPU_S * whole.user_s
    total = whole.moved_bytes if moves else whole.user_s
    return Window(
        done=done,
        slices=(*window.slices, total)[-KEPT_SLICES:],
        many=(*window.many, len(doing))[-KEPT_SLICES:],
    )


def gain(before: Window, after: Window) -> float | None:
    """How many times as much all who contend get done as before.

    Each job that contended both times counts the same, whatever it moves: its speed over the better
    of the two. Those that did only one time are taken to do as the others.

    Returns:
        None where nothing can be compared: nothing was done before.
    """
    then = now = 0.0
    for job_id, slower in before.done.items():
        faster = after.done.get(job_id)
        if faster is None:
            continue
        old, new = _comparable(slower, faster)
        best = max(old, new)
        if best > 0.0:
            then += old / best
            now += new / best
    if then <= 0.0 and now <= 0.0:
        then, now = _comparable(_sum(before.done.values()), _sum(after.done.values()))
    if before.mean_many <= 0.0:
        return None
    return None if then <= 0.0 else now / then * after.mean_many / before.mean_many


def _comparable(before: Doing, after: Doing) -> tuple[float, float]:
    """What was done in a second, both in bytes; of a job that computes both in CPU time."""
    then_s, now_s = max(before.active_s, 1e-9), max(after.active_s, 1e-9)
    moved = before.moved_bytes + after.moved_bytes
    if moved >= BYTES_PER_CPU_S * (before.user_s + after.user_s):
        return before.moved_bytes / then_s, after.moved_bytes / now_s
    return before.user_s / then_s, after.user_s / now_s


def _sum(doing: Iterable[Doing]) -> Doing:
    those = tuple(doing)
    return Doing(
        moved_bytes=sum(each.moved_bytes for each in those),
        user_s=sum(each.user_s for each in those),
        active_s=sum(each.active_s for each in those),
    )


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


def _at_once(many: int) -> str:
    return f"{many} at a time"
