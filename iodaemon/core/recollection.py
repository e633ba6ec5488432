"""What is remembered of earlier runs: an Experience, bounded, that ages by the jobs' own times.

1. A run teaches all keys of its job (``core.signature``). A job is asked for by its own keys, and
   the most confident answer counts; among equals the more specific one.
2. Rates are averaged on the scale of their logarithm: runs differ by factors, and one run of
   100 times the others would be most of a plain mean. What is told is the geometric mean.
3. Confidence is n / (n + 1), for n runs that weigh what is left of them by now, over 1 + the
   standard deviation in doublings, times what the kind of key is worth.
4. What was learned here and what was imported answer each for itself. The more specific key goes
   first, of equal ones what was learned; but none that is less than half as sure as the other.
5. What is surer of nothing than of anything is not told.

Not everything teaches: see ``core.hindsight``.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

import msgspec

from iodaemon.core.fading import Fading
from iodaemon.core.hindsight import doublings, from_doublings, hindsight, told_bytes_per_s
from iodaemon.core.job import Job, JobState
from iodaemon.core.prediction import Prediction, Source
from iodaemon.core.signature import Key, Kind, find_key, keys_of
from iodaemon.core.trace import Trace

MOST_KEYS: Final = 20_000
"""Of each kind of knowledge, 1 kB each. Where there are more, the user who has most loses the one
that nothing was learned of for longest: nobody's runs push out what is known of another's."""
WORTH: Final[Mapping[Kind, float]] = MappingProxyType(
    {"name": 1.0, "command": 1.0, "like": 0.8, "program": 0.5}
)
"""Of what was seen of a key for a job that has it: the more general, the less it says."""
TRUSTED: Final = 0.7
"""Of a run elsewhere: it was another machine, and what is read from memory counts there."""
LEAST_CONFIDENCE: Final = 0.05
"""What is less sure is not told: it would be a number without a meaning."""
FAR_SURER: Final = 2.0
"""An answer so many times as sure goes before another, whatever they are known by."""
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


class Accuracy(msgspec.Struct):
    """How wrong all predictions of one source were: how many, and the sum of their doublings."""

    jobs: int = 0
    sum_doublings: float = 0.0

    @property
    def off(self) -> float:
        """By what factor they were wrong, typically (geometric mean); 1 or more."""
        return float(2.0 ** (self.sum_doublings / self.jobs)) if self.jobs else 1.0


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


def preferred(learned: Answer | None, imported: Answer | None) -> Answer | None:
    """The one that is told: see 4. above."""
    if learned is None or imported is None:
        return learned or imported
    first, other = (imported, learned) if imported.worth > learned.worth else (learned, imported)
    return other if other.confidence > FAR_SURER * first.confidence else first


class Recollection:
    """What earlier runs teach of later jobs. ``find`` and ``learn`` cost the same however much.

    Args:
        most: so many keys are remembered of each kind of knowledge.
    """

    def __init__(self, *, most: int = MOST_KEYS) -> None:
        self._learned = _Book("learned", 1.0, most)
        self._imported = _Book("imported", TRUSTED, most)
        self._forgotten: dict[Key, float] = {}
        self._most = most
        self.accuracy: dict[Source, Accuracy] = {}

    # -- for the outlook -----------------------------------------------------------------------

    def kinds(self, job: Job) -> tuple[Key, ...]:
        """By what the job is alike others."""
        return keys_of(job)

    def find(self, job: Job) -> Prediction | None:
        """What is to be expected of the job, at its submission; None: nothing like it has run."""
        keys, at_s = keys_of(job), job.submitted_s
        learned, imported = self._learned.find(keys, at_s), self._imported.find(keys, at_s)
        found = preferred(learned, imported)
        return None if found is None else found.prediction

    def learn(self, job: Job) -> tuple[Key, ...]:
        """The job has come to its end, whatever that was; the keys now seen in another light."""
        rate = told_bytes_per_s(job)
        if rate is None or job.ended_s is None:
            return ()
        at_s, operations = job.ended_s, job.io.operations
        run = _Run(
            rate=doublings(rate),
            at_s=at_s,
            run=math.log2(job.run_s) if job.state is JobState.COMPLETED else None,
            operations=_in_doublings(operations, job.run_s),
        )
        noticed = self._learned.learn(self._not_forgotten(keys_of(job), at_s), run)
        self._look_back(job)
        return noticed

    # -- for the daemon ------------------------------------------------------------------------

    def take(self, trace: Trace) -> tuple[Key, ...]:
        """Learn of a run elsewhere; the keys now seen in another light."""
        run = _Run(
            rate=doublings(trace.moved_bytes_per_s),
            at_s=trace.imported_s,
            run=math.log2(trace.run_s),
            operations=_in_doublings(trace.operations, trace.run_s),
            share=trace.io_share,
        )
        return self._imported.learn(self._not_forgotten(trace.keys, trace.imported_s), run)

    def forget(self, key: Key, at_s: float) -> bool:
        """Drop what runs until then taught of this key; False: nothing was known of it.

        That it was dropped is known for as many keys as knowledge of one kind may have.
        """
        at_s = max(at_s, self._forgotten.pop(key, -math.inf))
        self._forgotten[key] = at_s
        if len(self._forgotten) > self._most:
            del self._forgotten[next(iter(self._forgotten))]
        known = [book.drop(key) for book in (self._learned, self._imported)]
        return any(known)

    def knows(self, key: Key) -> bool:
        """Whether anything would be dropped with this key."""
        return self._learned.has(key) or self._imported.has(key)

    def is_forgotten(self, key: Key, at_s: float) -> bool:
        """Whether what a run that ended then taught of this key was dropped since."""
        return at_s <= self._forgotten.get(key, -math.inf)

    def remembered(
        self, now_s: float, chooses: Callable[[Key], bool] = lambda _: True
    ) -> Iterator[Remembered]:
        """What is known of the chosen keys: learned last comes first, then what was imported."""
        yield from self._learned.remembered(now_s, chooses)
        yield from self._imported.remembered(now_s, chooses)

    def _not_forgotten(self, keys: Sequence[Key], at_s: float) -> Sequence[Key]:
        if not self._forgotten:
            return keys
        return [key for key in keys if not self.is_forgotten(key, at_s)]

    def _look_back(self, job: Job) -> None:
        """How right it was what was expected of the job."""
        found = hindsight(job)
        if found is None or job.expected is None:
            return
        source, wrong = job.expected.source, abs(math.log2(found))
        accuracy = self.accuracy.setdefault(source, Accuracy())
        accuracy.jobs += 1
        accuracy.sum_doublings += wrong
        book = {"learned": self._learned, "imported": self._imported}.get(source)
        key = find_key(job.uid, job.expected.by)
        if book is not None and key is not None:
            book.note_error(key, wrong)


class _Run(msgspec.Struct, frozen=True, kw_only=True):
    """What one run tells, on the scales of ``Memory``; None: nothing of that."""

    rate: float
    at_s: float
    run: float | None
    operations: float | None
    share: float | None = None


class _Book:
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

    def learn(self, keys: Iterable[Key], run: _Run) -> tuple[Key, ...]:
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

    def remembered(self, now_s: float, chooses: Callable[[Key], bool]) -> Iterator[Remembered]:
        """Those chosen, what was learned of last first."""
        users = (reversed(memories.items()) for memories in self._users.values())
        for key, memory in heapq.merge(*users, key=lambda each: -each[1].rate.last_s):
            if not chooses(key):
                continue
            confidence = self._confidence(key, memory, memory.rate.weight_at(now_s))
            yield Remembered(
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
        )


def _mixed(mean: float | None, value: float | None, part: float) -> float | None:
    """The mean with one more value of this part of all weight; None: that is not known."""
    if value is None:
        return mean
    return value if mean is None else mean + (value - mean) * part


def _in_doublings(operations: int | None, run_s: float) -> float | None:
    return None if operations is None else math.log2(operations / run_s + 1.0)
