"""The kinds of rules that policy files may add, how they are composed, asked, and checked.

A rule is a frozen struct whose fields are its parameters. What it must remember from one
decision to the next is ``memory``, passed in and returned; ``memory=None`` is always legal.

A rule may be a user's own code. Whatever goes wrong in one becomes a ``RuleError``, before anything
of its answer is carried out. Errors outside these calls are bugs of this program.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

import msgspec

from iodaemon.core.decision import (
    AdmissionPlan,
    Cap,
    Evidence,
    Lesson,
    LimitState,
    Placed,
    RegulationPlan,
    StartLimit,
    TrialStep,
)
from iodaemon.core.job import Job, JobId, JobKind, Reason
from iodaemon.core.lessons import is_kind
from iodaemon.core.platform import PartitionId, Platform
from iodaemon.core.rule_error import FROM_A_RULE, BadAnswer, answer_and_memory, rule_error
from iodaemon.core.state import State
from iodaemon.core.view import Placement, View

M = TypeVar("M")
OrderKey = Callable[[float, float, float, float, float, float, float, int], float]
"""``key(now_s, requested_s, phase_s, remaining_s, io_done_s, elapsed_s, ideal_done_s, job)``: who
is first at an exclusive resource; the job with the smallest is served next. What each number is:
``iodaemon.policy.list_order``."""


class Admission(Protocol[M]):
    """Which queued jobs start now.

    A rule with ``chooses_tier: ClassVar[bool] = True`` puts a job that names no tier on any, also
    on one without disks; under any other such a job has to fit on the fastest, or on a slower one
    with disks.
    """

    def decide(self, view: View, memory: M | None) -> tuple[AdmissionPlan, M | None]:
        """Asked at every instant at which something happened, after regulation."""
        ...


class Regulation(Protocol[M]):
    """Which running jobs stand still for the next timeslice.

    A rule with ``hears_phases: ClassVar[bool] = True`` says who has the turn when jobs tell of
    their I/O phases (``Job.phase``), and is asked when one of these changed, or a job ended, as
    well; under any other every job has its turn at once.
    """

    @property
    def timeslice_s(self) -> float:
        """The sampling and regulation period, s."""
        ...

    def decide(self, view: View, memory: M | None) -> tuple[RegulationPlan, M | None]:
        """Asked once a timeslice, at the instant that carries the sample (``View.sampled_s``)."""
        ...


@runtime_checkable
class Refilling(Protocol[M]):
    """A regulation that also acts between two samples: what an ended job used is free at once."""

    def refill(self, view: View, memory: M | None) -> tuple[RegulationPlan, M | None]:
        """Asked at an instant without a sample in which a job ended while others are held.

        The view shows the jobs as they are, and what they moved in the last whole slice.
        """
        ...


@runtime_checkable
class Cautious(Protocol):
    """A rule that does less than it could where the platform tells it too little."""

    def caution(self, platform: Platform) -> str | None:
        """What is missing, what comes of it, and what to do, for people; None: nothing is."""
        ...


@runtime_checkable
class Explaining(Protocol):
    """An admission with more to say of a job that waits than the plan's reason does."""

    def explain(self, view: View, job: Job, memory: Any) -> str:
        """Why it does not start now, at length, for people; asked only when somebody wants it."""
        ...


class Mode(enum.StrEnum):
    """What regulation may do: carry out, only decide and record, or nothing at all."""

    ON = "on"
    SHADOW = "shadow"
    OFF = "off"


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """One composed policy: the rules that a policy file names.

    Attributes:
        name: the policy's name, as in its file name.
        max_suspend_s: the controller's guard over regulation: a job suspended for this long in
            a row runs again and cannot be suspended for as long. None lifts the guard
            (experiments that reproduce a published rule).
        ends_overdue: a job that has run for its walltime is ended. Without it a walltime is only
            what rules reckon with (experiments whose jobs are never cut off).
    """

    name: str
    admission: Admission[Any]
    placement: Placement
    regulation: Regulation[Any]
    max_suspend_s: float | None = 600.0
    ends_overdue: bool = True

    def longest_suspension_s(self, job: Job) -> float | None:
        """How long the regulation may hold this job in a row; None: as long as it likes."""
        own_s = job.spec.max_suspend_s
        return self.max_suspend_s if own_s is None else own_s

    @property
    def chooses_tier(self) -> bool:
        return getattr(self.admission, "chooses_tier", False)

    def cautions(self, platform: Platform) -> tuple[str, ...]:
        """What the rules lack on this platform, one line each, for people."""
        rules = {kind: getattr(self, kind) for kind in ("admission", "placement", "regulation")}
        told = (
            _caution(kind, rule, platform)
            for kind, rule in rules.items()
            if isinstance(rule, Cautious)
        )
        return tuple(f"policy {self.name}: {text}" for text in told if text is not None)


