"""What carries decisions out. Backends speak only in events."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from iodaemon.core.decision import Decision, Start
from iodaemon.core.job import Job, JobId
from iodaemon.core.platform import Platform


class Backend(Protocol):
    """A real server, a simulated one, or a cluster.

    Pids, cgroups and sockets belong to the backend, keyed by job id. Everything it has to say
    it posts as an event through the function it was made with.
    """

    @property
    def platform(self) -> Platform:
        """What can be handed out."""
        ...

    @property
    def offers(self) -> frozenset[type]:
        """The kinds of decisions it can carry out."""
        ...

    def perform(self, decision: Decision) -> None:
        """Begin to carry the decision out; returns at once, an event answers."""
        ...

    def prepare(self, starts: Iterable[Start]) -> None:
        """Do beforehand what starts take; nothing of the jobs runs before they are performed."""
        ...

    def take_back(self, start: Start) -> None:
        """A start that was prepared is not to be."""
        ...

    def settled(self, jobs: Iterable[Job]) -> None:
        """The records of these jobs are durable: how their attempts ended may be forgotten."""
        ...

    def describe_stop(self, job_id: JobId) -> str:
        """What of a job stands still by somebody else's doing, for people; empty: nothing.

        A ``Resume`` lets it go on.
        """
        ...

    def sample(self) -> None:
        """Begin to read all counters; one SampleTaken answers."""
        ...
