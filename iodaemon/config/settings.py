"""The daemon's configuration. Each setting is declared once, here, with its help.

The file's keys, the options of ``iod daemon``, ``iod config`` and the documentation derive from
the fields of ``Settings``: the key is the field's name without its unit.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from iodaemon.config.describe import Setting, describe_settings, toml_value
from iodaemon.config.policy import config_home_of
from iodaemon.config.table import decode_table, read_toml
from iodaemon.config.tier import Above0, Above0Int, TierTable, check_tiers
from iodaemon.core.limits import Sharing
from iodaemon.errors import ConfigError
from iodaemon.socket_path import usual_runtime_dir, usual_state_dir, why_too_long

SYSTEM_CONFIG: Final = Path("/etc/iodaemon/config.toml")
SYSTEM_SUPERVISOR_DIR: Final = "/var/lib/iodaemon-supervisor"
"""Beside the daemon's directory, not in it: the daemon could put another one in its place."""
SIMULATED: Final = "-simulated"
"""What the default places of a simulated node end with: its journal is not the server's, and its
socket is not where the server's users look."""

# What has to be restarted so that another value counts (``change.py``).
EMPTY: Final = {"restart": "empty daemon"}
DAEMON: Final = {"restart": "daemon"}
SUPERVISOR: Final = {"restart": "supervisor"}

_SYSTEM_PLACES: Final = {"state_dir": "/var/lib/iodaemon", "runtime_dir": "/run/iodaemon"}
_SOCKET_NAMES: Final = ("iod.sock", "supervisor.sock")
_LARGEST_CPU: Final = 8191
"""NR_CPUS of the largest kernels built (Kconfig, x86 MAXSMP)."""
_LARGEST_PORT: Final = 65535
_ADDRESS: Final = re.compile(r"(\[[0-9a-fA-F:]+\]|[0-9.]+):([0-9]{1,5})")

Scalar = str | int | float | bool


