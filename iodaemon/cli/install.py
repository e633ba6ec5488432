"""``iod install`` and ``iod doctor``: the service on this machine, and what works here."""

from __future__ import annotations

import contextlib
import getpass
import os
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from iodaemon.api.client import Client
from iodaemon.cli import output
from iodaemon.cli.command import OFF, App, option, verb
from iodaemon.cli.failure import ExitCode, UsageError
from iodaemon.cli.session import SYSTEM_RUNTIME_DIR, Session, find_places, load_config_of_daemon
from iodaemon.errors import ConfigError, IodaemonError, NoDaemon, NotPermitted, RequestError
from iodaemon.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from iodaemon.api.model import Job, JsonObject
    from iodaemon.config import Settings
    from iodaemon.doctor.checks import Subject
    from iodaemon.doctor.report import Finding
    from iodaemon.doctor.service import Running
    from iodaemon.install.layout import Layout
    from iodaemon.install.perform import Host, Jobs
    from iodaemon.install.plan import Step
    from iodaemon.install.program import Program

app = App()

_BOOTED: Final = "/run/systemd/system"
"""There while systemd runs the machine, sd_booted(3)."""
_LINGER: Final = "/var/lib/systemd/linger"
_ANSWER_WITHIN_S: Final = 15.0
_WAITING: Final = ("HELD", "PENDING")

Purge = Annotated[
    bool,
    option("--purge", text="With --remove: also journal, output of jobs, configuration, user."),
]
Force = Annotated[bool, option("--force", text="With --remove: end the jobs that are there.")]
DryRun = Annotated[bool, option("--dry-run", text="Say what would be done, and do nothing.")]


@verb(app, "install")
def install(
    session: Session,
    user: Annotated[bool, option("--user", text="A daemon of your own; root is not needed.")] = OFF,
    remove: Annotated[bool, option("--remove", text="Take away what install has made.")] = OFF,
    purge: Purge = OFF,
    force: Force = OFF,
    dry_run: DryRun = OFF,
) -> int:
    """Set up the service that runs jobs of all users, or update it.

    As root, under systemd, by the iod of the environment that is to serve. Repeat it after 'pip
    install -U': daemon and supervisor are restarted, jobs run on. What lies there and is not its
    own is left alone.
    """
    for name, is_given in (("--purge", purge), ("--force", force)):
        if is_given and not remove:
            raise UsageError(f"{name} goes with --remove: 'iod install --help' shows how")
    _check_caller(is_user=user)
    from iodaemon.install.program import find_flaw, find_program

    program = find_program()
    config = _settings(session, is_system=not user, must_be_right=not remove)
    if not user:
        os.umask(0o022)  # what is made here is for everybody to read
        if not remove and (flaw := find_flaw(program.parts)) is not None:
            raise RequestError(str(flaw))
    layout = _user_layout(program, config) if user else _system_layout(program, config)
    client = Client(str(config.socket_path), _ANSWER_WITHIN_S)
    if remove:
        return _remove(layout, program, client, purge=purge, force=force, dry_run=dry_run)
    return _install(layout, program, client, dry_run=dry_run)


def _install(layout: Layout, program: Program, client: Client, *, dry_run: bool) -> int:
    from iodaemon.install.perform import look
    from iodaemon.install.plan import plan_install

    host = _host(lambda: _ask_jobs(client))
    steps = plan_install(layout, look(host, layout, program.name))
    _carry_out(steps, host, client, dry_run=dry_run)
    if dry_run:
        return 0
    if not steps:
        print("nothing to do: all is installed, and runs")
    node = client.node()
    version = program.name.partition(" ")[0]
    print(f"iodaemon {version} runs {_size_of(node)}")
    for line in _hints(layout):
        print(line)
    return 0


def _remove(
    layout: Layout, program: Program, client: Client, *, purge: bool, force: bool, dry_run: bool
) -> int:
    from iodaemon.install.perform import look
    from iodaemon.install.plan import plan_removal

    host = _host(lambda: _ask_jobs(client))
    steps = plan_removal(layout, look(host, layout, program.name), purge=purge, force=force)
    _carry_out(steps, host, client, dry_run=dry_run)
    if not dry_run:
        place = os.path.dirname(os.path.dirname(program.path))
        print(f"iodaemon is removed; the program itself is left: {place}")
    return 0


