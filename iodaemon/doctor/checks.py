"""All checks, in the order of the report, and what they examine besides the machine."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from resource import RLIMIT_NOFILE, getrlimit
from typing import Any, Final, NamedTuple

from iodaemon.config.tier import TierTable
from iodaemon.doctor import (
    accounting,
    control_group,
    disks,
    kernel_features,
    running_daemon,
    service,
)
from iodaemon.doctor.report import Finding, broken, parts_of, unseen
from iodaemon.errors import ConfigError
from iodaemon.node.condition import STATE_FILES, of_error
from iodaemon.node.devices import find_device
from iodaemon.node.feature import find_sources
from iodaemon.node.root_side import OUTPUT, SERVICE_USER
from iodaemon.node.topology import SlotKind
from iodaemon.supervisor.anchor import LOCK


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is examined besides the machine; directories need not exist.

    Attributes:
        directory: where jobs are submitted.
        sockets: as configured; empty: as detected.
        node: what the running daemon says of the machine; None: none answers.
        users: of its jobs that have not ended; None: it does not say.
        running: those of them that have processes, or the first of many.
        service_uid: of the system's service, which is examined; None: a user's own daemon is.
        supervisor_dir: of the service.
    """

    state_dir: Path
    runtime_dir: Path
    directory: Path
    sockets: Sequence[str] = ()
    slot: SlotKind = "core"
    node: Mapping[str, Any] | None = None
    users: Sequence[str] | None = None
    running: Sequence[service.Running] = ()
    service_uid: int | None = None
    supervisor_dir: Path | None = None
    tiers: Mapping[str, TierTable] = field(default_factory=dict)

    @property
    def is_service(self) -> bool:
        return self.service_uid is not None

    @functools.cached_property
    def cgroups(self) -> control_group.Reading:
        """What this process has of cgroup v2, tried out once."""
        return control_group.probe_cgroups()

    @property
    def home(self) -> str | None:
        """Where a cgroup may be made; None: nowhere."""
        return self.cgroups.usable_home


class Check(NamedTuple):
    """One check, or several that come from one trial.

    Attributes:
        what: a stable name; also of the finding that the check cannot be made.
        find: makes the findings. Its OSError and ConfigError are findings as well.
        where: the directory in which it tries something; None: in none.
    """

    what: str
    find: Callable[[Subject], Iterable[Finding]]
    where: Callable[[Subject], Path | str] | None = None


_STATE: Final = attrgetter("state_dir")
_RUNTIME: Final = attrgetter("runtime_dir")
_HOME: Final = attrgetter("home")


def _places(subject: Subject) -> Iterator[Finding]:
    me, check = os.geteuid(), service.check_place
    if subject.service_uid is None:
        yield check("state directory", subject.state_dir, me, STATE_FILES)
        yield check("sockets' directory", subject.runtime_dir, me)
        return
    yield check("state directory", subject.state_dir, subject.service_uid, STATE_FILES)
    if subject.supervisor_dir is not None:
        yield check(
            "supervisor's directory", subject.supervisor_dir, 0, (OUTPUT,), may_be_link=False
        )
    yield check("sockets' directory", subject.runtime_dir, 0, may_be_link=False)
    if subject.supervisor_dir is not None:
        yield disks.check_output_disk(subject.state_dir, subject.supervisor_dir)


def _locks(subject: Subject) -> Iterator[Finding]:
    answers = subject.node is not None
    yield service.check_lock("daemon", subject.state_dir / STATE_FILES[0], answers=answers)
    yield service.check_lock("anchor", subject.runtime_dir / LOCK, answers=answers)


def _users(subject: Subject) -> Iterator[Finding]:
    yield service.check_lookup(os.geteuid())
    if subject.users is not None:
        yield service.judge_users(subject.users)
    if subject.is_service:
        flaw = service.find_flaw_of_python()
        yield service.judge_python(flaw, has_tiers=bool(subject.tiers))
        yield service.check_members(SERVICE_USER)
        yield service.check_groups(subject.running)


CHECKS: Final = (
    Check("daemon", lambda s: running_daemon.judge_node(s.node or {})),
    Check("kernel", lambda _: [kernel_features.judge_kernel(os.uname().release)]),
    Check("I/O accounting", lambda s: accounting.check_counting(s.state_dir, s.home), _STATE),
    Check("I/O of other users", lambda _: [accounting.check_others()]),
    Check("freeze by cgroup", lambda s: [control_group.check_freezing_by_cgroup(s.home)], _HOME),
    Check("freeze by signals", lambda _: [control_group.check_freezing_by_signals()]),
    Check("cgroups", lambda s: control_group.judge_cgroups(s.cgroups)),
    Check("progress", lambda s: kernel_features.judge_progress(find_sources(Path("/"), s.home))),
    Check("topology", lambda s: kernel_features.check_topology(s.sockets, s.slot)),
    Check("disk", lambda s: [disks.judge_path("disk of the state", find_device(s.state_dir))]),
    Check("disk", lambda s: [disks.judge_path("disk of this place", find_device(s.directory))]),
    Check("disks", lambda _: disks.check_disks()),
    Check("calibration", lambda s: disks.check_calibration(s.state_dir, s.node), _STATE),
    Check("tiers", lambda s: disks.check_tiers(s.tiers, s.node, is_shared=s.is_service)),
    Check("pressure (PSI)", lambda _: [kernel_features.check_pressure()]),
    Check("journal disk", lambda s: disks.check_journal_disk(s.state_dir), _STATE),
    Check("open files", lambda _: [kernel_features.judge_files(*getrlimit(RLIMIT_NOFILE))]),
    Check("runtime directory", lambda s: [service.check_runtime(s.runtime_dir)], _RUNTIME),
    Check("places", _places),
    Check("locks", _locks),
    Check("users", _users),
)


def examine(subject: Subject, checks: Iterable[Check] = CHECKS) -> Iterator[Finding]:
    """Every finding as soon as it is made, when what was made for its check is removed."""
    for check in checks:
        try:
            yield from check.find(subject)
        except (OSError, ConfigError) as error:
            yield _refused(check, subject, error)


def _refused(check: Check, subject: Subject, error: OSError | ConfigError) -> Finding:
    """The finding that the system refuses what the check tries."""
    problem, remedy = parts_of(str(error))
    if isinstance(error, OSError):
        problem, remedy = error.strerror or problem, ""
        if check.where is not None:
            problem, remedy = of_error(check.where(subject), error)
    is_anothers = check.where is not None and subject.is_service
    if service.is_hidden(error, is_anothers=is_anothers):
        return unseen(check.what, problem)
    cost = "what was to be tried cannot be done here"
    return broken(check.what, problem, cost=cost, remedy=remedy or "mend that")
