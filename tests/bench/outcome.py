"""What one run of a bed was worth, and how it is kept: one line of JSON a run."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from oracle import Span

from iodaemon.core.measure import jain_index


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a bed.

    Attributes:
        bed: its name.
        about: what ran there.
        size: of the bed.
        rule: the policy; ``k=3`` for a fixed number of jobs at a time.
        batch: 1, or 2 for the second batch that the same daemon was given.
        round: in which it ran, unique on this machine; runs of a round are compared in pairs.
        spans: when each job arrived, started and ended, in the order of submission.
        suspensions: of all jobs.
        most_at_once: how many jobs were running, and not suspended, at the same time.
        is_cut: whether it was given up because another number of jobs is clearly better. The spans
            are then empty.
        limit_s: after which time it was given up.
        at: when it began, ISO 8601, UTC.
        machine: on which.
    """

    bed: str
    about: str
    size: str
    rule: str
    batch: int = 1
    round: str
    spans: list[Span]
    suspensions: int = 0
    most_at_once: int = 0
    is_cut: bool = False
    limit_s: float = 0.0
    at: str
    machine: str

    @property
    def makespan_s(self) -> float:
        """Last end minus first arrival; at least that much for a run that was given up."""
        return self.limit_s if self.is_cut else max(span.end_s for span in self.spans)

    @property
    def turnarounds_s(self) -> list[float]:
        """Of each job: its end minus its arrival."""
        return [span.end_s - span.arrival_s for span in self.spans]

    @property
    def turnaround_s(self) -> float:
        """The mean of all jobs."""
        return statistics.mean(self.turnarounds_s)

    def slowdowns(self, free: Outcome) -> list[float]:
        """Turnaround of each job over its turnaround in that run."""
        pairs = zip(self.turnarounds_s, free.turnarounds_s, strict=True)
        return [mine / max(other, 1e-3) for mine, other in pairs]

    def fairness(self, free: Outcome) -> float:
        """Jain index of the slowdowns: 1 when all jobs gain or lose equally."""
        return jain_index(self.slowdowns(free))

    def latest_ratio(self, free: Outcome) -> float:
        """The end of the job that is latest beside its end in that run, over that end."""
        ends = zip(self.spans, free.spans, strict=True)
        return max(mine.end_s / max(other.end_s, 1e-3) for mine, other in ends)


def most_at_once(spans: Sequence[Span]) -> int:
    """How many spans overlap at most."""
    steps = sorted([(span.start_s, 1) for span in spans] + [(span.end_s, -1) for span in spans])
    running = most = 0
    for _, change in steps:
        running += change
        most = max(most, running)
    return most


def append(path: Path, outcome: Outcome) -> None:
    """Add a line to this file."""
    with path.open("ab") as out:
        out.write(msgspec.json.encode(outcome) + b"\n")


def load(paths: Iterable[Path]) -> list[Outcome]:
    """All runs that these files contain."""
    lines = [line for path in paths for line in path.read_bytes().splitlines()]
    return [msgspec.json.decode(line, type=Outcome) for line in lines]
