"""What a client may submit, checked before anything is queued."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Annotated, Final, TypeVar

import msgspec

from iodaemon.core.allotting import why_never
from iodaemon.core.footprint import environment_bytes, job_bytes
from iodaemon.core.job import Job, JobId, JobSpec, JobState, Reason, resume_command
from iodaemon.core.platform import Platform
from iodaemon.core.scratch import ScratchRequest
from iodaemon.core.size import told_bytes
from iodaemon.core.tier import Tier
from iodaemon.daemon.http.refusal import refuse_malformed
from iodaemon.daemon.http.room import LONGEST_PATH_BYTES, Room
from iodaemon.errors import RequestError
from iodaemon.hint import DROPPED, SenselessHint, check_hint
from iodaemon.node.feature import words_of
from iodaemon.policy.staging import extra_s
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

    What is said of its I/O is taken as it is and judged by ``heed_hints``: it refuses no job.
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


def decode_submission(body: bytes, platform: Platform, tiers: Sequence[Tier] = ()) -> Submission:
    """The submission, if every job of it could ever run; all at once, so of a small body.

    Raises:
        RequestError: as ``decode_in_steps``.
    """
    steps = decode_in_steps(body, platform, tiers)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            submission: Submission = end.value
            return submission


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
        body: one JSON object; or one a line, first that with the environment, then the jobs.
        platform: where they would run.
        tiers: of its storage, fastest first.
        any_tier: the admission rule chooses among all for who names none.
        in_lines: the latter.
        admit: refuses by what the jobs ask for, so many CPUs each, before each is looked at.
        take: refuses by memory; told of each piece, once it is decoded, how much it takes.

    Raises:
        RequestError: names the job (by its place in the list), the value, and what to do.
    """
    if in_lines:
        submission = yield from _decode_lines(body, take)
    else:
        submission = _decode(body, Submission, "submission")
        take(environment_bytes(submission.environment) + sum(map(job_bytes, submission.jobs)))
    count = len(submission.jobs)
    if not 1 <= count <= _LARGEST_BATCH:
        raise RequestError(_wrong_count(count))
    admit([job.cpus for job in submission.jobs])
    launch = Room(submission.environment)
    for place, job in enumerate(submission.jobs, 1):
        which = "" if count == 1 else f"job {place} of {count}: "
        _check(job, which, platform)
        if job.scratch is not None:
            check_scratch(job.scratch, which, tiers, any_tier=any_tier)
        launch.check(job, which)
        if place % _AT_ONCE == 0:
            yield
    return submission


def _decode_lines(body: bytes, take: Callable[[int], None]) -> Generator[None, None, Submission]:
    count = body.rstrip(b"\n").count(b"\n")
    if not 1 <= count <= _LARGEST_BATCH:  # before there are as many pieces
        raise RequestError(_wrong_count(count))
    first, *lines = body.rstrip(b"\n").split(b"\n")
    head = _decode(first, _Head, "line", "line 1: ")
    take(environment_bytes(head.environment))
    jobs: list[SubmittedJob] = []
    decoded_bytes = 0
    for place, line in enumerate(lines, 2):
        decoded_bytes += len(line)
        if decoded_bytes > _BYTES_AT_ONCE:
            yield
            decoded_bytes = len(line)
        job = _decode(line, SubmittedJob, "line", f"line {place}: ")
        take(job_bytes(job))
        jobs.append(job)
    return Submission(jobs=tuple(jobs), environment=head.environment)


def _decode(text: bytes, kind: type[_T], what: str, which: str = "") -> _T:
    if len(text) > LONGEST_PIECE_BYTES:
        raise RequestError(
            f"{which}a {what} of {len(text)} bytes, {LONGEST_PIECE_BYTES} are the most: send many "
            "jobs one a line (docs/api.md), or put data into a file"
        )
    with refuse_malformed(text, what, which):
        return msgspec.json.decode(text, type=kind)


def _wrong_count(count: int) -> str:
    return f"{count} jobs in one submission; send 1 to {_LARGEST_BATCH}"


_MEMORY: Final = "memory"
_NO_MEMORY_LIMIT: Final = f"memory limit: {words_of(())['memory_limit']}; see 'iod doctor'"


def limit_all(
    jobs: Sequence[SubmittedJob], walltime_s: float | None
) -> tuple[tuple[SubmittedJob, ...], tuple[str, ...]]:
    """The jobs, each with a walltime; and one line where some had none.

    Args:
        jobs: as submitted.
        walltime_s: of those that name none. None: they have none.
    """
    if walltime_s is None or all(job.walltime_s is not None for job in jobs):
        return tuple(jobs), ()
    told = f"without -t a job may run for {format_duration(walltime_s)} here (default_walltime)"
    limited = (
        msgspec.structs.replace(job, walltime_s=walltime_s) if job.walltime_s is None else job
        for job in jobs
    )
    return tuple(limited), (told,)


def find_unlimited(jobs: Sequence[SubmittedJob], controls: Mapping[str, bool]) -> tuple[str, ...]:
    """One line where a job asks for a memory limit that this machine does not keep.

    Args:
        jobs: as submitted.
        controls: what the jobs' cgroups have; empty where there are none to have.
    """
    if controls.get(_MEMORY, True) or all(job.memory_bytes is None for job in jobs):
        return ()
    return (_NO_MEMORY_LIMIT,)