def _host(ask_jobs: Callable[[], Jobs | None]) -> Host:
    from iodaemon.install.perform import Host

    return Host(Path("/"), ask_jobs)


def _carry_out(steps: list[Step], host: Host, client: Client, *, dry_run: bool) -> None:
    """Do it and say so; or say so."""
    from iodaemon.install.perform import perform
    from iodaemon.install.plan import line_of

    if not dry_run:
        perform(steps, host, end_jobs=lambda ids: _end_jobs(client, ids), tell=print)
        return
    for step in steps:
        print(f"would {line_of(step)}")
    if not steps:
        print("would do nothing: all is as it should be")


def _check_caller(*, is_user: bool) -> None:
    """Refuse whoever cannot, and where it cannot be."""
    if not is_user and os.geteuid() != 0:
        raise NotPermitted(
            "only root can set up a service for all users: call it by sudo; "
            "'iod install --user' sets up a daemon of your own"
        )
    if is_user and os.geteuid() == 0:
        raise RequestError("--user is for a user's own daemon; as root leave it out")
    if not os.path.isdir(_BOOTED):
        raise RequestError(
            f"systemd does not run this machine ({_BOOTED} is not there): "
            "start 'iod daemon' by whatever starts services here"
        )
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if is_user and not os.path.exists(f"{runtime}/systemd/private"):
        raise RequestError(
            "no systemd of yours answers here (XDG_RUNTIME_DIR): log in anew, "
            f"or let root call 'loginctl enable-linger {getpass.getuser()}' first"
        )


def _settings(session: Session, *, is_system: bool, must_be_right: bool) -> Settings:
    """What the configuration says; a wrong one keeps nobody from removing."""
    from iodaemon.config import default_settings

    try:
        return session.load_config({}, is_system=is_system)
    except ConfigError:
        if must_be_right:
            raise
        return default_settings(os.environ, 0 if is_system else os.geteuid())


def _system_layout(program: Program, config: Settings) -> Layout:
    from iodaemon.cli.completion import INSTALLED, MANUAL, completion_script, manual
    from iodaemon.config import config_toml, default_settings
    from iodaemon.install.layout import system_layout
    from iodaemon.registry import shipped

    text = config_toml(default_settings(os.environ, 0))
    texts = {path: completion_script(shell) for shell, path in INSTALLED.items()}
    layout = system_layout(program.path, shipped("systemd"), text, {**texts, MANUAL: manual()})
    return _with_places(layout, config)


def _user_layout(program: Program, config: Settings) -> Layout:
    from iodaemon.config import default_file, default_settings
    from iodaemon.install.layout import user_layout
    from iodaemon.registry import shipped

    settings = default_settings(os.environ, os.geteuid())
    layout = user_layout(
        program.path,
        shipped("systemd"),
        config_file=str(default_file(os.environ, os.geteuid())),
        runtime_dir=settings.runtime_dir,
        state_dir=settings.state_dir,
    )
    return _with_places(layout, config)


def _with_places(layout: Layout, config: Settings) -> Layout:
    from iodaemon.install.layout import with_places

    disks = (disk.path for table in config.tier.values() for disk in table.disk)
    return with_places(layout, (config.state_dir, config.supervisor_dir), disks)


def _ask_jobs(client: Client) -> Jobs | None:
    from iodaemon.install.perform import Jobs

    try:
        jobs = client.jobs()["jobs"]
    except IodaemonError:
        return None  # what its jobs' cgroups say remains
    standing = [job["id"] for job in jobs if job["state"] not in _WAITING]
    waiting = [job["id"] for job in jobs if job["state"] in _WAITING]
    return Jobs(tuple(sorted(standing)), tuple(sorted(waiting)))


def _end_jobs(client: Client, ids: tuple[int, ...]) -> None:
    with contextlib.suppress(NoDaemon):  # they die with their cgroups
        for job_id, outcome in client.cancel_each(ids):
            if isinstance(outcome, RequestError):
                output.say(f"job {job_id}: {outcome}")


