"""What is remembered of runs under keys: bounded, fading, and what it says of the next one."""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

import msgspec

from iodaemon.core.fading import Fading
from iodaemon.core.hindsight import from_doublings
from iodaemon.core.prediction import Prediction
from iodaemon.core.signature import Key, Kind

WORTH: Final[Mapping[Kind, float]] = MappingProxyType(
    {"name": 1.0, "command": 1.0, "like": 0.8, "program": 0.5}
)
"""Of what was seen of a key for a job that has it: the more general, the less it says."""
LEAST_CONFIDENCE: Final = 0.05
"""What is less sure is not told: it would be a number without a meaning."""
_NOTICED_DOUBLINGS: Final = 0.07
"""A mean that moved by less (5 %) since it was last told is the same."""
_NOTICED_CONFIDENCE: Final = 0.05


class Memory(msgspec.Struct, kw_only=True):
    """What is remembered under one key; means go by the weights of ``rate``, None: not known.

    Attributes:
        rate: bytes/s, on the scale of ``hindsight.doublings``.
        run: run time, log2 of s.
        operations: requests/s, log2 of one more.
        share: part of the run time in I/O.
        errors: how many ended jobs this key had foretold the I/O of.
        error: how wrong it was, log2 of the ratio without its sign, as their mean.
        told_mean: of the rate, when it was last worth telling.
        told_confidence: likewise.
    """

    rate: Fading
    run: float | None = None
    operations: float | None = None
    share: float | None = None
    errors: int = 0
    error: float = 0.0
    told_mean: float = math.nan
    told_confidence: float = 0.0


class Remembered(msgspec.Struct, frozen=True, kw_only=True):
    """One key, for people.

    Attributes:
        expected: of a job that has it and is submitted now.
        last_s: when the newest run ended, or its record was imported.
        run_s: how long its runs took, as a geometric mean. None: not known.
        predictions: how many ended jobs were foretold by it.
        off: by what factor these were wrong, typically, 1 or more. None: there are none.
    """

    key: Key
    expected: Prediction
    last_s: float
    run_s: float | None
    predictions: int
    off: float | None


class Entry(NamedTuple):
    """That something is remembered under a key, and from where."""

    source: Literal["learned", "imported"]
    key: Key


