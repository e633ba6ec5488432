"""``iod restore``: puts a copy of the journal in its place."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Final

from iodaemon.cli import output
from iodaemon.cli.backup import StateDir, System, config_of
from iodaemon.cli.command import App, Context, verb
from iodaemon.cli.failure import UsageError
from iodaemon.cli.option import OFF, Word, argument
from iodaemon.cli.selector import format_ids

if TYPE_CHECKING:
    from iodaemon.daemon.journal.restore import Restored

app = App()

_START: Final = {
    True: "systemctl start iodaemon.socket iodaemon",
    False: "start the daemon as before",
}


@verb(app, "restore")
def restore(
    ctx: Context,
    file: Annotated[Word, argument("FILE")] = None,
    state_dir: StateDir = None,
    system: System = OFF,
) -> int:
    """Put the copy of 'iod backup' back; the daemon must not run.

    The replaced journal stays beside it, under a dated name. Jobs that run now are taken over from
    it, and what it knows of jobs that had not ended in the copy: none runs twice. Ids are not used
    again.
    """
    if file is None:
        raise UsageError("no FILE given: 'iod restore --help' shows how")
    from pathlib import Path

    from iodaemon.daemon.journal import restore as restoring

    config = config_of(ctx.obj, state_dir, is_system=system)
    done = restoring.restore(config, Path(os.path.abspath(file)))
    made = "" if done.copied_s is None else f" of {output.local_time(done.copied_s)}"
    print(
        f"restored {done.jobs} jobs ({done.unfinished} not ended) from {file}{made}; next: "
        f"{_START[config.is_system]}"
    )
    for line in _lines(done):
        output.say(line)
    return 0


def _lines(done: Restored) -> Iterator[str]:
    """What else is to be known."""
    if done.replaced is not None:
        count = done.merged.left
        left = f"; {count} later job{'s are' if count > 1 else ' is'} only in it" if count else ""
        yield f"the replaced journal is {done.replaced}{left}"
    for words, ids in done.merged.told:
        yield f"{words}: {format_ids(ids)}"
    if done.unreadable:
        yield f"nothing was taken over from the replaced journal: {done.unreadable}"
    for key, pid in done.strangers:
        yield (
            f"attempt {key} runs (pid {pid}) and no journal knows it any more: it runs on, "
            "unregulated and unseen; end it by hand if it is not wanted"
        )
    if done.is_drained:
        yield "the node is drained, as it was then: 'iod drain --off' lets jobs start"
