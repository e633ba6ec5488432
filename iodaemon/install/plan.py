"""Decides what is to be done, from what belongs where and what is there. Pure.

1. What lies where a file of ours belongs is ours when the record says so, or when it is the same.
2. Ours, and changed since: kept as PATH.saved and replaced. Not ours: install refuses.
3. The record is written before anything else, so that an install that is cut short can be
   repeated or removed; and once more when all of it runs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from iodaemon.errors import RequestError
from iodaemon.install.layout import (
    KEEPER,
    KEEPER_DATA,
    SCOPE,
    SERVICE_USER,
    SUPERVISOR,
    Layout,
)
from iodaemon.install.record import Record, digest, record_text
from iodaemon.install.step import (
    NOTHING,
    Delete,
    DeleteFolder,
    DeleteStore,
    DeleteTree,
    EndJobs,
    Item,
    Leave,
    Put,
    Run,
    Save,
    Step,
    Tell,
    name_jobs,
)

_MOST_SHOWN: Final = 8
"""Paths, and jobs, in one line."""


class Found(NamedTuple):
    """The machine as it is.

    Attributes:
        items: what lies at each path of the layout and of the record.
        missing: of the folders that those paths are in, those that are not there, outer first.
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


def plan_install(layout: Layout, found: Found) -> list[Step]:
    """Set up what lacks, bring up to date what differs, start it; nothing where all is well.

    Raises:
        RequestError: something of somebody else's is in the way, or jobs of a release whose jobs
            this one does not know.
    """
    record = found.record
    placed = [*_replaced(layout, found), *_placed(layout, found)]
    current = {*_all_items(layout), layout.program}
    obsolete = [path for path in record.installed if path not in current]
    for path in obsolete:
        placed += _removed(path, found)
    config_path, config = layout.config
    if config is not None and found.items[config_path] == NOTHING:
        placed.append(Put(config_path, config, "explains every setting, changes none"))
    started = _started(layout, found, changed=frozenset(_paths_of(placed)))
    after = Record(
        installed={
            path: digest(item)
            for path, item in _all_items(layout).items()
            if not _is_foreign(path, found) or found.items[path] == item
        },
        folders=tuple(dict.fromkeys([*record.folders, *found.missing])),
        user=record.user or (layout.is_system and not found.has_user),
        running=found.program,
    )
    noted: list[Step] = []
    if placed or started or record != after:
        before = msgspec.structs.replace(after, running="")
        noted = [_note(layout, before)] if before != record else []
        started.append(_note(layout, after))
    kept = [_kept_link(layout, found)] if _is_link_foreign(layout, found) else []
    return [*noted, *placed, *started, *kept]


def plan_removal(layout: Layout, found: Found, *, purge: bool, force: bool) -> list[Step]:
    """Stop it and take away what install made; data and configuration only to ``purge``.

    Args:
        layout: as it would be installed by this program.
        found: what is there.
        purge: take away journal, jobs' output, configuration and user as well.
        force: end the jobs that are in the way.

    Raises:
        RequestError: jobs or what they have on storage tiers is in the way, or there is nothing
            to remove.
    """
    standing = tuple(sorted({*found.jobs, *(found.waiting if purge else ())}))
    if not found.record.installed and not (purge and found.record != Record()):
        raise RequestError(_nothing_there(layout, found))
    if standing and not force:
        raise RequestError(_in_the_way(found, purge=purge))
    if purge and found.kept and not force:
        raise RequestError(_kept_on_tiers(found))
    steps: list[Step] = [EndJobs(standing)] if standing else []
    if found.record.installed:
        steps += _stopped(layout, found)
        for path in found.record.installed:
            steps += _removed(path, found)
        steps += [
            Run((*layout.systemctl, "daemon-reload")),
            Run((*layout.systemctl, "reset-failed", *layout.units), may_fail=True),
            *(DeleteTree(path) for path in layout.runtime),
        ]
    return [*steps, *(_purged(layout, found) if purge else _kept(layout, found))]


