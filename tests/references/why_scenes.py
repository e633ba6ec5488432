"""A scene for each reason that no recorded hour comes to: who does what, until it is shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from traces import Document, Replayed

from iodaemon.core.decision import Plan, Resume, Suspend

MB: Final = 1_000_000
GB: Final = 1000 * MB
_TIERS: Final = {
    "tier": {
        "fast": {"disk": [{"path": "/scratch/a", "kind": "nvme", "capacity": "100 GB"}]},
        "slow": {"bandwidth": "50 MB/s"},
    }
}
_BOUND: Final = {"rule": "adaptive", "timeslice": "1 s", "io_bound": "10 MB/s"}
Look = Callable[[Replayed, Plan], None]


class World:
    """Two sockets of two CPUs, and whoever uses them.

    Args:
        look: called after each step.
        admission: the rule.
        regulation: the rule.
        answers: suspends and resumes are confirmed at once.
        head: further of a trace's first line.
    """

    def __init__(
        self,
        look: Look,
        *,
        admission: Document | None = None,
        regulation: Document | None = None,
        answers: bool = False,
        **head: Any,
    ) -> None:
        self._look = look
        self._answers = answers
        self._replayed = Replayed(
            {
                "sockets": [[0, 1], [2, 3]],
                "devices": [{"id": "sda", "rotational": False}],
                "config": {},
                "seed": 1,
                "policy": {
                    "admission": admission or {"rule": "easy"},
                    "placement": {"rule": "least_io"},
                    "regulation": regulation or {"rule": "none", "timeslice": "1 s"},
                },
                **head,
            }
        )
        self.now_s = 0.0
        self._next_id = 1
        self._moved: dict[int, int] = {}

    def step(self, event: str, **fields: Any) -> None:
        """One event, now."""
        plan = self._replayed.plan([{"event": event, "at_s": self.now_s, **fields}])
        self._look(self._replayed, plan)
        for decision in plan.decisions:
            if self._answers and isinstance(decision, Suspend | Resume):
                is_suspend = isinstance(decision, Suspend)
                kind = "JobSuspended" if is_suspend else "JobResumed"
                self.step(kind, job_id=decision.job_id)

    def submit(self, **spec: Any) -> int:
        """A job comes; its number."""
        job_id, self._next_id = self._next_id, self._next_id + 1
        spec.setdefault("command", ["work"])
        job = {"id": job_id, "uid": 1000, "held": False, "spec": spec}
        self.step("JobSubmitted", job=job)
        return job_id

    def begin(self, **spec: Any) -> int:
        """A job comes and runs at once."""
        job_id = self.submit(**spec)
        self.tell("JobStarted", job_id, attempt=1)
        return job_id

    def tell(self, event: str, job_id: int, **fields: Any) -> None:
        """One event about a job, a tenth of a second later."""
        self.now_s += 0.1
        self.step(event, job_id=job_id, **fields)

    def end(self, job_id: int, *, note: str = "", **how: Any) -> None:
        """The job's processes are gone."""
        self.tell("JobExited", job_id, attempt=1, exit=how, io={}, note=note)

    def sample(self, megabytes: dict[int, float], **counters: Any) -> None:
        """A second later: what each of these jobs has read in it."""
        self.now_s = float(int(self.now_s)) + 1.0
        for job_id, more in megabytes.items():
            self._moved[job_id] = self._moved.get(job_id, 0) + int(more * MB)
        jobs = {
            str(job_id): {"read_bytes": self._moved[job_id], "written_bytes": 0, **counters}
            for job_id in megabytes
        }
        self.step("SampleTaken", sample={"at_s": self.now_s, "jobs": jobs})

    def held_by_regulation(self) -> tuple[int, int]:
        """Two readers above the bound, of which one stands still."""
        first, second = self.begin(), self.begin()
        for _ in range(3):
            self.sample({first: 50.0, second: 50.0})
        return first, second


def adopted(look: Look) -> None:
    """A job that stands still though nobody holds it: its daemon was restarted meanwhile."""
    world = World(look)
    world.tell("JobSuspended", world.begin())


