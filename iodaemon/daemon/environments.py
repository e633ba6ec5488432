"""The environments of waiting and live jobs, and how much memory the jobs of each user take.

Memory is everybody's, so it is shared as the buffer of a network switch is (dynamic thresholds;
Choudhury and Hahne, IEEE/ACM Transactions on Networking 6(2), 1998): a user may take as much as
would be left. A single user gets half of it, two get a third each, and what others took never keeps
a user out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Final, NamedTuple, Self

from iodaemon.core.job import Job, JobId, environment_bytes, job_bytes
from iodaemon.errors import RequestError
from iodaemon.units import format_bytes

Environment = Mapping[str, str]
KEPT_IN_ALL_BYTES: Final = 2**30
"""For waiting and live jobs of all users, and submissions that are being decoded: half of it is one
and a half times the largest submission of 100,000 usual jobs (3.4 KB each)."""


class _Kept(NamedTuple):
    """What one job has kept in memory."""

    uid: int
    key: str
    size_bytes: int


class Environments:
    """Environments by id, each for as long as a job that has not ended uses it.

    Invariant: what is not on the disk yet is in ``unwritten``, whoever uses it.

    Args:
        known: from the journal.
        jobs: all in memory.
    """

    def __init__(self, known: Mapping[str, Environment], jobs: Iterable[Job]) -> None:
        self._known = dict(known)
        self._kept: dict[JobId, _Kept] = {}
        self._users: dict[str, dict[int, int]] = {}
        self._bytes: dict[int, int] = {}
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
            kept = _Kept(job.uid, job.spec.environment_id, job_bytes(job.spec))
            self._kept[job.id] = kept
            users = self._users.setdefault(kept.key, {})
            users[kept.uid] = users.get(kept.uid, 0) + 1
            shared = 0 if users[kept.uid] > 1 else environment_bytes(self.get(kept.key))
            self.count(kept.uid, kept.size_bytes + shared)

    def forget(self, job_id: JobId) -> None:
        """The job has ended, or never was."""
        kept = self._kept.pop(job_id, None)
        if kept is None:
            return
        users = self._users[kept.key]
        users[kept.uid] -= 1
        shared = 0 if users[kept.uid] else environment_bytes(self.get(kept.key))
        self.count(kept.uid, -kept.size_bytes - shared)
        if not users[kept.uid]:
            del users[kept.uid]
        if not users:
            del self._users[kept.key]
            self._known.pop(kept.key, None)

    def kept_bytes(self, uid: int) -> int:
        """What waiting and live jobs of this user take, with what is claimed for more."""
        return self._bytes.get(uid, 0)

    def claim(self, uid: int) -> Claim:
        """Room for what a user submits, until it is counted as jobs."""
        return Claim(self, uid)

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

    def count(self, uid: int, by: int) -> None:
        """This user takes so much more, or less."""
        self._bytes[uid] = self._bytes.get(uid, 0) + by
        if not self._bytes[uid]:
            del self._bytes[uid]


class Claim:
    """Memory that a request takes before its jobs are there; a context manager.

    Args:
        kept: where it is counted.
        uid: whose request it is.
    """

    def __init__(self, kept: Environments, uid: int) -> None:
        self._kept = kept
        self._uid = uid
        self._size_bytes = 0

    def take(self, size_bytes: int) -> None:
        """So much more.

        Raises:
            RequestError: the user has as much as one may have.
        """
        self._kept.refuse_above(self._uid, size_bytes)
        self._kept.count(self._uid, size_bytes)
        self._size_bytes += size_bytes

    def release(self) -> None:
        """Nothing is claimed any more: it is counted as jobs from now on, or refused."""
        self._kept.count(self._uid, -self._size_bytes)
        self._size_bytes = 0

    def __enter__(self) -> Self:
        """The claim."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give back what is claimed still."""
        self.release()
