"""What another rule would have done with what was measured: the very controller, in shadow.

A recording is what ``GET /v1/samples`` gives: raw samples, the jobs they speak of, the machine. Its
jobs come and go as they did and move what they moved; regulation is asked at every sample.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from statistics import median
from typing import Any, Final

import msgspec

from iodaemon.core import event as ev
from iodaemon.core.controller import Controller
from iodaemon.core.decision import ShadowStep
from iodaemon.core.job import Exit, Job, JobId, JobState
from iodaemon.core.platform import Platform, SlotId
from iodaemon.core.rule import Mode, Rules
from iodaemon.core.sample import Sample
from iodaemon.core.state import State

_SAMPLE, _EXIT, _START = 0, 1, 2
"""The order within one instant: a step is never dated before the one that was made before it, so
that what has the time of a sample was learned after it."""
_COARSER: Final = 1.5
"""From this many recorded slices on a rule's timeslice is longer, and not merely late."""
_CLOCK_ERROR: Final = 1e-6
"""Of a timeslice."""


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured.

    Attributes:
        samples: in order of time, each once.
        jobs: those that the samples speak of, each once, as they were last.
        platform: the machine.
    """

    samples: tuple[Sample, ...] = ()
    jobs: tuple[Job, ...] = ()
    platform: Platform = Platform(partitions=())


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """One job in a replay.

    Attributes:
        job_id: which.
        name: as it was submitted, or its program.
        really_s: how long it has stood still for I/O in its whole life.
        would_s: how long it would have stood still, the others moving what they moved.
        suspensions: how many times it would have been suspended.
    """

    job_id: JobId
    name: str
    really_s: float
    would_s: float
    suspensions: int


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy would have done.

    Attributes:
        policy: its name.
        from_s: time of the first sample that it was asked at; 0 for none.
        to_s: time of the last one.
        samples: how many.
        jobs: all of the recording, ordered by id.
        steps: each suspension and resumption, in order.
    """

    policy: str
    from_s: float
    to_s: float
    samples: int
    jobs: tuple[Replayed, ...]
    steps: tuple[ShadowStep, ...]


def parse_recording(pages: Iterable[Mapping[str, Any]]) -> Recording:
    """The pages of ``GET /v1/samples`` in one; of a job in several the last record counts.

    Raises:
        msgspec.ValidationError: they have another shape.
    """
    samples: dict[float, Sample] = {}
    jobs: dict[JobId, Job] = {}
    platform = Recording().platform
    for page in pages:
        read = msgspec.convert(page, Recording, str_keys=True)
        samples |= {sample.at_s: sample for sample in read.samples}
        jobs |= {job.id: job for job in read.jobs}
        platform = read.platform
    return Recording(
        samples=tuple(sample for _, sample in sorted(samples.items())),
        jobs=tuple(job for _, job in sorted(jobs.items())),
        platform=platform,
    )


def replay(recording: Recording, rules: Rules, *, seed: int = 0) -> Outcome:
    """Ask the rules at every sample, from nothing remembered on.

    Args:
        recording: what was measured.
        rules: the policy; admission and placement are not asked, the jobs are where they were.
        seed: of the generator that the regulation may use.
    """
    samples = _thinned(recording.samples, rules.regulation.timeslice_s)
    state = State(recording.platform, kept_finished=len(recording.jobs))
    controller = Controller(state, rules, seed=seed, mode=Mode.SHADOW)
    steps: list[ShadowStep] = []
    for _, events in _instants(samples, recording.jobs, state):
        steps += controller.step(events).shadow
    from_s, to_s = (samples[0].at_s, samples[-1].at_s) if samples else (0.0, 0.0)
    return Outcome(
        policy=rules.name,
        from_s=from_s,
        to_s=to_s,
        samples=len(samples),
        jobs=tuple(_replayed(job, steps, to_s) for job in recording.jobs),
        steps=tuple(steps),
    )


