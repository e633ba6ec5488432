"""What administrators ask of a daemon over the API: draining, reading the configuration again.

client = Client("/run/iodaemon/iod.sock")
begin_drain(client, "new memory")
"""

from __future__ import annotations

from typing import cast

from iodaemon.api.client import Client
from iodaemon.api.model import DrainAnswer, ReloadAnswer
from iodaemon.api.shape import target_of

_KEYS = frozenset({"draining", "holding", "at_rest"})


def begin_drain(client: Client, reason: str = "") -> DrainAnswer:
    """Let nothing start any more; durable when this returns."""
    body = {"drain": True, "reason": reason}
    return cast("DrainAnswer", client.ask("POST", "/v1/drain", body, _KEYS))


def end_drain(client: Client) -> DrainAnswer:
    """Let jobs start again; durable when this returns."""
    return cast("DrainAnswer", client.ask("POST", "/v1/drain", {"drain": False}, _KEYS))


def show_drain(client: Client, wait_s: int = 0) -> DrainAnswer:
    """How it stands: at once, or when the node is at rest, or drained no longer, or in so long.

    Args:
        client: with a longer patience than ``wait_s``, which is at most 60.
    """
    target = target_of("/v1/drain", [("wait", str(wait_s))])
    return cast("DrainAnswer", client.ask("GET", target, None, _KEYS))


def reload_config(client: Client) -> ReloadAnswer:
    """Have the configuration read again; durable and in force when this returns."""
    keys = {"changed", "needs_restart", "notes"}
    return cast("ReloadAnswer", client.ask("POST", "/v1/config/reload", {}, keys))
