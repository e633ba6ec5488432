"""Waiting for the end of jobs, also while the daemon is away."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

from iodaemon.api.model import Job, WaitAnswer
from iodaemon.errors import NoDaemon

T = TypeVar("T")

_POLL_S: Final = 30.0
_RETRY_S: Final = 0.25


class Patience:
    """How somebody waits, and what is told meanwhile.

    Args:
        reconnect_s: how long a daemon that went away is looked for.
        on_lost: called once each time the daemon goes away.
        on_told: called with all the jobs, at once and then every 30 s. Of several requests one is
            waited for at a time: the jobs of the others are as they were when last asked for.
    """

    def __init__(
        self,
        reconnect_s: float,
        *,
        on_lost: Callable[[NoDaemon], None] | None = None,
        on_told: Callable[[Sequence[Job]], None] | None = None,
    ) -> None:
        self._reconnect_s = reconnect_s
        self._on_lost = on_lost
        self._on_told = on_told

    def wait(
        self, asks: Sequence[Callable[[float], WaitAnswer]], until_s: float | None
    ) -> list[WaitAnswer]:
        """Ask until all have ended: where somebody is told, of all at once; then one by one.

        Args:
            asks: the requests; the argument is after how many seconds one is answered in any case.
            until_s: answer then in any case, on the monotonic clock. None: wait for ever.

        Returns:
            The last answer to each.

        Raises:
            NoDaemon: it did not come back.
        """
        answers: list[WaitAnswer] = [{"jobs": [], "finished": False} for _ in asks]
        if self._on_told is not None:
            answers = [self._ask(ask, 0.0) for ask in asks]
            self._tell(answers)
            if _is_over(until_s):
                return answers
        for at, ask in enumerate(asks):
            while not answers[at]["finished"]:
                poll_s = _POLL_S if until_s is None else min(_POLL_S, _left_s(until_s))
                asked_s = time.monotonic()
                answers[at] = self._ask(ask, poll_s)
                self._tell(answers)
                if _is_over(until_s):
                    break
                if not answers[at]["finished"] and time.monotonic() - asked_s < poll_s:
                    time.sleep(_RETRY_S)  # a daemon that is about to stop answers early
        return answers

    def _ask(self, ask: Callable[[float], WaitAnswer], poll_s: float) -> WaitAnswer:
        return ask_patiently(partial(ask, poll_s), self._reconnect_s, self._on_lost)

    def _tell(self, answers: Sequence[WaitAnswer]) -> None:
        if self._on_told is not None:
            self._on_told([job for answer in answers for job in answer["jobs"]])


def ask_patiently(
    ask: Callable[[], T],
    reconnect_s: float,
    on_lost: Callable[[NoDaemon], None] | None = None,
) -> T:
    """The answer to what changes nothing; a daemon that went away is looked for.

    Raises:
        NoDaemon: it did not come back.
    """
    lost_s: float | None = None
    while True:
        try:
            return ask()
        except NoDaemon as error:
            if lost_s is None:
                lost_s = time.monotonic()
                if on_lost is not None:
                    on_lost(error)
            elif time.monotonic() - lost_s > reconnect_s:
                raise
        time.sleep(_RETRY_S)


def _left_s(until_s: float) -> float:
    return max(0.0, until_s - time.monotonic())


def _is_over(until_s: float | None) -> bool:
    return until_s is not None and _left_s(until_s) <= 0.0