def _thinned(samples: tuple[Sample, ...], timeslice_s: float) -> tuple[Sample, ...]:
    """One a timeslice for a rule with a longer one; it sees what it would have.

    Timeslices end at whole multiples of their length, but the first one begins with a start.
    """
    gaps = [after.at_s - before.at_s for before, after in pairwise(samples)]
    if not gaps or timeslice_s < _COARSER * median(gaps):
        return samples
    kept = [samples[0]]
    for sample in samples[1:]:
        if _slices(sample.at_s, timeslice_s) > _slices(kept[-1].at_s, timeslice_s):
            kept.append(sample)
    return tuple(kept)


def _slices(at_s: float, timeslice_s: float) -> int:
    """How many timeslices have ended by then; a clock is never as exact as its last digits."""
    return math.floor(at_s / timeslice_s + _CLOCK_ERROR)


def _instants(
    samples: Iterable[Sample], jobs: Iterable[Job], state: State
) -> Iterator[tuple[float, list[ev.Event]]]:
    """What happens, step by step; made one by one, because slots are chosen from what is free."""
    agenda: list[tuple[float, int, int, Sample | Job]] = [
        (sample.at_s, _SAMPLE, 0, sample) for sample in samples
    ]
    for job in jobs:
        if job.started_s is None:
            continue
        agenda.append((job.started_s, _START, job.id, job))
        if job.ended_s is not None:
            agenda.append((job.ended_s, _EXIT, job.id, job))
    for at_s, kind, _, what in sorted(agenda, key=lambda item: item[:3]):
        if isinstance(what, Sample):
            yield at_s, [ev.SampleTaken(at_s=at_s, sample=what)]
        elif kind == _START:
            yield at_s, _start(what, at_s, state)
        else:
            end = ev.JobExited(
                at_s=at_s, job_id=what.id, attempt=what.attempt, exit=Exit(code=0), io=what.io
            )
            yield at_s, [end]


def _start(job: Job, at_s: float, state: State) -> list[ev.Event]:
    """The job as it was when it started; without its walltime, of which it ran less than here."""
    entering = Job(
        id=job.id,
        spec=msgspec.structs.replace(job.spec, walltime_s=None),
        uid=job.uid,
        state=JobState.STARTING,
        since_s=at_s,
        submitted_s=job.submitted_s,
        attempt=job.attempt,
        partition=job.partition,
        slots=_slots(job, state),
    )
    started = ev.JobStarted(at_s=at_s, job_id=job.id, attempt=job.attempt)
    return [ev.JobSubmitted(at_s=at_s, job=entering), started]


def _slots(job: Job, state: State) -> tuple[SlotId, ...]:
    """As many as it had on its partition; none where the machine was divided otherwise then."""
    known = {partition.id for partition in state.platform.partitions}
    if job.partition is None or job.partition not in known:
        return ()
    spec = job.spec
    if not state.has_slots(job.partition, spec.cpus, shares=spec.shares_cores):
        return ()
    return state.choose_slots(job.partition, spec.cpus, shares=spec.shares_cores)


def _replayed(job: Job, steps: Iterable[ShadowStep], to_s: float) -> Replayed:
    own = [step for step in steps if step.job_id == job.id]
    would_s = sum(step.lasted_s or 0.0 for step in own)
    if own and own[-1].verdict == "suspend":  # it would stand still at the end
        would_s += (to_s if job.ended_s is None else min(job.ended_s, to_s)) - own[-1].at_s
    really_s = job.suspended_io_s
    if job.state is JobState.SUSPENDED_IO:
        really_s += max(0.0, to_s - job.since_s)
    return Replayed(
        job_id=job.id,
        name=job.spec.name or job.spec.command[0].rpartition("/")[2],
        really_s=really_s,
        would_s=would_s,
        suspensions=sum(step.verdict == "suspend" for step in own),
    )
