"""Whom to stop, whom to let back, and who changes places: for the rule ``bounded``."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from iodaemon.core.decision import Evidence, Weighed
from iodaemon.core.job import Job, JobId, Reason
from iodaemon.core.view import View
from iodaemon.policy.budget import Budget, is_concerned
from iodaemon.policy.crowd import LIGHT_SHARE, heavy_from

ROUNDING: Final = 1.05
"""Predicted loads within 5 % of a limit fit: they are means over a noisy slice."""
A_SLICE: Final = 0.9
"""Of a timeslice: what has lasted for this long has lasted for one, timers being what they are."""

Loads = Mapping[JobId, Mapping[str, float]]
"""Each job's part of each load when it last ran for a whole slice."""
Verdicts = dict[JobId, tuple[str, str]]
_NONE: Final[Mapping[Any, Any]] = MappingProxyType({})


class Moves(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done in one slice, and what was seen.

    Attributes:
        suspends: whom to stop, and why.
        resumes: whom to let back, and why.
        causes: of those stopped: the name of the thing that they are held for.
        evidence: a table for each thing that was acted on.
    """

    suspends: Mapping[JobId, Reason] = _NONE
    resumes: Mapping[JobId, Reason] = _NONE
    causes: Mapping[JobId, str] = _NONE
    evidence: tuple[Evidence, ...] = ()

    def __bool__(self) -> bool:
        """True when there is something to do."""
        return bool(self.suspends or self.resumes)

    def and_then(self, more: Moves) -> Moves:
        """These, and more."""
        return Moves(
            suspends={**self.suspends, **more.suspends},
            resumes={**self.resumes, **more.resumes},
            causes={**self.causes, **more.causes},
            evidence=self.evidence + more.evidence,
        )


def choose_victims(
    view: View, budget: Budget, protection: Mapping[JobId, str], taken: Mapping[JobId, Reason]
) -> tuple[list[Job], Verdicts]:
    """Whom to take off until the target is met, and why the others were spared.

    Those who have stood still for the least time go first, so that all take their turn; among
    equals the one with the largest part.

    Args:
        view: the state.
        budget: what is too much.
        protection: why a job may not be suspended.
        taken: jobs that are suspended for another budget already.

    Returns:
        Jobs in the order of choice, and verdict and reason of every job with a part.
    """
    concerned = [job for job in view.running if job.id in budget.parts]
    those = _heavy(budget)
    heavy = [job for job in concerned if job.id in those]
    verdicts: Verdicts = {
        job.id: ("spared", "moves too little to matter") for job in concerned if job not in heavy
    }
    verdicts |= {job.id: ("spared", protection[job.id]) for job in heavy if job.id in protection}
    left = budget.load - sum(budget.parts.get(job_id, 0.0) for job_id in taken)
    going_on = sum(1 for job in heavy if job.id not in taken)
    most = going_on if budget.is_extreme else (going_on + 1) // 2
    victims: list[Job] = []
    for job in sorted(heavy, key=lambda j: (j.suspended_io_s, -budget.parts[j.id], j.id)):
        if job.id in protection or job.id in taken:
            continue
        if left <= budget.target * ROUNDING:
            verdicts[job.id] = ("spared", "what is left is not too much")
        elif going_on - len(victims) <= 1:
            verdicts[job.id] = ("spared", "one always goes on")
        elif len(victims) >= most:
            verdicts[job.id] = ("spared", "not more at once")
        else:
            victims.append(job)
            left -= budget.parts[job.id]
            verdicts[job.id] = ("suspend", budget.reason(job.id).text)
    return victims, verdicts


def choose_resumes(
    view: View,
    budgets: Mapping[str, Budget],
    loads: Loads,
    *,
    causes: Mapping[JobId, str],
    least_s: float,
) -> Moves:
    """Who comes back because it is predicted to fit everywhere; the longest suspended first.

    Args:
        view: the state.
        budgets: how each thing stands; one of which that is not known is not in it.
        loads: what each job put on each when it last ran.
        causes: what each suspended job is held for; it waits while that is not known.
        least_s: who has stood still for less than this is not looked at.
    """
    after = {name: sum(budget.parts.values()) for name, budget in budgets.items()}
    resumes: dict[JobId, Reason] = {}
    for job in _waiting(view):
        if _held_for_s(view, job) < least_s:
            continue
        if job.id in causes and causes[job.id] not in budgets:
            continue
        names = [name for name in budgets if is_concerned(view, job, name)]
        parts = {name: loads.get(job.id, {}).get(name, 0.0) for name in names}
        if all(_fits(budgets[n], after[n], parts[n], yet=len(resumes)) for n in names):
            short = [n for n in names if not _is_predicted(budgets[n], after[n], parts[n])]
            resumes[job.id] = _why_resumed([budgets[n] for n in names], [budgets[n] for n in short])
            for name in names:
                after[name] += parts[name]
    verdicts: Verdicts = {job_id: ("resume", why.text) for job_id, why in resumes.items()}
    touched = [b for b in budgets.values() if any(_concerns(view, b, i) for i in resumes)]
    tables = tuple(table(view, budget, verdicts, loads) for budget in touched)
    return Moves(resumes=resumes, evidence=tables)


def choose_turns(
    view: View,
    budgets: Mapping[str, Budget],
    loads: Loads,
    *,
    causes: Mapping[JobId, str],
    protection: Mapping[JobId, str],
    turn_s: float,
) -> Moves:
    """Who gives its place to whom: at most one pair for each thing that jobs are held for."""
    moves = Moves()
    for name, budget in budgets.items():
        waiting = [
            job
            for job in _waiting(view)
            if causes.get(job.id, name) == name
            and is_concerned(view, job, name)
            and job.id not in moves.resumes
            and _held_for_s(view, job) >= turn_s
        ]
        heavy = _heavy(budget)
        sated = [
            job
            for job in view.running
            if job.id in heavy
            and job.id not in protection
            and job.id not in moves.suspends
            and view.now_s - job.since_s >= turn_s
        ]
        if waiting and sated:
            away = min(sated, key=lambda job: (job.since_s, job.id))
            moves = moves.and_then(_exchange(view, budget, loads, back=waiting[0], away=away))
    return moves


def _exchange(view: View, budget: Budget, loads: Loads, *, back: Job, away: Job) -> Moves:
    """One gives its place to the other."""
    told = Reason(code="Turn", text=f"job {back.id} takes its turn; {budget.describe()}")
    heard = Reason(code="Turn", text=f"takes its turn for job {away.id}")
    verdicts: Verdicts = {away.id: ("suspend", told.text), back.id: ("resume", heard.text)}
    return Moves(
        suspends={away.id: told},
        resumes={back.id: heard},
        causes={away.id: budget.name},
        evidence=(table(view, budget, verdicts, loads),),
    )


def free_from_gone(
    view: View, gone: Mapping[str, int], loads: Loads, causes: Mapping[JobId, str]
) -> Moves:
    """Who comes back because the device that it is held for is gone.

    Args:
        view: the state.
        gone: devices that are gone, and for how many slices there were no counters of them.
        loads: what each job put on them when it last ran.
        causes: what each suspended job is held for.
    """
    moves = Moves()
    for name, slices in gone.items():
        text = f"{name} is gone, for which it was held: no counters of it in {slices} slices"
        why = Reason(code="DeviceGone", text=text)
        resumes = {job.id: why for job in _waiting(view) if causes.get(job.id) == name}
        if not resumes:
            continue
        seen = Budget(
            name=name,
            quantity="absence",
            value=slices,
            threshold=slices,
            load=0.0,
            target=0.0,
            fits=0.0,
            is_exceeded=False,
            is_extreme=False,
            is_calm=True,
            is_idle=True,
            is_wronged=False,
            parts={},
        )
        verdicts: Verdicts = dict.fromkeys(resumes, ("resume", text))
        tables = (table(view, seen, verdicts, loads),)
        moves = moves.and_then(Moves(resumes=resumes, evidence=tables))
    return moves


def table(
    view: View, budget: Budget, verdicts: Mapping[JobId, tuple[str, str]], loads: Loads
) -> Evidence:
    """The slice's table: who, how much, what became of it and why."""
    rows: list[Weighed] = []
    total = 0.0
    for job in view.live:
        rate = view.bandwidth(job.id)
        total += 0.0 if rate is None else rate.total_bytes_per_s
        if job.id not in budget.parts and not job.io_hold:
            continue
        verdict, why = verdicts.get(job.id, ("waits" if job.io_hold else "runs", ""))
        remembered = loads.get(job.id, {}).get(budget.name, 0.0)
        rows.append(
            Weighed(
                job_id=job.id,
                rate_bytes_per_s=None if rate is None else rate.total_bytes_per_s,
                load=budget.parts.get(job.id, remembered),
                verdict=verdict,
                why=why,
            )
        )
    return Evidence(
        at_s=view.now_s,
        signal=budget.signal,
        quantity=budget.quantity,
        value=budget.value,
        threshold=budget.threshold,
        load=budget.load,
        allowed=budget.target,
        fits=None if budget.quantity == "absence" else budget.fits,
        total_bytes_per_s=total,
        jobs=tuple(rows),
    )


def _waiting(view: View) -> list[Job]:
    """Suspended jobs, the longest suspended first; one that a person holds too cannot run."""
    held = [job for job in view.suspended if not job.user_hold]
    return sorted(held, key=lambda job: (job.io_held_since_s or 0.0, job.id))


def _held_for_s(view: View, job: Job) -> float:
    return 0.0 if job.io_held_since_s is None else view.now_s - job.io_held_since_s


def _heavy(budget: Budget) -> frozenset[JobId]:
    """The jobs that matter; to stop any other would relieve nothing."""
    mark = LIGHT_SHARE * budget.load
    if budget.minds_crowds:
        mark = heavy_from(budget.parts, budget.load)
    jobs = (job_id for job_id, part in budget.parts.items() if part >= mark)
    return frozenset(jobs) if budget.load > 0.0 else frozenset()


def _fits(budget: Budget, load: float, part: float, *, yet: int) -> bool:
    if budget.is_wronged or (budget.is_idle and not yet):
        return True
    return yet < budget.returning or _is_predicted(budget, load, part)


def _is_predicted(budget: Budget, load: float, part: float) -> bool:
    return budget.is_calm and load + part <= budget.fits * ROUNDING


def _concerns(view: View, budget: Budget, job_id: JobId) -> bool:
    return is_concerned(view, view.job(job_id), budget.name)


def _why_resumed(budgets: list[Budget], unpredicted: list[Budget]) -> Reason:
    """``unpredicted``: those for which it was not the prediction that let it come back."""
    if any(budget.is_wronged for budget in budgets):
        text = "suspending brought no relief: the device was not congested"
    elif not budgets:
        text = "nothing that it uses is regulated"
    elif all(budget.is_idle for budget in budgets):
        text = _described(budgets) + ": there is room"
    elif any(budget.returning for budget in unpredicted):
        text = f"too many are held, less is moved than before: {_described(unpredicted)}"
    else:
        text = f"predicted to fit: {_described(budgets)}"
    return Reason(code="Fits", text=text)


def _described(budgets: list[Budget]) -> str:
    return "; ".join(budget.describe() for budget in budgets)
