"""What jobs are expected to move: as measured, as they say, as earlier runs like them did.

What earlier runs teach is a ``Recollection``, bounded, that ages by the jobs' own times.

1. A run teaches all keys of its job (``core.similarity``). A job is asked for by its own keys, and
   the most confident answer counts; among equals the more specific one.
2. Rates are averaged on the scale of their logarithm: runs differ by factors, and one run of
   100 times the others would be most of a plain mean. What is told is the geometric mean.
3. Confidence is n / (n + 1), for n runs that weigh what is left of them by now, over 1 + the
   standard deviation in doublings, times what the kind of key is worth.
4. What was learned here and what was imported answer each for itself. The more specific key goes
   first, of equal ones what was learned; but none that is less than half as sure as the other.
5. What is surer of nothing than of anything is not told.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

import msgspec

from iodaemon.core.job import UNKNOWN, Job, JobId, JobState, Prediction, Source
from iodaemon.core.meter import Meter
from iodaemon.core.similarity import Key, Kind, find_key, keys_elsewhere, keys_of

HALF_LIFE_S: Final = 30 * 86400.0
"""After so long a run counts half: programs, their data and the machine change in months."""
KEPT: Final = 0.9
"""What a run still counts once another one has followed: the last ten are most of the mean."""


class Fading(msgspec.Struct):
    """A weighted mean and its spread (West 1979), one number a run in whatever order.

    A run weighs ``KEPT`` to the number of runs after it, times a half for each half-life. So it
    makes no difference whether runs come in the order of their ends or, read backwards from a
    journal, in the opposite one.

    Attributes:
        weight: of all runs together, as of ``last_s``.
        mean: weighted.
        last_s: the end of the newest run.
        count: how many runs.
    """

    weight: float = 0.0
    mean: float = 0.0
    last_s: float = -math.inf
    count: int = 0
    _squares: float = 0.0

    def add(self, value: float, at_s: float) -> float:
        """Count one more run, which ended then; returns its part of all weight."""
        fade, weight = self._shares(at_s)
        self.weight *= fade
        self._squares *= fade
        self.last_s = max(self.last_s, at_s)
        self.count += 1
        total = self.weight + weight
        if total <= 0.0:  # it is so old that nothing is left of it
            return 0.0
        part = weight / total
        step = value - self.mean
        self.mean += step * part
        self._squares += weight * step * (value - self.mean)
        self.weight = total
        return part

    def _shares(self, at_s: float) -> tuple[float, float]:
        """What earlier runs would still count, and what one more would, had it ended then."""
        if at_s >= self.last_s:
            return KEPT * 0.5 ** ((at_s - self.last_s) / HALF_LIFE_S), 1.0
        return 1.0, KEPT**self.count * 0.5 ** ((self.last_s - at_s) / HALF_LIFE_S)

    def weight_at(self, now_s: float) -> float:
        """How many runs of this moment all of them are worth then."""
        if now_s <= self.last_s:
            return self.weight
        return float(self.weight * 0.5 ** ((now_s - self.last_s) / HALF_LIFE_S))

    @property
    def spread(self) -> float:
        return math.sqrt(max(0.0, self._squares) / self.weight) if self.weight > 0.0 else 0.0


FLOOR_BYTES_PER_S: Final = 1000.0
"""Rates far below this are all alike to any storage: added to both sides of a ratio, so that
nothing against nothing is 1, and nothing against 1 kB/s is no infinity."""
LEAST_RUN_S: Final = 0.1
"""Of a shorter run the start of its program is the most that there is."""
TELLING: Final = frozenset({JobState.COMPLETED, JobState.TIMEOUT})
"""Ends of runs that did what they were to do. One that failed or was cancelled may have ended
before its I/O; one that came to its walltime moved what it moves, for as long as it was let."""


def moved_bytes_per_s(job: Job) -> float | None:
    """What an ended job moved as a mean over the time it ran.

    None: not known, not all of it is, or it hardly ran.
    """
    total_bytes = job.io.total_bytes
    if total_bytes is None or job.io.at_least or job.run_s < LEAST_RUN_S:
        return None
    return max(0, total_bytes) / job.run_s


def told_bytes_per_s(job: Job) -> float | None:
    """The same of a job whose end says what such jobs do; None: it says nothing."""
    return moved_bytes_per_s(job) if job.state in TELLING else None


def ratio(expected: Prediction, moved_rate: float) -> float:
    """The expected rate over the true one, bytes/s; 1: just so, 2: expected twice as much."""
    return (expected.rate_bytes_per_s + FLOOR_BYTES_PER_S) / (moved_rate + FLOOR_BYTES_PER_S)


def hindsight(job: Job) -> float | None:
    """How right the expectation of an ended job was, as ``ratio``; None: that cannot be said."""
    moved_rate = told_bytes_per_s(job)
    if moved_rate is None or job.expected is None or not job.expected.is_known:
        return None
    return ratio(job.expected, moved_rate)


def doublings(rate: float) -> float:
    """A rate in bytes/s on the scale on which rates are averaged: log2 above the floor."""
    return math.log2(rate + FLOOR_BYTES_PER_S)


def from_doublings(value: float) -> float:
    """The rate again, bytes/s, at least 0."""
    return max(0.0, float(2.0**value) - FLOOR_BYTES_PER_S)


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
        rate: bytes/s, on the scale of ``doublings``.
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
        trust: how much is made of it.
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


class Trace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one run moved.

    Attributes:
        uid: whose jobs it speaks of.
        command: program and words; empty where the log names none.
        name: of the jobs it speaks of, where somebody said so.
        log: tells it from all others.
        ended_s: when it ended, seconds since 1970.
        imported_s: when it was imported; it ages from then on.
        run_s: how long it ran, above 0.
        processes: how many it had, at least 1.
        read_bytes: by all of them.
        written_bytes: likewise.
        io_s: time in reading, writing and opening, as a mean over the processes.
        operations: read and write requests of all of them. None: not known.
    """

    uid: int
    command: tuple[str, ...]
    log: str
    ended_s: float
    imported_s: float
    run_s: float
    processes: int
    read_bytes: int
    written_bytes: int
    io_s: float
    operations: int | None = None
    name: str = ""

    @property
    def keys(self) -> tuple[Key, ...]:
        """By what jobs are like it."""
        return keys_elsewhere(self.uid, self.name, self.command)

    @property
    def moved_bytes_per_s(self) -> float:
        return (self.read_bytes + self.written_bytes) / self.run_s

    @property
    def io_share(self) -> float:
        """The part of its run time in which a process of it did I/O, as a mean; 0 to 1."""
        return min(1.0, self.io_s / self.run_s)