class Answer(NamedTuple):
    """What is expected of a job, and by which key."""

    key: Key
    prediction: Prediction

    @property
    def worth(self) -> float:
        """How specific the key is; a name and a command are so alike."""
        return WORTH[self.key.kind]

    @property
    def confidence(self) -> float:
        """0 to 1."""
        return self.prediction.confidence


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What one run tells, on the scales of ``Memory``; None: nothing of that."""

    rate: float
    at_s: float
    run: float | None
    operations: float | None
    share: float | None = None


class Book:
    """Memories by user and key; a user's that something was learned of last are at the end.

    Args:
        source: of its predictions.
        trust: how much is made of it.
        most: so many keys at most.
    """

    def __init__(self, source: Literal["learned", "imported"], trust: float, most: int) -> None:
        self._source: Literal["learned", "imported"] = source
        self._trust = trust
        self._most = most
        self._count = 0
        self._users: dict[int, OrderedDict[Key, Memory]] = {}

    def find(self, keys: Iterable[Key], at_s: float) -> Answer | None:
        """The most confident answer under one of the keys, in whatever order they are asked."""
        best, found = LEAST_CONFIDENCE, None
        for key in keys:
            memory = self._get(key)
            if memory is None or self._trust * WORTH[key.kind] <= best:
                continue
            confidence = self._confidence(key, memory, memory.rate.weight_at(at_s))
            if confidence > best:
                best, found = confidence, (key, memory)
        return None if found is None else Answer(found[0], self._prediction(best, *found))

    def learn(self, keys: Iterable[Key], run: Run) -> tuple[Key, ...]:
        """Count the run under each key; those of which now something else would be told."""
        noticed = []
        for key in keys:
            memory = self._memory(key, run.at_s)
            if memory is None:
                continue
            part = memory.rate.add(run.rate, run.at_s)
            memory.run = _mixed(memory.run, run.run, part)
            memory.operations = _mixed(memory.operations, run.operations, part)
            memory.share = _mixed(memory.share, run.share, part)
            if self._is_noticed(key, memory):
                noticed.append(key)
        return tuple(noticed)

    def has(self, key: Key) -> bool:
        """Whether anything is remembered under it."""
        return self._get(key) is not None

    def drop(self, key: Key) -> bool:
        """False: it was not there."""
        if not self.has(key):
            return False
        del self._users[key.uid][key]
        self._count -= 1
        return True

    def note_error(self, key: Key, wrong: float) -> None:
        """What the key foretold was wrong by so many doublings."""
        if (memory := self._get(key)) is not None:
            memory.errors += 1
            memory.error += (wrong - memory.error) / memory.errors

    def entries(self) -> list[Entry]:
        """All keys, what was learned of last first."""
        users = (reversed(memories.items()) for memories in self._users.values())
        newest_first = heapq.merge(*users, key=lambda each: -each[1].rate.last_s)
        return [Entry(self._source, key) for key, _ in newest_first]

    def look_up(self, key: Key, now_s: float) -> Remembered | None:
        """What is known of the key by now; None: nothing."""
        memory = self._get(key)
        if memory is None:
            return None
        confidence = self._confidence(key, memory, memory.rate.weight_at(now_s))
        return Remembered(
            key=key,
            expected=self._prediction(confidence, key, memory),
            last_s=memory.rate.last_s,
            run_s=None if memory.run is None else float(2.0**memory.run),
            predictions=memory.errors,
            off=float(2.0**memory.error) if memory.errors else None,
        )

    def _memory(self, key: Key, at_s: float) -> Memory | None:
        """What the run adds to; None: there is no room for one so old.

        A run that is older than what is known (a journal is read backwards) comes to the front.
        """
        own = self._users.setdefault(key.uid, OrderedDict())
        memory = own.get(key)
        if memory is not None:
            if at_s >= memory.rate.last_s:
                own.move_to_end(key)
            return memory
        oldest_s = next((m.rate.last_s for m in own.values()), at_s)
        if self._count >= self._most:
            largest = max(self._users.values(), key=len)
            if len(own) >= len(largest):
                if at_s < oldest_s:
                    return None
                largest = own
            largest.popitem(last=False)
            self._count -= 1
        memory = own[key] = Memory(rate=Fading())
        self._count += 1
        if at_s < oldest_s:
            own.move_to_end(key, last=False)
        return memory

    def _get(self, key: Key) -> Memory | None:
        memories = self._users.get(key.uid)
        return None if memories is None else memories.get(key)

    def _confidence(self, key: Key, memory: Memory, runs: float) -> float:
        worth = self._trust * WORTH[key.kind]
        return worth * runs / ((runs + 1.0) * (1.0 + memory.rate.spread))

    def _is_noticed(self, key: Key, memory: Memory) -> bool:
        """True when it is worth telling anew, and then it counts as told."""
        mean, confidence = memory.rate.mean, self._confidence(key, memory, memory.rate.weight)
        is_same = (
            abs(mean - memory.told_mean) < _NOTICED_DOUBLINGS
            and abs(confidence - memory.told_confidence) < _NOTICED_CONFIDENCE
        )
        if not is_same:
            memory.told_mean, memory.told_confidence = mean, confidence
        return not is_same

    def _prediction(self, confidence: float, key: Key, memory: Memory) -> Prediction:
        operations = memory.operations
        return Prediction(
            rate_bytes_per_s=from_doublings(memory.rate.mean),
            confidence=confidence,
            source=self._source,
            io_share=memory.share,
            operations_per_s=None if operations is None else float(2.0**operations) - 1.0,
            by=key.shown,
            runs=memory.rate.count,
            run_s=None if memory.run is None else float(2.0**memory.run),
        )


def _mixed(mean: float | None, value: float | None, part: float) -> float | None:
    """The mean with one more value of this part of all weight; None: that is not known."""
    if value is None:
        return mean
    return value if mean is None else mean + (value - mean) * part
