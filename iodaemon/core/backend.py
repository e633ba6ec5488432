"""What drives a controller: a backend that carries decisions out, and a timeline that has the time.

Backends speak only in events. Only a timeline knows what time it is: ``daemon/timeline.py`` is wall
time, ``simulator/timeline.py`` virtual time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from iodaemon.core.decision import Decision, Start
from iodaemon.core.job import Job, JobId
from iodaemon.core.platform import Platform


class Timer(Protocol):
    """A call that has not been made yet."""

    def cancel(self) -> None: ...


class Timeline(Protocol):
    """A clock that can be asked to call back."""

    @property
    def now_s(self) -> float:
        """The present, s since 1970 on wall time, since 0 on virtual time; never backwards."""
        ...

    def call_at(self, time_s: float, call: Callable[[], None]) -> Timer:
        """Make the call at that time, or as soon as possible when it has passed.

        Calls for the same time are made in the order in which they were asked for.
        """
        ...


class Backend(Protocol):
    """A real server, a simulated one, or a cluster.

    Pids, cgroups and sockets belong to the backend, keyed by job id. Everything it has to say
    it posts as an event through the function it was made with.
    """

    @property
    def platform(self) -> Platform: ...

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
