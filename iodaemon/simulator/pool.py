"""Runs a study's tasks on processes: started when needed, kept until the end of all experiments.

They are spawned, one pipe each: no thread, no lock, nothing shared. One whose parent has gone
reads the end of its pipe and ends. What they have imported serves the next experiment as well,
and the drawing of figures.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import operator
import os
import signal
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from multiprocessing.reduction import ForkingPickler
from numbers import Integral, Real
from pickle import PicklingError
from typing import Any, Final, Self

import msgspec

from iodaemon.errors import IodaemonError, RequestError
from iodaemon.simulator.experiment import Row, Study

OnDone = Callable[[int, int], None]
"""Told how many tasks are done, and of how many."""
_CONTEXT: Final = multiprocessing.get_context("spawn")


class TaskFailed(Exception):
    """A task failed, or its process was killed. The cause has the traceback.

    Attributes:
        number: of the task, from 0.
        is_told: whether the message is one for people, of an error of ours.
    """

    def __init__(self, problem: str, number: int, *, is_told: bool = False) -> None:
        super().__init__(problem)
        self.number = number
        self.is_told = is_told


class _Failure(msgspec.Struct, frozen=True):
    """How a task failed: in one line, whether that is one for people, and the traceback."""

    problem: str
    is_told: bool
    trace: str


class Pool:
    """So many processes at most; with one, everything is done in this process.

    Used in a ``with`` statement, at whose end the processes are killed and gone.
    """

    def __init__(self, processes: int) -> None:
        self.processes: Final = processes
        self._workers: list[_Worker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def map(
        self, do: Callable[[Any], Any], tasks: Sequence[Any], on_done: OnDone | None = None
    ) -> list[Any]:
        """What ``do`` makes of each task, in the order of the tasks, whichever was done first.

        Args:
            do: picklable, as the tasks and what it makes of them are.
            tasks: one alone is done in this process.
            on_done: called at the beginning and after every task.

        Raises:
            TaskFailed: the first one that failed; the other processes' tasks are given up.
        """
        told = on_done or (lambda _done, _total: None)
        told(0, len(tasks))
        count = min(self.processes, len(tasks))
        if count <= 1:
            return _here(do, tasks, told)
        try:
            self._start(count)
            return _spread(do, tasks, self._workers[:count], told)
        except BaseException:
            self._end()  # they may be at work still
            raise

    def _start(self, count: int) -> None:
        """Have at least so many processes, all alive."""
        if not all(worker.process.is_alive() for worker in self._workers):
            self._end()
        # An interrupt at the keyboard goes to every process of the terminal. It is ours to act on;
        # the others have it blocked from their first moment on.
        resource_tracker.ensure_running()  # it would unblock the signal on the way
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._workers += (_Worker() for _ in range(count - len(self._workers)))
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    def _end(self) -> None:
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.connection.close()
            worker.process.kill()
        for worker in workers:
            worker.process.join()
            worker.process.close()


class _Worker:
    """One process, and what it was last told to do: told once for many tasks."""

    def __init__(self) -> None:
        self.connection, theirs = _CONTEXT.Pipe()
        self.process: SpawnProcess = _CONTEXT.Process(target=_serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self._does: Callable[[Any], Any] | None = None

    def send(self, do: Callable[[Any], Any], task: Any) -> None:
        """Hand it a task.

        Raises:
            PicklingError, TypeError, AttributeError: it cannot be sent.
        """
        message = ForkingPickler.dumps((None if do is self._does else do, task))
        self._does = do
        with suppress(BrokenPipeError):  # it died; reading its end says so
            self.connection.send_bytes(message)


def _here(do: Callable[[Any], Any], tasks: Sequence[Any], told: OnDone) -> list[Any]:
    made: list[Any] = []
    for number, task in enumerate(tasks):
        try:
            made.append(do(task))
        except Exception as error:
            raise TaskFailed(_one_line(error), number, is_told=_is_told(error)) from error
        told(number + 1, len(tasks))
    return made


def _spread(
    do: Callable[[Any], Any], tasks: Sequence[Any], workers: Sequence[_Worker], told: OnDone
) -> list[Any]:
    made: dict[int, Any] = {}
    waiting = iter(range(len(tasks)))
    idle = list(workers)
    busy: dict[Connection, tuple[_Worker, int]] = {}
    while len(made) < len(tasks):
        while idle and (number := next(waiting, None)) is not None:
            worker = idle.pop()
            busy[worker.connection] = worker, number
            _send(worker, do, tasks[number], number)
        for ready in multiprocessing.connection.wait(list(busy)):
            assert isinstance(ready, Connection)
            worker, number = busy.pop(ready)
            made[number] = _received(ready, number)
            idle.append(worker)
            told(len(made), len(tasks))
    return [made[number] for number in range(len(tasks))]


def _send(worker: _Worker, do: Callable[[Any], Any], task: Any, number: int) -> None:
    try:
        worker.send(do, task)
    except (PicklingError, TypeError, AttributeError) as error:
        problem = f"it cannot be sent to another process ({error}); --jobs 1 needs none"
        raise TaskFailed(problem, number) from error


def _received(connection: Connection, number: int) -> Any:
    try:
        answer = connection.recv()
    except (EOFError, ConnectionResetError) as error:
        problem = "its process was killed (out of memory?); --jobs 1 needs the least"
        raise TaskFailed(problem, number) from error
    if isinstance(answer, _Failure):  # its traceback is in the cause, for --debug
        cause = RuntimeError(f"in another process:\n{answer.trace}")
        raise TaskFailed(answer.problem, number, is_told=answer.is_told) from cause
    return answer


def _serve(connection: Connection) -> None:
    """The life of a process: tasks in, what is made of them out, until the pipe ends."""
    do: Callable[[Any], Any] | None = None
    with suppress(EOFError, OSError):
        while True:
            message = connection.recv_bytes()
            do, answer = _attempt(do, message)
            connection.send(answer)


def _attempt(
    do: Callable[[Any], Any] | None, message: bytes
) -> tuple[Callable[[Any], Any] | None, Any]:
    """What to do from now on, and the answer to the message."""
    try:
        given, task = ForkingPickler.loads(message)
        do = do if given is None else given
        assert do is not None
        return do, do(task)
    except Exception as error:  # noqa: BLE001 - it must reach the other process, whatever it is
        return do, _Failure(_one_line(error), _is_told(error), traceback.format_exc())


def _is_told(error: Exception) -> bool:
    return isinstance(error, IodaemonError)


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    if _is_told(error):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def usable_cores() -> int:
    """How many CPUs this process may run on."""
    return len(os.sched_getaffinity(0))


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
