"""Decision traces: recorded events and the plans that the controller made of them.

A trace is compressed text, one JSON document a line. The first line tells what is decided about:

    {"format": 1, "about": "...", "sockets": [[0, 1], [2, 3]], "devices": [...], "seed": 1,
     "config": {"tier": {...}, "users": {...}}, "policy": {"admission": {"rule": "easy"}, ...}}

``config`` and ``policy`` are written as the configuration and a policy file are. Each further line
is one instant: ``events`` in their order, and ``plan``, what was decided. What is null or empty is
left out. An event is ``{"event": "JobExited", "at_s": 12.5, ...}``, a decision ``{"decision":
"Start", "job_id": 7, ...}``; a reason is its code, without the sentence. ``plan.waits`` has the
code of each waiting job's reason, where it is another than an instant before.

Only this module knows today's types: it translates both ways, and makes a controller of the first
line.
"""

from __future__ import annotations

import functools
import gzip
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import toml
from reference import HERE, differences, rounded

from iodaemon.config import load_config, load_policy
from iodaemon.config.tier import build_tiers
from iodaemon.core import event as ev
from iodaemon.core.controller import Controller
from iodaemon.core.decision import Plan
from iodaemon.core.forecast import Recollection
from iodaemon.core.job import Job, JobSpec, JobState, Reason
from iodaemon.core.platform import (
    Device,
    DeviceId,
    Partition,
    PartitionId,
    Platform,
    Slot,
    SlotId,
)
from iodaemon.core.rule import Rules
from iodaemon.core.state import State

FOLDER: Final = HERE / "traces"
FORMAT: Final = 1
Document = dict[str, Any]
_SENTENCES: Final = frozenset({"text", "why", "cure", "trace"})
"""Keys of texts for people: they may be written anew, and no decision rests on them."""


# -- the controller ------------------------------------------------------------------------------


class Replayed:
    """A controller, asked with documents and answering with documents.

    Args:
        head: the first line of a trace.
    """

    def __init__(self, head: Document) -> None:
        platform = Platform(
            partitions=tuple(
                Partition(
                    id=PartitionId(number),
                    slots=tuple(Slot(id=SlotId(cpu), cpus=(cpu,)) for cpu in cpus),
                )
                for number, cpus in enumerate(head["sockets"])
            ),
            devices=tuple(
                Device(id=DeviceId(each["id"]), rotational=each["rotational"])
                for each in head["devices"]
            ),
        )
        config = _config_of(head["config"])
        self.state = State(
            platform,
            build_tiers(config.tier, None),
            sharing=config.users,
            experience=Recollection(),
        )
        self.controller = Controller(
            self.state,
            rules_of(head["policy"]),
            seed=head["seed"],
            output_max_bytes=head.get("output_max_bytes"),
            scratch_keep_s=head.get("scratch_keep_s"),
        )
        self._waits: dict[int, str] = {}

    def step(self, events: Sequence[Document]) -> Document:
        """The plan for the events of one instant."""
        return self.describe(self.plan(events))

    def plan(self, events: Sequence[Document]) -> Plan:
        """The same, as the core has it."""
        return self.controller.step([event_of(each, self.state) for each in events])

    def describe(self, plan: Plan) -> Document:
        """A plan as a trace has it."""
        waits = {
            job.id: reason.code
            for job in self.state.jobs.values()
            if job.state is JobState.PENDING and (reason := self.state.reason(job.id)) is not None
        }
        changed = {job: code for job, code in waits.items() if self._waits.get(job) != code}
        self._waits = waits
        told = _plain(plan)
        told["decisions"] = [
            {"decision": each.pop("type"), **each} for each in told.pop("decisions")
        ]
        told["lessons"] = {kind: each or "forgotten" for kind, each in told["lessons"].items()}
        document = {**told, "waits": {str(job): code for job, code in sorted(changed.items())}}
        cleaned: Document = rounded(_without_sentences(document)) or {}
        return cleaned


@functools.cache
def _rules_of(text: str) -> Rules:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recorded.toml"
        path.write_text(text)
        return load_policy(str(path), overrides={}, search=()).rules


def rules_of(policy: Document) -> Rules:
    """The rules of a policy as its file has them."""
    return _rules_of(toml.dumps(policy))


def _config_of(config: Document) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.toml"
        path.write_text(toml.dumps({"backend": "simulated", **config}))
        return load_config(path, {"HOME": folder}, 1000, {})


# -- events --------------------------------------------------------------------------------------


