"""Decides what to do, from what belongs where and what is there. Pure: it does no I/O.

1. What lies where a file of ours belongs is ours when the record says so, or when it is the same.
2. Ours, and changed since: kept as PATH.saved and replaced. Not ours: install refuses.
3. The record is written before anything else, so that an install that is cut short can be
   repeated or removed; and once more when all of it runs.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from iodaemon.errors import RequestError
from iodaemon.install.layout import (
    KEEPER,
    KEEPER_DATA,
    NOTHING,
    SCOPE,
    SUPERVISOR,
    SYSUSERS,
    TMPFILES,
    Item,
    Layout,
)
from iodaemon.node.root_side import SERVICE_USER

_MOST_NAMED: Final = 8
"""Paths, and jobs, in one line."""
_DONE: Final = MappingProxyType(
    {
        "write": "wrote",
        "link": "linked",
        "keep": "kept",
        "remove": "removed",
        "run": "ran",
        "cancel": "cancelled",
        "leave": "left",
    }
)
_REMOVED: Final = MappingProxyType(
    {"file": "", "tree": " with all that is in it", "folder": " if it is empty"}
)


# -- the steps -------------------------------------------------------------------------------------


class Put(NamedTuple):
    """Write a file or link atomically, and make the folders above it."""

    path: str
    item: Item
    why: str = ""


class Save(NamedTuple):
    """Rename what is there to ``PATH.saved``."""

    path: str


class Remove(NamedTuple):
    """Remove what is there, if anything: a file or link, a tree, or a folder if it is empty."""

    path: str
    what: Literal["file", "tree", "folder"] = "file"


class Run(NamedTuple):
    """Run a program and wait for its end; it must succeed unless ``may_fail``."""

    words: tuple[str, ...]
    may_fail: bool = False


class EndJobs(NamedTuple):
    """Cancel these jobs and wait for their end; those that ignore it are killed with the rest."""

    ids: tuple[int, ...]


class Tell(NamedTuple):
    """Print a line and do nothing; with paths, only if one of them exists."""

    text: str
    paths: tuple[str, ...] = ()


Step: TypeAlias = Put | Save | Remove | Run | EndJobs | Tell


def line_of(step: Step) -> str:
    """The step as a line, in the imperative."""
    match step:
        case Put(path, item, why):
            text = f"link {path} to {item.text}" if item.kind == "link" else f"write {path}"
            return f"{text} ({why})" if why else text
        case Save(path):
            return f"keep the changed {path} as {path}.saved"
        case Remove(path, what):
            return f"remove {path}" + _REMOVED[what]
        case Run(words):
            return f"run {shlex.join(words)}"
        case EndJobs(ids):
            return f"cancel {_name_jobs(ids)}"
        case Tell(text):
            return text


def done_line_of(step: Step) -> str:
    """The same once it is done."""
    word, _, rest = line_of(step).partition(" ")
    return f"{_DONE.get(word, word)} {rest}".removesuffix(" if it is empty")


# -- what there is ---------------------------------------------------------------------------------


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What install has made, kept in one file, so that removing takes that and no more.

    Attributes:
        version: of the file's form.
        installed: the digest of each file and link, by path.
        folders: directories that were not there before, outer ones first.
        user: install made the daemon's user.
        running: names the program as it was when its services were last started; empty: something
            has changed since then, or they were never started.
    """

    version: int = 1
    installed: Mapping[str, str] = {}
    folders: tuple[str, ...] = ()
    user: bool = False
    running: str = ""


def parse_record(item: Item, path: str) -> Record:
    """The record in this file; an empty one where there is none.

    Raises:
        RequestError: it is not ours, or of a later iodaemon.
    """
    if item == NOTHING:
        return Record()
    try:
        record = msgspec.json.decode(item.text, type=Record)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise RequestError(
            f"{path} does not say what was installed ({error}): restore it or move it away"
        ) from error
    if record.version != Record().version:
        raise RequestError(
            f"{path} was written by a later iodaemon (form {record.version}, this one knows "
            f"{Record().version}): use that one"
        )
    return record