def _caution(kind: str, rule: Cautious, platform: Platform) -> str | None:
    try:
        return rule.caution(platform)
    except FROM_A_RULE as error:  # it decides nothing
        return str(rule_error(kind, rule, rule.caution, error))


Limit = Callable[[str], AbstractContextManager[object]]
"""Ends what takes too long inside it, by ``RuleTimeout``; given the kind of the rule."""


def no_limit(_: str) -> AbstractContextManager[object]:
    """For simulations: a rule takes as long as it takes."""
    return _NO_LIMIT


_NO_LIMIT: Final = nullcontext()
_MAPPINGS: Final = (dict, MappingProxyType)
"""Are what is almost always answered, and told faster than by the abstract type."""


def ask_admission(
    rule: Any, view: View, memory: Any, state: State, limit: Limit
) -> tuple[AdmissionPlan, Any]:
    """The admission's plan, checked against the state, and its memory.

    Raises:
        RuleError: it has none that can be carried out.
    """
    try:
        with limit("admission"):
            plan, memory = answer_and_memory(rule.decide(view, memory))
            _check_admission(plan, state)
    except FROM_A_RULE as error:
        raise rule_error("admission", rule, rule.decide, error) from error
    return plan, memory


def ask_regulation(
    rule: Any,
    decide: Callable[[View, Any], tuple[RegulationPlan, Any]],
    view: View,
    memory: Any,
    state: State,
    limit: Limit,
) -> tuple[RegulationPlan, Any]:
    """The regulation's plan, checked against the state, and its memory.

    Raises:
        RuleError: it has none that can be carried out.
    """
    try:
        with limit("regulation"):
            plan, memory = answer_and_memory(decide(view, memory))
            _check_regulation(plan, state)
    except FROM_A_RULE as error:
        raise rule_error("regulation", rule, decide, error) from error
    return plan, memory


def _check_admission(plan: object, state: State) -> None:
    if not isinstance(plan, AdmissionPlan):
        raise BadAnswer(f"returned {type(plan).__name__}, not AdmissionPlan")
    if plan.starts or plan.rejects:
        _check_starts(plan, state)
    _check_reasons("reasons", plan.reasons, state)
    if plan.rest is not None and not isinstance(plan.rest, Reason):
        raise BadAnswer(f"rest is {type(plan.rest).__name__}, not Reason")
    if not isinstance(plan.reservations, _MAPPINGS) and not isinstance(plan.reservations, Mapping):
        raise BadAnswer(f"reservations is {type(plan.reservations).__name__}, not a mapping")


def _check_starts(plan: AdmissionPlan, state: State) -> None:
    """Every job waits, is named once, and finds the slots that it needs."""
    _check_reasons("rejects", plan.rejects, state)
    named = set(plan.rejects)
    for job_id in named:
        _check_waits(job_id, state)
    free: dict[PartitionId, int] = {}
    cores: dict[PartitionId, int] = {}
    for placed in plan.starts:
        if not isinstance(placed, Placed):
            raise BadAnswer(f"starts contains {placed!r}, not what Draft.start returns")
        if placed.why is not None and not isinstance(placed.why, Reason):
            raise BadAnswer(f"starts job {placed.job_id} because of {placed.why!r}, not a Reason")
        _check_waits(placed.job_id, state)
        if placed.job_id in named:
            raise BadAnswer(f"job {placed.job_id} is named twice in starts and rejects")
        named.add(placed.job_id)
        where, cpus = placed.partition, state.jobs[placed.job_id].spec.cpus
        if where not in free:
            _check_partition(where, state)
            free[where] = state.slots_free(where)
            cores[where] = state.cores_free(where)
        free[where] -= cpus
        has_own = not (state.platform.shares_cores and state.jobs[placed.job_id].spec.shares_cores)
        cores[where] -= cpus if has_own else 0
        if free[where] < 0 or cores[where] < 0:
            raise BadAnswer(
                f"starts job {placed.job_id} on socket {where}, which has too few free slots"
            )


def _check_waits(job_id: JobId, state: State) -> None:
    job = state.jobs.get(job_id)
    if job is None:
        raise BadAnswer(f"names job {job_id!r}, which does not exist")
    if not state.may_be_started(job_id):
        raise BadAnswer(f"starts or rejects job {job_id}, which is not in View.pending")


def _check_partition(where: object, state: State) -> None:
    if all(partition.id != where for partition in state.platform.partitions):
        raise BadAnswer(f"starts a job on socket {where!r}, which does not exist")