def document_of(event: ev.Event) -> Document:
    """An event as a trace has it."""
    match event:
        case ev.JobSubmitted():
            job = event.job
            spec = {**_plain(job.spec), "command": list(job.spec.command)}
            told: Document = {
                "id": job.id,
                "uid": job.uid,
                "held": job.state is JobState.HELD,
                "spec": _without_null(spec),
            }
            return {"event": "JobSubmitted", "at_s": event.at_s, "job": told}
        case ev.Reconfigured():
            raise TypeError("a reconfiguration is recorded as the document that it was made of")
        case ev.RequeueRequested():
            event = msgspec.structs.replace(event, ended=None)
        case ev.SampleTaken():
            sample = _without_null(_plain(event.sample))
            return {"event": "SampleTaken", "at_s": event.at_s, "sample": _brief(sample)}
        case _:
            pass
    told = _without_null(_plain(event))
    return {"event": told.pop("type"), **told}


def event_of(document: Document, state: State) -> ev.Event:
    """The event that a document tells of; ``state`` has the record of a job that has ended."""
    told = dict(document)
    kind = getattr(ev, told.pop("event"))
    if kind is ev.JobSubmitted:
        return ev.JobSubmitted(at_s=told["at_s"], job=_submitted(told["job"], told["at_s"]))
    if kind is ev.Reconfigured:
        return _reconfigured(told)
    event: ev.Event = msgspec.convert(told, kind, str_keys=True)
    if isinstance(event, ev.RequeueRequested):
        job = state.jobs[event.job_id]
        return msgspec.structs.replace(event, ended=job if job.state.is_final else None)
    return event


def _submitted(told: Document, at_s: float) -> Job:
    is_held = told["held"]
    return Job(
        id=told["id"],
        uid=told["uid"],
        spec=msgspec.convert(told["spec"], JobSpec),
        state=JobState.HELD if is_held else JobState.PENDING,
        since_s=at_s,
        submitted_s=at_s,
        user_hold=is_held,
        reason=Reason(code="Held", text="held at submission") if is_held else None,
    )


def _reconfigured(told: Document) -> ev.Reconfigured:
    policy, users = told.get("policy"), told.get("users")
    return ev.Reconfigured(
        at_s=told["at_s"],
        by=told["by"],
        changes=tuple(told["changes"]),
        rules=None if policy is None else rules_of(policy),
        sharing=None if users is None else _config_of({"users": users}).users,
    )


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value, str_keys=True, enc_hook=dict)


def _brief(sample: Document) -> Document:
    """Its seconds at three digits, as the kernel tells them: a trace is not to be large."""
    if isinstance(sample, dict):
        return {key: each if key == "at_s" else _brief(each) for key, each in sample.items()}
    if isinstance(sample, float):
        return round(sample, 3)
    return sample


def _without_null(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_null(each) for key, each in value.items() if each is not None}
    if isinstance(value, list | tuple):
        return [_without_null(each) for each in value]
    return value


def _without_sentences(value: Any) -> Any:
    """The same with codes in place of reasons, and without what is null or empty."""
    if isinstance(value, Mapping):
        if "code" in value and "text" in value:
            return value["code"]
        kept = {
            key: _without_sentences(each) for key, each in value.items() if key not in _SENTENCES
        }
        return {key: each for key, each in kept.items() if each not in (None, {}, [], "", False)}
    if isinstance(value, list | tuple):
        return [_without_sentences(each) for each in value]
    return value


# -- files ---------------------------------------------------------------------------------------


def write(name: str, lines: Sequence[Document]) -> None:
    """Write a trace: its first line, and one for each instant."""
    FOLDER.mkdir(exist_ok=True)
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    data = gzip.compress(text.encode(), compresslevel=9, mtime=0)
    (FOLDER / f"{name}.jsonl.gz").write_bytes(data)


def names() -> list[str]:
    """Of all traces."""
    return sorted(path.name.removesuffix(".jsonl.gz") for path in FOLDER.glob("*.jsonl.gz"))


def read(name: str) -> Iterator[Document]:
    """The lines of a trace."""
    with gzip.open(FOLDER / f"{name}.jsonl.gz", "rt") as file:
        yield from map(json.loads, file)


def plan_anew(name: str) -> None:
    """Write down what is decided now, of the same events."""
    head, *lines = read(name)
    replayed = Replayed(head)
    planned = [{**line, "plan": replayed.step(line["events"])} for line in lines]
    write(name, [head, *planned])


def replay(name: str) -> list[str]:
    """Ask a new controller the same; the first instant at which it decides otherwise, if any.

    Returns:
        What is different in it, one line each. Empty: nothing, up to the end.
    """
    lines = read(name)
    head = next(lines)
    assert head["format"] == FORMAT
    replayed = Replayed(head)
    for number, line in enumerate(lines, start=2):
        plan = replayed.step(line["events"])
        if found := list(differences(line["plan"], plan, "plan")):
            at_s = line["events"][-1]["at_s"]
            kinds = ", ".join(event["event"] for event in line["events"])
            return [f"trace {name}, line {number}, at {at_s:g} s, after {kinds}:", *found]
    replayed.state.check()
    return []