class Found(NamedTuple):
    """The machine as it is.

    Attributes:
        items: what lies at each path of the layout and of the record.
        missing: folders of those paths that do not exist, outer first.
        record: of an earlier install; empty without one.
        active: the units that run, or listen.
        enabled: the units that the next boot starts.
        has_user: the daemon's user exists.
        program: names the program as it is now, with all that it consists of.
        jobs: those that run or stand suspended, ascending.
        waiting: those in the queue, ascending.
        kept: of jobs, ascending, their directories on the disks of storage tiers.
    """

    items: Mapping[str, Item]
    missing: tuple[str, ...]
    record: Record
    active: frozenset[str]
    enabled: frozenset[str]
    has_user: bool
    program: str
    jobs: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    kept: tuple[tuple[int, tuple[str, ...]], ...] = ()

    @property
    def has_keeper(self) -> bool:
        """Whether what is installed is of a release with a keeper."""
        return any(os.path.basename(path) == KEEPER for path in self.record.installed)


# -- installing ------------------------------------------------------------------------------------


def plan_install(layout: Layout, found: Found) -> list[Step]:
    """Install what is missing, update what differs, start the service; no step if all is well.

    Raises:
        RequestError: something of somebody else's is in the way, or jobs of a release whose jobs
            this one does not know.
    """
    record, managed = found.record, layout.managed
    placed = _keeper_replaced(layout, found) if found.has_keeper else []
    installed: dict[str, str] = {}
    left: list[Step] = []
    for path, item in managed.items():
        there = found.items[path]
        if there not in (NOTHING, item) and path not in record.installed:
            if path in layout.items:
                raise RequestError(
                    f"{path} is there and not of this install: move it away, then install again"
                )
            what = f"a link to {there.text}" if there.kind == "link" else "somebody else's file"
            left.append(Tell(f"leave {path} as it is, {what}: users call {layout.program}"))
            continue
        installed[path] = _digest(item)
        if there != item:
            placed += [Save(path)] if _is_changed(path, found) else []
            placed.append(Put(path, item))
    for path in record.installed:
        if path not in managed and path != layout.program:
            placed += _removed(path, found)
    config_path, config = layout.config
    if config is not None and found.items[config_path] == NOTHING:
        placed.append(Put(config_path, config, "explains every setting, changes none"))
    changed = {step.path for step in placed if isinstance(step, Put | Save | Remove)}
    started = _started(layout, found, changed)
    after = Record(
        installed=installed,
        folders=tuple(dict.fromkeys([*record.folders, *found.missing])),
        user=record.user or (layout.is_system and not found.has_user),
        running=found.program,
    )
    if not placed and not started and record == after:
        return left
    before = msgspec.structs.replace(after, running="")
    noted = [_note(layout, before, "what is put where")] if before != record else []
    return [*noted, *placed, *started, _note(layout, after, "what runs"), *left]


def _keeper_replaced(layout: Layout, found: Found) -> list[Step]:
    """A keeper is stopped, and its scope, which is otherwise than the supervisor's."""
    if found.jobs:
        raise RequestError(
            f"{_name_jobs(found.jobs)} {_stand(found.jobs)} under the installed release, whose "
            "jobs this one does not know: 'iod drain --wait' first, then install again"
        )
    kept = f"keep {KEEPER_DATA}: output of jobs of the release before; remove it when it is read"
    return [*_keeper_stopped(layout), Tell(kept)]


def _keeper_stopped(layout: Layout) -> list[Step]:
    return [
        Run((*layout.systemctl, "disable", "--now", KEEPER), may_fail=True),
        Run((*layout.systemctl, "stop", *SCOPE), may_fail=True),
    ]


