"""A simulated cluster: compute nodes in one partition, one parallel file system for all.

Source: Theta scaled down by 4, as EquilibrIO (Özden, Tarraf, Wolf, CLUSTER 2025) simulated it with
ElastiSim: 1,098 nodes, 43 GB/s, 100 Gbit/s a node.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Final, Literal

import msgspec

from iodaemon.core.job import Job, JobSpec
from iodaemon.core.platform import Platform
from iodaemon.core.rule import Rules
from iodaemon.model.node import default_platform
from iodaemon.model.profile import Compute, Profile, Step, Transfer
from iodaemon.model.spec import LinkSpec, Model
from iodaemon.policy.shadow_time import BACKFILL
from iodaemon.simulator.run import StepPer, Submission, simulate

PFS: Final = "pfs"
"""The link that all jobs share."""
TCP_WINDOW_BYTES: Final = 4_194_304
"""The most that a stream has under way: SimGrid's default for ``network/TCP-gamma``, 4 MiB."""


class ClusterJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job as it is when it has the cluster for itself: cycles of computing, then I/O.

    Attributes:
        submit_s: when it comes.
        nodes: how many it holds.
        run_s: its length alone, above 0.
        walltime_s: what its user asked for. None: nothing.
        io_share: the part of its length in I/O. None: not known, and it does none.
        io_bytes_per_s: its mean bandwidth while in I/O, alone. None: as above.
        is_high: one of those whose I/O is high, by how it was made.
    """

    submit_s: float
    nodes: int
    run_s: float
    walltime_s: float | None = None
    io_share: float | None = None
    io_bytes_per_s: float | None = None
    is_high: bool = False

    def __post_init__(self) -> None:
        """Refuse what no job can be."""
        if self.nodes < 1 or not 0.0 < self.run_s < math.inf or not self.submit_s >= 0.0:
            raise ValueError(f"{self}: at least 1 node, a length above 0, a time from 0 on")
        if (self.io_share is None) != (self.io_bytes_per_s is None):
            raise ValueError(f"{self}: a share and a bandwidth of I/O are known both or neither")
        if not 0.0 <= (self.io_share or 0.0) <= 1.0 or (self.io_bytes_per_s or 1.0) <= 0.0:
            raise ValueError(f"{self}: a share is 0 to 1, a bandwidth above 0")

    @property
    def does_io(self) -> bool:
        """Whether it does any."""
        return bool(self.io_share)

    @property
    def compute_s(self) -> float:
        """Its time out of I/O."""
        return self.run_s * (1.0 - (self.io_share or 0.0))

    @property
    def io_bytes(self) -> float:
        """All that it moves."""
        return self.run_s * self.intensity_bytes_per_s

    @property
    def intensity_bytes_per_s(self) -> float:
        """Share of its time in I/O times its bandwidth then."""
        return (self.io_share or 0.0) * (self.io_bytes_per_s or 0.0)


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """The platform.

    Attributes:
        nodes: compute nodes, any of which serve any job.
        file_system_bytes_per_s: what the parallel file system delivers.
        node_bytes_per_s: what the network of one node carries.
        latency_s: one way from a node to the file system. Each phase of I/O begins with it. With
            one above 0 a node moves at most ``window_bytes`` in each round trip.
        window_bytes: what a node may send before an answer comes.
        weights: of two jobs in I/O: equal shares, or by their nodes, each of which is a flow.
        caps: a job in I/O is never faster than its network and, with ``own``, than the mean
            bandwidth that it has alone.
        cycles: of computing and I/O in a job.
    """

    nodes: int = 1098
    file_system_bytes_per_s: float = 43e9
    node_bytes_per_s: float = 12.5e9
    latency_s: float = 0.0
    window_bytes: int = TCP_WINDOW_BYTES
    weights: Literal["equal", "nodes"] = "equal"
    caps: Literal["own", "network"] = "own"
    cycles: int = 10

    def __post_init__(self) -> None:
        """Refuse a cluster without nodes or network."""
        for key in ("nodes", "cycles", "window_bytes"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key} is {getattr(self, key)}; it must be at least 1")
        for key in ("file_system_bytes_per_s", "node_bytes_per_s"):
            if not 0.0 < getattr(self, key) < math.inf:
                raise ValueError(f"{key} is {getattr(self, key):g}; it must be above 0")
        if not 0.0 <= self.latency_s < math.inf:
            raise ValueError(f"latency_s is {self.latency_s:g}; it must be finite, and not below 0")

    @property
    def flow_bytes_per_s(self) -> float:
        """What one node moves: its network's rate, and at most a window in each round trip."""
        if not self.latency_s:
            return self.node_bytes_per_s
        return min(self.node_bytes_per_s, self.window_bytes / (2.0 * self.latency_s))

    def platform(self) -> Platform:
        """One partition; there is no disk to sample."""
        return Platform(partitions=default_platform(1, self.nodes).partitions)

    def model(self) -> Model:
        """One link."""
        link = LinkSpec(id=PFS, capacity_bytes_per_s=self.file_system_bytes_per_s)
        return Model(links=(link,), disk=None)

    def fastest_bytes_per_s(self, nodes: int) -> float:
        """What so many nodes move when nobody else does I/O."""
        return min(self.file_system_bytes_per_s, self.flow_bytes_per_s * nodes)

    @property
    def delay(self) -> tuple[Step, ...]:
        """What a phase of I/O begins with: the latency, if there is any."""
        return (Compute(self.latency_s),) if self.latency_s else ()

    def transfer(
        self, nodes: int, size_bytes: float, own_bytes_per_s: float | None = None
    ) -> Transfer:
        """One phase of I/O of a job, after its ``delay``.

        Args:
            nodes: that write.
            size_bytes: of the whole job.
            own_bytes_per_s: its bandwidth alone. None: what its nodes carry.
        """
        cap = self.flow_bytes_per_s * nodes
        if own_bytes_per_s is not None and self.caps == "own":
            cap = min(cap, own_bytes_per_s)
        weight = float(nodes) if self.weights == "nodes" else 1.0
        return Transfer(size_bytes, PFS, cap_bytes_per_s=cap, weight=weight)

    def io_alone_s(self, job: ClusterJob) -> float:
        """How long its I/O takes when nobody else does any."""
        if not job.does_io:
            return 0.0
        rate = self.fastest_bytes_per_s(job.nodes)
        if self.caps == "own":
            rate = min(rate, job.io_bytes_per_s or rate)
        return job.io_bytes / rate + self.cycles * self.latency_s

    def profile(self, job: ClusterJob) -> Profile:
        """What the job does."""
        steps: list[Step] = [Compute(job.compute_s / self.cycles)]
        if job.does_io:
            size_bytes = job.io_bytes / self.cycles
            steps += (*self.delay, self.transfer(job.nodes, size_bytes, job.io_bytes_per_s))
        return Profile(steps=tuple(steps), repeat=self.cycles)


