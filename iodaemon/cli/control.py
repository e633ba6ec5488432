"""``iod cancel``, ``iod requeue``, ``iod suspend``, ``iod resume``: what a person does to jobs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import Annotated, Any, Final

from iodaemon.api.client import Client, Outcome
from iodaemon.api.model import JobAnswer
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
from iodaemon.cli.failure import ExitCode, UsageError, duration_s, exit_code
from iodaemon.cli.selector import Selection, find_ids, job_words, parse_selectors
from iodaemon.cli.session import Session
from iodaemon.errors import RequestError
from iodaemon.text import printable

app = App()

_GRACE_S_MAX: Final = 24 * 3600.0

Grace = Annotated[
    Word,
    option(
        "--grace",
        metavar="TIME",
        text="From asking the job to end (SIGTERM) to killing it; bare number: seconds.",
    ),
]
Yes = Annotated[bool, option("-y", "--yes", text="Do not ask, also without numbers.")]


@verb(app, "cancel", options=SELECTED)
def cancel(
    ctx: Context,
    grace: Grace = None,
    yes: Yes = OFF,
    as_json: AsJson = OFF,
    **chosen: Any,
) -> int:
    """End jobs, waiting or running.

    JOB is 7, 3-9, 1,4, last (your newest) or all, which is all of yours; for root, everybody's. -J,
    -u and -s select among them, or without JOB among all. Returns when they are gone.
    """
    session: Session = ctx.obj
    grace_s = _grace_s(grace)
    return _act(
        session.client(),
        "cancel",
        parse_selectors(**chosen),
        grace_s=grace_s,
        fault=_not_gone,
        ask=None if yes else "cancel",
        as_json=as_json,
    )


@verb(app, "requeue", options=SELECTED)
def requeue(
    ctx: Context,
    grace: Grace = None,
    yes: Yes = OFF,
    as_json: AsJson = OFF,
    **chosen: Any,
) -> int:
    """Run jobs again from their beginning.

    JOB is 7, 3-9, 1,4, last (your newest) or all, which is all of yours that have not ended. -J, -u
    and -s select among them, or without JOB among all: 'iod requeue -s FAILED'. One that runs is
    ended first. Each keeps its number and waits behind all that wait then, unless it was LOST or an
    administrator requeues it while it runs: such a job keeps its place.
    """
    session: Session = ctx.obj
    grace_s = _grace_s(grace)
    selection = parse_selectors(**chosen)
    return _act(
        session.client(),
        "requeue",
        selection,
        grace_s=grace_s,
        fault=_not_requeued,
        ask=None if yes else "requeue",
        finished=not selection.is_all,
        as_json=as_json,
    )


@verb(app, "suspend", options=SELECTED)
def suspend(ctx: Context, as_json: AsJson = OFF, **chosen: Any) -> int:
    """Suspend jobs until 'iod resume'.

    JOB is 7, 3-9, 1,4, last (your newest) or all; -J, -u and -s select among them, or without JOB
    among all of yours. A job that waits is held.
    """
    session: Session = ctx.obj
    return _act(
        session.client(),
        "suspend",
        parse_selectors(**chosen),
        fault=_not_still,
        as_json=as_json,
    )


@verb(app, "resume", options=SELECTED)
def resume(ctx: Context, as_json: AsJson = OFF, **chosen: Any) -> int:
    """Let suspended or held jobs go on.

    JOB is 7, 3-9, 1,4, last (your newest) or all; -J, -u and -s select among them, or without JOB
    among all of yours. The regulation may still have one stand still.
    """
    session: Session = ctx.obj
    return _act(
        session.client(),
        "resume",
        parse_selectors(**chosen),
        fault=_not_on,
        as_json=as_json,
    )


def _act(
    client: Client,
    action: str,
    selection: Selection,
    *,
    grace_s: float | None = None,
    fault: Callable[[JobAnswer], str | None],
    ask: str | None = None,
    finished: bool = False,
    as_json: bool,
) -> int:
    """Ask for it in one request, say of every job what became of it; the exit code.

    Args:
        grace_s: from asking a job to end to killing it. None: as the daemon is configured.
        fault: what an answer falls short of; None: nothing.
        ask: the verb, when jobs that no id names are to be confirmed by a person.
        finished: it may be asked of jobs that have ended.
    """
    selector = selection.selector
    if selection.is_all and ask:
        if not sys.stdin.isatty():
            words = "all" if "all" in selection.items else "without numbers"
            raise UsageError(f"{ask} {words}: nobody can be asked here, so add --yes")
        ids = find_ids(client, selection, finished=finished)
        if ids and not _is_confirmed(f"{ask} {job_words(ids)}?"):
            output.say("nothing was done")
            return ExitCode.REFUSED
        selector = Selector(",".join(map(str, ids)))
    outcomes = client.act(action, selector, grace_s=grace_s) if any(selector) else []
    if not outcomes:
        if not selection.is_all:
            find_ids(client, selection, finished=finished)  # says what became of them
        output.say("no unfinished job is meant: nothing to do")
        return ExitCode.OK
    is_one = selection.is_plain and len(outcomes) == 1
    return report(
        outcomes, partial(_tell, fault=fault, as_json=as_json), is_one=is_one, as_json=as_json
    )


def report(
    outcomes: Iterable[tuple[int, Outcome]],
    tell: Callable[[JobAnswer], int],
    *,
    is_one: bool,
    as_json: bool,
) -> int:
    """Say of every job what became of it; the exit code.

    Args:
        tell: says it of one that was acted on; returns its exit code.
        is_one: a single job was named by its number.
        as_json: print the answers; ``tell`` prints nothing of them.
    """
    answers, codes = [], set[int]()
    for job_id, outcome in outcomes:
        if isinstance(outcome, RequestError):
            output.say(str(outcome) if is_one else f"job {job_id}: {outcome}")
            codes.add(exit_code(outcome))
            continue
        answers.append(outcome)
        codes.add(tell(outcome))
    if as_json and answers:
        output.print_json(answers[0] if is_one else answers)
    codes.discard(ExitCode.OK)
    return codes.pop() if len(codes) == 1 else int(bool(codes))


def _tell(answer: JobAnswer, *, fault: Callable[[JobAnswer], str | None], as_json: bool) -> int:
    job = answer["job"]
    reason, what = output.reason_words(job), fault(answer)
    if what is not None:
        output.say(f"job {job['id']} {what}{reason}")
        return ExitCode.REFUSED
    if not as_json:
        print(f"job {job['id']} {job['state_shown']}{reason}", flush=True)
    return ExitCode.OK


def _not_gone(answer: JobAnswer) -> str | None:
    return None if answer.get("gone", True) else "is not gone yet"


def _not_requeued(answer: JobAnswer) -> str | None:
    return None if answer.get("requeued", True) else f"is not requeued, {answer['job']['state']}"


def _not_still(answer: JobAnswer) -> str | None:
    job = answer["job"]
    is_still = job["state"] in ("HELD", "SUSPENDED_IO", "SUSPENDED_USER")
    return None if is_still else f"does not stand still yet, {job['state_shown']}"


def _not_on(answer: JobAnswer) -> str | None:
    job = answer["job"]
    is_on = job["state"] not in ("HELD", "SUSPENDED_USER")
    return None if is_on else f"does not go on yet, {job['state_shown']}"


def _grace_s(text: str | None) -> float | None:
    if text is None:
        return None
    grace_s = duration_s("--grace", text)
    if grace_s > _GRACE_S_MAX:
        raise UsageError(f"--grace: {text!r} is more than a day")
    return grace_s


def _is_confirmed(question: str) -> bool:
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


scratch = App("Space that ended jobs still hold on storage tiers: remove.")
app.verbs["scratch"] = scratch


@verb(scratch, "remove", options=SELECTED)
def remove(ctx: Context, as_json: AsJson = OFF, **chosen: Any) -> int:
    """Remove what was kept of jobs that have ended.

    JOB is 7, 3-9, 1,4, last (your newest) or all; -J, -u and -s select among them, or without JOB
    among all of yours. What could not be copied out of a job's space is kept; this deletes it for
    good.
    """
    selection = parse_selectors(**chosen)
    session: Session = ctx.obj
    outcomes = session.client().act("scratch/remove", selection.selector)
    if as_json:
        output.print_json([each for _, each in outcomes if not isinstance(each, RequestError)])
    elif not outcomes:
        output.say("nothing is kept of these jobs")
    is_one = selection.is_plain and len(outcomes) == 1
    told = partial(_tell_removed, as_json=as_json)
    return report(outcomes, told, is_one=is_one, as_json=False)


def _tell_removed(answer: JobAnswer, *, as_json: bool) -> int:
    job = answer["job"]
    if answer.get("removed"):
        if not as_json:
            print(f"job {job['id']}: removed", flush=True)
        return ExitCode.OK
    kept = job["scratch"]["kept"] if job["scratch"] else None
    why = f": {printable(kept['text'])}" if kept else ""
    output.say(f"job {job['id']}: not removed yet{why}")
    return ExitCode.REFUSED
