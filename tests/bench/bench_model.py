"""S4 and S5: the simulator without any daemon, beside SimPy on the same model.

Times are of the processor, not of the wall: nothing here waits for anything.
"""

from __future__ import annotations

import contextlib
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from bench_daemon import ROOT
from bench_figure import Check, Section, Series, alternate
from bench_plan import Plan

from iodaemon.config import load_policy
from iodaemon.core.job import JobSpec
from iodaemon.core.platform import Partition, PartitionId, Platform, Slot, SlotId
from iodaemon.model.fair_link import FairLink
from iodaemon.model.flow import Flow
from iodaemon.model.node import Compute, LinkSpec, Model, Profile, Transfer
from iodaemon.simulator.run import Submission, simulate

simpy: Any = None
with contextlib.suppress(ImportError):
    import simpy

FLOWS = (10, 100, 1000)
JOBS, ROUNDS = 60, 600
"""Of the workload of S5: Carretero et al. have packs of up to about so many jobs."""
FEW_ROUNDS = 5
EVENTS_PER_S = 100_000.0
"""The target of S5, whatever the policy."""
CAPACITY = 1e9
SAMPLED = "a sample of all jobs each simulated second"
PEER_IS_LINEAR = (
    "SimPy has no shared link: this one, as one would write it, counts every flow anew at each "
    "event, O(n) of n flows; ours is a heap over a virtual clock, O(log n)"
)
SAME = 1e-9
"""Two engines agree when their last job ends within this ratio."""


# -- S4 ---------------------------------------------------------------------------------------


class Transfers(NamedTuple):
    """So many flows at once, one coming whenever one has arrived."""

    at_once: int
    sizes: Sequence[float]
    caps: Sequence[float]


def _transfers(at_once: int, ends: int, *, has_caps: bool) -> Transfers:
    rng = random.Random(at_once)
    sizes = [rng.expovariate(1.0) * CAPACITY for _ in range(at_once + ends)]
    shares = [rng.uniform(0.2, 3.0) if has_caps else math.inf for _ in sizes]
    return Transfers(at_once, sizes, [share * CAPACITY / at_once for share in shares])


def _flows_per_s(transfers: Transfers) -> float:
    """Events a second: flows that come, and flows that arrive."""
    link = FairLink(CAPACITY)
    coming = enumerate(zip(transfers.sizes, transfers.caps, strict=True))
    for _ in range(transfers.at_once):
        _add(link, coming)
    link.settle()
    ends, arrived = len(transfers.sizes) - transfers.at_once, 0
    began_s = time.process_time()
    while arrived < ends:
        link.flow_to(link.next_s)
        for _ in link.reach():
            arrived += 1
            _add(link, coming)
        link.settle()
    return 2 * arrived / (time.process_time() - began_s)


def _add(link: FairLink, coming: Iterator[tuple[int, tuple[float, float]]]) -> None:
    if (found := next(coming, None)) is not None:
        number, (size_bytes, cap) = found
        link.add(Flow(size_bytes, number=number, cap_bytes_per_s=cap))


def measure_links(plan: Plan) -> Section:
    """S4."""
    ends = 3000 if plan.is_quick else 20_000
    kinds = {"equal shares": False, "each with its own cap": True}
    variants: dict[str, Callable[[], float]] = {}
    for kind, has_caps in kinds.items():
        for count in FLOWS:
            transfers = _transfers(count, ends, has_caps=has_caps)
            variants[f"{count:,} flows, {kind}"] = lambda t=transfers: _flows_per_s(t)
    found = alternate(variants, plan.rounds, plan.tell("S4"))
    return Section(
        title="S4: events of a fair link, by the number of flows on it",
        series=[Series(name, values, "events/s") for name, values in found.items()],
        checks=[
            Check(
                f"{FLOWS[-1]:,} flows to {FLOWS[0]}, {kind}",
                _median_ratio(
                    found[f"{FLOWS[-1]:,} flows, {kind}"], found[f"{FLOWS[0]:,} flows, {kind}"]
                ),
                0.7,
                "times",
                is_floor=True,
            )
            for kind in kinds
        ],
        notes=[f"an event is a flow that comes or one that arrives; {2 * ends:,} of them"],
    )


def _median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Of what was measured in the same round."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


# -- S5 ---------------------------------------------------------------------------------------


class Ran(NamedTuple):
    """One simulation."""

    events_per_s: float
    ended_s: float


def _work(rounds: int) -> list[tuple[float, float]]:
    """Seconds of computing and of I/O alone, for each job; the same in every one of the rounds."""
    rng = random.Random(rounds)
    return [(rng.uniform(5.0, 50.0), rng.uniform(0.1, 1.0)) for _ in range(JOBS)]