def _all_items(layout: Layout) -> dict[str, Item]:
    link = {} if layout.link is None else dict([layout.link])
    return {**layout.items, **link}


def _is_foreign(path: str, found: Found) -> bool:
    """True for what somebody else has put there."""
    return found.items[path] != NOTHING and path not in found.record.installed


def _is_link_foreign(layout: Layout, found: Found) -> bool:
    if layout.link is None:
        return False
    path, item = layout.link
    return _is_foreign(path, found) and found.items[path] != item


def _placed(layout: Layout, found: Found) -> list[Step]:
    """Each file as it should be."""
    steps: list[Step] = []
    for path, item in _all_items(layout).items():
        there = found.items[path]
        if there == item or (path not in layout.items and _is_link_foreign(layout, found)):
            continue
        if _is_foreign(path, found):
            raise RequestError(
                f"{path} is there and not of this install: move it away, then install again"
            )
        if _is_changed(path, found):
            steps.append(Save(path))
        steps.append(Put(path, item))
    return steps


def _is_older(found: Found) -> bool:
    """Whether what is installed is of a release with a keeper."""
    return any(os.path.basename(path) == KEEPER for path in found.record.installed)


def _replaced(layout: Layout, found: Found) -> list[Step]:
    """A keeper is stopped, and its scope, which is otherwise than the supervisor's."""
    if not _is_older(found):
        return []
    if found.jobs:
        raise RequestError(
            f"{name_jobs(found.jobs)} {_run(found.jobs)} under the installed release, whose jobs "
            "this one does not know: 'iod drain --wait' first, then install again"
        )
    kept = f"keep {KEEPER_DATA}: output of jobs of the release before; remove it when it is read"
    return [*_keeper_stopped(layout), Tell(kept)]


def _keeper_stopped(layout: Layout) -> list[Step]:
    return [
        Run((*layout.systemctl, "disable", "--now", KEEPER), may_fail=True),
        Run((*layout.systemctl, "stop", *SCOPE), may_fail=True),
    ]


def _is_changed(path: str, found: Found) -> bool:
    """True for what install put there and somebody else has changed."""
    there = found.items.get(path, NOTHING)
    return there != NOTHING and digest(there) != found.record.installed.get(path)


def _removed(path: str, found: Found) -> list[Step]:
    if found.items.get(path, NOTHING) == NOTHING:
        return []
    return [Save(path)] if _is_changed(path, found) else [Delete(path)]


def _paths_of(steps: list[Step]) -> list[str]:
    return [step.path for step in steps if isinstance(step, Put | Save | Delete)]


def _started(layout: Layout, found: Found, *, changed: frozenset[str]) -> list[Step]:
    """All units enabled and running, with the files and the program as they are now."""
    steps: list[Step] = []
    is_first = not found.record.running  # or the one before this was cut short
    if layout.is_system and (is_first or layout.sysusers in changed or not found.has_user):
        steps.append(Run(("systemd-sysusers", layout.sysusers)))
    if layout.is_system and (is_first or layout.tmpfiles in changed):
        steps.append(Run(("systemd-tmpfiles", "--create", layout.tmpfiles)))
    units = [path for path in changed if "/systemd/" in path]
    if units or is_first:
        steps.append(Run((*layout.systemctl, "daemon-reload")))
    wanted = frozenset(layout.units)
    is_stale = bool(units) or found.record.running != found.program
    changed_units = [os.path.basename(path) for path in units]
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
    if not wanted <= found.active & found.enabled:
        steps.append(Run((*layout.systemctl, "enable", "--now", *layout.units)))
    return steps


def _note(layout: Layout, record: Record) -> Put:
    why = "what runs" if record.running else "what is put where"
    return Put(layout.record, Item("file", record_text(record)), why)


def _kept_link(layout: Layout, found: Found) -> Tell:
    assert layout.link is not None
    path, _ = layout.link
    there = found.items[path]
    what = f"a link to {there.text}" if there.kind == "link" else "somebody else's file"
    return Tell(f"leave {path} as it is, {what}: users call {layout.program}")