def _digest(item: Item) -> str:
    """A hash that shows whether a file is still as it was installed."""
    return hashlib.sha256(f"{item.kind}\0{item.text}".encode()).hexdigest()


def _is_changed(path: str, found: Found) -> bool:
    """True for what install put there and somebody else has changed."""
    there = found.items[path]
    return there != NOTHING and _digest(there) != found.record.installed.get(path)


def _removed(path: str, found: Found) -> list[Step]:
    if found.items[path] == NOTHING:
        return []
    return [Save(path)] if _is_changed(path, found) else [Remove(path)]


def _started(layout: Layout, found: Found, changed: set[str]) -> list[Step]:
    """All units enabled and running, with the files and the program as they are now."""
    steps: list[Step] = []
    is_first = not found.record.running  # or the one before this was cut short
    if layout.is_system and (is_first or SYSUSERS in changed or not found.has_user):
        steps.append(Run(("systemd-sysusers", SYSUSERS)))
    if layout.is_system and (is_first or TMPFILES in changed):
        steps.append(Run(("systemd-tmpfiles", "--create", TMPFILES)))
    changed_units = {os.path.basename(path) for path in changed if "/systemd/" in path}
    if changed_units or is_first:
        steps.append(Run((*layout.systemctl, "daemon-reload")))
    is_stale = bool(changed_units) or found.record.running != found.program
    stale = [
        unit
        for unit in layout.units
        if is_stale and unit in found.active
        # Clients wait at the socket meanwhile; it is closed only if it must.
        if not unit.endswith(".socket") or unit in changed_units
    ]
    if SUPERVISOR in stale:  # the program is executed in place: jobs keep their parent
        stale.remove(SUPERVISOR)
        steps.append(Run((*layout.systemctl, "reload", SUPERVISOR)))
    if stale:
        steps.append(Run((*layout.systemctl, "restart", *stale)))
    if not found.active & found.enabled >= {*layout.units}:
        steps.append(Run((*layout.systemctl, "enable", "--now", *layout.units)))
    return steps


def _note(layout: Layout, record: Record, why: str) -> Put:
    text = msgspec.json.format(msgspec.json.encode(record), indent=2).decode()
    return Put(layout.record, Item("file", f"{text}\n"), why)


# -- removing --------------------------------------------------------------------------------------


def plan_removal(layout: Layout, found: Found, *, purge: bool, force: bool) -> list[Step]:
    """Stop the service and remove what install made.

    Args:
        purge: remove journal, jobs' output, configuration and user as well.
        force: end the jobs that are in the way.

    Raises:
        RequestError: jobs or what they have on storage tiers is in the way, or there is nothing
            to remove.
    """
    record = found.record
    standing = tuple(sorted({*found.jobs, *(found.waiting if purge else ())}))
    if not record.installed and not (purge and record != Record()):
        raise RequestError(_nothing_there(layout, found))
    if standing and not force:
        raise RequestError(_in_the_way(found, purge=purge))
    if purge and found.kept and not force:
        raise RequestError(_kept_on_tiers(found))
    steps: list[Step] = [EndJobs(standing)] if standing else []
    if record.installed:
        steps += _stopped(layout, found)
        for path in record.installed:
            steps += _removed(path, found)
        steps += [
            Run((*layout.systemctl, "daemon-reload")),
            Run((*layout.systemctl, "reset-failed", *layout.units), may_fail=True),
            *(Remove(path, "tree") for path in layout.runtime),
        ]
    return [*steps, *(_purged(layout, found) if purge else _kept(layout, found))]


def _nothing_there(layout: Layout, found: Found) -> str:
    option = "" if layout.is_system else " --user"
    if found.record != Record():
        return f"it is removed already; 'iod install{option} --remove --purge' takes its data too"
    return f"nothing was installed by 'iod install{option}': {layout.record} is not there"


