"""The routes of administrators: drain the node, reload the configuration, switch regulation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec
from aiohttp import web

from iodaemon.api.model import DrainAnswer, ModeAnswer, ReloadAnswer, SwitchAnswer
from iodaemon.core import event as ev
from iodaemon.core.drain import Drain
from iodaemon.core.rule import Mode
from iodaemon.daemon.account import user_name
from iodaemon.daemon.http.answer import json_answer
from iodaemon.daemon.http.lookup import Lookup, parse_number
from iodaemon.daemon.http.route import Route
from iodaemon.daemon.journal.record import Batch
from iodaemon.errors import RequestError
from iodaemon.text import printable

_LONGEST_POLL_S: Final = 60
_LONGEST_REASON: Final = 200
"""Characters; it is shown in a line with every job that waits."""

Reload = Callable[[str], Awaitable[dict[str, Any]]]


class _Wish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    drain: bool
    reason: str = ""


class _Switch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    mode: Mode


class Administration:
    """Drain, reload, the mode of regulation."""

    def __init__(
        self, lookup: Lookup, *, reload: Reload | None = None, ending: asyncio.Event
    ) -> None:
        self._lookup = lookup
        self._driver = lookup.driver
        self._state = lookup.state
        self._reload = reload
        self._ending = ending

    def routes(self) -> Sequence[Route]:
        """What is ordered where."""
        return [
            Route("GET", "/v1/drain", self._show, "whether jobs start", DrainAnswer, ("wait",)),
            Route(
                *("POST", "/v1/drain", self._order, "drain, or end that", DrainAnswer),
                right="drain",
                body=_Wish,
            ),
            Route(
                *("POST", "/v1/config/reload", self._read_again, "reload", ReloadAnswer),
                right="reload",
            ),
            Route("GET", "/v1/mode", self._mode, "what regulation may do", ModeAnswer),
            Route(
                *("POST", "/v1/mode", self._switch, "switch it", SwitchAnswer),
                right="regulate",
                body=_Switch,
            ),
        ]

    async def _show(self, request: web.Request) -> web.Response:
        """How it stands; with ``wait``, when the node is empty, drained no longer, or in time."""
        wait_s = parse_number(request.query.get("wait", "0"))

        def settled() -> bool:
            over = self._state.drain is None or self._ending.is_set()
            return over or self._driver.is_at_rest

        await self._lookup.until(settled, min(wait_s, _LONGEST_POLL_S))
        return json_answer(self._told())

    async def _order(self, request: web.Request, asked: _Wish) -> web.Response:
        actor = self._lookup.access.who(request)
        reason = printable(" ".join(asked.reason.split()))
        if len(reason) > _LONGEST_REASON:
            raise RequestError(
                f"the reason has {len(reason)} characters; say it in {_LONGEST_REASON}"
            )
        now_s, by, before = self._driver.timeline.now_s, user_name(actor.uid), self._state.drain
        if asked.drain and (before is None or reason):
            since_s = now_s if before is None else before.since_s
            drain = Drain(since_s=since_s, by=by, reason=reason)
            begun = ev.DrainBegun(at_s=now_s, by=by, reason=reason)
            await self._driver.order(Batch(drain=drain), begun)
        elif not asked.drain and before is not None:
            await self._driver.order(Batch(drain=None), ev.DrainEnded(at_s=now_s, by=by))
        await self._lookup.until(lambda: (self._state.drain is not None) == asked.drain, 1.0)
        return json_answer(self._told())

    def _told(self) -> dict[str, Any]:
        """Whether it is drained, since when, by whom, why; and the jobs that hold CPUs."""
        drain = self._state.drain
        return {
            "draining": drain is not None,
            **({} if drain is None else msgspec.to_builtins(drain)),
            "holding": [{"id": job.id, "state": str(job.state)} for job in self._state.live],
            "at_rest": self._driver.is_at_rest,
        }

    async def _read_again(self, request: web.Request) -> web.Response:
        actor = self._lookup.access.who(request)
        if self._reload is None:
            raise RequestError("this daemon has no configuration to read again")
        return json_answer(await self._reload(user_name(actor.uid)))

    async def _mode(self, _: web.Request) -> web.Response:
        regulator = self._driver.controller.regulator
        stood_s = regulator.shadow.stood_s(self._driver.timeline.now_s)
        return json_answer({"mode": regulator.mode, "shadow_suspended_s": stood_s})

    async def _switch(self, request: web.Request, asked: _Switch) -> web.Response:
        actor = self._lookup.access.who(request)
        now_s = self._driver.timeline.now_s
        event = ev.ModeChanged(at_s=now_s, mode=asked.mode, by=user_name(actor.uid))
        await self._driver.order(Batch(mode=asked.mode), event)
        return json_answer({"mode": str(asked.mode)})
