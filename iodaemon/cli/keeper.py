"""``iod keeper``: the other half of the system's service; systemd runs it, people do not."""

from __future__ import annotations

from typing import Annotated

import typer

from iodaemon.cli.command import new_app, verb
from iodaemon.cli.option import OFF, Word, option
from iodaemon.cli.session import Session

app = new_app()

ConfigFile = Annotated[Word, option("--config", metavar="FILE", text="The configuration file.")]
Thaw = Annotated[
    bool, option("--thaw", text="Let all suspended jobs run on, whoever suspended them, and end.")
]


@verb(app, "keeper")
def keeper(ctx: typer.Context, config: ConfigFile = None, thaw: Thaw = OFF) -> int:
    """Start, hold and end the jobs of all users, as the system's daemon asks.

    Runs as root, from iodaemon-keeper.service. Jobs outlive it.
    """
    session: Session = ctx.obj
    session.config = config or session.config
    loaded = session.load_config({}, is_system=True)
    from iodaemon.daemon.keeping import become_keeper, thaw_all

    if not thaw:
        become_keeper(loaded)
    print(f"{thaw_all(loaded)} jobs may run")
    return 0
