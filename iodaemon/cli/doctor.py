"""``iod doctor``: proves on this machine what works."""

from __future__ import annotations

import os
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Final

from iodaemon.cli import output
from iodaemon.cli.command import OFF, App, Context, option, verb
from iodaemon.cli.failure import ExitCode
from iodaemon.cli.session import SYSTEM_RUNTIME_DIR, Session, find_places, load_config_of_daemon
from iodaemon.errors import ConfigError, IodaemonError
from iodaemon.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from iodaemon.api.client import Client
    from iodaemon.api.model import Job
    from iodaemon.config.settings import Settings
    from iodaemon.doctor.account import Running
    from iodaemon.doctor.examine import Subject
    from iodaemon.doctor.finding import Finding

app = App()

_ANSWER_WITHIN_S: Final = 1.0
"""A daemon that is silent for longer is left out of it."""
_MOST_JOBS: Final = 50
"""Whose processes' groups are looked at."""
_WITH_PROCESSES: Final = ("RUNNING", "SUSPENDED_IO", "SUSPENDED_USER")

AsList = Annotated[bool, option("--json", text="The findings as a list, with their values.")]


@verb(app, "doctor")
def doctor(ctx: Context, as_json: AsList = OFF) -> int:
    """Check every feature on this machine.

    Everything is really tried, in a few seconds, and removed again: moving bytes and finding them
    counted, freezing a process, pinning it, committing to the state directory's disk. It needs no
    daemon, and asks the one that runs.

    ok: it works; lacking: it is not there, what that costs and how to get it; broken: it does not
    do its work, and the exit code is 1.
    """
    from iodaemon.doctor.examine import is_broken
    from iodaemon.doctor.scratch import ended_in_order

    findings = []
    with ended_in_order() as stop_if_asked:
        for finding in _examine(ctx.obj):
            findings.append(finding)
            if not as_json:
                print("\n".join(map(printable, finding.lines)), flush=True)
            stop_if_asked()
    if as_json:
        output.print_json([_record(finding) for finding in findings])
    return ExitCode.REFUSED if is_broken(findings) else ExitCode.OK


def _record(finding: Finding) -> dict[str, object]:
    fields = ("verdict", "what", "measured", "cost", "remedy")
    return {**{f: str(getattr(finding, f)) for f in fields}, "values": dict(finding.values)}


def _examine(session: Session) -> Iterator[Finding]:
    """Every finding as soon as it is made: of a wrong configuration first, then as without it."""
    from iodaemon.doctor.examine import examine
    from iodaemon.doctor.finding import broken

    config: Settings
    try:
        socket_path = session.socket_path()
        config, service_uid = load_config_of_daemon(session)
    except ConfigError as error:
        cost = "no daemon starts with it; what follows is of a daemon without a configuration file"
        yield broken("configuration", str(error), cost=cost, remedy="mend that line")
        socket_path, service_uid, config = _unconfigured(session)
    yield from examine(_subject(socket_path, service_uid, config))


def _unconfigured(session: Session) -> tuple[str, int | None, Settings]:
    """The socket, the service's uid, and the settings, without any configuration file."""
    from iodaemon.config import default_settings
    from iodaemon.doctor.account import find_service_uid as look_up

    settings = default_settings(os.environ, os.geteuid())
    socket_path = session.api or str(settings.socket_path)
    is_system = os.path.dirname(socket_path) == SYSTEM_RUNTIME_DIR
    return socket_path, look_up() if is_system else None, settings


def _subject(socket_path: str, service_uid: int | None, config: Settings) -> Subject:
    """The places of the daemon that runs, else those as configured."""
    from pathlib import Path

    from iodaemon.api.client import Client
    from iodaemon.doctor.examine import Subject

    client = Client(socket_path, _ANSWER_WITHIN_S)
    try:
        node, settings = client.node(), client.config()
        jobs = client.jobs()["jobs"]
        users = [str(job["user"]) for job in jobs]
        running = [] if service_uid is None else _running(client, jobs)
    except IodaemonError:
        node, settings, users, running = {}, {}, None, []
    places = find_places(settings)
    measured, sampling = node.get("measured"), node.get("sampling")
    return Subject(
        state_dir=Path(places.get("state_dir", config.state_dir)),
        runtime_dir=Path(places.get("runtime_dir", config.runtime_dir)),
        directory=Path(os.getcwd()),
        sockets=config.topology.sockets,
        slot=config.topology.slot,
        measured=measured if isinstance(measured, dict) else None,
        sampling=sampling if isinstance(sampling, dict) else None,
        users=users,
        running=running,
        service_uid=service_uid,
        supervisor_dir=Path(
            places.get("supervisor_dir", places.get("state_dir", config.supervisor_state))
        ),
        tiers=config.tier if config.backend == "linux" else {},
        node=node or None,
    )


def _running(client: Client, jobs: Sequence[Job]) -> list[Running]:
    """The first jobs that have processes, each by its first one."""
    from iodaemon.doctor.account import Running

    found = []
    live = (job for job in jobs if job["state"] in _WITH_PROCESSES)
    for job in islice(live, _MOST_JOBS):
        pids = client.job(job["id"]).get("pids", [])
        found += [Running(job["id"], job["uid"], pid) for pid in pids[:1]]
    return found