def _size_of(node: JsonObject) -> str:
    """What the node is made of, where the daemon says so."""
    sockets = node.get("sockets")
    known = sockets if isinstance(sockets, list) else []
    slots = [each.get("slots") for each in known if isinstance(each, dict)]
    count = sum(number for number in slots if isinstance(number, int))
    return f"on {output.count_of(len(slots), 'socket')}, {count} CPUs"


def _hints(layout: Layout) -> list[str]:
    """What to do next."""
    lines = ["next: 'iod submit -- COMMAND', as any user; 'iod doctor' says what works here"]
    if layout.is_system:
        return lines
    lines = [lines[0].replace(", as any user", "")]
    if os.path.exists("/run/iodaemon/iod.sock"):
        lines.append("your iod now speaks to this daemon, no longer to the one for all users")
    if not os.path.exists(f"{_LINGER}/{getpass.getuser()}"):
        lines.append("at logout it ends, with its jobs: 'loginctl enable-linger' lets them go on")
    return lines


_DAEMON_WITHIN_S: Final = 1.0
"""A daemon that is silent for longer is left out of it."""
_MOST_JOBS: Final = 50
"""Whose processes' groups are looked at."""
_WITH_PROCESSES: Final = ("RUNNING", "SUSPENDED_IO", "SUSPENDED_USER")

AsJson = Annotated[bool, option("--json", text="The findings as a list, with their values.")]


@verb(app, "doctor")
def doctor(session: Session, as_json: AsJson = OFF) -> int:
    """Check every feature on this machine.

    Everything is really tried, in a few seconds, and removed again: moving bytes and finding them
    counted, freezing a process, pinning it, committing to the state directory's disk. It needs no
    daemon, and asks the one that runs.

    ok: it works; lacking: it is not there, what that costs and how to get it; broken: it does not
    do its work, and the exit code is 1.
    """
    from iodaemon.doctor.report import INDENT, is_broken
    from iodaemon.doctor.scratch import ended_in_order

    findings = []
    with ended_in_order() as stop_if_asked:
        for finding in _examine(session):
            findings.append(finding)
            if not as_json:
                told = output.folded(map(printable, finding.lines), INDENT)
                print("\n".join(told), flush=True)
            stop_if_asked()
    if as_json:
        output.print_json([_record(finding) for finding in findings])
    return ExitCode.REFUSED if is_broken(findings) else ExitCode.OK


def _record(finding: Finding) -> dict[str, object]:
    fields = ("verdict", "what", "measured", "cost", "remedy")
    return {**{f: str(getattr(finding, f)) for f in fields}, "values": dict(finding.values)}


def _examine(session: Session) -> Iterator[Finding]:
    """Every finding as soon as it is made: of a wrong configuration first, then as without it."""
    from iodaemon.doctor.checks import examine
    from iodaemon.doctor.report import broken

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
    from iodaemon.doctor.service import find_service_uid as look_up

    settings = default_settings(os.environ, os.geteuid())
    socket_path = session.api or str(settings.socket_path)
    is_system = os.path.dirname(socket_path) == SYSTEM_RUNTIME_DIR
    return socket_path, look_up() if is_system else None, settings


def _subject(socket_path: str, service_uid: int | None, config: Settings) -> Subject:
    """The places of the daemon that runs, else those as configured."""
    from pathlib import Path

    from iodaemon.api.client import Client
    from iodaemon.doctor.checks import Subject

    client = Client(socket_path, _DAEMON_WITHIN_S)
    try:
        node, settings = client.node(), client.config()
        jobs = client.jobs()["jobs"]
        users = [str(job["user"]) for job in jobs]
        running = [] if service_uid is None else _running(client, jobs)
    except IodaemonError:
        node, settings, users, running = {}, {}, None, []
    places = find_places(settings)
    return Subject(
        state_dir=Path(places.get("state_dir", config.state_dir)),
        runtime_dir=Path(places.get("runtime_dir", config.runtime_dir)),
        directory=Path(os.getcwd()),
        sockets=config.topology.sockets,
        slot=config.topology.slot,
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
    from iodaemon.doctor.service import Running

    found = []
    live = (job for job in jobs if job["state"] in _WITH_PROCESSES)
    for job in islice(live, _MOST_JOBS):
        pids = client.job(job["id"]).get("pids", [])
        found += [Running(job["id"], job["uid"], pid) for pid in pids[:1]]
    return found
