"""What the running daemon says of itself, in its answer to ``GET /v1/node``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from iodaemon.core.words import MODES, drained, rule_failed
from iodaemon.doctor.report import Finding, broken, judge, lacking, ok, parts_of
from iodaemon.node.feature import CONTROLS, COUNT_PRESSURE
from iodaemon.node.root_side import find_lack
from iodaemon.supervisor.cgroup import CAP, PRESSURE


def judge_node(node: Mapping[str, Any]) -> Iterator[Finding]:
    """How it holds jobs and measures, what was switched, which rules it does without."""
    measured, sampling = node.get("measured"), node.get("sampling")
    if measured is not None:
        yield judge_daemon(measured)
        yield from judge_supervisor(measured)
        yield from judge_controls(measured)
    if sampling is not None:
        yield judge_sampling(sampling)
    yield from judge_condition(node)
    yield from judge_rules(node)


def judge_daemon(measured: Mapping[str, Any]) -> Finding:
    """How it suspends."""
    means = str(measured.get("suspend", "unknown"))
    shown = f"one runs; it suspends by {means}"
    values = {"suspend": means, "lack": measured.get("lack"), "unit": measured.get("unit")}
    if lack := find_lack(measured):
        return lacking("daemon", shown, values, cost=lack.cost, remedy=lack.remedy)
    return ok("daemon", shown, values)


def judge_supervisor(measured: Mapping[str, Any]) -> Iterator[Finding]:
    """That no supervisor answers the daemon, or none would be started after it."""
    values = {"pid": measured.get("supervisor_pid")}
    if problem := measured.get("supervisor_problem"):
        fact, rest = parts_of(problem)
        remedy, cost = parts_of(rest)
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
    """What its jobs have of what a kernel can offer."""
    there: Mapping[str, bool] = measured.get("controls", {})
    for control in CONTROLS:
        if control.name not in there:
            continue
        is_there = there[control.name]
        name = "io" if control.name == CAP else control.name
        yield judge(
            is_there,
            control.what,
            control.gives if is_there else control.instead,
            {control.name: is_there},
            cost=control.cost,
            remedy="give jobs a cgroup of version 2 (see the lines on cgroups); where "
            f"'pressure (PSI)' is lacking too, {COUNT_PRESSURE}"
            if control.name == PRESSURE
            else "cgroup v2 alone (no controller in version 1), and the daemon as the "
            f"system's service; see the line 'cgroup controllers' for {name}",
        )


def judge_sampling(sampling: Mapping[str, Any]) -> Finding:
    """Whether it reads the counters within its timeslice."""
    last_s = sampling.get("last_s")
    values = {"last_s": last_s, "skipped": sampling.get("skipped")}
    if problem := sampling.get("problem"):
        shown, remedy = parts_of(problem)
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
        fact, remedy = parts_of(problem)
        remedy = remedy or "mend what it names"
        yield broken("starts", fact, {"problem": problem}, cost="no job starts", remedy=remedy)


def judge_rules(node: Mapping[str, Any]) -> Iterator[Finding]:
    """Each rule that it has set aside; nothing where there is none."""
    for fault in node.get("set_aside", ()):
        values = {key: fault[key] for key in ("kind", "rule", "part", "place", "problem")}
        yield broken(
            "rules",
            rule_failed(**values),
            values,
            cost="the node goes on without it",
            remedy="mend it, then 'iod config reload'",
        )
