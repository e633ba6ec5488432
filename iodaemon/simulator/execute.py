"""Runs a study's tasks on every usable core; the rows come in the order of the tasks.

Processes are spawned, one pipe each: no thread, no lock, nothing shared. One whose parent has
gone reads the end of its pipe and ends.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import operator
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from numbers import Integral, Real
from pickle import PicklingError
from typing import Any, Final, NoReturn

from iodaemon.errors import IodaemonError, RequestError
from iodaemon.simulator.experiment import Row, Study

SHOWN: Final = 100
"""Characters of a task in a message."""
OnDone = Callable[[int, int], None]
"""Told how many tasks are done, and of how many."""
_Answer = tuple[Sequence[Row] | None, str, str]
"""Rows; or None, the error in one line, and its traceback."""


def usable_cores() -> int:
    """How many CPUs this process may run on."""
    return len(os.sched_getaffinity(0))


def run_study(
    study: Study, seeds: Sequence[int], *, processes: int, on_done: OnDone | None = None
) -> tuple[Row, ...]:
    """All rows of a study, in the order of its tasks, whichever was done first.

    Args:
        study: what to compute; picklable, as its tasks are.
        seeds: one whole repetition each.
        processes: how many at most; 1: in this one.
        on_done: called after every task.

    Raises:
        RequestError: a task failed, or the process that ran it was killed; names the task. The
            cause has the traceback.
        ConfigError: the study refuses its parameters.
    """
    tasks = study.tasks(seeds)
    told = on_done or (lambda _done, _total: None)
    told(0, len(tasks))
    count = min(processes, len(tasks))
    answers = _here(study, tasks, told) if count <= 1 else _spread(study, tasks, count, told)
    return tuple(row for rows in answers for row in rows)


def _here(study: Study, tasks: Sequence[Any], told: OnDone) -> list[Sequence[Row]]:
    answers: list[Sequence[Row]] = []
    for number, task in enumerate(tasks):
        try:
            answers.append(_rows(study, task))
        except Exception as error:
            raise RequestError(_failure(number, tasks, _one_line(error))) from error
        told(number + 1, len(tasks))
    return answers


def _spread(study: Study, tasks: Sequence[Any], count: int, told: OnDone) -> list[Sequence[Row]]:
    answers: dict[int, Sequence[Row]] = {}
    waiting = iter(range(len(tasks)))
    with _processes(study, count) as idle:
        busy: dict[Connection, int] = {}
        while len(answers) < len(tasks):
            while idle and (number := next(waiting, None)) is not None:
                connection = idle.pop()
                busy[connection] = number
                _send(connection, number, tasks)
            for ready in multiprocessing.connection.wait(list(busy)):
                assert isinstance(ready, Connection)
                number = busy.pop(ready)
                answers[number] = _received(ready, number, tasks)
                idle.append(ready)
                told(len(answers), len(tasks))
    return [answers[number] for number in range(len(tasks))]


def _send(connection: Connection, number: int, tasks: Sequence[Any]) -> None:
    try:
        with suppress(BrokenPipeError):  # it died; reading its end says so
            connection.send(tasks[number])
    except (PicklingError, TypeError, AttributeError) as error:
        problem = f"it cannot be sent to another process ({error}); --jobs 1 needs none"
        raise RequestError(_failure(number, tasks, problem)) from error


def _received(connection: Connection, number: int, tasks: Sequence[Any]) -> Sequence[Row]:
    try:
        rows, problem, trace = connection.recv()
    except (EOFError, ConnectionResetError) as error:
        problem = "its process was killed (out of memory?); --jobs 1 needs the least"
        raise RequestError(_failure(number, tasks, problem)) from error
    if rows is None:
        _raise_remote(_failure(number, tasks, problem), trace)
    done: Sequence[Row] = rows
    return done


def _raise_remote(message: str, trace: str) -> NoReturn:
    """Raise with the traceback of the other process in the cause, for --debug."""
    raise RequestError(message) from RuntimeError(f"in another process:\n{trace}")


@contextmanager
def _processes(study: Study, count: int) -> Iterator[list[Connection]]:
    """So many processes that run tasks; killed and gone at the end, whatever the end was."""
    made: list[tuple[SpawnProcess, Connection]] = []
    try:
        # An interrupt at the keyboard goes to every process of the terminal. It is ours to act on;
        # the others have it blocked from their first moment on.
        resource_tracker.ensure_running()  # it would unblock the signal on the way
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            made += (_new_process(study) for _ in range(count))
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        yield [connection for _, connection in made]
    finally:
        for process, connection in made:
            connection.close()
            process.kill()
        for process, _ in made:
            process.join()
            process.close()


def _new_process(study: Study) -> tuple[SpawnProcess, Connection]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(study, theirs), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def _serve(study: Study, connection: Connection) -> None:
    """The life of a process: tasks in, rows out, until the pipe ends."""
    with suppress(EOFError, OSError):
        while True:
            connection.send(_attempt(study, connection.recv()))


def _attempt(study: Study, task: Any) -> _Answer:
    try:
        return _rows(study, task), "", ""
    except Exception as error:  # noqa: BLE001 - it must reach the other process, whatever it is
        return None, _one_line(error), traceback.format_exc()


def _rows(study: Study, task: Any) -> list[Row]:
    return [_plain(row) for row in study.run(task)]


def _failure(number: int, tasks: Sequence[Any], problem: str) -> str:
    shown = " ".join(repr(tasks[number]).split())
    if len(shown) > SHOWN:
        shown = shown[: SHOWN - 1] + "…"
    return f"task {number + 1} of {len(tasks)} failed: {problem}; the task: {shown}"


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, IodaemonError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


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
