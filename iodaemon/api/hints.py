"""I/O hints over the API: what is known from earlier runs, runs to import, keys to forget.

client = Client("/run/iodaemon/iod.sock")
for hint in list_hints(client)["hints"]:
    print(hint["key"], hint["expected"]["rate_bytes_per_s"])
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from iodaemon.api.client import Client
from iodaemon.api.model import HintsAnswer, ImportAnswer, ImportedRun
from iodaemon.api.shape import target_of


def list_hints(client: Client, query: Iterable[tuple[str, str]] = ()) -> HintsAnswer:
    """What is known of jobs' I/O from earlier runs, learned last first.

    The query may have ``user``, ``name`` (a glob over keys, with their kind or without), ``limit``.
    """
    target = target_of("/v1/hints", list(query))
    return cast("HintsAnswer", client.ask("GET", target, None, {"hints", "accuracy"}))


def import_runs(client: Client, runs: Sequence[ImportedRun]) -> ImportAnswer:
    """Teach what runs elsewhere did; durable when this returns. All of them or none."""
    answer = client.ask("POST", "/v1/hints", {"runs": list(runs)}, {"imported", "known"})
    return cast("ImportAnswer", answer)


def forget_hints(client: Client, keys: Sequence[str], uid: int | None = None) -> list[str]:
    """Let earlier runs say nothing under these keys; those of which something was known.

    Without a uid they are the caller's own.
    """
    body: dict[str, object] = {"keys": list(keys)}
    if uid is not None:
        body["uid"] = uid
    answer = client.ask("POST", "/v1/hints/forget", body, {"forgotten"})
    return cast("list[str]", answer["forgotten"])
