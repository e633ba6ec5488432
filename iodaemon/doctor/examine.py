"""All checks, in order."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from iodaemon.config.tier import TierTable
from iodaemon.core.words import MODES, drained, rule_failed
from iodaemon.doctor import (
    account,
    accounting,
    calibration,
    control_group,
    device,
    freezing,
    journal_disk,
    place,
    runtime,
    tier,
    topology,
    version,
)
from iodaemon.doctor.finding import Finding, Verdict, broken, lacking, ok
from iodaemon.doctor.place import AS_ROOT, Place, is_hidden
from iodaemon.errors import ConfigError
from iodaemon.node.condition import STATE_FILES, of_error
from iodaemon.node.feature import CONTROLS, COUNT_PRESSURE
from iodaemon.node.root_side import OUTPUT, find_lack
from iodaemon.node.topology import SlotKind
from iodaemon.supervisor.anchor import LOCK
from iodaemon.supervisor.cgroup import CAP, PRESSURE


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """What is examined besides the machine.

    Attributes:
        state_dir: the daemon's, whether it exists or not.
        runtime_dir: likewise.
        directory: where jobs are submitted.
        sockets: as configured; empty: as detected.
        slot: what is handed out.
        measured: what the running daemon says of its means; None: none answers.
        sampling: what it says of its sampling; None: it does not.
        users: of its jobs that have not ended; None: it does not say.
        running: those of them that have processes, or the first of many.
        service_uid: of the system's service, which is examined; None: a user's own daemon is.
        supervisor_dir: of the service.
        tiers: of storage, as configured.
        node: what the running daemon says of the machine; None: none answers.
    """

    state_dir: Path
    runtime_dir: Path
    directory: Path
    sockets: Sequence[str] = ()
    slot: SlotKind = "core"
    measured: Mapping[str, Any] | None = None
    sampling: Mapping[str, Any] | None = None
    users: Sequence[str] | None = None
    running: Sequence[account.Running] = ()
    service_uid: int | None = None
    supervisor_dir: Path | None = None
    tiers: Mapping[str, TierTable] = MappingProxyType({})
    node: Mapping[str, Any] | None = None

    @property
    def places(self) -> tuple[Place, ...]:
        """The directories, and whose they have to be."""
        me, is_own = os.geteuid(), self.service_uid is None
        state_uid, root_uid = (me, me) if self.service_uid is None else (self.service_uid, 0)
        roots: list[tuple[str, Path, tuple[str, ...]]] = []
        if not is_own and self.supervisor_dir is not None:
            roots.append(("supervisor's directory", self.supervisor_dir, (OUTPUT,)))
        roots.append(("sockets' directory", self.runtime_dir, ()))
        return (
            Place(
                what="state directory",
                path=self.state_dir,
                owner_uid=state_uid,
                files=STATE_FILES,
            ),
            *(
                Place(what=what, path=path, owner_uid=root_uid, files=files, may_be_link=is_own)
                for what, path, files in roots
            ),
        )


def examine(subject: Subject) -> Iterator[Finding]:
    """Every finding as soon as it is made. What was made for a check is gone when it comes."""
    if subject.measured is not None:
        yield judge_daemon(subject.measured)
        yield from judge_supervisor(subject.measured)
        yield from judge_controls(subject.measured)
    if subject.sampling is not None:
        yield judge_sampling(subject.sampling)
    if subject.node is not None:
        yield from judge_condition(subject.node)
        yield from judge_rules(subject.node)
    yield version.judge_kernel(os.uname().release)
    cgroups = control_group.probe_cgroups()
    home = cgroups.usable_home
    yield from _spoken(
        "I/O accounting",
        lambda: accounting.judge_counting(accounting.probe_counting(subject.state_dir, home)),
        place=subject.state_dir,
        is_anothers=subject.service_uid is not None,
    )
    yield from _spoken(
        "I/O of other users", lambda: [accounting.judge_others(accounting.probe_others())]
    )
    yield from _examine_freezing(home)
    yield from control_group.judge_cgroups(cgroups)
    yield from device.judge_progress(device.probe_progress(home))
    yield from _examine_machine(subject)
    yield from _examine_places(subject)
    yield from _examine_service(subject)


def _examine_service(subject: Subject) -> Iterator[Finding]:
    """Whose everything is, and whether that can be said at all."""
    yield from place.judge_places(subject.places)
    if subject.service_uid is not None and subject.supervisor_dir is not None:
        both = journal_disk.probe_output_disk(subject.state_dir, subject.supervisor_dir)
        yield journal_disk.judge_output_disk(both)
    answers = subject.measured is not None
    yield place.judge_lock("daemon", subject.state_dir / STATE_FILES[0], answers=answers)
    yield place.judge_lock("anchor", subject.runtime_dir / LOCK, answers=answers)
    yield account.examine_lookup()
    if subject.users is not None:
        yield account.judge_users(subject.users)
    if subject.service_uid is not None:
        flaw = version.find_flaw_of_python()
        yield version.judge_python_of_users(flaw, has_tiers=bool(subject.tiers))
        yield account.examine_members(account.SERVICE_USER)
        yield account.examine_groups(subject.running)


def _examine_freezing(home: str | None) -> Iterator[Finding]:
    means: freezing.Means
    for means in ("cgroup", "signals"):
        place = None if home is None or means == "signals" else Path(home)
        yield from _spoken(f"freeze by {means}", partial(_freeze, means, home), place=place)


def _freeze(means: freezing.Means, home: str | None) -> list[Finding]:
    return [freezing.judge_freezing(means, freezing.probe_freezing(means, home))]


def _examine_machine(subject: Subject) -> Iterator[Finding]:
    yield from _spoken(
        "topology",
        lambda: topology.judge_topology(topology.probe_topology(subject.sockets, subject.slot)),
    )
    yield device.judge_path("disk of the state", device.probe_path(subject.state_dir))
    yield device.judge_path("disk of this place", device.probe_path(subject.directory))
    yield from device.judge_disks(device.probe_disks())
    yield from _spoken(
        "calibration",
        lambda: calibration.examine_calibration(subject.state_dir, subject.node),
        place=subject.state_dir,
        is_anothers=subject.service_uid is not None,
    )
    yield from tier.examine_tiers(
        subject.tiers, subject.node, is_shared=subject.service_uid is not None
    )
    yield device.judge_pressure(device.probe_pressure())


def _examine_places(subject: Subject) -> Iterator[Finding]:
    yield from _spoken(
        "journal disk",
        lambda: journal_disk.judge_journal_disk(journal_disk.probe_journal_disk(subject.state_dir)),
        place=subject.state_dir,
        is_anothers=subject.service_uid is not None,
    )
    yield runtime.judge_files(*runtime.probe_files())
    yield from _spoken(
        "runtime directory",
        lambda: [runtime.judge_runtime(runtime.probe_runtime(subject.runtime_dir))],
        place=subject.runtime_dir,
        is_anothers=subject.service_uid is not None,
    )


def _spoken(
    what: str,
    check: Callable[[], Iterable[Finding]],
    *,
    place: Path | None = None,
    is_anothers: bool = False,
) -> list[Finding]:
    """The check's findings; where the system refuses the very thing, that is the finding.

    Args:
        what: a stable name.
        check: makes them.
        place: the directory in which it tries something; None: in none.
        is_anothers: what is looked at is not who examines' to use: a refusal says nothing of it.
    """
    try:
        return list(check())
    except (OSError, ConfigError) as error:
        problem, _, remedy = str(error).partition("; ")
        if isinstance(error, OSError):
            problem = error.strerror or problem
            problem, remedy = (problem, "") if place is None else of_error(place, error)
        if is_hidden(error, is_anothers=is_anothers):
            shown = f"not looked at: {problem}"
            return [lacking(what, shown, cost="it may be wrong", remedy=AS_ROOT)]
        return [
            broken(
                what,
                problem,
                cost="what was to be tried cannot be done here",
                remedy=remedy or "mend that",
            )
        ]


def judge_daemon(measured: Mapping[str, Any]) -> Finding:
    """How the daemon that runs suspends, by its own words."""
    means = str(measured.get("suspend", "unknown"))
    shown = f"one runs; it suspends by {means}"
    values = {"suspend": means, "lack": measured.get("lack"), "unit": measured.get("unit")}
    if lack := find_lack(measured):
        return lacking("daemon", shown, values, cost=lack.cost, remedy=lack.remedy)
    return ok("daemon", shown, values)


def judge_supervisor(measured: Mapping[str, Any]) -> Iterator[Finding]:
    """That no supervisor answers the running daemon, or none would be started after it."""
    problem = str(measured.get("supervisor_problem", ""))
    values = {"pid": measured.get("supervisor_pid")}
    if problem:
        fact, _, rest = problem.partition("; ")
        remedy, _, cost = rest.partition("; ")
        yield broken("supervisor", fact, values, cost=cost or "no job starts", remedy=remedy)
    elif measured.get("protected") is False:
        yield lacking(
            "supervisor",
            "its anchor is gone",
            values,
            cost="if the supervisor is killed as well, exit codes of jobs that run are lost",
            remedy="nothing: there is one again once no job runs",
        )


def judge_controls(measured: Mapping[str, Any]) -> Iterator[Finding]:
    """What the running daemon's jobs have of what a kernel can offer, by its own words."""
    there: Mapping[str, bool] = measured.get("controls", {})
    for control in CONTROLS:
        values = {control.name: there.get(control.name)}
        if there.get(control.name):
            yield ok(control.what, control.gives, values)
        elif control.name in there:
            name = "io" if control.name == CAP else control.name
            remedy = (
                COUNT_PRESSURE
                if control.name == PRESSURE
                else "cgroup v2 alone (no controller in version 1), and the daemon as the "
                f"system's service; see the line 'cgroup controllers' for {name}"
            )
            yield lacking(control.what, control.instead, values, cost=control.cost, remedy=remedy)


