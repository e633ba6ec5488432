"""Jobs that start when there is room for them, not when a pack does; exclusive I/O as before.

What the paper leaves as future work: packs without the barrier, and packs that are filled up with
small jobs. Plain Python; FIFO on each I/O node, with one heap as in
:func:`iodaemon.simulator.kernel.plain.serve_fifo`.

Source: Carretero, Jeannot, Pallez, Singh, Vidal, ICS 2020, section 7.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush, heapreplace
from typing import Protocol

import msgspec

from iodaemon.simulator.carretero import Application


class IoNode(msgspec.Struct):
    """One I/O node and its compute nodes, as they are at an instant.

    Attributes:
        free_nodes: compute nodes that nobody holds.
        load: sum of V / T of those who run: the part of the bandwidth that they need.
        running: how many run.
    """

    free_nodes: int
    load: float = 0.0
    running: int = 0

    def has_room(self, job: Application, bound: float) -> bool:
        """Whether a job fits: nodes, and bandwidth unless it would be alone."""
        if job.nodes > self.free_nodes:
            return False
        return self.running == 0 or self.load + job.volume / job.alone_s <= bound

    def take(self, job: Application) -> None:
        """The job starts here."""
        self.free_nodes -= job.nodes
        self.load += job.volume / job.alone_s
        self.running += 1

    def give_back(self, job: Application) -> None:
        """The job has ended; what is left is counted exactly when it was the last one."""
        self.free_nodes += job.nodes
        self.running -= 1
        self.load = self.load - job.volume / job.alone_s if self.running else 0.0


class Admission(Protocol):
    """Which jobs start when."""

    def admit(self, now_s: float, nodes: Sequence[IoNode]) -> Iterable[tuple[int, int]]:
        """Job and I/O node of each start, one after the other; asked at 0 and at every end.

        A start is carried out before the next one is asked for.
        """
        ...


class Life(msgspec.Struct, frozen=True):
    """When a job started and ended, s."""

    start_s: float
    end_s: float


def run_unpacked(
    jobs: Sequence[Application], admission: Admission, *, partition_nodes: int, io_nodes: int
) -> list[Life]:
    """The lives of all jobs, in the order given."""
    nodes = [IoNode(free_nodes=partition_nodes) for _ in range(io_nodes)]
    free_s = [0.0] * io_nodes
    place = [-1] * len(jobs)
    start_s, end_s = [0.0] * len(jobs), [0.0] * len(jobs)
    compute_s, io_s = [job.compute_s for job in jobs], [job.io_s for job in jobs]
    left = [job.iterations for job in jobs]
    # of each running job its next request, or its end when nothing is left
    agenda: list[tuple[float, int]] = []

    def start(now_s: float) -> None:
        for number, chosen in admission.admit(now_s, nodes):
            nodes[chosen].take(jobs[number])
            place[number], start_s[number] = chosen, now_s
            heappush(agenda, (now_s + compute_s[number], number))

    start(0.0)
    while agenda:
        at_s, number = agenda[0]
        chosen = place[number]
        if left[number] > 0:
            free = free_s[chosen]
            free = free_s[chosen] = (at_s if at_s > free else free) + io_s[number]  # noqa: FURB136
            left[number] -= 1
            heapreplace(agenda, (free + compute_s[number] if left[number] else free, number))
            continue
        heappop(agenda)
        end_s[number] = at_s
        nodes[chosen].give_back(jobs[number])
        start(at_s)
    return [Life(*each) for each in zip(start_s, end_s, strict=True)]


class WithoutBarrier:
    """No packs: by decreasing length, each job as soon as an I/O node has room for it.

    The I/O node with the least load is taken, then the one with the most free nodes. A job that
    finds no room is passed by those behind it.
    """

    def __init__(self, jobs: Sequence[Application], bound: float) -> None:
        self._jobs = jobs
        self._bound = bound
        self._queue = _by_length(jobs)

    def admit(self, now_s: float, nodes: Sequence[IoNode]) -> Iterable[tuple[int, int]]:
        """All that fit."""
        del now_s
        for number in tuple(self._queue):
            job = self._jobs[number]
            fits = [n for n, node in enumerate(nodes) if node.has_room(job, self._bound)]
            if fits:
                self._queue.remove(number)
                yield number, min(fits, key=lambda n: (nodes[n].load, -nodes[n].free_nodes, n))


class Backfilled:
    """Packs one after the other, and small jobs of later packs where they are in nobody's way.

    A job of a later pack starts with the present one when it has room, by nodes and by bandwidth,
    and would end before the pack does; both without contention, which is all that is known. Packs
    stay on the I/O node that LPT chose; one that was used up is not run.
    """

    def __init__(
        self,
        jobs: Sequence[Application],
        bound: float,
        packs: Sequence[Sequence[int]],
        places: Sequence[int],
    ) -> None:
        self._jobs = jobs
        self._bound = bound
        self._waiting = _by_length(jobs)
        self._packs = [
            [list(pack) for pack, place in zip(packs, places, strict=True) if place == node]
            for node in range(max(places) + 1)
        ]
        self._ends_s = [0.0] * len(self._packs)

    def admit(self, now_s: float, nodes: Sequence[IoNode]) -> Iterable[tuple[int, int]]:
        """The next pack of every I/O node that is empty; then what fits beside the others."""
        for number, node in enumerate(nodes[: len(self._packs)]):
            while node.running == 0 and self._packs[number]:
                pack = [job for job in self._packs[number].pop(0) if job in self._waiting]
                lengths_s = [self._jobs[job].alone_s for job in pack]
                self._ends_s[number] = now_s + max(lengths_s, default=0.0)
                for job in pack:
                    self._waiting.remove(job)
                    yield job, number
            for job in tuple(self._waiting):
                ends_in_time = now_s + self._jobs[job].alone_s <= self._ends_s[number]
                if node.running and ends_in_time and node.has_room(self._jobs[job], self._bound):
                    self._waiting.remove(job)
                    yield job, number


def _by_length(jobs: Sequence[Application]) -> list[int]:
    return sorted(range(len(jobs)), key=lambda number: (-jobs[number].alone_s, number))
