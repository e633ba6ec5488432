"""What keeps a waiting job from starting, except missing slots: users' limits, regulation, drain.

Users' limits: a user's jobs start in their own order (as submitted) up to ``max_running`` jobs and
``max_slots`` slots; the next ones are not in the queue that admission sees until one of them ends.
So a limit binds whatever the admission rule does: any choice among the jobs it is shown keeps it.

Fair order: the next place in the queue is for the user who holds the fewest slots, those of the
jobs before it in the queue included; among equals for the job submitted first. Users who always
have jobs waiting so hold the same number of slots, give or take one job, however many they submit.
Nobody waits for ever while jobs end: a user who holds nothing is behind none but others who hold
nothing and came earlier. It is max-min fairness of one resource ("progressive filling"; Bertsekas
and Gallager, Data Networks, 2nd edition, section 6.5.2), by what is held now: no history, so a
restart changes nothing. A rule that promises a start (a reservation) makes its promise to whoever
is first now; a user who holds less and comes later may be first at the next instant.

Regulation decides how many more jobs may start (``StartLimit``) once a timeslice, admission
whenever something happens. In between the state keeps what is left: a job that starts takes its
part (``StartLimit.after``), that of one that has ended is free again, so that its place is taken
at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heapreplace
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from iodaemon.core.job import LIVE, WAITING, Job, JobId, JobState, Reason
from iodaemon.core.platform import Platform
from iodaemon.core.stock import Stock, why_never
from iodaemon.core.words import drained

USER_LIMIT: Final = "UserLimit"
"""The word for a job that waits because its user has as much as one may have."""
MAX_QUEUED: Final = 100_000
"""As many as one submission may have; of usual jobs they take 322 MiB of the daemon's memory."""


class Sharing(msgspec.Struct, frozen=True, kw_only=True):
    """What each user may have at once, the same for all; None: no limit."""

    max_running: Annotated[
        int | None, Meta(description="jobs of one user that may hold CPUs at once, also suspended")
    ] = None
    max_queued: Annotated[
        int | None,
        Meta(description="jobs of one user that may wait at once; further ones are refused"),
    ] = MAX_QUEUED
    max_slots: Annotated[
        int | None, Meta(description="CPUs that the jobs of one user may hold at once")
    ] = None
    fair: Annotated[
        bool,
        Meta(description="the queue is in turns, who holds the fewest CPUs first; else by age"),
    ] = False

    def __post_init__(self) -> None:
        """Refuse limits under which nothing would ever run."""
        for name in ("max_running", "max_queued", "max_slots"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f'{name} is {value}; write 1 or more, or "none"')

    @property
    def is_plain(self) -> bool:
        """True when the queue is all waiting jobs in the order in which they were submitted."""
        return self.max_running is None and self.max_slots is None and not self.fair

    @property
    def behind(self) -> Reason:
        text = "waits behind jobs submitted earlier"
        if self.fair:
            text = "waits its turn: jobs of users who hold fewer CPUs, and earlier ones, come first"
        return Reason(code="Priority", text=text)

    def is_within(self, jobs: int, slots: int) -> bool:
        """True when a user may have so many jobs that hold so many slots."""
        return (self.max_running is None or jobs <= self.max_running) and (
            self.max_slots is None or slots <= self.max_slots
        )


class _User(msgspec.Struct):
    """One user's jobs: those pending with their queue keys, in order, and how many others."""

    pending: dict[JobId, tuple[int, float, int]] = {}
    waiting: int = 0
    running: int = 0
    slots: int = 0