class Topology(msgspec.Struct, frozen=True, kw_only=True):
    """How the machine is divided."""

    sockets: Annotated[
        tuple[str, ...],
        Meta(
            description='CPUs of each socket, for example ["0-15", "16-31"]; divides a machine '
            "otherwise than by its packages; empty: as detected",
            extra=DAEMON,
        ),
    ] = ()
    slot: Annotated[
        Literal["core", "thread"],
        Meta(
            description="what one CPU of a job is: a core with all its threads, or one thread",
            extra=DAEMON,
        ),
    ] = "core"
    oversubscribe: Annotated[
        Literal["auto"] | Annotated[int, Meta(ge=1, le=64)],
        Meta(
            description='who shares CPUs; "auto": jobs submitted without --cpus share those of '
            "their socket, as many jobs as cores, and more while regulation sees that it helps; a "
            "number: every job has its own, of which each is handed out so many times",
            extra=DAEMON,
        ),
    ] = "auto"
    fence: Annotated[
        Literal["socket", "cpus", "none"],
        Meta(
            description="what a job stays in, where its cgroup can have a cpuset (and but by a "
            "scope of its user's own systemd): its socket with CPUs and memory, the socket's CPUs "
            "only (a job that needs more memory than it has gets another one's), or nothing"
        ),
    ] = "socket"

    def __post_init__(self) -> None:
        """Refuse what names no CPUs, or one CPU twice."""
        seen: dict[int, str] = {}
        for text in self.sockets:
            for cpu in cpu_numbers(text):
                if cpu in seen:
                    raise ValueError(f"sockets: CPU {cpu} is in {seen[cpu]!r} and in {text!r}")
                seen[cpu] = text

    @property
    def times(self) -> int:
        """How many jobs that ask for CPUs each one is handed out to."""
        return 1 if self.oversubscribe == "auto" else self.oversubscribe

    @property
    def socket_cpus(self) -> tuple[tuple[int, ...], ...]:
        """The logical CPUs of each socket, ascending; empty: as detected."""
        return tuple(cpu_numbers(text) for text in self.sockets)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All that can be configured. Durations are in seconds inside, ``"60 s"`` in the file."""

    state_dir: Annotated[
        str,
        Meta(
            description="the journal, and output of jobs that name no file; a simulated node has "
            "others by default, whose names end with -simulated",
            extra=EMPTY,
        ),
    ]
    runtime_dir: Annotated[
        str,
        Meta(
            description="the sockets of daemon and supervisor, and what the supervisor records; "
            "of a simulated node likewise",
            extra=EMPTY,
        ),
    ]
    supervisor_dir: Annotated[
        str | None,
        Meta(
            description="output of jobs that name no file, where it is not in state_dir: as a "
            "service of the system, where only root may write to it",
            extra=EMPTY,
        ),
    ] = None
    min_uid: Annotated[
        int,
        Meta(
            description="as a service of the system: the least uid whose jobs are run",
            ge=0,
            extra=SUPERVISOR,
        ),
    ] = 1000
    backend: Annotated[
        Literal["linux", "simulated"],
        Meta(
            description="linux: this machine; simulated: a pretended one, to try things out",
            extra=EMPTY,
        ),
    ] = "linux"
    policy: Annotated[
        str, Meta(description="the policy in force: a name ('iod policy list') or a file")
    ] = "default"
    cancel_grace_s: Annotated[
        float, Meta(description="from SIGTERM to SIGKILL when a job is cancelled")
    ] = 10.0
    cancel_grace_max_s: Annotated[
        float,
        Meta(description="the longest such time that a request may ask for (--grace)"),
    ] = 600.0
    orphan_grace_s: Annotated[
        float,
        Meta(
            description="suspended jobs run again when the daemon stays away for this long",
            extra=SUPERVISOR,
        ),
    ] = 60.0
    suspend_by: Annotated[
        Literal["auto", "signals"],
        Meta(
            description="auto: cgroup freeze where it can be had; signals: SIGSTOP in any case",
            extra=SUPERVISOR,
        ),
    ] = "auto"
    max_processes: Annotated[
        Above0Int | None,
        Meta(
            description="processes and threads that one job may have at once, where its cgroup can "
            "be limited, and never more than a quarter of the machine's; its next fork fails",
        ),
    ] = 32768
    output_max_bytes: Annotated[
        Above0Int | None,
        Meta(
            description="room that a job's own output may take, where it names no file (-o); a job "
            'that takes more is ended; "none": any',
        ),
    ] = 10 << 30
    default_walltime_s: Annotated[
        Above0 | None,
        Meta(
            description="walltime of a job that is submitted without one (-t), which its submitter "
            "is told; backfilling plans by walltimes",
        ),
    ] = None
    mode: Annotated[
        Literal["on", "shadow", "off"],
        Meta(
            description="regulation: on; shadow: decides and records, touches nothing; off; "
            "'iod mode' switches a running daemon, and that outlives it"
        ),
    ] = "on"
    journal_samples: Annotated[
        bool, Meta(description="keep raw samples of the last day, for 'iod replay'")
    ] = False
    retain_s: Annotated[
        float, Meta(description="how long finished jobs and their history are kept")
    ] = 90 * 86400.0
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="how much the daemon tells")
    ] = "info"
    metrics_listen: Annotated[
        str | None,
        Meta(
            description="address and port where Prometheus may read GET /metrics, for example "
            '"127.0.0.1:9750"; of the loopback interface, where every user of the machine can',
            extra=DAEMON,
        ),
    ] = None
    scratch_over: Annotated[
        Literal["report", "end"],
        Meta(
            description="a job with more in its scratch space than it asked for: it is shown, or "
            "ended",
            extra=DAEMON,
        ),
    ] = "report"
    scratch_keep_s: Annotated[
        Above0 | None,
        Meta(
            description="how long what could not be copied out of an ended job's space is kept; it "
            "is removed then, as by 'iod scratch remove'; \"none\": until somebody does that",
        ),
    ] = None
    users: Sharing = Sharing()
    topology: Topology = Topology()
    tier: Annotated[
        dict[str, TierTable],
        Meta(
            description="[tier.NAME]: storage of which jobs get space, the fastest tier first",
            extra=DAEMON,
        ),
    ] = {}
    admission: Annotated[
        dict[str, Scalar], Meta(description="replaces values of the policy's [admission]")
    ] = {}
    placement: Annotated[
        dict[str, Scalar], Meta(description="replaces values of the policy's [placement]")
    ] = {}
    regulation: Annotated[
        dict[str, Scalar],
        Meta(
            description="replaces values of the policy's [regulation], "
            'for example io_bound = "200 MB/s"'
        ),
    ] = {}

    def __post_init__(self) -> None:
        """Refuse places that cannot work."""
        for name in ("state_dir", "runtime_dir", "supervisor_dir"):
            path = getattr(self, name)
            if path is not None and not path.startswith("/"):
                raise ValueError(f"{name} is {path!r}; write an absolute path")
        longest = max((f"{self.runtime_dir}/{name}" for name in _SOCKET_NAMES), key=len)
        if problem := why_too_long(longest):
            raise ValueError(f"{problem}; set runtime_dir to a shorter path")
        if self.metrics_listen is not None:
            loopback_address(self.metrics_listen)
        check_tiers(self.tier)

    @property
    def socket_path(self) -> Path:
        """Where the daemon listens."""
        return Path(self.runtime_dir) / "iod.sock"

    @property
    def supervisor_state(self) -> Path:
        """The supervisor's directory; output of jobs that name no file is in ``output`` below."""
        return Path(self.supervisor_dir or self.state_dir)

    @property
    def longest_grace_s(self) -> float:
        """The longest grace time of a cancel or requeue."""
        return max(self.cancel_grace_s, self.cancel_grace_max_s)

    @property
    def journal_path(self) -> Path:
        """The journal's database."""
        return Path(self.state_dir) / "journal.db"

    @property
    def metrics_address(self) -> tuple[str, int] | None:
        """Where metrics are served by TCP; None: nowhere."""
        return None if self.metrics_listen is None else loopback_address(self.metrics_listen)

    @property
    def policy_overrides(self) -> dict[str, Mapping[str, Scalar]]:
        """What ``load_policy`` takes as overrides."""
        tables = {kind: getattr(self, kind) for kind in ("admission", "placement", "regulation")}
        return {kind: table for kind, table in tables.items() if table}