def _nothing_there(layout: Layout, found: Found) -> str:
    option = "" if layout.is_system else " --user"
    if found.record != Record():
        return f"it is removed already; 'iod install{option} --remove --purge' takes its data too"
    return f"nothing was installed by 'iod install{option}': {layout.record} is not there"


def _in_the_way(found: Found, *, purge: bool) -> str:
    if found.jobs:
        what = f"{name_jobs(found.jobs)} {_run(found.jobs)}"
    else:
        do = "waits" if len(found.waiting) == 1 else "wait"
        what = f"{name_jobs(found.waiting)} {do} in the queue, and --purge forgets them"
    wait = "'iod cancel' them" if purge and not found.jobs else "let them end ('iod drain --wait')"
    return f"{what}: {wait}, or end them with --force"


def _run(jobs: tuple[int, ...]) -> str:
    return f"{'runs or stands' if len(jobs) == 1 else 'run or stand'} suspended"


def _kept_on_tiers(found: Found) -> str:
    ids = tuple(job for job, _ in found.kept)
    has = "has" if len(ids) == 1 else "have"
    paths = [path for _, where in found.kept for path in where]
    shown = ", ".join(paths[:_MOST_SHOWN]) + (", ..." if len(paths) > _MOST_SHOWN else "")
    first = "then" if found.record.installed else "install again, then"
    listed = ",".join(map(str, ids[:_MOST_SHOWN])) if len(ids) <= _MOST_SHOWN else "all"
    return (
        f"{name_jobs(ids)} {has} data on storage tiers, and --purge forgets where: {shown or '?'}; "
        f"copy what is needed, {first} 'iod scratch remove {listed}', or leave it there with "
        "--force"
    )


def _stopped(layout: Layout, found: Found) -> list[Step]:
    stop: list[Step] = _keeper_stopped(layout) if _is_older(found) else []
    names = {os.path.basename(path) for path in found.record.installed}
    units = [unit for unit in layout.units if unit in names]
    stop.append(Run((*layout.systemctl, "disable", "--now", *units)))
    if layout.is_system:
        return [*stop, Run((*layout.systemctl, "stop", *SCOPE), may_fail=True)]
    kill = (*layout.systemctl, "kill", "--signal=KILL", *layout.units)  # an idle supervisor
    return [*stop, Run(kill, may_fail=True)]


def _kept(layout: Layout, found: Found) -> list[Step]:
    """What remains, and a record of it: of the user, and of the folders that still hold it."""
    if not found.record.installed:
        return []
    after = msgspec.structs.replace(found.record, installed={}, running="")
    option = "" if layout.is_system else " --user"
    kept = ", ".join((*layout.data, *layout.elsewhere, os.path.dirname(layout.record)))
    folders = [DeleteFolder(path) for path in reversed(found.record.folders)]
    return [
        Put(layout.record, Item("file", record_text(after)), "what is kept"),
        *folders,
        Tell(f"keep {kept}: 'iod install{option} --remove --purge' removes them"),
    ]


def _purged(layout: Layout, found: Found) -> list[Step]:
    steps: list[Step] = [Leave(job, where) for job, where in found.kept]
    steps += [DeleteStore(path) for path in layout.stores]
    steps += [DeleteTree(path) for path in layout.data]
    if _is_older(found):
        steps.append(DeleteTree(KEEPER_DATA))
    steps += [Delete(layout.config[0]), Delete(layout.record)]
    steps += [DeleteFolder(path) for path in _folders(layout, found)]
    if layout.is_system and found.record.user and found.has_user:
        steps += [
            Run(("userdel", SERVICE_USER)),
            Run(
                ("groupdel", SERVICE_USER), may_fail=True
            ),  # userdel leaves it while it has members
        ]
    return [
        *steps,
        *(Tell(f"leave {path}: it is not install's own place") for path in layout.elsewhere),
    ]


def _folders(layout: Layout, found: Found) -> list[str]:
    own = os.path.dirname(layout.record)
    return list(dict.fromkeys([*reversed(found.record.folders), own]))