def heed_hints(submission: Submission) -> tuple[tuple[SubmittedJob, ...], tuple[str, ...]]:
    """The jobs, without what is said of their I/O where it makes no sense; and what does not.

    Returns:
        One line for each kind of nonsense, with the first job that has it.
    """
    warnings: dict[str, str] = {}
    jobs = []
    for place, job in enumerate(submission.jobs, 1):
        rate, share, operations = (getattr(job, name) for name in _HINTS)
        try:
            check_hint(rate=rate, share=share, operations=operations, names=_HINTS)
        except SenselessHint as error:
            which = "" if len(submission.jobs) == 1 else f"job {place}: "
            warnings.setdefault(str(error), f"{which}{error}; {DROPPED}")
            job = msgspec.structs.replace(job, **dict.fromkeys(_HINTS))  # noqa: PLW2901
        jobs.append(job)
    return tuple(jobs), tuple(warnings.values())[:_MOST_WARNINGS]


def _check(job: SubmittedJob, which: str, platform: Platform) -> None:
    largest = platform.largest_partition
    if job.cpus > largest:
        raise RequestError(
            f"{which}asks for {job.cpus} CPUs, the largest socket has {largest}; "
            f"lower --cpus to {largest} or less"
        )
    if job.shares_cores and job.cpus != 1:
        raise RequestError(f"{which}cpus and shares_cores: leave one of them out")
    if not job.command[0]:
        raise RequestError(f"{which}the command is empty; give one after --")
    texts = (*job.command, job.cwd, job.name, job.stdout or "", job.stderr or "")
    if any("\0" in text for text in texts):
        raise RequestError(f"{which}NUL characters cannot be passed to a command; remove them")
    for name in ("cwd", "stdout", "stderr"):
        _check_path(getattr(job, name) or "", f"{which}{name}")


def _check_path(path: str, which: str) -> None:
    """As it will be when the job is started, its number in it; its length is bounded first."""
    if len(path) <= LONGEST_PATH_BYTES:
        path = path.replace("%j", _LONGEST_ID)
    if len(path) > LONGEST_PATH_BYTES or len(path.encode()) > LONGEST_PATH_BYTES:
        raise RequestError(
            f"{which} is longer than the {LONGEST_PATH_BYTES} bytes of a path (%j counts as "
            f"{len(_LONGEST_ID)}); shorten it"
        )


def environment_key(environment: Mapping[str, str]) -> str:
    """The id under which this environment is stored once, however many jobs share it."""
    text = json.dumps(environment, sort_keys=True)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:_KEY_DIGITS]


def job_maker(
    submitted: SubmittedJob, uid: int, environment_id: str
) -> Callable[[JobId, float], Job]:
    """Makes the job once its id and time are known."""
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


def check_scratch(
    asked: ScratchRequest, which: str, tiers: Sequence[Tier], *, any_tier: bool = False
) -> None:
    """Refuse what could never be met, and paths that could never be opened.

    Args:
        asked: by a job.
        which: begins the line, where there are several.
        tiers: of this node.
        any_tier: the admission rule chooses among all for who names none.

    Raises:
        RequestError: says what is wrong and what to do.
    """
    for name in ("input_path", "output_path"):
        path = getattr(asked, name) or ""
        if "\0" in path or len(path.encode(errors="replace")) > LONGEST_PATH_BYTES:
            raise RequestError(f"{which}{name} is no path: it has a NUL or is too long; shorten it")
        if ".." in path.split("/"):
            raise RequestError(f"{which}{name} {path!a} has '..' in it; write it without")
    if asked.input_bytes > asked.size_bytes:
        has, gets = told_bytes(asked.input_bytes), told_bytes(asked.size_bytes)
        raise RequestError(
            f"{which}its input has {has}, more than the {gets} of scratch space it asks for; "
            "ask for more"
        )
    never = why_never(tiers, asked, any_tier=any_tier)
    if never is not None:
        raise RequestError(f"{which}{never}")


def find_vain(asked: Sequence[ScratchRequest | None], tiers: Sequence[Tier]) -> tuple[str, ...]:
    """Who asks for a fast tier, of a rule that chooses by ``extra_s``, and never will have one.

    Args:
        asked: by each job; None: by one that wants no space.
        tiers: of this node, fastest first.

    Returns:
        One line for each reason, with the first job that has it.
    """
    lines: dict[bool, str] = {}
    for place, each in enumerate(asked, 1):
        if each is None or each.tier is not None:
            continue
        is_silent = not (each.input_bytes or each.output_bytes or each.data_bytes)
        if is_silent in lines:
            continue
        if (why := _why_vain(each, tiers)) is not None:
            lines[is_silent] = why if len(asked) == 1 else f"job {place}: {why}"
    return tuple(lines.values())


def _why_vain(asked: ScratchRequest, tiers: Sequence[Tier]) -> str | None:
    if len(tiers) < 2:
        return None
    *faster, slowest = tiers
    if any(extra_s(asked, tier, slowest) < 0.0 for tier in faster):
        return None
    always = f"it always runs on tier {slowest.name} under this policy: "
    if not (asked.input_bytes or asked.output_bytes or asked.data_bytes):
        return f"{always}it says nothing of what it moves; give --data-size"
    return (
        f"{always}copying in and out takes no less than its I/O is shorter elsewhere; "
        "give --data-size, or, as an administrator, the tier a faster 'staging'"
    )
