"""The routes of I/O hints: what is known from earlier runs, runs to import, keys to forget."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final, TypeVar

import msgspec
from aiohttp import web

from iodaemon.api.model import ForgetAnswer, HintsAnswer, ImportAnswer
from iodaemon.core import event as ev
from iodaemon.core.forecast import Trace
from iodaemon.core.similarity import (
    LONGEST,
    Key,
    find_key,
    key_of_kind,
    keys_elsewhere,
    kind_of_key,
)
from iodaemon.daemon.account import parse_user, user_name
from iodaemon.daemon.http.answer import Answer, json_answer
from iodaemon.daemon.http.context import Context, parse_number
from iodaemon.daemon.http.record import expected_record, pick
from iodaemon.daemon.http.route import route
from iodaemon.daemon.journal.record import Batch
from iodaemon.errors import NotPermitted, RequestError

_MOST_ROWS: Final = 1000
_MOST_TRACES: Final = 10_000
_LOOKED_AT_ONCE: Final = 20
"""Keys."""
_LONGEST_S: Final = 10 * 365 * 86400.0
"""No run takes longer; a record that says so is damaged."""
_LATEST_S: Final = 253402300799.0
"""The end of the year 9999: no later time can be written as a date."""

_T = TypeVar("_T")
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Uid = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
_Word = Annotated[str, msgspec.Meta(max_length=4096)]


class ImportedRun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run elsewhere: RUN of docs/api.md."""

    command: Annotated[tuple[_Word, ...], msgspec.Meta(max_length=4096)]
    ended_s: Annotated[float, msgspec.Meta(ge=0, le=_LATEST_S)]
    run_s: Annotated[float, msgspec.Meta(gt=0, le=_LONGEST_S)]
    processes: Annotated[int, msgspec.Meta(ge=1, le=2**31)] = 1
    read_bytes: _Count
    written_bytes: _Count
    io_s: Annotated[float, msgspec.Meta(ge=0, le=_LONGEST_S)]
    operations: _Count | None = None
    uid: _Uid | None = None
    name: Annotated[str, msgspec.Meta(max_length=200)] = ""
    job: Annotated[str, msgspec.Meta(max_length=200)] = ""


_RUNS: Final = {"minItems": 1, "maxItems": _MOST_TRACES}


class _Import(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    runs: Annotated[tuple[ImportedRun, ...], msgspec.Meta(extra_json_schema=_RUNS)]


class _Forget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    keys: Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=1000)]
    uid: _Uid | None = None


@route("GET /v1/hints", HintsAnswer, "user", "name", "limit")
async def show_hints(context: Context, request: web.Request) -> web.Response:
    """What is known of jobs' I/O."""
    query = request.query
    uid = await asyncio.to_thread(parse_user, query["user"]) if "user" in query else None
    limit = min(_MOST_ROWS, parse_number(query.get("limit", str(_MOST_ROWS))))
    glob = query.get("name", "")
    if len(glob) > LONGEST:
        raise RequestError(f"a name of {len(glob)} characters; no key has more than {LONGEST}")
    async with Answer(request) as answer:
        await answer.take_turn()  # all keys are looked at
        told = {
            "hints": await _hints(context, _chooser(uid, glob), limit),
            "accuracy": [
                {"source": source, "predictions": each.jobs, "off": each.off}
                for source, each in sorted(context.knowledge.recollection.accuracy.items())
            ],
            "lessons": await _lessons(context, _chooser(uid, glob), limit),
        }
    return json_answer({"version": 1, "now_s": context.now_s, **told})


async def _hints(
    context: Context, chooses: Callable[[Key], bool], limit: int
) -> list[dict[str, Any]]:
    recollection, now_s = context.knowledge.recollection, context.now_s
    rows: list[dict[str, Any]] = []
    async for entry in _in_turns(recollection.entries()):
        if len(rows) >= limit:
            break
        if chooses(entry.key) and (found := recollection.look_up(entry, now_s)) is not None:
            told = pick(found, "last_s", "run_s", "predictions", "off")
            rows.append({**_who(found.key), "expected": expected_record(found.expected), **told})
    return rows