def _run_ours(sharing: str, policy: str, rounds: int) -> Ran:
    rules = load_policy(str(ROOT / f"policies/{policy}.toml"), overrides={}, search=()).rules
    slots = tuple(Slot(id=SlotId(number), cpus=(number,)) for number in range(JOBS))
    platform = Platform(partitions=(Partition(id=PartitionId(0), slots=slots),))
    link = LinkSpec(id="io", capacity_bytes_per_s=1.0, sharing=sharing)
    jobs: list[Submission] = [
        (
            0.0,
            JobSpec(command=("simulated",)),
            Profile(steps=(Compute(compute_s), Transfer(io_s, "io")), repeat=rounds),
        )
        for compute_s, io_s in _work(rounds)
    ]
    steps = []
    began_s = time.process_time()
    result = simulate(
        platform,
        rules,
        jobs,
        model=Model(links=(link,), disk=None),
        sampling=policy != "none",
        on_step=lambda *_: steps.append(None),
    )
    took_s = time.process_time() - began_s
    events = 2 * JOBS * rounds + 2 * JOBS + len(steps)
    return Ran(events / took_s, max(job.ended_s or 0.0 for job in result.jobs))


def _run_simpy(sharing: str, rounds: int) -> Ran:
    """No controller, no policy, no records: processes and a link, as one would write them."""
    environment = simpy.Environment()
    link = simpy.Resource(environment) if sharing == "exclusive" else _Shared(environment)

    def job(compute_s: float, io_s: float) -> Iterator[Any]:
        for _ in range(rounds):
            yield environment.timeout(compute_s)
            if sharing == "exclusive":
                with link.request() as request:
                    yield request
                    yield environment.timeout(io_s)
            else:
                yield link.transfer(io_s)

    for compute_s, io_s in _work(rounds):
        environment.process(job(compute_s, io_s))
    began_s = time.process_time()
    environment.run()
    took_s = time.process_time() - began_s
    return Ran((2 * JOBS * rounds + 2 * JOBS) / took_s, environment.now)


class _Shared:
    """A link shared equally, for SimPy: at every event the rest of every flow is counted anew."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment
        self._left: dict[Any, float] = {}
        self._now_s = 0.0
        self._next: Any = None

    def transfer(self, size: float) -> Any:
        """An event for the arrival."""
        self._flow()
        done = self._environment.event()
        self._left[done] = size
        self._wait()
        return done

    def _flow(self) -> None:
        moved = (self._environment.now - self._now_s) / max(1, len(self._left))
        self._now_s = self._environment.now
        for done in self._left:
            self._left[done] -= moved

    def _wait(self) -> None:
        if self._left:
            first = min(self._left, key=self._left.__getitem__)
            self._next = self._environment.timeout(
                max(0.0, self._left[first]) * len(self._left), first
            )
            self._next.callbacks.append(self._arrive)

    def _arrive(self, timeout: Any) -> None:
        if timeout is self._next:  # else somebody came or went since
            self._flow()
            del self._left[timeout.value]
            timeout.value.succeed()
            self._wait()


def measure_exclusive(plan: Plan) -> Section:
    """S5 over a link that serves one job at a time."""
    return _measure_simulator(plan, "exclusive", ())


def measure_shared(plan: Plan) -> Section:
    """S5 over a link that all jobs share, and with a regulation that samples them."""
    return _measure_simulator(plan, "fair", ("default",))


def _measure_simulator(plan: Plan, sharing: str, others: Sequence[str]) -> Section:
    rounds = 100 if plan.is_quick else ROUNDS
    variants: dict[str, Callable[[], Ran]] = {
        "ours": lambda: _run_ours(sharing, "none", rounds),
    }
    if simpy is not None:
        variants["SimPy"] = lambda: _run_simpy(sharing, rounds)
    sampled = {policy: f"ours, policy {policy}: {SAMPLED}" for policy in others}
    for policy, name in sampled.items():
        variants[name] = lambda p=policy: _run_ours(sharing, p, rounds)
    found = alternate(variants, plan.rounds, plan.tell(f"S5, {sharing} link"))
    rates = {name: [run.events_per_s for run in runs] for name, runs in found.items()}
    return Section(
        title=f"S5: {JOBS} jobs of {rounds} rounds of computing and I/O, {sharing} link",
        series=[
            Series(name, values, "events/s", is_peer=name == "SimPy")
            for name, values in rates.items()
        ],
        checks=[
            _check("median, policy none", rates["ours"]),
            *(_check(f"median, policy {policy}", rates[name]) for policy, name in sampled.items()),
        ],
        notes=[
            "an event is the end of a phase, a start, an end, or a step of the controller",
            "ours has the daemon's controller and the records of all jobs; SimPy has neither",
            *([] if sharing == "exclusive" or simpy is None else [PEER_IS_LINEAR]),
            _agreement(sharing),
        ],
    )


def _check(what: str, rates: Sequence[float]) -> Check:
    return Check(what, statistics.median(rates), EVENTS_PER_S, "events/s", is_floor=True)


def _agreement(sharing: str) -> str:
    """Whether both engines end at the same time.

    In a few rounds only: jobs that go round over a fair link amplify rounding from one round to
    the next (60 jobs are 9e-5 s off after 50 rounds, 0.1 s of 5,056 after 100, by decimal
    arithmetic with 80 digits), whatever engine it is.
    """
    if simpy is None:
        return "SimPy is not installed: nothing to compare with"
    ours = _run_ours(sharing, "none", FEW_ROUNDS).ended_s
    theirs = _run_simpy(sharing, FEW_ROUNDS).ended_s
    if not math.isclose(ours, theirs, rel_tol=SAME):
        raise RuntimeError(f"the {sharing} link: we end at {ours} s, SimPy at {theirs} s")
    return f"over {FEW_ROUNDS} rounds both end at the same simulated time, within {SAME:g} of it"