def ended_in_shadow(look: Look) -> None:
    """Regulation in shadow: a job that would stand still ends; of another one shadow ends."""
    world = World(look, regulation=_BOUND)
    world.step("ModeChanged", mode="shadow", by="ann")
    for job_id in reversed(world.held_by_regulation()):
        world.end(job_id, code=0)
    world.held_by_regulation()
    world.step("ModeChanged", mode="off", by="ann")


def exits(look: Look) -> None:
    """Ends with a code, by a signal, for lack of memory, and with a remark."""
    world = World(look)
    world.end(world.begin(), code=3)
    world.end(world.begin(), signal=15)
    world.end(world.begin(), signal=9, out_of_memory=True)
    world.end(world.begin(), code=0, note="its output could not be read")


def infeasible(look: Look) -> None:
    """A job that no socket can hold."""
    World(look).submit(cpus=3)


def headroom(look: Look) -> None:
    """A job that would move more than regulation leaves room for."""
    regulation = {"rule": "adaptive", "timeslice": "1 s", "io_bound": "100 MB/s"}
    world = World(
        look, admission={"rule": "io_budget", "bandwidth": "10 GB/s"}, regulation=regulation
    )
    first = world.begin()
    for _ in range(3):
        world.sample({first: 90.0})
    world.submit(io_rate_bytes_per_s=80.0 * MB)


def longest_suspension(look: Look) -> None:
    """A job that regulation has held for as long as it may."""
    world = World(look, regulation=_BOUND, answers=True)
    first, second = world.begin(max_suspend_s=5.0), world.begin(max_suspend_s=5.0)
    for _ in range(12):
        world.sample({first: 50.0, second: 50.0})


def mode(look: Look) -> None:
    """Regulation is switched off while it holds a job."""
    world = World(look, regulation=_BOUND, answers=True)
    world.held_by_regulation()
    world.step("ModeChanged", mode="off", by="ann")


def output(look: Look) -> None:
    """A job whose output takes more than it may."""
    world = World(look, output_max_bytes=GB)
    world.sample({world.begin(): 1.0}, output_bytes=2 * GB)


def silent(look: Look) -> None:
    """A job with a process that does not answer."""
    world = World(look)
    world.sample({world.begin(): 1.0}, silent_pid=77)


def stop_delayed(look: Look) -> None:
    """A job that does not end, and one that does not stand still, though asked to."""
    world = World(look)
    first, second = world.begin(), world.begin()
    world.tell("CancelRequested", first, by="ann", grace_s=1.0)
    world.tell("StopDelayed", first, problem="process 77 waits for a disk")
    world.tell("SuspendRequested", second, by="ann")
    world.tell("StopDelayed", second, problem="process 78 waits for a disk")
    world.tell("SuspendFailed", second, frozen=False, problem="the cgroup is gone")


def space_after_the_end(look: Look) -> None:
    """What is kept in the space of a job: for a time, until removed, copied, or still open."""
    world = World(look, config=_TIERS, scratch_keep_s=60.0)
    asked = {"size_bytes": 10 * GB, "output_path": "/home/ann/out"}
    jobs = [world.begin(scratch=asked) for _ in range(3)]
    world.tell("ScratchUsed", jobs[0], attempt=1, used_bytes=20 * GB, is_over=True)
    for job_id in jobs:
        world.end(job_id, code=0)
        kept = {"attempt": 1, "problem": "the directory is full", "is_result": True}
        world.tell("ScratchKept", job_id, **kept)
    world.tell("ScratchUnwanted", jobs[1], by="ann")
    world.tell("ScratchKept", jobs[1], attempt=1, problem="process 77 has it open", is_open=True)
    world.tell("ScratchUnwanted", jobs[2], by="ann", copies=True)
    world.tell("RequeueRequested", jobs[1], by="ann", grace_s=1.0)
    world.now_s += 100.0
    world.step("TimerFired")


SCENES: Final = (
    adopted,
    ended_in_shadow,
    exits,
    headroom,
    infeasible,
    longest_suspension,
    mode,
    output,
    silent,
    space_after_the_end,
    stop_delayed,
)
