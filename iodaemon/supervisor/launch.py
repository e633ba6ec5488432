"""A launch: what a job's first process is given, and why it could not be begun, in words.

The supervisor checks what the daemon sends, once, and packs it into one record, which ``launcher``
and ``launcher.c`` use as it is. What they say is short: a code, of what, and an error number.
"""

from __future__ import annotations

import errno
import os
import resource
import struct
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from iodaemon.supervisor import protocol
from iodaemon.supervisor.protocol import BadInputError, Message, field, number, numbers

LAUNCHER: Final = "iod-launcher"
PROGRAM: Final = os.path.join(os.path.dirname(__file__), LAUNCHER)
"""``launcher.c``, where there was a compiler when this was installed."""
NO_ARGUMENTS: Final = 2
"""How it exits without any."""
HOLDER: Final = "iod-holder"
NOT_FOUND: Final = 127
NOT_RUNNABLE: Final = 126
REPORT: Final = ".report"
"""Behind the key, the name of a file beside the output file."""
ACCOUNT_WITHIN_S: Final = 10
"""For the databases to say who a user is. sssd gives up on its servers within about 10 s."""
STRANGER, LINKS, IS_LEDGER = -1, -2, -3
"""Where an error number stands, why an output file is refused."""

_RECORD: Final = struct.Struct("<IIIIiIIIQ1024s128s48Q")
"""Size of all, flags, uid, umask, niceness, how many words, variables and limits, open files, CPUs
and memory nodes (bit masks), and of each limit its number, soft and hard (``launcher.c``). Behind
it strings, each with a NUL: directory, output, error, own output, words, variables."""
_HAS_USER, _HAS_REPORT = 1, 2
_OPEN_FILES: Final = 1024
_MOST_CPUS, _MOST_NODES = 8192, 1024
_LIMITS: Final = {
    name.removeprefix("RLIMIT_").lower(): getattr(resource, name)
    for name in dir(resource)
    if name.startswith("RLIMIT_")
}


class Launch(NamedTuple):
    """What to run. ``own`` is where output goes that has no path; empty: nowhere."""

    command: list[str]
    directory: str
    environment: dict[str, str]
    uid: int | None
    umask: int
    nice: int
    cpus: tuple[int, ...]
    memory_nodes: tuple[int, ...]
    open_files: int
    rlimits: dict[int, tuple[int, int]]
    stdout: str | None
    stderr: str | None
    report: bool
    own: str = ""


def parse_launch(message: Message) -> Launch:
    """Check every field of what the daemon sent. Raises BadInputError."""
    launch = field(message, "launch", dict, {})
    command = field(launch, "command", list, [])
    environment = field(launch, "environment", dict, {})
    if not (command and protocol.are_words([*command, *environment, *environment.values()])):
        raise BadInputError("command and environment are no words")
    if "" in environment or "=" in "".join(environment):
        raise BadInputError("environment has a name that is none")
    paths = [field(launch, name, str) for name in ("directory", "stdout", "stderr")]
    if any(path is not None and not (path and protocol.are_words([path])) for path in paths):
        raise BadInputError("directory, stdout and stderr are no paths")
    umask, nice = number(launch, "umask", 0, 0o777), number(launch, "nice", -20, 19)
    return Launch(
        command=command,
        directory=paths[0] or "/",
        environment=environment,
        uid=number(launch, "uid", 0, (1 << 32) - 2),
        umask=0o022 if umask is None else umask,
        nice=nice or 0,
        cpus=numbers(launch, "affinity", _MOST_CPUS),
        memory_nodes=numbers(launch, "memory_nodes", _MOST_NODES),
        open_files=number(launch, "open_files", 3, 1 << 30) or _OPEN_FILES,
        rlimits=dict(_parse_rlimits(field(launch, "rlimits", dict, {}))),
        stdout=paths[1],
        stderr=paths[2],
        report=field(launch, "report", bool, default=False),
    )


def _parse_rlimits(given: dict[str, Any]) -> Iterable[tuple[int, tuple[int, int]]]:
    for name, pair in given.items():
        if name not in _LIMITS or not isinstance(pair, list) or len(pair) != 2:
            raise BadInputError(f"no limit: {str(name)[:40]!r}")
        if not all(type(value) is int and -1 <= value < 1 << 63 for value in pair):
            raise BadInputError(f"{name} are no numbers")
        if unsigned(pair[0]) > unsigned(pair[1]):
            raise BadInputError(f"{name}: the soft limit is above the hard one")
        yield _LIMITS[name], (pair[0], pair[1])


def unsigned(limit: int) -> int:
    """As the kernel compares them: -1 is infinity."""
    return limit % (1 << 64)


