"""The environments of waiting and live jobs, and how much memory the jobs of each user take.

Memory is everybody's, so it is shared as the buffer of a network switch is (dynamic thresholds;
Choudhury and Hahne, IEEE/ACM Transactions on Networking 6(2), 1998): a user may take as much as
would be left. A single user gets half of it, two get a third each, and what others took never keeps
a user out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from iodaemon.core.job import Job, JobId, environment_bytes, job_bytes
from iodaemon.errors import RequestError
from iodaemon.units import format_bytes

Environment = Mapping[str, str]
KEPT_IN_ALL_BYTES: Final = 2**30
"""For waiting and live jobs of all users, and submissions that are being decoded: half of it is one
and a half times the largest submission of 100,000 usual jobs (3.4 KB each)."""


class Environments:
    """Environments by id, each for as long as a job that has not ended uses it.

    An environment is counted once for each user whose jobs use it.

    Attributes:
        unwritten: what is not on the disk yet, whoever uses it.
    """

    def __init__(self, known: Mapping[str, Environment], jobs: Iterable[Job]) -> None:
        self._known = dict(known)
        self._kept: dict[JobId, tuple[int, str, int]] = {}
        self._users: dict[str, defaultdict[int, int]] = {}
        self._bytes: defaultdict[int, int] = defaultdict(int)
        self.unwritten: dict[str, Environment] = {}
        for job in jobs:
            self.follow(job)

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: str) -> Environment:
        """The environment with this id; empty where none is known."""
        return self._known.get(key, {})

    def recall(self, key: str, environment: Environment) -> None:
        """Know again what the journal holds; a job is about to use it."""
        self._known.setdefault(key, environment)

    def bring(self, key: str, environment: Environment) -> None:
        """A new one, unless it is known; jobs that are about to be there use it."""
        if key not in self._known:
            self._known[key] = self.unwritten[key] = dict(environment)

    def written(self, keys: Iterable[str]) -> None:
        """These are on the disk."""
        for key in keys:
            self.unwritten.pop(key, None)

    def follow(self, job: Job) -> None:
        """The job's newest record: it uses its environment until it has ended."""
        if job.state.is_final:
            self.forget(job.id)
        elif job.id not in self._kept:
            key, size_bytes = job.spec.environment_id, job_bytes(job.spec)
            self._kept[job.id] = (job.uid, key, size_bytes)
            users = self._users.setdefault(key, defaultdict(int))
            users[job.uid] += 1
            shared = 0 if users[job.uid] > 1 else environment_bytes(self.get(key))
            self._count(job.uid, size_bytes + shared)

    def forget(self, job_id: JobId) -> None:
        """The job has ended, or never was."""
        if job_id not in self._kept:
            return
        uid, key, size_bytes = self._kept.pop(job_id)
        users = self._users[key]
        users[uid] -= 1
        if not users[uid]:
            del users[uid]
            size_bytes += environment_bytes(self.get(key))
        self._count(uid, -size_bytes)
        if not users:
            del self._users[key]
            self._known.pop(key, None)

    def kept_bytes(self, uid: int) -> int:
        """What waiting and live jobs of this user take, with what is claimed for more."""
        return self._bytes.get(uid, 0)

    @contextmanager
    def claim(self, uid: int) -> Iterator[Callable[[int], None]]:
        """Room for what a user submits, until it is counted as jobs.

        Gives a function that takes so many bytes more, and raises RequestError where the user has
        as much as one may have.
        """
        taken_bytes = 0

        def take(size_bytes: int) -> None:
            nonlocal taken_bytes
            self.refuse_above(uid, size_bytes)
            self._count(uid, size_bytes)
            taken_bytes += size_bytes

        try:
            yield take
        finally:
            self._count(uid, -taken_bytes)

    def refuse_above(self, uid: int, size_bytes: int) -> None:
        """Refuse what would leave others less memory than this user has then.

        Raises:
            RequestError: says how much the user has.
        """
        own, left = self.kept_bytes(uid), KEPT_IN_ALL_BYTES - sum(self._bytes.values())
        if own + size_bytes > left - size_bytes:
            raise RequestError(
                f"jobs of uid {uid} take {format_bytes(own)} of the daemon's memory; with "
                f"{format_bytes(size_bytes)} more it would be above the "
                f"{format_bytes(max(0, (own + left) // 2))} that one user may have now; "
                "submit them when some have ended"
            )

    def _count(self, uid: int, by_bytes: int) -> None:
        self._bytes[uid] += by_bytes
        if not self._bytes[uid]:
            del self._bytes[uid]