class Users:
    """Who has how much; kept by the state as its jobs change, at a cost that no queue adds to."""

    def __init__(self, sharing: Sharing) -> None:
        self.sharing = sharing
        self._users: dict[int, _User] = {}

    def note(self, before: Job | None, after: Job | None) -> None:
        """Follow a job from one record to the next; None: there was, or is, none."""
        if before is not None:
            self._count(before, -1)
        if after is not None:
            self._count(after, 1)

    def is_same(self, other: Users) -> bool:
        """True when the other has counted the same; for checks."""
        return self._users == other._users and all(
            list(user.pending.values()) == sorted(user.pending.values())
            for user in self._users.values()
        )

    def waiting(self, uid: int) -> int:
        """How many jobs of this user wait to start, held ones included."""
        user = self._users.get(uid)
        return 0 if user is None else user.waiting

    def held(self, uid: int) -> tuple[int, int]:
        """How many jobs of this user hold slots, and how many slots."""
        user = self._users.get(uid)
        return (0, 0) if user is None else (user.running, user.slots)

    def in_turn(self, jobs: Mapping[JobId, Job], may_start: Callable[[Job], bool]) -> Iterator[Job]:
        """The jobs that limits let start now, all of them together too, in the order of the queue.

        Args:
            may_start: False for a job that is passed over, whoever's turn it is.
        """
        fair = self.sharing.fair
        heads = [
            (user.slots if fair else 0, job.queue_key, user.running, user.slots, uid, job, own)
            for uid, user in self._users.items()
            for own in [self._own(user, jobs, may_start)]
            for job in [next(own, None)]
            if job is not None
        ]
        heapify(heads)  # by slots and place: places are never equal
        while heads:
            _, _, running, slots, uid, job, own = heads[0]
            running, slots = running + 1, slots + job.spec.cpus
            if not self.sharing.is_within(running, slots):
                heappop(heads)  # this user's later jobs wait with it: nothing overtakes it
                continue
            yield job
            if (following := next(own, None)) is None:
                heappop(heads)
                continue
            key = slots if fair else 0
            heapreplace(heads, (key, following.queue_key, running, slots, uid, following, own))

    def limit_of(self, job: Job) -> Reason | None:
        """Why its user's limits keep a waiting job from starting now; None: they do not."""
        sharing, cpus = self.sharing, job.spec.cpus
        running, slots = self.held(job.uid)
        if self.is_too_large(job):
            text = (
                f"asks for {cpus} CPUs, one user may hold {sharing.max_slots} (max_slots); "
                "cancel it and submit with fewer"
            )
        elif sharing.max_running is not None and running >= sharing.max_running:
            text = (
                f"its user runs {running} of the {sharing.max_running} jobs that one user may "
                "run at once (max_running)"
            )
        elif sharing.max_slots is not None and slots + cpus > sharing.max_slots:
            text = (
                f"needs {cpus} CPUs; its user holds {slots}, and may hold "
                f"{sharing.max_slots} (max_slots)"
            )
        else:
            return None
        return Reason(code=USER_LIMIT, text=text)

    def refusal(self, uid: int, waiting: int, cpus: Iterable[int]) -> str:
        """Why a user may not submit these jobs now, and what to do; empty: they may."""
        asked = list(cpus)
        most, most_slots = self.sharing.max_queued, self.sharing.max_slots
        if most_slots is not None and max(asked, default=0) > most_slots:
            return (
                f"asks for {max(asked)} CPUs, one user may hold {most_slots} (max_slots); "
                f"lower --cpus to {most_slots} or less"
            )
        if most is not None and waiting + len(asked) > most:
            return (
                f"uid {uid} has {waiting} jobs waiting, with {len(asked)} more above the {most} "
                "that one user may have (max_queued); submit them when some have started"
            )
        return ""

    def is_too_large(self, job: Job) -> bool:
        return self.sharing.max_slots is not None and job.spec.cpus > self.sharing.max_slots

    def _own(
        self, user: _User, jobs: Mapping[JobId, Job], may_start: Callable[[Job], bool]
    ) -> Iterator[Job]:
        for job_id in user.pending:
            job = jobs[job_id]
            if may_start(job) and not self.is_too_large(job):
                yield job

    def _count(self, job: Job, by: int) -> None:
        user = self._users.setdefault(job.uid, _User())
        if job.state in WAITING:
            user.waiting += by
        if job.state in LIVE:
            user.running += by
            user.slots += by * len(job.slots)
        if job.state is JobState.PENDING:
            _list(user, job, is_there=by > 0)
        if not (user.waiting or user.running):
            del self._users[job.uid]


def _list(user: _User, job: Job, *, is_there: bool) -> None:
    """Keep the pending jobs in queue order; new ones come last, requeued ones need not."""
    if not is_there:
        del user.pending[job.id]
        return
    last = next(reversed(user.pending.values()), None)
    user.pending[job.id] = job.queue_key
    if last is not None and last > job.queue_key:
        user.pending = dict(sorted(user.pending.items(), key=lambda item: item[1]))


INFEASIBLE: Final = "Infeasible"
"""The word for a job that nothing here can ever hold."""
OLD_SCRATCH: Final = "OldScratch"
"""The word for a job of which an earlier attempt still holds space."""


def why_infeasible(platform: Platform, stock: Stock, job: Job) -> Reason | None:
    """Why this machine can never hold the job; None: it can."""
    largest = platform.largest_partition
    if job.spec.cpus > largest:
        text = (
            f"asks for {job.spec.cpus} CPUs, the largest socket has {largest}; "
            "cancel it and submit with fewer"
        )
        return Reason(code=INFEASIBLE, text=text)
    request = job.spec.scratch
    if request is None or (request.fallback == "slow" and not stock.tiers):
        return None
    text_of_space = why_never(stock.tiers, request, any_tier=stock.any_tier)
    return None if text_of_space is None else Reason(code=INFEASIBLE, text=text_of_space)


def why_not_ready(job: Job) -> Reason | None:
    """Why a job that waits may not start before something else has happened; None: it may."""
    if not job.shares:
        return None
    if job.scratch_kept is not None:
        return Reason(code=OLD_SCRATCH, text=job.scratch_kept.text)
    text = "waits until the scratch space of its last attempt has been cleared"
    return Reason(code=OLD_SCRATCH, text=text)


DRAIN: Final = "Drain"
"""The word for a job that waits because the node is drained."""


class Drain(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing starts; what is submitted waits, what runs goes on and is regulated as before.

    Attributes:
        since_s: when it began.
        by: who wanted it; of several the last one.
        reason: what for, in their words; empty: not said.
    """

    since_s: float
    by: str
    reason: str = ""

    @property
    def why(self) -> Reason:
        return Reason(code=DRAIN, text=drained(self.by, self.reason))
