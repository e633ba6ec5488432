"""Runs a study's tasks on every usable core; the rows come in the order of the tasks."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import partial
from numbers import Integral, Real
from typing import Any, Final

from iodaemon.errors import RequestError
from iodaemon.simulator.experiment import Row, Study
from iodaemon.simulator.pool import OnDone, Pool, TaskFailed

SHOWN: Final = 100
"""Characters of a task in a message."""


def run_study(
    study: Study, seeds: Sequence[int], *, pool: Pool, on_done: OnDone | None = None
) -> tuple[Row, ...]:
    """All rows of a study, in the order of its tasks, whichever was done first.

    Args:
        study: what to compute; picklable, as its tasks are.
        seeds: one whole repetition each.
        pool: where.
        on_done: called after every task.

    Raises:
        RequestError: a task failed, or the process that ran it was killed; names the task. The
            cause has the traceback.
        ConfigError: the study refuses its parameters.
    """
    tasks = study.tasks(seeds)
    try:
        answers = pool.map(partial(_rows, study), tasks, on_done)
    except TaskFailed as error:
        raise RequestError(_failure(error, tasks)) from error.__cause__
    return tuple(row for rows in answers for row in rows)


def _rows(study: Study, task: Any) -> list[Row]:
    return [_plain(row) for row in study.run(task)]


def _failure(error: TaskFailed, tasks: Sequence[Any]) -> str:
    shown = " ".join(repr(tasks[error.number]).split())
    if len(shown) > SHOWN:
        shown = shown[: SHOWN - 1] + "…"
    return f"task {error.number + 1} of {len(tasks)} failed: {error}; the task: {shown}"


def _plain(row: Row) -> Row:
    """The row with plain numbers, as they can be written and read back (numpy has its own)."""
    if not isinstance(row.get("kind"), str):
        raise RequestError(f"it gave a row without a 'kind', {row!r}"[:SHOWN])
    return {key: _plain_value(value, key) for key, value in row.items()}


def _plain_value(value: object, key: str) -> str | int | float:
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, Integral):
        return operator.index(value)
    if isinstance(value, Real):
        return float(value)
    raise RequestError(f"it gave {key} = {value!r}, but rows hold text and numbers alone")
