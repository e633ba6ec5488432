"""The space of a job, and which step copies its data, as the API shows them (docs/api.md)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from iodaemon.core.job import Job, JobState
from iodaemon.core.stock import Stock
from iodaemon.core.tier import Tier
from iodaemon.node.outcome import read_report, report_path

_WORDS: Final = {"in": "copies its input in", "out": "copies its output out"}
_COPYING: Final = frozenset({JobState.STARTING, JobState.RUNNING})


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """The step of staging that is under way.

    Attributes:
        step: ``in`` before the command, ``out`` after it.
    """

    step: str

    @property
    def text(self) -> str:
        """For people: what it does."""
        return _WORDS.get(self.step, self.step)


def find_stage(job: Job, outputs: Path) -> Stage | None:
    """What is being copied for the job now; None: nothing is, or nobody can tell."""
    request = job.spec.scratch
    if request is None or not job.shares or job.state not in _COPYING:
        return None
    if request.input_path is None and request.output_path is None:
        return None
    report = read_report(report_path(outputs, job.id, job.attempt))
    return Stage(step=report.step) if report is not None and report.step in _WORDS else None


def scratch_record(
    job: Job, stage: Stage | None, stock: Stock | None = None
) -> dict[str, Any] | None:
    """What the job asked for and what it has of it; None: it asked for none.

    Args:
        job: the job.
        stage: what is being copied.
        stock: of the node; None for a job that only the journal still knows.
    """
    request = job.spec.scratch
    if request is None:
        return None
    tiers = () if stock is None else stock.tiers
    had_space = _had_space(job, tiers)
    wanted = {name: getattr(request, name) for name in request.__struct_fields__}
    return {
        **{("asked_tier" if name == "tier" else name): each for name, each in wanted.items()},
        "tier": job.tier,
        "had_space": had_space,
        "shares": msgspec.to_builtins(job.shares),
        "kept": msgspec.to_builtins(job.scratch_kept),
        "kept_until_s": None if stock is None else stock.kept_until_s(job),
        "unwanted": msgspec.to_builtins(job.scratch_unwanted),
        "unwanted_by": job.scratch_unwanted_by,
        "over": msgspec.to_builtins(job.scratch_over),
        "most_bytes": job.scratch_most_bytes,
        "copied_in": _is_copied_in(job, had_space=had_space),
        "copied_out": _is_copied_out(job, had_space=had_space),
        "stage": msgspec.to_builtins(stage),
        "charged_s": job.charged_s,
    }


def _had_space(job: Job, tiers: Sequence[Tier]) -> bool | None:
    """Whether its attempt has or had directories of its own; None: it has none yet, or unknown."""
    if job.shares:
        return True
    tier = next((tier for tier in tiers if tier.name == job.tier), None)
    return None if tier is None else tier.storage is not None


def _is_copied_in(job: Job, *, had_space: bool | None) -> bool | None:
    """Whether all of its input was copied into its space; None: not yet, or nobody knows."""
    staged, request = job.staged, job.spec.scratch
    if request is None or request.input_path is None or not job.state.is_final:
        return None
    if staged is not None and staged.has_come is not None:
        return staged.has_come
    if job.state is JobState.COMPLETED:
        return had_space
    return False if job.started_s is None else None


def _is_copied_out(job: Job, *, had_space: bool | None) -> bool | None:
    """Whether what it left was copied out; None: not yet, or nobody knows."""
    staged, request = job.staged, job.spec.scratch
    if request is None or request.output_path is None or not job.state.is_final:
        return None
    if staged is not None and staged.has_gone is not None:
        return staged.has_gone
    if job.scratch_kept is not None or job.scratch_unwanted is not None:
        return False
    if job.state is JobState.COMPLETED:
        return had_space
    is_known = staged is None and (had_space is not None or job.tier is None)
    return False if is_known else None