def _in_the_way(found: Found, *, purge: bool) -> str:
    if found.jobs:
        what = f"{_name_jobs(found.jobs)} {_stand(found.jobs)}"
    else:
        do = "waits" if len(found.waiting) == 1 else "wait"
        what = f"{_name_jobs(found.waiting)} {do} in the queue, and --purge forgets them"
    wait = "'iod cancel' them" if purge and not found.jobs else "let them end ('iod drain --wait')"
    return f"{what}: {wait}, or end them with --force"


def _stand(jobs: tuple[int, ...]) -> str:
    return f"{'runs or stands' if len(jobs) == 1 else 'run or stand'} suspended"


def _kept_on_tiers(found: Found) -> str:
    ids = tuple(job for job, _ in found.kept)
    has = "has" if len(ids) == 1 else "have"
    paths = [path for _, where in found.kept for path in where]
    shown = ", ".join(paths[:_MOST_NAMED]) + (", ..." if len(paths) > _MOST_NAMED else "")
    first = "then" if found.record.installed else "install again, then"
    listed = ",".join(map(str, ids)) if len(ids) <= _MOST_NAMED else "all"
    return (
        f"{_name_jobs(ids)} {has} data on storage tiers, and --purge forgets where: {shown}; "
        f"copy what is needed, {first} 'iod scratch remove {listed}', or leave it there with "
        "--force"
    )


def _name_jobs(ids: tuple[int, ...]) -> str:
    """``job 4``, ``jobs 4, 5 and 9``; of many the first ones."""
    shown = [str(number) for number in ids[:_MOST_NAMED]]
    if len(ids) > _MOST_NAMED:
        return f"{len(ids)} jobs ({', '.join(shown)} ...)"
    *front, last = shown
    return f"jobs {', '.join(front)} and {last}" if front else f"job {last}"


def _stopped(layout: Layout, found: Found) -> list[Step]:
    stop = _keeper_stopped(layout) if found.has_keeper else []
    names = {os.path.basename(path) for path in found.record.installed}
    units = [unit for unit in layout.units if unit in names]
    stop.append(Run((*layout.systemctl, "disable", "--now", *units)))
    if layout.is_system:
        return [*stop, Run((*layout.systemctl, "stop", *SCOPE), may_fail=True)]
    kill = (*layout.systemctl, "kill", "--signal=KILL", *layout.units)  # an idle supervisor
    return [*stop, Run(kill, may_fail=True)]


def _kept(layout: Layout, found: Found) -> list[Step]:
    """What remains, and a record of it: of the user, and of the folders that still hold it."""
    after = msgspec.structs.replace(found.record, installed={}, running="")
    option = "" if layout.is_system else " --user"
    kept = ", ".join((*layout.data, *layout.elsewhere, os.path.dirname(layout.record)))
    return [
        _note(layout, after, "what is kept"),
        *(Remove(path, "folder") for path in reversed(found.record.folders)),
        Tell(f"keep {kept}: 'iod install{option} --remove --purge' removes them"),
    ]


def _purged(layout: Layout, found: Found) -> list[Step]:
    data = (*layout.data, KEEPER_DATA) if found.has_keeper else layout.data
    folders = dict.fromkeys([*reversed(found.record.folders), os.path.dirname(layout.record)])
    steps: list[Step] = [
        *(Tell(f"leave what job {job} has there: {', '.join(p)}", p) for job, p in found.kept),
        *(Remove(path, "folder") for path in layout.stores),
        *(Remove(path, "tree") for path in data),
        *(Remove(path) for path in (layout.config[0], layout.record)),
        *(Remove(path, "folder") for path in folders),
    ]
    if layout.is_system and found.record.user and found.has_user:
        # userdel leaves the group while it has members.
        steps += [Run(("userdel", SERVICE_USER)), Run(("groupdel", SERVICE_USER), may_fail=True)]
    places = (Tell(f"leave {path}: it is not install's own place") for path in layout.elsewhere)
    return [*steps, *places]
