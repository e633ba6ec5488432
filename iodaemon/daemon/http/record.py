"""Jobs, and the node, as the API shows them (docs/api.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec

from iodaemon.core.explain import find_silence, silence
from iodaemon.core.forecast import hindsight
from iodaemon.core.job import SUSPENDED, UNKNOWN, Job, JobState, Prediction
from iodaemon.core.limits import DRAIN
from iodaemon.core.meter import Bandwidth
from iodaemon.core.rule import Mode, Rules
from iodaemon.core.rule_error import RuleFault
from iodaemon.core.similarity import name_of
from iodaemon.core.state import TURN, State
from iodaemon.core.stock import Stock
from iodaemon.core.storage import Tier
from iodaemon.daemon.account import user_name
from iodaemon.node.outcome import read_report
from iodaemon.units import format_duration

_ASKED: Final = (
    *("walltime_s", "memory_bytes", "io_rate_bytes_per_s", "io_share", "io_operations_per_s"),
    *("no_suspend", "max_suspend_s", "requeue"),
)
_TIMEOUT_CODE = 124
_UNKNOWN_CODE = 1
STAGES: Final = {"in": "copies its input in", "out": "copies its output out"}
_COPYING: Final = frozenset({JobState.STARTING, JobState.RUNNING})


def pick(struct: msgspec.Struct, *names: str) -> dict[str, Any]:
    """These fields of it, which the API calls so too."""
    return {name: getattr(struct, name) for name in names}


def job_record(job: Job, state: State | None, now_s: float, outputs: Path) -> dict[str, Any]:
    """One job, every key of the API's JOB.

    Args:
        state: where it lives; None for one that only the journal still knows.
        outputs: where the output files of jobs are that name none.
    """
    spec = job.spec
    stage = find_stage(job, outputs)
    path = output_path(job, outputs, "stdout")
    stdout = None if path is None else str(path)
    return {
        "id": job.id,
        "name": name_of(spec),
        "user": user_name(job.uid),
        "uid": job.uid,
        "state": str(job.state),
        "state_shown": job.state_shown,
        "code": job.state.code,
        "reason": _reason(job, state, now_s, stage),
        "command": list(spec.command),
        "cwd": spec.cwd,
        "cpus": spec.cpus,
        "shares_cores": spec.shares_cores and (state is None or state.platform.shares_cores),
        **pick(spec, *_ASKED),
        "socket": job.partition,
        "slots": list(job.slots),
        **pick(job, "attempt", "submitted_s", "started_s", "ended_s"),
        "run_s": job.run_s_at(now_s),
        **_suspended(job, now_s),
        "exit_code": None if job.exit is None else job.exit.code,
        "signal": None if job.exit is None else job.exit.signal,
        "shell_code": shell_code(job),
        **_io(job, state),
        "stdout": stdout,
        "stderr": stdout if spec.stderr is None else str(asked_path(job, "stderr")),
        "phase": None if job.phase is None else msgspec.structs.asdict(job.phase),
        "scratch": scratch_record(job, stage, None if state is None else state.stock),
    }


def _reason(
    job: Job, state: State | None, now_s: float, stage: str | None
) -> dict[str, Any] | None:
    reason = job.reason if state is None else state.reason(job.id)
    if reason is None and stage is not None:
        return {"code": "Staging", "text": STAGES[stage]}
    reason = reason or job.scratch_over or job.scratch_kept
    if reason is None:
        pid = None if state is None else find_silence(state, job)
        return None if pid is None else {**msgspec.to_builtins(silence(pid)), "pid": pid}
    text = reason.text
    since_s = None
    if job.phase is not None and reason.code == TURN:
        since_s = job.phase.asked_s
    elif state is not None and state.drain is not None and reason.code == DRAIN:
        since_s = state.drain.since_s
    if since_s is not None:
        text += f", for {format_duration(round(max(0.0, now_s - since_s)))}"
    return {**msgspec.to_builtins(reason), "text": text}


def _suspended(job: Job, now_s: float) -> dict[str, float]:
    present_s = max(0.0, now_s - job.since_s)
    io = present_s if job.state is JobState.SUSPENDED_IO else 0.0
    user = present_s if job.state is JobState.SUSPENDED_USER else 0.0
    return {
        "suspended_io_s": job.suspended_io_s + io,
        "suspended_user_s": job.suspended_user_s + user,
    }


def _io(job: Job, state: State | None) -> dict[str, Any]:
    """Totals and rates; a live job's totals are those of the last sample.

    What stands still moves nothing, whatever it moved before it was stopped in the last slice.
    """
    totals: Any = job.io
    bandwidth = predicted = None
    expected = job.expected or UNKNOWN
    if state is not None and job.is_live:
        totals = state.meter.counters(job.id) or job.io
        rate = Bandwidth() if job.state in SUSPENDED else state.meter.bandwidth(job.id)
        bandwidth = None if rate is None else msgspec.structs.asdict(rate)
    if state is not None and not job.state.is_final:
        guess = state.outlook.predicted(job)
        expected = state.outlook.expected(job)
        predicted = pick(guess, "rate_bytes_per_s", "confidence", "source")
    return {
        **pick(totals, "read_bytes", "written_bytes", "operations"),
        "io_at_least": job.io.at_least,
        "bandwidth": bandwidth,
        "predicted": predicted,
        "expected": expected_record(expected),
        "expected_ratio": hindsight(job) if job.state.is_final else None,
    }


def expected_record(expected: Prediction) -> dict[str, Any]:
    """What is expected of a job's I/O, or was when it started; null where it is not known."""
    return {
        "rate_bytes_per_s": expected.rate_bytes_per_s if expected.is_known else None,
        **pick(expected, "confidence", "source", "io_share", "operations_per_s", "by", "runs"),
    }


