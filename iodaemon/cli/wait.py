"""``iod wait``: until jobs have ended; returns their exit code."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Final

from iodaemon.api.client import Client
from iodaemon.api.model import Job
from iodaemon.api.shape import Selector
from iodaemon.cli import output
from iodaemon.cli.command import (
    OFF,
    SELECTED,
    App,
    AsJson,
    Context,
    Word,
    option,
    verb,
)
from iodaemon.cli.failure import ExitCode, UsageError
from iodaemon.cli.selector import (
    Selection,
    find_ids,
    format_ids,
    job_words,
    may_act_on,
    parse_moment_s,
    parse_selectors,
)
from iodaemon.cli.session import Session
from iodaemon.errors import NoDaemon, RequestError
from iodaemon.text import printable

app = App()


Since = Annotated[
    Word,
    option("--since", metavar="WHEN", text="With all: also ended jobs submitted since then."),
]


@verb(app, "wait", options=SELECTED)
def wait(ctx: Context, since: Since = None, as_json: AsJson = OFF, **chosen: Any) -> int:
    """Wait for jobs, return their exit code.

    JOB is 7, 3-9, 1,4, last (your newest) or all; -J, -u and -s select among them, or without JOB
    among all. The code is the job's own, the highest of several; 128 + N for signal N, 124 for a
    job that reached its --time. Ctrl-C ends the waiting, not the job. A job that stands still until
    'iod resume' is named, and waited for all the same.

    'all' means your jobs that have not ended, and those that ended since the last 'iod wait all' of
    this session (a terminal, a cron job), or since its first submission. --since sets another time.
    In a session that submitted nothing, your last 'iod wait all' in any session counts. At most one
    day counts. With -J, -u or -s the time of the last 'iod wait all' stays as it was. The job in
    which the command runs is left out.
    """
    session: Session = ctx.obj
    client = session.client()
    selection = parse_selectors(**chosen)
    own = client.own_job()
    if own in selection.ids:
        raise RequestError(f"job {own} is the one that waits here: it would never end")
    since_s = None if since is None else parse_moment_s(since, time.time(), "--since")
    if selection.is_all:
        return _wait_for_all(client, selection, since_s, own, as_json=as_json)
    if since is not None:
        raise UsageError("--since goes with all, -J, -u and -s: jobs named by number are all meant")
    found = find_ids(client, selection, finished=True)
    if not (ids := [job_id for job_id in found if job_id != own]):
        output.say(f"no other job than this one, {own}: nothing to wait for")
    return wait_for(client, ids, as_json=as_json)


def _wait_for_all(
    client: Client, selection: Selection, since_s: float | None, own: int | None, *, as_json: bool
) -> int:
    """Wait for what has not ended; what was submitted since the mark counts as well."""
    selector = Selector("", selection.user, selection.name, selection.states)
    awaited = client.awaited(selector, since_s=since_s)
    ids = [job_id for job_id in awaited["ids"] if job_id != own]
    mark = output.local_time(awaited["since_s"])
    meant = f"not ended, or submitted since {mark}"
    if not ids:
        output.say(f"no job {meant}: nothing to wait for")
        return ExitCode.OK
    output.say(f"{output.count_of(len(ids), 'job')} {meant} (--since says otherwise)")

    def note() -> None:
        if since_s is None and not selection.has_filters:
            client.note_told(awaited["now_s"])

    return wait_for(client, ids, as_json=as_json, on_end=note)


def wait_for(
    client: Client,
    ids: Sequence[int],
    *,
    as_json: bool,
    on_end: Callable[[], None] = lambda: None,
) -> int:
    """Wait for these jobs and tell how those ended that did not end well; the highest code.

    Args:
        on_end: called when all have ended and that is told.
    """
    try:
        answer = client.wait(ids, on_lost=tell_lost, on_told=Holds().tell)
    except KeyboardInterrupt:
        goes = "go" if len(ids) > 1 else "goes"
        again = job_words(ids).partition(" ")[2]
        output.say(f"{job_words(ids)} {goes} on: 'iod wait {again}' waits again")
        return ExitCode.INTERRUPTED
    if as_json:
        output.print_json(answer)
    for job in answer["jobs"]:
        if _code(job) != 0:
            output.say(f"job {job['id']} {output.end_words(job)}")
    on_end()
    return max(map(_code, answer["jobs"]), default=ExitCode.OK)


_HOLDS: Final[Mapping[str, str]] = MappingProxyType(
    {"HELD": "waits to be released", "SUSPENDED_USER": "stands still"}
)
"""What only a person lets go on, in the words of 'iod why'."""

_CURE: Final = "'iod resume"
_OTHERS_CURE: Final = "their users or an administrator to let them go"
_IDS_CHARACTERS: Final = 20
"""Longest list of jobs that is told whole: it stands in a line three times."""


class Holds:
    """Names the jobs that wait for a person, each once for as long as it does."""

    def __init__(self) -> None:
        self._told: set[int] = set()

    def tell(self, jobs: Sequence[Job]) -> None:
        """These are the jobs now: name those that are held since they were looked at last."""
        held = [job for job in jobs if job["state"] in _HOLDS]
        new = [job for job in held if job["id"] not in self._told]
        self._told = {job["id"] for job in held}
        for may_act in (True, False):
            if some := [job for job in new if may_act_on(job) is may_act]:
                output.say(_held_words(some, may_act=may_act))


def _held_words(jobs: Sequence[Job], *, may_act: bool) -> str:
    """What these jobs wait for, in one line that does not grow with their number."""
    if len(jobs) == 1:
        return _own_words(jobs[0]) if may_act else _others_words(jobs[0])
    ids = format_ids(job["id"] for job in jobs)
    if len(ids) <= _IDS_CHARACTERS:
        cure = f"{_CURE} {ids}'" if may_act else _OTHERS_CURE
        return f"jobs {ids} wait for {cure}: 'iod why {ids}' tells why"
    cure = f"{_CURE}'" if may_act else _OTHERS_CURE
    some = ids[: _IDS_CHARACTERS + 1].rpartition(",")[0] or ids.partition(",")[0]
    return f"{len(jobs)} jobs wait for {cure}, among them {some}: 'iod queue -s h,su' lists them"


def _own_words(job: Job) -> str:
    words = f"job {job['id']} {_HOLDS[job['state']]}{output.reason_words(job)}"
    says_cure = job["reason"] is not None and job["reason"].get("cure")
    return words if says_cure else f"{words}; {_CURE} {job['id']}' lets it go"


def _others_words(job: Job) -> str:
    reason = job["reason"]
    why = f": {printable(reason['text'])}" if reason is not None else ""  # its cure is not theirs
    who = f"its user, {job['user']}, or an administrator"
    return f"job {job['id']} {_HOLDS[job['state']]}{why}; {who} can let it go"


def _code(job: Job) -> int:
    """The job's code as a shell has it; unknown is never 0."""
    code = job["shell_code"]
    return int(ExitCode.REFUSED) if code is None else code


def tell_lost(error: NoDaemon) -> None:
    """Say that the daemon went away while it was waited for."""
    output.say(f"{error}; waiting for it to come back, jobs go on meanwhile")
