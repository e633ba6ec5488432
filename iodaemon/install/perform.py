"""The machine that is installed on: looks at it, and does what a plan says, step by step."""

from __future__ import annotations

import contextlib
import glob
import os
import re
import shlex
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

from iodaemon.errors import RequestError
from iodaemon.install.layout import NOTHING, SCOPE, Item, Layout
from iodaemon.install.plan import (
    EndJobs,
    Found,
    Put,
    Remove,
    Run,
    Save,
    Step,
    Tell,
    done_line_of,
    parse_record,
)
from iodaemon.node.name_service import find_uid
from iodaemon.node.root_side import SERVICE_USER

_LARGEST_BYTES: Final = 1 << 20
"""Of a file that could be ours."""
_ANSWER_WITHIN_S: Final = 30.0
_PATIENCE_S: Final = 300.0
"""For one command; systemd itself gives up on a unit much earlier."""
_RUNNING: Final = ("active", "activating", "reloading", "deactivating")
_OF_A_JOB: Final = re.compile(r"([0-9]+)-[0-9]+-.+")
"""The job of a directory in a store: ``<job>-<attempt>-<random>``."""


class Jobs(NamedTuple):
    """Ascending numbers of those that run or are suspended, and of those in the queue."""

    standing: tuple[int, ...]
    waiting: tuple[int, ...]


class Host(NamedTuple):
    """One machine.

    Attributes:
        root: where its files are.
        ask_jobs: the jobs that its daemon knows; None: no daemon answers.
        find_user: the number of the account of this name; None: there is none.
    """

    root: Path
    ask_jobs: Callable[[], Jobs | None]
    find_user: Callable[[str], int | None] = find_uid

    def at(self, path: str) -> str:
        """Where a path of the machine really is."""
        return f"{str(self.root).rstrip('/')}{path}"


# -- looking ---------------------------------------------------------------------------------------


def look(host: Host, layout: Layout, program: str) -> Found:
    """What a plan needs to know; ``program`` names the program as it is now.

    Raises:
        RequestError: the record cannot be read, or the manager of the units does not answer.
    """
    record = parse_record(_read_item(host, layout.record), layout.record)
    paths = dict.fromkeys([*layout.managed, layout.config[0], *record.installed])
    jobs = host.ask_jobs() or Jobs((), ())
    left = _jobs_in_scope(host) if layout.is_system else set()
    active, enabled = _unit_states(layout)
    return Found(
        items={path: _read_item(host, path) for path in paths},
        missing=_missing_folders(host, (*layout.items, layout.record)),
        record=record,
        active=active,
        enabled=enabled,
        has_user=host.find_user(SERVICE_USER) is not None,
        program=program,
        jobs=tuple(sorted({*jobs.standing, *left})),
        waiting=jobs.waiting,
        kept=_kept_on_tiers(host, layout),
    )


def _read_item(host: Host, path: str) -> Item:
    real = host.at(path)
    try:
        status = os.lstat(real)
        if stat.S_ISLNK(status.st_mode):
            return Item("link", os.readlink(real))
        if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST_BYTES:
            return Item("other")
        return Item("file", Path(real).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return NOTHING
    except UnicodeDecodeError:
        return Item("other")


def _kept_on_tiers(host: Host, layout: Layout) -> tuple[tuple[int, tuple[str, ...]], ...]:
    """The directories of each job on the disks of storage tiers."""
    kept: dict[int, tuple[str, ...]] = {}
    for store in layout.stores:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for name in sorted(os.listdir(host.at(store))):
                if match := _OF_A_JOB.fullmatch(name):
                    job = int(match[1])
                    kept[job] = (*kept.get(job, ()), f"{store}/{name}")
    return tuple(sorted(kept.items()))


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
        ended = _call(command, _ANSWER_WITHIN_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RequestError(f"systemctl does not answer: {error}") from error
    if ended.returncode != 0:
        said = " ".join(ended.stderr.split())
        raise RequestError(f"'{shlex.join(command[: -len(layout.units)])}' failed: {said}")
    blocks = [
        dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        for block in ended.stdout.split("\n\n")
    ]
    active = {each.get("Id", "") for each in blocks if each.get("ActiveState") in _RUNNING}
    enabled = {each.get("Id", "") for each in blocks if each.get("UnitFileState") == "enabled"}
    return frozenset(active), frozenset(enabled)


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


# -- doing -----------------------------------------------------------------------------------------


def perform(
    steps: Iterable[Step],
    host: Host,
    *,
    end_jobs: Callable[[tuple[int, ...]], None],
    tell: Callable[[str], None],
) -> None:
    """Do all steps in order; the first that fails is the last.

    Args:
        end_jobs: cancels jobs, by number, and returns when they are gone or cannot be had.
        tell: is given one line for each step.

    Raises:
        RequestError: a step failed; what it was, and what to do.
    """
    for step in steps:
        try:
            is_done = _do(step, host, end_jobs)
        except OSError as error:
            line = f"{error.filename or step}: {error.strerror or error}"
            raise RequestError(f"{line}; mend that, then repeat") from error
        if is_done:
            tell(done_line_of(step))


def _do(step: Step, host: Host, end_jobs: Callable[[tuple[int, ...]], None]) -> bool:
    """True when there was something to do."""
    match step:
        case Put(path, item):
            _put(host.at(path), item)
        case Save(path):
            os.replace(host.at(path), host.at(f"{path}.saved"))
        case Remove(path, what):
            return _remove(host.at(path), what)
        case Run():
            return _run(step)
        case EndJobs(ids):
            end_jobs(ids)
        case Tell(_, paths):
            return not paths or any(os.path.lexists(host.at(path)) for path in paths)
    return True


def _remove(path: str, what: str) -> bool:
    """True when it was there, and as empty as it has to be."""
    try:
        if what == "tree":
            shutil.rmtree(path)
        else:
            (os.unlink if what == "file" else os.rmdir)(path)
    except FileNotFoundError:
        return False
    except OSError:
        if what != "folder":  # not empty: somebody else's
            raise
        return False
    return True


def _put(path: str, item: Item) -> None:
    """By rename: who reads it meanwhile finds the old or the new one."""
    os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
    new = f"{path}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(new)
    if item.kind == "link":
        os.symlink(item.text, new)
    else:
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        with open(fd, "w", encoding="utf-8") as file:
            file.write(item.text)
            file.flush()
            os.fchmod(fd, 0o644)
            os.fsync(fd)
    os.replace(new, path)


def _run(step: Run) -> bool:
    """True when it did its work; RequestError: it did not, and must."""
    shown = shlex.join(step.words)
    try:
        ended = _call(step.words, _PATIENCE_S)
    except FileNotFoundError as error:
        raise RequestError(f"{step.words[0]}: not found; '{shown}' is needed") from error
    except subprocess.TimeoutExpired as error:
        raise RequestError(f"'{shown}' did not end within {_PATIENCE_S:g} s") from error
    if ended.returncode != 0 and not step.may_fail:
        said = " ".join((ended.stderr or ended.stdout).split()) or f"exit code {ended.returncode}"
        raise RequestError(f"'{shown}' failed: {said}")
    return ended.returncode == 0


def _call(words: Iterable[str], within_s: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=within_s,
    )
