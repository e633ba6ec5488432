"""The environments of waiting and live jobs, and how much each user has kept in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from iodaemon.core.job import Job, JobId

Environment = Mapping[str, str]


class _Kept(NamedTuple):
    """What one job has kept in memory."""

    uid: int
    key: str
    command_bytes: int


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
            kept = _Kept(job.uid, job.spec.environment_id, sum(map(len, job.spec.command)))
            self._kept[job.id] = kept
            users = self._users.setdefault(kept.key, {})
            users[kept.uid] = users.get(kept.uid, 0) + 1
            shared = 0 if users[kept.uid] > 1 else environment_bytes(self.get(kept.key))
            self._count(kept.uid, kept.command_bytes + shared)

    def forget(self, job_id: JobId) -> None:
        """The job has ended, or never was."""
        kept = self._kept.pop(job_id, None)
        if kept is None:
            return
        users = self._users[kept.key]
        users[kept.uid] -= 1
        shared = 0 if users[kept.uid] else environment_bytes(self.get(kept.key))
        self._count(kept.uid, -kept.command_bytes - shared)
        if not users[kept.uid]:
            del users[kept.uid]
        if not users:
            del self._users[kept.key]
            self._known.pop(kept.key, None)

    def kept_bytes(self, uid: int) -> int:
        """What commands and environments of this user's waiting and live jobs come to."""
        return self._bytes.get(uid, 0)

    def _count(self, uid: int, by: int) -> None:
        self._bytes[uid] = self._bytes.get(uid, 0) + by
        if not self._bytes[uid]:
            del self._bytes[uid]


def environment_bytes(environment: Environment) -> int:
    """What it comes to, in characters."""
    return sum(map(len, environment)) + sum(map(len, environment.values()))