def judge_sampling(sampling: Mapping[str, Any]) -> Finding:
    """Whether the running daemon reads the counters within its timeslice."""
    problem, last_s = str(sampling.get("problem", "")), sampling.get("last_s")
    values = {"last_s": last_s, "skipped": sampling.get("skipped")}
    if problem:
        shown, _, remedy = problem.partition("; ")
        cost = "regulation acts less often than it is asked to"
        return lacking("sampling", shown, values, cost=cost, remedy=remedy)
    if last_s is None:
        return ok("sampling", "the daemon has not read the counters yet", values)
    return ok("sampling", f"the last reading of the counters took {1000 * last_s:.1f} ms", values)


def judge_condition(node: Mapping[str, Any]) -> Iterator[Finding]:
    """What somebody switched and may have forgotten; nothing where the node is as usual."""
    condition = node.get("condition") or {}
    if (mode := condition.get("mode", "on")) != "on":
        shown = MODES.get(mode, f"regulation is {mode}")
        cost, remedy = "no job is suspended for I/O", "'iod mode on'"
        yield lacking("mode", shown, {"mode": mode}, cost=cost, remedy=remedy)
    if (drain := condition.get("drain")) is not None:
        shown = drained(drain["by"], drain["reason"])
        yield lacking("drain", shown, drain, cost="no job starts", remedy="'iod drain off'")
    problem = condition.get("starts_blocked")
    if problem and problem != node.get("measured", {}).get("supervisor_problem"):
        fact, _, remedy = problem.partition("; ")
        remedy = remedy or "mend what it names"
        yield broken("starts", fact, {"problem": problem}, cost="no job starts", remedy=remedy)


def judge_rules(node: Mapping[str, Any]) -> Iterator[Finding]:
    """Each rule that the running daemon has set aside; nothing where there is none."""
    for fault in node.get("set_aside", ()):
        values = {key: fault[key] for key in ("kind", "rule", "part", "place", "problem")}
        yield broken(
            "rules",
            rule_failed(**values),
            values,
            cost="the node goes on without it",
            remedy="mend it, then 'iod config reload'",
        )


def is_broken(findings: Iterable[Finding]) -> bool:
    """True when one of them is."""
    return any(finding.verdict is Verdict.BROKEN for finding in findings)
