"""The kinds of rules that policy files may add, and how they are composed.

A rule is a frozen struct whose fields are its parameters. What it must remember from one
decision to the next is ``memory``, passed in and returned; ``memory=None`` is always legal.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, runtime_checkable

import msgspec

from iodaemon.core.decision import AdmissionPlan, RegulationPlan
from iodaemon.core.job import Job
from iodaemon.core.platform import Platform
from iodaemon.core.rule_error import FROM_A_RULE, rule_error
from iodaemon.core.view import Placement, View

M = TypeVar("M")
OrderKey = Callable[[float, float, float, float, float, float, float, int], float]
"""``key(now_s, requested_s, phase_s, remaining_s, io_done_s, elapsed_s, ideal_done_s, job)``: who
is first at an exclusive resource; the job with the smallest is served next. What each number is:
``iodaemon.policy.order``."""


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
        """The admission puts a job that names no tier on any."""
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