class Config(Settings, frozen=True, kw_only=True):
    """The settings in force.

    Attributes:
        file: the configuration file that was read; None: there is none.
        origins: for each key (``topology.slot``) ``default``, ``option``, or the file's path.
        is_system: a service for all users of the machine, with a supervisor of its own.
    """

    is_system: bool = False
    file: str | None = None
    origins: Mapping[str, str] = MappingProxyType({})


def load_config(
    path: Path | None,
    environ: Mapping[str, str],
    uid: int,
    overrides: Mapping[str, Any],
    *,
    is_system: bool = False,
) -> Config:
    """The settings in force: option over file over default.

    Args:
        path: the file; None: the system's for root, the user's own for others, if it exists.
        environ: for the XDG directories and HOME.
        uid: root gets the system's places.
        overrides: what options say, by key as in the file; None values are not given.
        is_system: the places of the system's service, whoever runs it.

    Raises:
        ConfigError: one line with file (or "options"), table and key.
    """
    uid = 0 if is_system else uid
    file = path or default_file(environ, uid)
    table = _read(file, must_exist=path is not None)
    given = {key: value for key, value in overrides.items() if value is not None}
    is_simulated = given.get("backend", table.get("backend")) == "simulated"
    places: dict[str, object] = {
        key: default_place(key, environ, uid, is_simulated=is_simulated)
        for key in _SYSTEM_PLACES
        if key not in table and key not in given
    }
    if is_system and "supervisor_dir" not in table:
        places["supervisor_dir"] = SYSTEM_SUPERVISOR_DIR
    chosen = {key: value for key, value in given.items() if key in _SYSTEM_PLACES}
    where = str(file) if table else "configuration"
    settings = decode_table({**places, **table, **chosen}, Settings, where=where)
    if given:
        settings = decode_table(_merged({**places, **table}, given), Settings, where="options")
    return Config(
        **{name: getattr(settings, name) for name in Settings.__struct_fields__},
        is_system=is_system,
        file=str(file) if table else None,
        origins=_origins(settings, table, given, str(file)),
    )


def default_settings(environ: Mapping[str, str], uid: int) -> Settings:
    """The settings without any file or option."""
    places: dict[str, Any] = {key: default_place(key, environ, uid) for key in _SYSTEM_PLACES}
    return Settings(**places)


