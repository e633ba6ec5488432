"""``iod cancel``, ``requeue``, ``suspend``, ``resume``, ``scratch``: what a person does to jobs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, Any, Final

from iodaemon.api.client import Client
from iodaemon.api.model import JobAnswer
from iodaemon.api.shape import Selector
from iodaemon.cli import output
from iodaemon.cli.command import OFF, SELECTED, App, AsJson, Word, option, verb
from iodaemon.cli.failure import ExitCode, UsageError, duration_s, exit_code
from iodaemon.cli.selector import Selection, find_ids, job_words, parse_selectors
from iodaemon.cli.session import Session
from iodaemon.errors import RequestError
from iodaemon.text import printable

app = App()
scratch = App("Space that ended jobs still hold on storage tiers: remove.")
app.verbs["scratch"] = scratch

_GRACE_S_MAX: Final = 24 * 3600.0
Fault = Callable[[JobAnswer], str]
"""What an answer falls short of; empty: nothing."""

Grace = Annotated[
    Word,
    option(
        "--grace",
        metavar="TIME",
        text="From asking the job to end (SIGTERM) to killing it; bare number: seconds.",
    ),
]


@verb(app, "cancel", SELECTED)
def cancel(
    session: Session,
    grace: Grace = None,
    yes: Annotated[bool, option("-y", "--yes", text="Do not ask, also without numbers.")] = OFF,
    as_json: AsJson = OFF,
    **chosen: Any,
) -> int:
    """End jobs, waiting or running.

    JOB is 7, 3-9, 1,4, last (your newest) or all, which is all of yours; for root, everybody's. -J,
    -u and -s select among them, or without JOB among all. Returns when they are gone.
    """
    selection, grace_s = parse_selectors(**chosen), _grace_s(grace)
    client = session.client()
    selector = selection.selector if yes else _confirmed(client, "cancel", selection)
    return _act(client, "cancel", selection, selector, _not_gone, grace_s=grace_s, as_json=as_json)


@verb(app, "requeue", SELECTED)
def requeue(
    session: Session,
    grace: Grace = None,
    yes: Annotated[bool, option("-y", "--yes", text="Do not ask, also without numbers.")] = OFF,
    as_json: AsJson = OFF,
    **chosen: Any,
) -> int:
    """Run jobs again from their beginning.

    JOB is 7, 3-9, 1,4, last (your newest) or all, which is all of yours that have not ended. -J, -u
    and -s select among them, or without JOB among all: 'iod requeue -s FAILED'. One that runs is
    ended first. Each keeps its number and waits behind all that wait then, unless it was LOST or an
    administrator requeues it while it runs: such a job keeps its place. 'iod logs' and 'iod
    history' then show the new attempt.
    """
    selection, grace_s = parse_selectors(**chosen), _grace_s(grace)
    client = session.client()
    selector = selection.selector if yes else _confirmed(client, "requeue", selection)
    return _act(
        client, "requeue", selection, selector, _not_requeued, grace_s=grace_s, as_json=as_json
    )


@verb(app, "suspend", SELECTED)
def suspend(session: Session, as_json: AsJson = OFF, **chosen: Any) -> int:
    """Suspend jobs until 'iod resume'.

    JOB is 7, 3-9, 1,4, last (your newest) or all; -J, -u and -s select among them, or without JOB
    among all of yours. A job that waits is held.
    """
    selection = parse_selectors(**chosen)
    client = session.client()
    return _act(client, "suspend", selection, selection.selector, _not_still, as_json=as_json)


@verb(app, "resume", SELECTED)
def resume(session: Session, as_json: AsJson = OFF, **chosen: Any) -> int:
    """Let suspended or held jobs go on.

    JOB is 7, 3-9, 1,4, last (your newest) or all; -J, -u and -s select among them, or without JOB
    among all of yours. The regulation may still have one stand still.
    """
    selection = parse_selectors(**chosen)
    client = session.client()
    return _act(client, "resume", selection, selection.selector, _not_on, as_json=as_json)


@verb(scratch, "remove", SELECTED)
def remove(session: Session, as_json: AsJson = OFF, **chosen: Any) -> int:
    """Remove what was kept of jobs that have ended.

    JOB is 7, 3-9, 1,4, last (your newest) or all; -J, -u and -s select among them, or without JOB
    among all of yours. What could not be copied out of a job's space is kept; this deletes it for
    good.
    """
    selection = parse_selectors(**chosen)
    client = session.client()
    return _act(
        client, "scratch/remove", selection, selection.selector, _not_removed, as_json=as_json
    )


def _not_gone(answer: JobAnswer) -> str:
    return "" if answer.get("gone", True) else f"is not gone yet{_reason(answer)}"


def _not_requeued(answer: JobAnswer) -> str:
    if answer.get("requeued", True):
        return ""
    return f"is not requeued, {answer['job']['state']}{_reason(answer)}"


def _not_still(answer: JobAnswer) -> str:
    if answer["job"]["state"] in ("HELD", "SUSPENDED_IO", "SUSPENDED_USER"):
        return ""
    return f"does not stand still yet, {answer['job']['state_shown']}{_reason(answer)}"


def _not_on(answer: JobAnswer) -> str:
    if answer["job"]["state"] not in ("HELD", "SUSPENDED_USER"):
        return ""
    return f"does not go on yet, {answer['job']['state_shown']}{_reason(answer)}"


def _not_removed(answer: JobAnswer) -> str:
    if answer.get("removed"):
        return ""
    space = answer["job"]["scratch"]
    kept = space["kept"] if space else None
    return "is not removed yet" + (f": {printable(kept['text'])}" if kept else "")


def _reason(answer: JobAnswer) -> str:
    return output.reason_words(answer["job"])


def _grace_s(text: str | None) -> float | None:
    grace_s = None if text is None else duration_s("--grace", text)
    if grace_s is not None and grace_s > _GRACE_S_MAX:
        raise UsageError(f"--grace: {text!r} is more than a day")
    return grace_s


def _confirmed(client: Client, action: str, selection: Selection) -> Selector:
    """The jobs that a person has confirmed, where no number names them; empty: there are none."""
    if not selection.is_all:
        return selection.selector
    if not sys.stdin.isatty():
        words = "all" if "all" in selection.items else "without numbers"
        raise UsageError(f"{action} {words}: nobody can be asked here, so add --yes")
    ids = find_ids(client, selection, finished=False)
    if ids:
        print(f"{action} {job_words(ids)}? [y/N] ", end="", file=sys.stderr, flush=True)
        answer = ""
        try:
            answer = sys.stdin.readline()
        finally:
            if not answer.endswith("\n"):  # Ctrl-C, or the end of the input
                print(file=sys.stderr)
        if answer.strip().lower() not in ("y", "yes"):
            raise RequestError("nothing was done")
    return Selector(",".join(map(str, ids)))


def _act(
    client: Client,
    action: str,
    selection: Selection,
    selector: Selector,
    fault: Fault,
    *,
    grace_s: float | None = None,
    as_json: bool,
) -> int:
    """Ask for it in one request, say of every job what became of it; the exit code."""
    outcomes = client.act(action, selector, grace_s=grace_s) if any(selector) else []
    if not outcomes and action != "scratch/remove":
        if not selection.is_all:
            is_again = action == "requeue"
            find_ids(client, selection, finished=is_again)  # says what became of them
        output.say("no unfinished job matches: nothing to do")
        return ExitCode.OK
    if not outcomes and not as_json:
        output.say("nothing is kept of these jobs")
    answers, codes = [], set[int]()
    for job_id, outcome in outcomes:
        if isinstance(outcome, RequestError):  # its words name the job
            output.say(str(outcome))
            codes.add(exit_code(outcome))
            continue
        answers.append(outcome)
        if short := fault(outcome):
            output.say(f"job {job_id} {short}")
            codes.add(ExitCode.REFUSED)
        elif not as_json:
            done = "removed" if "removed" in outcome else outcome["job"]["state_shown"]
            told = "" if "removed" in outcome else _reason(outcome)
            print(f"job {job_id} {done}{told}", flush=True)
    if as_json and (answers or not outcomes):
        is_one = selection.is_plain and len(outcomes) == 1 and action != "scratch/remove"
        output.print_json(answers[0] if is_one else answers)
    return codes.pop() if len(codes) == 1 else int(bool(codes))
