"""What was learned of kinds of jobs: how many should contend at once, and what memory one needs.

1. At most ``MOST_LESSONS`` kinds. Where there are more, the user who has most loses the one that
   was learned of least recently: no user's jobs push out what is known of another's.
2. A regulation's lesson replaces the last one of the kind; what memory its jobs need is measured,
   and stays. What is measured leaves the regulation's lesson as it is.
3. A run that needed more memory than is known counts at once. One that completed with less takes
   what is known ``FADES`` of the way down to what it needed; one that ended otherwise may not have
   come to its most, and says nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice
from typing import Final

import msgspec

from iodaemon.core.decision import Lesson
from iodaemon.core.job import JobKind

MOST_LESSONS: Final = 10_000
"""Kinds of which something is known, 1 kB each."""
MOST_GAIN: Final = 1e6
"""A larger one is kept as this: where nothing got done at all, any factor is as true."""
FADES: Final = 0.25
"""After eight runs with less, a tenth of the difference is left."""


Changes = dict[JobKind, Lesson | None]
"""What is known now of kinds of which it was something else before; None: nothing any more."""


class Lessons:
    """By kind; a user's that were learned of last are at the end."""

    def __init__(self, most: int = MOST_LESSONS) -> None:
        self._most = most
        self._count = 0
        self._users: dict[int, OrderedDict[JobKind, Lesson]] = {}

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[JobKind]:
        return (kind for own in self._users.values() for kind in own)

    def __getitem__(self, kind: JobKind) -> Lesson:
        return self._users[uid_of(kind)][kind]

    def get(self, kind: JobKind) -> Lesson | None:
        own = self._users.get(uid_of(kind))
        return None if own is None else own.get(kind)

    def items(self) -> Iterator[tuple[JobKind, Lesson]]:
        """All kinds with what is known of them, of each user the one learned of last at the end."""
        return (each for own in self._users.values() for each in own.items())

    def recent(self, most: int) -> Iterator[tuple[JobKind, Lesson]]:
        """Of each user so many kinds, those that were learned of last."""
        for own in self._users.values():
            yield from islice(reversed(own.items()), most)

    def learn(self, kind: JobKind, lesson: Lesson) -> Changes:
        """Take in what a regulation learned."""
        known, gain = self.get(kind), min(lesson.gain, MOST_GAIN)
        footprint = None if known is None else known.footprint_bytes
        lesson = msgspec.structs.replace(lesson, gain=gain, footprint_bytes=footprint)
        return self.put(kind, lesson)

    def note_peak(self, kind: JobKind, peak_bytes: int, *, is_whole: bool) -> Changes:
        """A run of the kind had so much in memory at its most; ``is_whole``: it completed."""
        known = self.get(kind) or Lesson()
        footprint = _footprint(known.footprint_bytes, peak_bytes, is_whole=is_whole)
        if footprint == known.footprint_bytes:
            return {}
        return self.put(kind, msgspec.structs.replace(known, footprint_bytes=footprint))

    def put(self, kind: JobKind, lesson: Lesson) -> Changes:
        """Remember it as it is, learned of last; another kind may have to go for it."""
        own = self._users.setdefault(uid_of(kind), OrderedDict())
        changes: Changes = {kind: lesson}
        if kind in own:
            own.move_to_end(kind)
        else:
            if self._count >= self._most:
                changes[self._make_room(own)] = None
            self._count += 1
        own[kind] = lesson
        return changes

    def drop(self, kind: JobKind) -> bool:
        """Forget the kind; False: nothing was known of it."""
        own = self._users.get(uid_of(kind))
        if own is None or kind not in own:
            return False
        del own[kind]
        self._count -= 1
        if not own:
            del self._users[uid_of(kind)]
        return True

    def _make_room(self, own: OrderedDict[JobKind, Lesson]) -> JobKind:
        largest = max(self._users.values(), key=len)
        loser = own if len(own) >= len(largest) else largest
        kind, _ = loser.popitem(last=False)
        self._count -= 1
        return kind


def uid_of(kind: JobKind) -> int:
    """Whose jobs they are; see ``similarity.kind_of``."""
    return int(kind.partition(" ")[0])


def is_kind(word: object) -> bool:
    """False for what cannot be the kind of any job."""
    if not isinstance(word, str):
        return False
    uid, space, key = word.partition(" ")
    return uid.isascii() and uid.isdigit() and bool(space and key)


def says_of_limit(lesson: Lesson) -> bool:
    """False where nothing was ever learned of the kind but what memory it needs."""
    found = lesson.limit is not None or lesson.too_many is not None
    return found or lesson.tries > 0 or lesson.seen > 0


def _footprint(known_bytes: int | None, peak_bytes: int, *, is_whole: bool) -> int:
    """The larger one, but that it fades."""
    if known_bytes is None or peak_bytes >= known_bytes:
        return peak_bytes
    return known_bytes - round(FADES * (known_bytes - peak_bytes)) if is_whole else known_bytes