def cpu_numbers(text: str) -> tuple[int, ...]:
    """The CPUs of a kernel list such as ``0-3,8``, ascending.

    Raises:
        ValueError: it is no such list, or empty.
    """
    cpus: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        numbers = (first, last) if dash else (first,)
        if not all(number.isascii() and number.isdigit() for number in numbers):
            raise ValueError(f"sockets: {text!r} is no list of CPUs; write for example '0-15,32'")
        if int(numbers[-1]) > _LARGEST_CPU or int(first) > int(numbers[-1]):
            raise ValueError(f"sockets: {text!r} has no CPUs in {part.strip()!r}")
        cpus.update(range(int(first), int(numbers[-1]) + 1))
    return tuple(sorted(cpus))


def loopback_address(text: str) -> tuple[str, int]:
    """Address and port of ``127.0.0.1:9750`` or ``[::1]:9750``.

    Raises:
        ValueError: it is not written so, or others than this machine could reach it.
    """
    match = _ADDRESS.fullmatch(text)
    host, port = (match[1].strip("[]"), int(match[2])) if match else ("", 0)
    if not _is_loopback(host) or not 1 <= port <= _LARGEST_PORT:
        raise ValueError(
            f"metrics_listen is {text!r}; write an address of the loopback interface and a port, "
            "for example '127.0.0.1:9750'"
        )
    return host, port


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _read(file: Path | None, *, must_exist: bool) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        return read_toml(file)
    except FileNotFoundError as e:
        if must_exist:
            raise ConfigError(f"configuration file {file} does not exist") from e
        return {}


def _merged(table: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(table)
    for key, value in given.items():
        if isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
            merged[key] = {**merged[key], **value}
        else:
            merged[key] = value
    return merged


def _origins(
    settings: Settings, table: Mapping[str, Any], given: Mapping[str, Any], file: str
) -> dict[str, str]:
    defaults = (setting.path for setting in describe_settings(settings) if setting.key)
    origins = dict.fromkeys(defaults, "default")
    origins |= dict.fromkeys(_paths(table), file)
    return origins | dict.fromkeys(_paths(given), "option")


def _paths(table: Mapping[str, Any]) -> Iterator[str]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from (f"{key}.{inner}" for inner in value)
        else:
            yield key


def default_file(environ: Mapping[str, str], uid: int) -> Path | None:
    """Where the configuration is looked for; None where there is no home directory."""
    if uid == 0:
        return SYSTEM_CONFIG
    home = config_home_of(environ)
    return None if home is None else home / "iodaemon" / "config.toml"


def default_place(
    key: str, environ: Mapping[str, str], uid: int, *, is_simulated: bool = False
) -> str:
    """The default of ``state_dir`` or ``runtime_dir`` (``iodaemon.socket_path``).

    Raises:
        ConfigError: it depends on HOME, which is not set.
    """
    if uid == 0:
        place: str | None = _SYSTEM_PLACES[key]
    elif key == "runtime_dir":
        place = usual_runtime_dir(environ, uid)
    else:
        place = usual_state_dir(environ)
    if place is None:
        raise ConfigError("state_dir has no default while HOME is not set; set state_dir")
    return place + (SIMULATED if is_simulated else "")


def config_document(config: Config) -> dict[str, Any]:
    """The file, and every setting with its value and where that comes from.

    What stands over the policy's tables is listed key by key, behind the settings.
    """
    rows = [(setting, setting.path) for setting in describe_settings(config)]
    for table, values in config.policy_overrides.items():
        told = f"replaces a value of the policy's [{table}]"
        for key, value in values.items():
            shown = toml_value(value, "")
            setting = Setting(table=table, key=key, value=shown, kind="table", help=told)
            rows.append((setting, setting.path))
    for name, tier in config.tier.items():
        path = f"tier.{name}"
        rows += [(replace(each, table=path), path) for each in describe_settings(tier)]
    settings = [
        {**_shown(setting), "origin": config.origins.get(path, "default")} for setting, path in rows
    ]
    return {"file": config.file, "settings": settings}


def _shown(setting: Setting) -> dict[str, str]:
    """The setting as the API has it."""
    shown: dict[str, str] = msgspec.to_builtins(setting)
    del shown["restart"]
    return shown
