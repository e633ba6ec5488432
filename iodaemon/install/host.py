"""The machine that is installed on: what lies where, which units run, whose jobs are there."""

from __future__ import annotations

import contextlib
import glob
import os
import pwd
import re
import stat
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

from iodaemon.errors import RequestError
from iodaemon.install.layout import SCOPE, SERVICE_USER, Layout
from iodaemon.install.plan import Found
from iodaemon.install.record import parse_record
from iodaemon.install.step import NOTHING, Item

_LARGEST_BYTES: Final = 1 << 20
"""Of a file that could be ours."""
_ANSWER_WITHIN_S: Final = 30.0


class Jobs(NamedTuple):
    """Numbers, ascending.

    Attributes:
        standing: those that run or are suspended.
        waiting: those in the queue.
    """

    standing: tuple[int, ...]
    waiting: tuple[int, ...]


class Host(NamedTuple):
    """One machine.

    Attributes:
        root: where its files are.
        ask_jobs: the jobs that its daemon knows; None: no daemon answers.
        has_user: whether there is an account of this name.
    """

    root: Path
    ask_jobs: Callable[[], Jobs | None]
    has_user: Callable[[str], bool]

    def at(self, path: str) -> str:
        """Where a path of the machine really is."""
        return f"{str(self.root).rstrip('/')}{path}"


def has_account(name: str) -> bool:
    """Whether the system knows this user."""
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def look(host: Host, layout: Layout, program: str) -> Found:
    """What a plan needs to know.

    Args:
        host: where to look.
        layout: what belongs where.
        program: names the program as it is now.

    Raises:
        RequestError: the record cannot be read, or the manager of the units does not answer.
    """
    record = parse_record(read_item(host, layout.record), layout.record)
    paths = dict.fromkeys([*layout.paths, *record.installed])
    jobs = host.ask_jobs()
    left = _jobs_in_scope(host) if layout.is_system else set()
    active, enabled = _unit_states(layout)
    return Found(
        items={path: read_item(host, path) for path in paths},
        missing=_missing_folders(host, (*layout.items, layout.record)),
        record=record,
        active=active,
        enabled=enabled,
        has_user=host.has_user(SERVICE_USER),
        program=program,
        jobs=tuple(sorted({*(jobs.standing if jobs else ()), *left})),
        waiting=jobs.waiting if jobs else (),
        kept=_kept_on_tiers(host, layout),
    )


def read_item(host: Host, path: str) -> Item:
    """What lies at a path."""
    real = host.at(path)
    try:
        status = os.lstat(real)
        if stat.S_ISLNK(status.st_mode):
            return Item("link", os.readlink(real))
        if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST_BYTES:
            return Item("other")
        with open(real, encoding="utf-8") as file:
            return Item("file", file.read())
    except (FileNotFoundError, NotADirectoryError):
        return NOTHING
    except UnicodeDecodeError:
        return Item("other")


_OF_A_JOB: Final = re.compile(r"([0-9]+)-[0-9]+-.+")
"""The job of a directory in a store: ``<job>-<attempt>-<random>``."""


def _kept_on_tiers(host: Host, layout: Layout) -> tuple[tuple[int, tuple[str, ...]], ...]:
    """The directories of each job on the disks of storage tiers."""
    kept: dict[int, list[str]] = {}
    for store in layout.stores:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for name in sorted(os.listdir(host.at(store))):
                if match := _OF_A_JOB.fullmatch(name):
                    kept.setdefault(int(match[1]), []).append(f"{store}/{name}")
    return tuple((job, tuple(kept[job])) for job in sorted(kept))


def _missing_folders(host: Host, paths: Iterable[str]) -> tuple[str, ...]:
    missing: dict[str, None] = {}
    for path in paths:
        above, lacking = os.path.dirname(path), []
        while not os.path.isdir(host.at(above)):
            lacking.append(above)
            above = os.path.dirname(above)
        missing |= dict.fromkeys(reversed(lacking))
    return tuple(missing)


def _unit_states(layout: Layout) -> tuple[frozenset[str], frozenset[str]]:
    """The units that are active and those that are enabled, in one question."""
    properties = "--property=Id,ActiveState,UnitFileState"
    command = [*layout.systemctl, "show", properties, *layout.units]
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_ANSWER_WITHIN_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RequestError(f"systemctl does not answer: {error}") from error
    if ended.returncode != 0:
        said = " ".join(ended.stderr.split())
        raise RequestError(f"'{' '.join(command[: -len(layout.units)])}' failed: {said}")
    blocks = [
        dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        for block in ended.stdout.split("\n\n")
    ]
    active = {each.get("Id", "") for each in blocks if each.get("ActiveState") in _RUNNING}
    enabled = {each.get("Id", "") for each in blocks if each.get("UnitFileState") == "enabled"}
    return frozenset(active), frozenset(enabled)


_RUNNING: Final = ("active", "activating", "reloading", "deactivating")


def _jobs_in_scope(host: Host) -> set[int]:
    """The jobs with processes in the jobs' scope, whether or not a daemon is there to tell."""
    scope, slice_ = SCOPE
    found = set()
    for path in glob.glob(host.at(f"/sys/fs/cgroup/{slice_}/{scope}/jobs/*/cgroup.events")):
        number = re.match(r"[0-9]+", os.path.basename(os.path.dirname(path)))
        with contextlib.suppress(OSError):
            if number and "populated 1" in Path(path).read_text().splitlines():
                found.add(int(number[0]))
    return found