def _check_regulation(plan: object, state: State) -> None:
    if not isinstance(plan, RegulationPlan):
        raise BadAnswer(f"returned {type(plan).__name__}, not RegulationPlan")
    for field in ("suspends", "resumes", "grants", "revokes"):
        jobs = getattr(plan, field)
        if not isinstance(jobs, (tuple, list)):
            raise BadAnswer(f"{field} is {type(jobs).__name__}, not a tuple of job ids")
        for job_id in jobs:
            if job_id not in state.jobs:
                raise BadAnswer(f"{field} names job {job_id!r}, which does not exist")
    if plan.caps:
        _check_caps(plan.caps, state)
    if plan.reasons:
        _check_reasons("reasons", plan.reasons, None)
    if not all(isinstance(table, Evidence) for table in plan.evidence):
        raise BadAnswer("evidence contains what is no Evidence")
    if not all(isinstance(step, TrialStep) for step in plan.trials):
        raise BadAnswer("trials contains what is no TrialStep")
    if not all(isinstance(limit, LimitState) for limit in plan.limits):
        raise BadAnswer("limits contains what is no LimitState")
    if plan.lessons:
        _check_lessons(plan.lessons)
    headroom = plan.io_headroom_bytes_per_s
    if headroom is not None and not (isinstance(headroom, (int, float)) and headroom >= 0.0):
        raise BadAnswer(f"io_headroom_bytes_per_s is {headroom!r}, not a rate of 0 or more")
    if plan.starts is not None:
        _check_limit(plan.starts)


def _check_caps(caps: object, state: State) -> None:
    if not isinstance(caps, Mapping):
        raise BadAnswer(f"caps is {type(caps).__name__}, not a mapping")
    devices = {device.id for device in state.platform.devices}
    for job_id, cap in caps.items():
        if job_id not in state.jobs:
            raise BadAnswer(f"caps names job {job_id!r}, which does not exist")
        if not isinstance(cap, Cap):
            raise BadAnswer(f"caps contains {type(cap).__name__}, not Cap")
        for rates in (cap.read_bytes_per_s, cap.written_bytes_per_s):
            for device, rate in rates.items():
                if device not in devices:
                    raise BadAnswer(f"caps names device {device!r}, which does not exist")
                if not (_is_number(rate, least=1) and math.isfinite(rate)):
                    raise BadAnswer(f"caps has {rate!r} for job {job_id}, not a rate of 1 or more")


def _check_limit(limit: object) -> None:
    if not isinstance(limit, StartLimit):
        raise BadAnswer(f"starts is {type(limit).__name__}, not StartLimit")
    if not isinstance(limit.why, Reason):
        raise BadAnswer(f"starts.why is {type(limit.why).__name__}, not Reason")
    if limit.most is not None and not _is_number(limit.most, least=0, whole=True):
        raise BadAnswer(f"starts.most is {limit.most!r}, not a number of jobs or None")
    for field in ("shares", "above_cores"):
        if not isinstance(getattr(limit, field), Mapping):
            raise BadAnswer(f"starts.{field} is not a mapping")
    if not _is_number(limit.free):
        raise BadAnswer(f"starts.free is {limit.free!r}, not a number")
    for share in (limit.share, *limit.shares.values()):
        if not _is_number(share, least=0):
            raise BadAnswer(f"starts has a share of {share!r}, not a number of 0 or more")
    for jobs in limit.above_cores.values():
        if not _is_number(jobs, least=0, whole=True):
            raise BadAnswer(f"starts.above_cores has {jobs!r}, not a number of jobs")
    if limit.memory_bytes is not None and not _is_number(limit.memory_bytes):
        raise BadAnswer(f"starts.memory_bytes is {limit.memory_bytes!r}, not a number or None")
    if not _is_number(limit.footprint_bytes, least=0):
        raise BadAnswer(f"starts.footprint_bytes is {limit.footprint_bytes!r}, not 0 or more")


def _is_number(value: object, *, least: float = -math.inf, whole: bool = False) -> bool:
    return isinstance(value, int if whole else (int, float)) and value >= least


def _check_lessons(lessons: Mapping[JobKind, Lesson]) -> None:
    if not isinstance(lessons, Mapping):
        raise BadAnswer(f"lessons is {type(lessons).__name__}, not a mapping")
    for kind, lesson in lessons.items():
        if not is_kind(kind):
            raise BadAnswer(f"lessons has {kind!r}, which View.kind never returns")
        if not isinstance(lesson, Lesson):
            raise BadAnswer(f"lessons contains {type(lesson).__name__}, not Lesson")
        if not (lesson.gain >= 0.0 and math.isfinite(lesson.at_s)):
            raise BadAnswer(f"lessons has a gain of {lesson.gain} at {lesson.at_s} s for {kind!r}")


def _check_reasons(field: str, reasons: object, state: State | None) -> None:
    """Existing jobs, and a Reason for each: written for very many jobs that wait."""
    if not isinstance(reasons, _MAPPINGS) and not isinstance(reasons, Mapping):
        raise BadAnswer(f"{field} is {type(reasons).__name__}, not a mapping")
    if strange := set(map(type, reasons.values())) - {Reason}:
        raise BadAnswer(f"{field} contains {strange.pop().__name__}, not Reason")
    if state is not None and not all(map(state.jobs.__contains__, reasons)):
        unknown = next(job_id for job_id in reasons if job_id not in state.jobs)
        raise BadAnswer(f"{field} names job {unknown!r}, which does not exist")
