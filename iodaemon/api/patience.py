"""Waiting for the end of jobs, also while the daemon is away."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from iodaemon.api.model import Job, WaitAnswer
from iodaemon.errors import NoDaemon

_POLL_S: Final = 30.0
_RETRY_S: Final = 0.25


class Patience:
    """How somebody waits, and what is told meanwhile.

    Args:
        reconnect_s: how long a daemon that went away is looked for.
        on_lost: called once each time the daemon goes away.
        on_told: called with the jobs as they are, at once and then every 30 s.
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

    def wait(self, ask: Callable[[float], WaitAnswer], until_s: float | None) -> WaitAnswer:
        """Ask until all have ended.

        Args:
            ask: the request; its argument is after how many seconds it is answered in any case.
            until_s: answer then in any case, on the monotonic clock. None: wait for ever.

        Raises:
            NoDaemon: it did not come back.
        """
        poll_s = _POLL_S if self._on_told is None else 0.0
        while True:
            if until_s is not None:
                poll_s = max(0.0, min(poll_s, until_s - time.monotonic()))
            asked_s = time.monotonic()
            answer = self._ask_patiently(ask, poll_s)
            if self._on_told is not None:
                self._on_told(answer["jobs"])
            if answer["finished"] or (until_s is not None and time.monotonic() >= until_s):
                return answer
            if time.monotonic() - asked_s < poll_s:
                time.sleep(_RETRY_S)  # a daemon that is about to stop answers early
            poll_s = _POLL_S

    def _ask_patiently(self, ask: Callable[[float], WaitAnswer], poll_s: float) -> WaitAnswer:
        lost_s: float | None = None
        while True:
            try:
                return ask(poll_s)
            except NoDaemon as error:
                if lost_s is None:
                    lost_s = time.monotonic()
                    if self._on_lost is not None:
                        self._on_lost(error)
                elif time.monotonic() - lost_s > self._reconnect_s:
                    raise
            time.sleep(_RETRY_S)