def shell_code(job: Job) -> int | None:
    """What ``iod wait`` returns for it; None while it has not ended."""
    if not job.state.is_final:
        return None
    if job.state is JobState.TIMEOUT:
        return _TIMEOUT_CODE
    code = _UNKNOWN_CODE if job.exit is None else job.exit.shell_code
    if job.state is JobState.FAILED and code == 0:  # it was ended, and was content with that
        return _UNKNOWN_CODE
    return code


def asked_path(job: Job, stream: str) -> Path | None:
    """The file its submitter chose for standard output or error; None: the job's own file."""
    asked = job.spec.stdout
    if stream == "stderr" and job.spec.stderr is not None:
        asked = job.spec.stderr
    return None if asked is None else Path(job.spec.cwd) / asked.replace("%j", str(job.id))


def output_path(job: Job, outputs: Path, stream: str) -> Path | None:
    """The file that holds the job's standard output or error; None before it was ever started."""
    asked = asked_path(job, stream)
    if asked is not None:
        return asked
    if job.attempt == 0:
        return None
    return outputs / f"{job.id}.{job.attempt}"


def find_stage(job: Job, outputs: Path) -> str | None:
    """Which step of staging is under way: ``in``, ``out``; None: none is, or nobody can tell."""
    request = job.spec.scratch
    if request is None or not job.shares or job.state not in _COPYING:
        return None
    if request.input_path is None and request.output_path is None:
        return None
    report = read_report(outputs, job.id, job.attempt)
    return report.step if report is not None and report.step in STAGES else None


def scratch_record(
    job: Job, stage: str | None, stock: Stock | None = None
) -> dict[str, Any] | None:
    """What the job asked for and what it has of it; None: it asked for none.

    Args:
        stock: of the node; None for a job that only the journal still knows.
    """
    request = job.spec.scratch
    if request is None:
        return None
    tiers = () if stock is None else stock.tiers
    had_space = _had_space(job, tiers)
    wanted, staged = msgspec.structs.asdict(request), job.staged
    has_come, has_gone = (None, None) if staged is None else (staged.has_come, staged.has_gone)
    if job.scratch_kept is not None or job.scratch_unwanted is not None:
        has_gone = bool(has_gone)
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
        "copied_in": _is_copied(job, request.input_path, done=has_come, had_space=had_space),
        "copied_out": _is_copied(job, request.output_path, done=has_gone, had_space=had_space),
        "stage": None if stage is None else {"step": stage},
        "charged_s": job.charged_s,
    }


def _had_space(job: Job, tiers: Sequence[Tier]) -> bool | None:
    """Whether its attempt has or had directories of its own; None: it has none yet, or unknown."""
    if job.shares:
        return True
    tier = next((tier for tier in tiers if tier.name == job.tier), None)
    return None if tier is None else tier.storage is not None


def _is_copied(
    job: Job, path: str | None, *, done: bool | None, had_space: bool | None
) -> bool | None:
    """Whether that was copied; None: nothing was to be, not yet, or nobody knows."""
    if path is None or not job.state.is_final:
        return None
    if done is not None:
        return done
    if job.state is JobState.COMPLETED:
        return had_space
    return False if job.started_s is None or had_space is False else None


def condition(state: State, mode: Mode) -> dict[str, Any]:
    """What keeps the node from what its configuration says: shadow mode, a drain, a full disk."""
    return {
        "mode": str(mode),
        "drain": None if state.drain is None else msgspec.to_builtins(state.drain),
        "starts_blocked": state.starts_blocked,
    }


def load_line(
    state: State,
    rules: Rules,
    faults: Mapping[str, RuleFault] = MappingProxyType({}),
    mode: Mode = Mode.ON,
) -> dict[str, Any]:
    """The node in one line: policy, bound, slots, what all jobs moved in the last slice."""
    rates = [rate for job in state.live if (rate := state.meter.bandwidth(job.id)) is not None]
    free = sum(state.slots_idle(partition.id) for partition in state.platform.partitions)
    return {
        "policy": rules.name,
        "timeslice_s": rules.regulation.timeslice_s,
        "io_bound_bytes_per_s": getattr(rules.regulation, "io_bound_bytes_per_s", None),
        "slots": state.platform.slot_count,
        "slots_free": free,
        "read_bytes_per_s": sum(rate.read_bytes_per_s for rate in rates),
        "written_bytes_per_s": sum(rate.written_bytes_per_s for rate in rates),
        "states": {str(s): n for s, n in state.by_state().items()},
        "set_aside": [fault.text for fault in faults.values()],
        "starts_blocked": state.starts_blocked,
        "condition": condition(state, mode),
    }
