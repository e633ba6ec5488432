"""The node: what it is and how it stands; draining, the configuration, the mode of regulation."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from aiohttp import web

from iodaemon.api.model import (
    ConfigAnswer,
    DrainAnswer,
    ModeAnswer,
    NodeAnswer,
    PolicyAnswer,
    ReloadAnswer,
)
from iodaemon.config import config_document
from iodaemon.core import event as ev
from iodaemon.core.rule import Mode
from iodaemon.daemon.account import user_name
from iodaemon.daemon.http.answer import json_answer
from iodaemon.daemon.http.context import LONGEST_POLL_S, Context, parse_number
from iodaemon.daemon.http.report import policy_report, running_config
from iodaemon.daemon.http.route import route
from iodaemon.errors import RequestError
from iodaemon.text import printable

_LONGEST_REASON: Final = 200
"""Characters; it is shown in a line with every job that waits."""


class _DrainWish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    drain: bool
    reason: str = ""


class _Switch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    mode: Mode


@route("GET /v1/node", NodeAnswer)
async def show_node(context: Context, _: web.Request) -> web.Response:
    """Sockets, devices, what is measured how."""
    return web.Response(body=context.node.get(), content_type="application/json")


@route("GET /v1/policy", PolicyAnswer)
async def show_policy(context: Context, _: web.Request) -> web.Response:
    """The policy in force."""
    faults = context.driver.controller.faults
    return json_answer(policy_report(context.force.policy, context.state.platform, faults))


@route("GET /v1/config", ConfigAnswer)
async def show_config(context: Context, _: web.Request) -> web.Response:
    """The configuration in force."""
    document = config_document(context.force.config)
    return json_answer(running_config(document, context.driver.controller.regulator.mode))


@route("POST /v1/config/reload", ReloadAnswer, right="reload")
async def reload_config(context: Context, request: web.Request) -> web.Response:
    """Read the configuration again."""
    if context.reload is None:
        raise RequestError("this daemon has no configuration to read again")
    return json_answer(await context.reload(user_name(context.access.who(request).uid)))


@route("GET /v1/drain", DrainAnswer, "wait")
async def show_drain(context: Context, request: web.Request) -> web.Response:
    """Whether jobs start.

    With ``wait``, when the node is at rest, drained no longer, or in so long.
    """
    wait_s = parse_number(request.query.get("wait", "0"))

    def settled() -> bool:
        over = context.state.drain is None or context.ending.is_set()
        return over or context.driver.is_at_rest

    await context.until(settled, min(wait_s, LONGEST_POLL_S))
    return json_answer(_drained(context))


@route("POST /v1/drain", DrainAnswer, right="drain", body=_DrainWish)
async def order_drain(context: Context, request: web.Request, asked: _DrainWish) -> web.Response:
    """Drain the node, or end that."""
    by, now_s = user_name(context.access.who(request).uid), context.now_s
    reason = printable(" ".join(asked.reason.split()))
    if len(reason) > _LONGEST_REASON:
        raise RequestError(f"the reason has {len(reason)} characters; say it in {_LONGEST_REASON}")
    before = context.state.drain
    if asked.drain and (before is None or reason):
        await context.driver.order(ev.DrainBegun(at_s=now_s, by=by, reason=reason))
    elif not asked.drain and before is not None:
        await context.driver.order(ev.DrainEnded(at_s=now_s, by=by))
    await context.until(lambda: (context.state.drain is not None) == asked.drain, 1.0)
    return json_answer(_drained(context))


def _drained(context: Context) -> dict[str, Any]:
    state = context.state
    return {
        "draining": state.drain is not None,
        **({} if state.drain is None else msgspec.to_builtins(state.drain)),
        "holding": [{"id": job.id, "state": str(job.state)} for job in state.live],
        "at_rest": context.driver.is_at_rest,
    }


@route("GET /v1/mode", ModeAnswer)
async def show_mode(context: Context, *_: object) -> web.Response:
    """What regulation may do."""
    regulator = context.driver.controller.regulator
    stood_s = regulator.shadow.stood_s(context.now_s)
    return json_answer({"mode": regulator.mode, "shadow_suspended_s": stood_s})


@route("POST /v1/mode", ModeAnswer, right="regulate", body=_Switch)
async def switch_mode(context: Context, request: web.Request, asked: _Switch) -> web.StreamResponse:
    """Switch the mode of regulation."""
    by = user_name(context.access.who(request).uid)
    await context.driver.order(ev.ModeChanged(at_s=context.now_s, mode=asked.mode, by=by))
    await context.until(lambda: context.driver.controller.regulator.mode == asked.mode, 1.0)
    return await show_mode(context)
