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

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from iodaemon.core.book import Answer, Book, Entry, Remembered, Run
from iodaemon.core.hindsight import doublings, hindsight, told_bytes_per_s
from iodaemon.core.job import Job, JobState
from iodaemon.core.prediction import Prediction, Source
from iodaemon.core.signature import Key, find_key, keys_of
from iodaemon.core.trace import Trace

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
    """What earlier runs teach of later jobs. ``find`` and ``learn`` cost the same however much.

    Args:
        most: so many keys are remembered of each kind of knowledge.
    """

    def __init__(self, *, most: int = MOST_KEYS) -> None:
        self._learned = Book("learned", 1.0, most)
        self._imported = Book("imported", TRUSTED, most)
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

    def remembered(
        self, now_s: float, chooses: Callable[[Key], bool] = lambda _: True
    ) -> Iterator[Remembered]:
        """What is known of the chosen keys: learned last comes first, then what was imported."""
        for entry in self.entries():
            if chooses(entry.key) and (found := self.look_up(entry, now_s)) is not None:
                yield found

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