async def _lessons(
    context: Context, chooses: Callable[[Key], bool], limit: int
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    async for kind, lesson in _in_turns([*context.state.lessons.items()]):
        key = key_of_kind(kind)
        if key is not None and chooses(key):
            rows.append({**_who(key), **msgspec.structs.asdict(lesson)})
    return sorted(rows, key=lambda row: (-row["at_s"], row["uid"], row["key"]))[:limit]


async def _in_turns(known: Iterable[_T]) -> AsyncIterator[_T]:
    """Each of them; others are answered meanwhile."""
    for place, each in enumerate(known, 1):
        yield each
        if place % _LOOKED_AT_ONCE == 0:
            await asyncio.sleep(0)


def _who(key: Key) -> dict[str, Any]:
    return {"key": key.shown, "user": user_name(key.uid), "uid": key.uid}


@route("POST /v1/hints", ImportAnswer, body=_Import, statuses=(201,))
async def import_runs(context: Context, request: web.Request, asked: _Import) -> web.Response:
    """Teach what runs elsewhere did."""
    await context.access.refuse_stranger(context.access.who(request), "hint")
    if not 1 <= len(asked.runs) <= _MOST_TRACES:
        raise RequestError(f"{len(asked.runs)} runs in one import; send 1 to {_MOST_TRACES}")
    context.refuse_unwritable()
    whose = {uid: _whose(context, request, uid) for uid in {run.uid for run in asked.runs}}
    traces = list(_traces(asked.runs, whose, context.now_s))
    async with context.access.turn(request, "import"):
        imported = await context.knowledge.take(traces, context.journal, context.state.outlook)
    return json_answer({"imported": imported, "known": len(traces) - imported}, status=201)


@route("POST /v1/hints/forget", ForgetAnswer, body=_Forget)
async def forget_hints(context: Context, request: web.Request, asked: _Forget) -> web.Response:
    """Let earlier runs say nothing."""
    await context.access.refuse_stranger(context.access.who(request), "hint")
    uid = _whose(context, request, asked.uid)
    context.refuse_unwritable()
    keys = [_key(uid, shown) for shown in dict.fromkeys(asked.keys)]
    known = await context.knowledge.forget(
        keys, context.now_s, context.journal, context.state.outlook
    )
    forgotten = {*known, *await _forget_lessons(context, keys)}
    return json_answer({"forgotten": [key.shown for key in keys if key in forgotten]})


async def _forget_lessons(context: Context, keys: Sequence[Key]) -> list[Key]:
    """Those of the keys of whose jobs a lesson was known; durable on return.

    Raises:
        JournalError: it cannot be made durable now; no lesson was forgotten.
    """
    lessons = context.state.lessons
    kinds = {kind_of_key(key): key for key in keys if lessons.get(kind_of_key(key)) is not None}
    if kinds:
        await context.journal.commit(Batch(lessons=dict.fromkeys(kinds)))
        context.driver.post(ev.LessonsForgotten(at_s=context.now_s, kinds=tuple(kinds)))
    return list(kinds.values())


def _whose(context: Context, request: web.Request, uid: int | None) -> int:
    """The user whose jobs a hint is about; of others only for who may act on all jobs.

    Raises:
        NotPermitted: it is of somebody else's.
    """
    actor = context.access.who(request)
    if uid is None or uid == actor.uid:
        return context.access.allow(request, "hint").uid
    try:
        context.access.allow(request, "hint_others")
    except NotPermitted as error:
        raise NotPermitted(
            f"uid {actor.uid} may not give hints on jobs of uid {uid}; count the runs as your "
            "own with --user me, or ask root"
        ) from error
    return uid


def _chooser(uid: int | None, glob: str) -> Callable[[Key], bool]:
    """True for the keys that are meant: of this user, and so called, with their kind or without."""

    def chooses(key: Key) -> bool:
        if uid is not None and key.uid != uid:
            return False
        return not glob or fnmatchcase(key.text, glob) or fnmatchcase(key.shown, glob)

    return chooses


def _key(uid: int, shown: str) -> Key:
    key = find_key(uid, shown)
    if key is None:
        raise RequestError(f"{shown[:80]!r} is no key of a hint; 'iod hint show' lists them")
    return key


def _traces(
    runs: Sequence[ImportedRun], whose: Mapping[int | None, int], now_s: float
) -> Iterator[Trace]:
    """The runs as they are kept; ``whose`` has the user for each that is named.

    Raises:
        RequestError: names the run by its place, and what is wrong with it.
    """
    for place, run in enumerate(runs, 1):
        uid = whose[run.uid]
        if not keys_elsewhere(uid, run.name, run.command):
            raise RequestError(
                f"run {place} of {len(runs)} names no program; say with --name of which jobs it is"
            )
        told = {**msgspec.structs.asdict(run), "uid": uid}
        del told["job"]
        yield Trace(**told, log=_identity(run), imported_s=now_s)


def _identity(run: ImportedRun) -> str:
    """The same for the same run, however often and by whomever it is imported."""
    told = msgspec.json.encode(msgspec.structs.replace(run, uid=None, name=""))
    return hashlib.sha256(told).hexdigest()[:16]
