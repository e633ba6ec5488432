"""What a client may submit, checked before anything is queued; and the route that takes it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Generator, Mapping, Sequence
from hashlib import sha256
from typing import Annotated, Final, TypeVar

import msgspec
from aiohttp import web

from iodaemon.api.model import SubmitAnswer
from iodaemon.core.job import (
    Job,
    JobId,
    JobSpec,
    JobState,
    Reason,
    ScratchRequest,
    environment_bytes,
    job_bytes,
    resume_command,
)
from iodaemon.core.platform import Platform
from iodaemon.core.stock import why_never
from iodaemon.core.storage import Tier
from iodaemon.core.words import told_bytes
from iodaemon.daemon.http.access import body_of, give_place
from iodaemon.daemon.http.answer import LINES, json_answer
from iodaemon.daemon.http.context import Context, session_of
from iodaemon.daemon.http.refusal import Misstated, Path, misstated, of_job, refuse_malformed
from iodaemon.daemon.http.room import LONGEST_PATH_BYTES, Room
from iodaemon.daemon.http.route import route
from iodaemon.daemon.journal.record import RequestKey
from iodaemon.errors import RequestError
from iodaemon.hint import DROPPED, SenselessHint, check_hint
from iodaemon.node.feature import words_of
from iodaemon.units import format_duration

_LARGEST_BATCH: Final = 100_000
_MOST_WARNINGS: Final = 20
_HINTS: Final = ("io_rate_bytes_per_s", "io_share", "io_operations_per_s")
_AT_ONCE: Final = 500
"""Jobs checked between two looks at what else there is to do."""
_BYTES_AT_ONCE: Final = 256 * 1024
"""The same of what is decoded."""
LONGEST_PIECE_BYTES: Final = 4 * 2**20
"""What is decoded in one go: 0.1 s where it is all words of a letter, 0.3 s the smallest variables,
0.8 s the smallest jobs (two busy cores). What can be executed is 2 MiB."""
_KEY_DIGITS: Final = 40
"""160 bits: nobody finds two environments with one key, of which another user's job gets one."""
_LONGEST_ID: Final = "9" * 19
"""What ``%j`` may come to: ids are below 2**63."""

_T = TypeVar("_T")
LONGEST_S: Final = 10 * 365 * 86400.0
"""Ten years: no run lasts longer, and every date until then can be written."""
_Duration = Annotated[float, msgspec.Meta(gt=0, le=LONGEST_S)]
_Word = Annotated[str, msgspec.Meta(min_length=1)]


