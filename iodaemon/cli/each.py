"""What the verbs share that tell something of each job that is named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from iodaemon.cli import output
from iodaemon.cli.selector import Selection, find_ids
from iodaemon.cli.session import Session

if TYPE_CHECKING:
    from iodaemon.api.client import Client

A = TypeVar("A")


def tell_each(
    session: Session,
    selection: Selection,
    ask: Callable[[Client, int], A],
    lines: Callable[[A], Sequence[str]],
    *,
    as_json: bool,
) -> int:
    """Print a block of lines a job; or JSON, for one number an object, else a list.

    Args:
        session: finds the daemon.
        selection: the jobs.
        ask: the daemon's answer for one job.
        lines: the answer for people.
        as_json: for programs.
    """
    client = session.client()
    answers = [ask(client, job_id) for job_id in find_ids(client, selection, finished=True)]
    if as_json:
        is_one = len(answers) == 1 and len(selection.items) == 1
        output.print_json(answers[0] if is_one else answers)
    else:
        print("\n\n".join("\n".join(lines(answer)) for answer in answers))
    return 0
