"""``iod supervisor``: the other half of the system's service; systemd runs it, people do not."""

from __future__ import annotations

import os
from typing import Annotated

from iodaemon.cli.command import App, Context, verb
from iodaemon.cli.failure import ExitCode, hopeless
from iodaemon.cli.option import OFF, Word, option
from iodaemon.cli.session import Session

app = App()

ConfigFile = Annotated[Word, option("--config", metavar="FILE", text="The configuration file.")]
Thaw = Annotated[
    bool, option("--thaw", text="Let all suspended jobs run on, whoever suspended them, and end.")
]


@verb(app, "supervisor")
def supervisor(ctx: Context, config: ConfigFile = None, thaw: Thaw = OFF) -> int:
    """Start, hold and end all users' jobs, for the system's daemon.

    Runs as root, from iodaemon-supervisor.service. Jobs outlive it.
    """
    session: Session = ctx.obj
    session.config = config or session.config
    if thaw and os.environ.get("EXIT_STATUS") == str(ExitCode.HOPELESS.value):
        return 0  # of a start that was refused (systemd.exec(5)): it held no job, another may
    from iodaemon.node.root_side import become_supervisor, thaw_all

    with hopeless():
        loaded = session.load_config({}, is_system=True)
        if not thaw:
            become_supervisor(loaded)
    if count := thaw_all(loaded):
        print(f"{count} jobs may run")
    return 0