class SubmittedJob(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One job of a submission: SPEC of docs/api.md.

    What is said of its I/O is taken as it is and judged by ``adjust``: it refuses no job.
    """

    command: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    cwd: Annotated[str, msgspec.Meta(pattern="^/")] = "/"
    name: Annotated[str, msgspec.Meta(max_length=200)] = ""
    cpus: Annotated[int, msgspec.Meta(ge=1)] = 1
    shares_cores: bool = False
    walltime_s: _Duration | None = None
    memory_bytes: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)] | None = None
    io_rate_bytes_per_s: float | None = None
    io_share: float | None = None
    io_operations_per_s: float | None = None
    no_suspend: bool = False
    max_suspend_s: _Duration | None = None
    requeue: bool = False
    stdout: _Word | None = None
    stderr: _Word | None = None
    umask: Annotated[int, msgspec.Meta(ge=0, le=0o777)] = 0o022
    scratch: ScratchRequest | None = None
    hold: bool = False


_COUNT: Final = {"minItems": 1, "maxItems": _LARGEST_BATCH}
"""Said of them, and checked with words of its own."""


class Submission(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of ``POST /v1/jobs``."""

    jobs: Annotated[tuple[SubmittedJob, ...], msgspec.Meta(extra_json_schema=_COUNT)]
    environment: dict[str, str] = {}


class _Head(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first line of one in lines."""

    environment: dict[str, str] = {}


class _Whole(_Head, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One in one object."""

    jobs: tuple[msgspec.Raw, ...]


def decode_in_steps(
    body: bytes,
    platform: Platform,
    tiers: Sequence[Tier] = (),
    *,
    any_tier: bool = False,
    in_lines: bool = False,
    admit: Callable[[Sequence[int]], None] = lambda _: None,
    take: Callable[[int], None] = lambda _: None,
) -> Generator[None, None, Submission]:
    """The submission, if every job of it could ever run; each step is some milliseconds.

    Args:
        body: one JSON object; or, ``in_lines``, one a line, first that with the environment, then
            the jobs.
        tiers: of the node's storage, fastest first.
        any_tier: the admission rule chooses among all for who names none.
        admit: refuses by what the jobs ask for, so many CPUs each, before each is looked at.
        take: refuses by memory; told of each piece, once it is decoded, how much it takes.

    Raises:
        RequestError: names the job (by its place in the list), the value, and what to do.
    """
    head, pieces = _split(body, in_lines=in_lines)
    count = len(pieces)
    take(environment_bytes(head.environment))
    jobs: list[SubmittedJob] = []
    decoded_bytes = 0
    for place, piece in enumerate(pieces):
        decoded_bytes += len(piece)
        if decoded_bytes > _BYTES_AT_ONCE:
            yield
            decoded_bytes = len(piece)
        which = "" if count == 1 else f"job {place + 1}: "
        jobs.append(_decode(piece, SubmittedJob, "job", which, ("jobs", place)))
        take(job_bytes(jobs[-1]))
    admit([job.cpus for job in jobs])
    launch = Room(head.environment)
    for place, job in enumerate(jobs):
        try:
            _check(job, platform)
            if job.scratch is not None:
                _check_scratch(job.scratch, tiers, any_tier=any_tier)
            launch.check(job, "")
        except RequestError as error:
            raise of_job(error, place, count) from error
        if (place + 1) % _AT_ONCE == 0:
            yield
    return Submission(jobs=tuple(jobs), environment=head.environment)


def _split(body: bytes, *, in_lines: bool) -> tuple[_Head, Sequence[bytes | msgspec.Raw]]:
    """What is said of all jobs, and the jobs; they are counted before there are as many pieces."""
    if not in_lines:
        whole = _decode(body, _Whole, "submission")
        _check_count(len(whole.jobs))
        return whole, whole.jobs
    lines = body.rstrip(b"\n")
    _check_count(lines.count(b"\n"))
    first, *pieces = lines.split(b"\n")
    return _decode(first, _Head, "first line"), pieces


def _check_count(count: int) -> None:
    if not 1 <= count <= _LARGEST_BATCH:
        raise RequestError(f"{count} jobs in one submission; send 1 to {_LARGEST_BATCH}")


def _decode(
    text: bytes | msgspec.Raw, kind: type[_T], what: str, which: str = "", at: Path = ()
) -> _T:
    if len(text) > LONGEST_PIECE_BYTES:
        problem = (
            f"a {what} of {len(text)} bytes, {LONGEST_PIECE_BYTES} are the most: send many jobs "
            "one a line (docs/api.md), or put data into a file"
        )
        raise Misstated(which + problem, problem, at)
    with refuse_malformed(what, which, at):
        return msgspec.json.decode(text, type=kind)


def adjust(
    jobs: Sequence[SubmittedJob], walltime_s: float | None, controls: Mapping[str, bool]
) -> tuple[list[SubmittedJob], list[str]]:
    """The jobs as they are taken, and what their submitter has to know of that.

    A job without a walltime gets this one, if not None. What is said of a job's I/O and makes no
    sense is dropped, and told in one line for each kind of nonsense, with the first job that has
    it. Of a memory limit that ``controls`` does not keep only that is told.
    """
    taken, nonsense = list[SubmittedJob](), dict[str, str]()
    for place, job in enumerate(jobs, 1):
        changes: dict[str, float | None] = {}
        rate, share, operations = (getattr(job, name) for name in _HINTS)
        try:
            check_hint(rate=rate, share=share, operations=operations, names=_HINTS)
        except SenselessHint as error:
            which = "" if len(jobs) == 1 else f"job {place}: "
            nonsense.setdefault(str(error), f"{which}{error}; {DROPPED}")
            changes |= dict.fromkeys(_HINTS)
        if walltime_s is not None and job.walltime_s is None:
            changes["walltime_s"] = walltime_s
        taken.append(msgspec.structs.replace(job, **changes) if changes else job)
    told = list(nonsense.values())[:_MOST_WARNINGS]
    if walltime_s is not None and any(job.walltime_s is None for job in jobs):
        shown = format_duration(walltime_s)
        told.append(f"without -t a job may run for {shown} here (default_walltime)")
    if not controls.get("memory", True) and any(job.memory_bytes is not None for job in jobs):
        told.append(f"{words_of(())['memory_limit']}; see 'iod doctor'")
    return taken, told


def _check(job: SubmittedJob, platform: Platform) -> None:
    largest = platform.largest_partition
    if job.cpus > largest:
        raise RequestError(
            f"asks for {job.cpus} CPUs, the largest socket has {largest}; "
            f"lower --cpus to {largest} or less"
        )
    if job.shares_cores and job.cpus != 1:
        raise RequestError("cpus and shares_cores: leave one of them out")
    if not job.command[0]:
        raise RequestError("the command is empty; give one after --")
    texts = (*job.command, job.cwd, job.name, job.stdout or "", job.stderr or "")
    if any("\0" in text for text in texts):
        raise RequestError("NUL characters cannot be passed to a command; remove them")
    for name in ("cwd", "stdout", "stderr"):
        _check_path(getattr(job, name) or "", name)


def _check_path(path: str, name: str) -> None:
    """As it will be when the job is started, its number in it; its length is bounded first."""
    if len(path) <= LONGEST_PATH_BYTES:
        path = path.replace("%j", _LONGEST_ID)
    if len(path) > LONGEST_PATH_BYTES or len(path.encode()) > LONGEST_PATH_BYTES:
        raise misstated(
            f"is longer than the {LONGEST_PATH_BYTES} bytes of a path (%j counts as "
            f"{len(_LONGEST_ID)}); shorten it",
            name,
        )


def environment_key(environment: Mapping[str, str]) -> str:
    text = json.dumps(environment, sort_keys=True)
    return sha256(text.encode(errors="surrogatepass")).hexdigest()[:_KEY_DIGITS]


def job_maker(
    submitted: SubmittedJob, uid: int, environment_id: str
) -> Callable[[JobId, float], Job]:
    fields = {f: getattr(submitted, f) for f in JobSpec.__struct_fields__ if hasattr(submitted, f)}
    spec = JobSpec(**fields, environment_id=environment_id)
    state = JobState.HELD if submitted.hold else JobState.PENDING

    def make(job_id: JobId, now_s: float) -> Job:
        return Job(
            id=job_id,
            spec=spec,
            uid=uid,
            state=state,
            since_s=now_s,
            submitted_s=now_s,
            user_hold=submitted.hold,
            reason=_held(job_id) if submitted.hold else None,
        )

    return make


def _held(job_id: JobId) -> Reason:
    return Reason(code="Held", text="held at submission", cure=resume_command(job_id))


def _check_scratch(asked: ScratchRequest, tiers: Sequence[Tier], *, any_tier: bool) -> None:
    for name in ("input_path", "output_path"):
        path = getattr(asked, name) or ""
        if "\0" in path or len(path.encode(errors="replace")) > LONGEST_PATH_BYTES:
            raise misstated("is no path: it has a NUL or is too long; shorten it", "scratch", name)
        if ".." in path.split("/"):
            raise misstated(f"{path!a} has '..' in it; write it without", "scratch", name)
    if asked.input_bytes > asked.size_bytes:
        has, gets = told_bytes(asked.input_bytes), told_bytes(asked.size_bytes)
        raise RequestError(
            f"its input has {has}, more than the {gets} of scratch space it asks for; ask for more"
        )
    never = why_never(tiers, asked, any_tier=any_tier)
    if never is not None:
        raise RequestError(never)


# -- the route -------------------------------------------------------------------------------------

_KEY: Final = "Idempotency-Key"
_LONGEST_KEY: Final = 64
_DIGITS: Final = 32
"""128 bits of a body's digest: nobody finds two bodies that have the same."""
_COPIES: Final = 2
"""Of a body that is decoded: as it came, and in lines."""


@route(
    *("POST /v1/jobs", SubmitAnswer, "dry_run"),
    right="submit",
    body=Submission,
    reads_body=True,
    headers=(_KEY,),
    statuses=(201, 200),
)
async def submit(context: Context, request: web.Request) -> web.Response:
    """Submit jobs."""
    actor = context.access.who(request)
    await context.access.refuse_stranger(actor, "submit")
    is_trial = request.query.get("dry_run") == "1"
    key = None if is_trial else _find_key(request)
    async with body_of(request) as body:
        asked = None
        if key is not None:
            is_large = len(body) > LONGEST_PIECE_BYTES
            made = await asyncio.to_thread(sha256, body) if is_large else sha256(body)
            asked = RequestKey(actor.uid, key, made.hexdigest()[:_DIGITS])
            if ids := await context.driver.find_submitted(asked):
                return json_answer({"ids": ids}, status=201)
        with context.driver.environments.claim(actor.uid) as take:
            take(_COPIES * len(body))
            submission = await _decode_between(context, body, request.content_type, actor.uid, take)
            environment = environment_key(submission.environment)
            walltime_s = context.force.config.default_walltime_s
            jobs, warnings = adjust(submission.jobs, walltime_s, context.door.controls())
            makers = [job_maker(job, actor.uid, environment) for job in jobs]
            context.refuse_above_limits(actor.uid, [job.cpus for job in jobs])
        answer = {"warnings": warnings} if warnings else {}
        if is_trial:
            return json_answer({"ids": [], **answer})
        session = session_of(actor.pid)
        context.wait_marks.submitted(actor.uid, session, context.now_s)
        give_place()
        ids = await context.driver.submit(makers, submission.environment, environment, asked)
    return json_answer({"ids": ids, **answer}, status=201)


async def _decode_between(
    context: Context, body: bytes, content_type: str, uid: int, take: Callable[[int], None]
) -> Submission:
    """The submission, decoded between other requests; what is above a limit not at all."""
    stock = context.state.stock
    steps = decode_in_steps(
        body,
        context.state.platform,
        stock.tiers,
        any_tier=stock.any_tier,
        in_lines=content_type == LINES,
        admit=lambda cpus: context.refuse_above_limits(uid, cpus),
        take=take,
    )
    while True:
        try:
            next(steps)
        except StopIteration as end:
            submission: Submission = end.value
            return submission
        await asyncio.sleep(0)


def _find_key(request: web.Request) -> str | None:
    """The key that makes a repeated submission the same one; None: none.

    Raises:
        RequestError: it is no key.
    """
    key = request.headers.get(_KEY)
    if key is None:
        return None
    if not (0 < len(key) <= _LONGEST_KEY and key.isascii() and key.isprintable()):
        raise RequestError(f"{_KEY}: give 1 to {_LONGEST_KEY} printable ASCII characters")
    return key
