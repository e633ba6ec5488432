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

Source: the search for a concurrency limit by trial is that of Heiss and Wagner, "Adaptive load
control in transaction processing systems", VLDB 1991, and Schroeder et al., "How to determine a
good multi-programming level for external scheduling", ICDE 2006; that the newest pays, and when to
judge: measured (docs/regulation.md).
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from iodaemon.core.decision import TrialVerdict
from iodaemon.policy.regulation.adaptive.progress import Window

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
        """More are tried."""
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
    """Try another number from now on."""
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
    """Whether the trial has been looked at for long enough."""
    if trial.window is not None and len(trial.window.slices) >= MOST_SLICES:
        return True
    return is_sure(trial, gain)


def _finite(noise: float) -> float:
    return noise if noise < math.inf else UNKNOWN_NOISE


def end(limiter: Limiter, gain: float | None, now_s: float) -> tuple[Limiter, TrialVerdict]:
    """What is known once the trial has come to its end.

    Args:
        limiter: with a trial.
        gain: how many times as much got done as before. None: it cannot be told; then proof
            decides, and without proof it is undone.
        now_s: the end.
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