def pack(launch: Launch) -> bytes:
    """The record of a launch."""
    variables = [f"{name}={value}" for name, value in launch.environment.items()]
    paths = (launch.directory, launch.stdout or "", launch.stderr or "", launch.own)
    strings = os.fsencode("\0".join([*paths, *launch.command, *variables, ""]))
    flags = _HAS_USER * (launch.uid is not None) | _HAS_REPORT * launch.report
    limits = [n for limit, pair in launch.rlimits.items() for n in (limit, *map(unsigned, pair))]
    record = _RECORD.pack(
        _RECORD.size + len(strings), flags, launch.uid or 0, launch.umask, launch.nice,
        len(launch.command), len(variables), len(launch.rlimits), launch.open_files,
        _mask(launch.cpus, _MOST_CPUS), _mask(launch.memory_nodes, _MOST_NODES),
        *limits, *(0,) * (48 - len(limits)),
    )  # fmt: skip
    return record + strings


def unpack(data: bytes) -> Launch:
    """The reverse of ``pack``."""
    (
        _, flags, uid, umask, nice, words, _, limits, open_files, cpus, nodes, *pairs
    ) = _RECORD.unpack_from(data)  # fmt: skip
    directory, stdout, stderr, own, *rest = map(os.fsdecode, data[_RECORD.size : -1].split(b"\0"))
    return Launch(
        command=rest[:words],
        directory=directory,
        environment=dict(variable.split("=", 1) for variable in rest[words:]),
        uid=uid if flags & _HAS_USER else None,
        umask=umask,
        nice=nice,
        cpus=_bits(cpus),
        memory_nodes=_bits(nodes),
        open_files=open_files,
        rlimits={pairs[i]: (_signed(pairs[i + 1]), _signed(pairs[i + 2]))
                 for i in range(0, 3 * limits, 3)},
        stdout=stdout or None,
        stderr=stderr or None,
        report=bool(flags & _HAS_REPORT),
        own=own,
    )  # fmt: skip


def explain(launch: Launch, said: Message) -> Message:
    """Why it could not be begun: ``code``, ``problem`` and ``is_lasting`` (``protocol``, failed).

    Its process said ``code``, ``of`` and ``error``, a number of errno(3) or of above.
    """
    code, of, error = str(said.get("code")), said.get("of"), int(said.get("error", 0))
    why = os.strerror(error) if error > 0 else ""
    is_lasting = code in ("cpus", "limit", "directory", "output") and of != "own"
    match code:
        case "exec":
            problem = exec_problem(launch.command[0], launch.environment, error, of)
        case "cpus":
            problem = f"CPUs {list(launch.cpus)} cannot be used ({why}); are they online?"
        case "limit":
            problem = f"a limit cannot be set ({why})"
        case "directory":
            problem = f"the working directory {launch.directory} cannot be entered ({why})"
        case "output" if of == "own":
            problem = f"the output file {launch.own} cannot be made ({why})"
        case "output":
            problem = _explain_output(launch.stderr if of == "stderr" else launch.stdout, error)
        case "no_account":
            problem = no_account(launch.uid or 0)
        case "expired":
            code, problem = "no_account", f"the account of uid {launch.uid} has expired"
        case "no_answer":
            within = f"within {ACCOUNT_WITHIN_S} s"
            problem = f"the account databases (nsswitch.conf) do not answer {within}"
        case "ledger_full":
            problem = "the ledger has no room"
        case "no_process":
            problem = f"no process can be made ({why})"
        case _:
            code, problem = "system", f"it cannot be started ({why})"
    return {"code": code, "problem": problem, "is_lasting": is_lasting}


def _explain_output(path: str | None, error: int) -> str:
    if error == errno.ELOOP:
        text = "leads to a descriptor of the process that starts jobs, or is a circle of links"
        return f"{path} {text}; name a file"
    why = {
        STRANGER: "somebody else put it there",
        LINKS: "it is a file with other names as well",
        IS_LEDGER: "it is the ledger",
        errno.ENXIO: "it is a pipe that nobody reads, or a device that is not there",
    }.get(error) or os.strerror(error)
    return f"the output file {path} cannot be written ({why})"


def no_account(*uids: int | str) -> str:
    """That these numbers, one at least, are no user's."""
    have = "has" if len(uids) == 1 else "have"
    return f"uid {', '.join(map(str, uids))} {have} no account on this machine (any more)"


def exec_problem(name: str, environment: Mapping[str, str], error: int, of: object = "") -> str:
    """Why a program was not executed; ``of`` is "interpreter" where the program itself is there."""
    if error == errno.ENOENT and of == "interpreter":
        return f"{name}: the interpreter its first line names does not exist"
    if error == errno.ENOENT:
        where = "" if "/" in name else f" in PATH ({environment.get('PATH', 'not set')})"
        return f"{name}: no such command{where}"
    if error == errno.ENOEXEC:
        return f"{name}: not a program and without an interpreter line; add '#!/bin/sh'"
    return f"{name}: cannot be run ({os.strerror(error)})"


def _signed(limit: int) -> int:
    return limit - (1 << 64) if limit >= 1 << 63 else limit


def _mask(values: tuple[int, ...], most: int) -> bytes:
    return sum(1 << value for value in set(values)).to_bytes(most // 8, "little")


def _bits(mask: bytes) -> tuple[int, ...]:
    whole = int.from_bytes(mask, "little")
    return tuple(place for place in range(whole.bit_length()) if whole >> place & 1)