class Lived(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a job.

    Attributes:
        job: as it is alone.
        start_s: when it started.
        end_s: when it ended.
        io_alone_s: what its I/O takes alone on this cluster.
        is_backfilled: it started beside the head of the queue, before a job that came earlier.
    """

    job: ClusterJob
    start_s: float
    end_s: float
    io_alone_s: float
    is_backfilled: bool

    @property
    def run_s(self) -> float:
        """From its start to its end."""
        return self.end_s - self.start_s

    @property
    def alone_s(self) -> float:
        """The same alone."""
        return self.job.compute_s + self.io_alone_s

    @property
    def io_s(self) -> float:
        """What of it was I/O: all that was not computing."""
        return max(0.0, self.run_s - self.job.compute_s)


def run_cluster(
    cluster: Cluster,
    rules: Rules,
    jobs: Sequence[ClusterJob],
    *,
    hinted: Collection[int] | None = None,
    seed: int = 0,
    step_per: StepPer = "instant",
) -> tuple[Lived, ...]:
    """Run the jobs under the rules; what became of each, in the order given.

    A walltime is what is said of a job, not a bound: nobody is ended at it. No samples are taken.

    Args:
        cluster: the platform.
        rules: the policy; its regulation is not asked.
        jobs: ordered by submit time.
        hinted: places in ``jobs`` of those that tell of their I/O. None: all do.
        seed: of the generator that rules may use.
        step_per: how often the rules are asked.
    """
    lenient = msgspec.structs.replace(rules, ends_overdue=False)
    work = [
        submission(cluster, job, is_hinted=hinted is None or place in hinted)
        for place, job in enumerate(jobs)
    ]
    result = simulate(
        cluster.platform(),
        lenient,
        work,
        model=cluster.model(),
        sampling=False,
        seed=seed,
        step_per=step_per,
    )
    return tuple(_lived(cluster, job, ended) for job, ended in zip(jobs, result.jobs, strict=True))


def submission(cluster: Cluster, job: ClusterJob, *, is_hinted: bool) -> Submission:
    """The job as the controller is told of it, and what it really does."""
    tells = is_hinted and job.io_share is not None
    spec = JobSpec(
        command=("simulated",),
        cpus=job.nodes,
        walltime_s=job.walltime_s,
        io_rate_bytes_per_s=job.io_bytes_per_s if tells else None,
        io_share=job.io_share if tells else None,
    )
    return job.submit_s, spec, cluster.profile(job)


def _lived(cluster: Cluster, job: ClusterJob, ended: Job) -> Lived:
    if ended.started_s is None or ended.ended_s is None:
        raise ValueError(
            f"{job.nodes} nodes are asked for, the cluster has {cluster.nodes}; it never starts"
        )
    why = ended.started_because
    return Lived(
        job=job,
        start_s=ended.started_s,
        end_s=ended.ended_s,
        io_alone_s=cluster.io_alone_s(job),
        is_backfilled=why is not None and why.code == BACKFILL,
    )
