"""``iod wait``: until jobs have ended; returns their exit code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import typer

from iodaemon.api.client import Client
from iodaemon.api.model import Job
from iodaemon.cli import output
from iodaemon.cli.command import new_app, verb
from iodaemon.cli.failure import ExitCode
from iodaemon.cli.option import OFF, AsJson, Jobs
from iodaemon.cli.selector import find_ids, format_ids, job_words, may_act_on, parse_selectors
from iodaemon.cli.session import Session
from iodaemon.errors import NoDaemon

app = new_app()


@verb(app, "wait")
def wait(
    ctx: typer.Context,
    jobs: Jobs = None,
    as_json: AsJson = OFF,
) -> int:
    """Wait for jobs, return their exit code.

    JOB is 7, 3-9, 1,4, last or all. The code is the job's own, the highest of several; 128 + N for
    signal N, 124 for a job that reached its --time. Ctrl-C ends the waiting, not the job. A job
    that stands still until 'iod resume' is named, and waited for all the same.
    """
    session: Session = ctx.obj
    client = session.client()
    selection = parse_selectors(jobs or [])
    ids = find_ids(client, selection, finished=not selection.is_all)
    if not ids:
        output.say("no unfinished job: nothing to wait for")
        return ExitCode.OK
    return wait_for(client, ids, as_json=as_json)


def wait_for(client: Client, ids: Sequence[int], *, as_json: bool) -> int:
    """Wait for these jobs and tell how those ended that did not end well; the highest code."""
    try:
        answer = client.wait(ids, on_lost=_tell_lost, on_told=_Holds().tell)
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
    return max(map(_code, answer["jobs"]), default=ExitCode.OK)


_HOLDS: Final[Mapping[str, str]] = MappingProxyType(
    {"HELD": "waits to be released", "SUSPENDED_USER": "stands still"}
)
"""What only a person lets go on, in the words of 'iod why'."""

_CURE: Final = "'iod resume"
_OTHERS_CURE: Final = "their users or an administrator to let them go"
_IDS_CHARACTERS: Final = 20
"""Longest list of jobs that is told whole: it stands in a line three times."""


class _Holds:
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
    return words if _CURE in words else f"{words}; {_CURE} {job['id']}' lets it go"


def _others_words(job: Job) -> str:
    why = output.reason_words(job).partition(f"; {_CURE}")[0]  # that is for those who may
    who = f"its user, {job['user']}, or an administrator"
    return f"job {job['id']} {_HOLDS[job['state']]}{why}; {who} can let it go"


def _code(job: Job) -> int:
    """The job's code as a shell has it; unknown is never 0."""
    code = job["shell_code"]
    return int(ExitCode.REFUSED) if code is None else code


def _tell_lost(error: NoDaemon) -> None:
    output.say(f"{error}; waiting for it to come back, jobs go on meanwhile")
