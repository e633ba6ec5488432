"""Every reason code, as the core comes to it: in a scene, else in the recorded traces.

``whys.toml`` has for each code where it is first met, the job's state then, which of the job's
fields has the reason, the numbers in its sentence, and what it offers as a cure.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import toml
import traces
from reference import HERE, differences, head_of
from why_scenes import SCENES

import iodaemon
from iodaemon.core.decision import Plan
from iodaemon.core.explain import find_silence, silence
from iodaemon.core.job import Job, JobId, JobState, Reason
from iodaemon.core.state import State

FILE: Final = HERE / "whys.toml"
_FIELDS: Final = (
    *("reason", "hold_reason", "user_hold_reason", "release_reason", "stop_reason"),
    *("started_because", "scratch_kept", "scratch_over", "scratch_unwanted"),
)
ELSEWHERE: Final = {
    "Cores": "needs a regulation that lets jobs share cores: tests/core/test_shared_cores.py",
    "Held": "given by the daemon at submission: routes/post_jobs.json",
    "Restored": "given by 'iod restore' to what it takes over: tests/daemon/test_backup.py",
}
"""Codes that the core does not come to, and where they are held."""


def codes() -> set[str]:
    """All that the package gives to a reason, by its source text."""
    constants: dict[str, str] = {}
    given: list[ast.expr] = []
    for path in Path(iodaemon.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.AnnAssign(
                    target=ast.Name(id=name), value=ast.Constant(value=str(text))
                ) if name.isupper() and text[:1].isupper():
                    constants[name] = text
                case ast.Call(func=ast.Name(id="Reason")):
                    given += [word.value for word in node.keywords if word.arg == "code"]
                case _:
                    pass
    return {code for each in given for code in _values(each, constants)}


def _values(given: ast.expr, constants: dict[str, str]) -> Iterator[str]:
    match given:
        case ast.Constant(value=str(text)):
            yield text
        case ast.Name(id=name) if name in constants:
            yield constants[name]
        case ast.IfExp():
            yield from _values(given.body, constants)
            yield from _values(given.orelse, constants)
        case _:
            pass  # that of another reason, passed on


def collect() -> dict[str, Any]:
    """What each code that is met rests on."""
    met: dict[str, Any] = {}
    for scene in SCENES:
        scene(lambda world, plan, name=scene.__name__: _note(met, world.state, plan, name))
    for name in traces.names():
        head, *lines = traces.read(name)
        replayed = traces.Replayed(head)
        for line in lines:
            _note(met, replayed.state, replayed.plan(line["events"]), f"trace {name}")
    return dict(sorted(met.items()))


def _note(met: dict[str, Any], state: State, plan: Plan, where: str) -> None:
    for state_shown, field, reason in _shown(state, plan):
        if reason.code not in met and reason.code not in ELSEWHERE:
            met[reason.code] = {
                "met_in": where,
                "state": state_shown,
                "field": field,
                "numbers": re.findall(r"\d+(?:\.\d+)?(?: [KMGT]?i?B(?:/s)?| s| min)?", reason.text),
                "cure": reason.cure,
            }


def _shown(state: State, plan: Plan) -> Iterator[tuple[str, str, Reason]]:
    """Each reason of a job that changed or waits: the job's state, where it stands, and it."""
    for job_id in dict.fromkeys((*plan.changed, *state.jobs)):
        job = state.jobs.get(job_id)
        if job is not None:
            yield from ((str(job.state), *each) for each in _reasons(state, job))
    for step in plan.transitions:
        if step.reason is not None:
            yield str(step.after), "transition", step.reason
    for shadow in plan.shadow:
        if shadow.reason is not None:
            yield shadow.verdict, "shadow", shadow.reason


def _reasons(state: State, job: Job) -> Iterator[tuple[str, Reason]]:
    for field in _FIELDS:
        reason = getattr(job, field)
        if reason is not None:
            yield field, reason
    if job.state is JobState.PENDING or job.waits_for_turn:
        reason = state.reason(JobId(job.id))
        if reason is not None:
            yield "waits", reason
    silent_pid = find_silence(state, job)
    if silent_pid is not None:
        yield "counters", silence(silent_pid)


def write(found: dict[str, Any]) -> None:
    """Write them anew."""
    FILE.write_text(f"{head_of(__doc__)}\n{toml.dumps(found)}")


def compare(found: dict[str, Any]) -> Sequence[str]:
    """Every difference from what is stored, and codes that nothing comes to."""
    stored = tomllib.loads(FILE.read_text()) if FILE.exists() else {}
    unmet = codes() - found.keys() - ELSEWHERE.keys()
    return [
        *(f"{code}: no scene and no trace comes to it" for code in sorted(unmet)),
        *differences(stored, found),
    ]