MOST_KEYS: Final = 20_000
"""Of each kind of knowledge, 1 kB each. Where there are more, the user who has most loses the one
that nothing was learned of for longest: nobody's runs push out what is known of another's."""
TRUSTED: Final = 0.7
"""Of a run elsewhere: it was another machine, and what is read from memory counts there."""
FAR_SURER: Final = 2.0
"""An answer so many times as sure goes before another, whatever they are known by."""


class Accuracy(msgspec.Struct):
    """How wrong all predictions of one source were: how many, and the sum of their doublings."""

    jobs: int = 0
    sum_doublings: float = 0.0

    @property
    def off(self) -> float:
        """By what factor they were wrong, typically (geometric mean); 1 or more."""
        return float(2.0 ** (self.sum_doublings / self.jobs)) if self.jobs else 1.0


def preferred(learned: Answer | None, imported: Answer | None) -> Answer | None:
    """The one that is told: see 4. above."""
    if learned is None or imported is None:
        return learned or imported
    first, other = (imported, learned) if imported.worth > learned.worth else (learned, imported)
    return other if other.confidence > FAR_SURER * first.confidence else first


class Recollection:
    """What earlier runs teach of later jobs. ``find`` and ``learn`` cost the same however much."""

    def __init__(self, *, most: int = MOST_KEYS) -> None:
        self._learned = Book("learned", 1.0, most)
        self._imported = Book("imported", TRUSTED, most)
        self._forgotten: dict[Key, float] = {}
        self._most = most
        self.accuracy: dict[Source, Accuracy] = {}

    # -- for the outlook -----------------------------------------------------------------------

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
        run = Run(
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
        run = Run(
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

    def entries(self) -> list[Entry]:
        """All that is remembered now: learned last comes first, then what was imported."""
        return [*self._learned.entries(), *self._imported.entries()]

    def look_up(self, entry: Entry, now_s: float) -> Remembered | None:
        """What is known by now of something that was remembered; None: nothing any more."""
        book = self._learned if entry.source == "learned" else self._imported
        return book.look_up(entry.key, now_s)

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


def _in_doublings(operations: int | None, run_s: float) -> float | None:
    return None if operations is None else math.log2(operations / run_s + 1.0)


def _with_run(declared: Prediction, found: Prediction | None) -> Prediction:
    """What was declared of the I/O, with how long earlier runs took."""
    if found is None or found.run_s is None:
        return declared
    return msgspec.structs.replace(declared, run_s=found.run_s)


class Outlook:
    """Answers for jobs that wait or run. A hint is kept until something was learned of its kind.

    Attributes:
        lessons: counts up with everything that is learned.
    """

    def __init__(self, meter: Meter, experience: Recollection | None = None) -> None:
        self._meter = meter
        self._experience = experience
        self._hints: dict[JobId, Prediction | None] = {}
        self.lessons = 0
        self._kinds: dict[JobId, Collection[Key]] = {}
        self._jobs_of: dict[Key, set[JobId]] = {}

    def predicted(self, job: Job) -> Prediction:
        """What it moves now, if it runs: as in the last slice that shows it, else as hinted."""
        measured = self._meter.active(job.id)
        if measured is not None:
            return Prediction(
                rate_bytes_per_s=measured.total_bytes_per_s, confidence=1.0, source="measured"
            )
        return self.hint(job) or UNKNOWN

    def expected(self, job: Job) -> Prediction:
        """The mean over its whole run: as hinted, else what it was until now, else unknown."""
        return self.hint(job) or self._mean_until_now(job) or UNKNOWN

    def hint(self, job: Job) -> Prediction | None:
        """What is known without looking at the job itself: declared, else by experience."""
        if job.id not in self._hints:
            known = job.spec.declared
            if self._experience is not None and (known is None or job.spec.walltime_s is None):
                found = self._experience.find(job)
                self._follow(job, keys_of(job))
                known = found if known is None else _with_run(known, found)
            self._hints[job.id] = known
        return self._hints[job.id]

    def learn(self, job: Job) -> None:
        """The job has come to its end; those like it are seen in its light from now on."""
        if self._experience is not None:
            self.renew(self._experience.learn(job))

    def renew(self, kinds: Collection[Key]) -> None:
        """Look again, when asked next, at what is known of jobs of these kinds."""
        for kind in kinds:
            for job_id in tuple(self._jobs_of.get(kind, ())):
                self.forget(job_id)
                self.lessons += 1

    def forget(self, job_id: JobId) -> None:
        """Drop what is kept of a job, for example because it ended."""
        self._hints.pop(job_id, None)
        for kind in self._kinds.pop(job_id, ()):
            jobs = self._jobs_of[kind]
            jobs.discard(job_id)
            if not jobs:
                del self._jobs_of[kind]

    def _follow(self, job: Job, kinds: Collection[Key]) -> None:
        self._kinds[job.id] = kinds
        for kind in kinds:
            self._jobs_of.setdefault(kind, set()).add(job.id)

    def _mean_until_now(self, job: Job) -> Prediction | None:
        """From its counters at the last sample."""
        counters, last = self._meter.counters(job.id), self._meter.last
        if counters is None or last is None or not job.is_live:
            return None
        run_s, moved_bytes = job.run_s_at(last.at_s), counters.moved_bytes
        if run_s <= 0.0 or moved_bytes is None:
            return None
        operations = None if counters.operations is None else counters.operations / run_s
        return Prediction(
            rate_bytes_per_s=moved_bytes / run_s,
            confidence=0.5,
            source="measured",
            operations_per_s=operations,
        )
