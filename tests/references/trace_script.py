"""Records the traces: simulated nodes for an hour of virtual time, and people who use them.

Needed only to write traces anew; those that are stored hold without it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Final

from traces import FORMAT, Document, Replayed, document_of, event_of

from iodaemon.core import event as ev
from iodaemon.core.decision import Plan
from iodaemon.core.error import IodaemonError
from iodaemon.core.job import Exit, IoTotals, JobId
from iodaemon.core.platform import DeviceId
from iodaemon.model.disk import SimulatedDisk
from iodaemon.model.profile import Compute, Hold, Profile, Read, Write
from iodaemon.model.scaling import table_scaling
from iodaemon.model.spec import Model, StoreSpec
from iodaemon.simulator.run import _Run

_OF_ENDED: Final = frozenset({"RequeueRequested", "ScratchUnwanted"})
HOUR_S: Final = 3600.0
MB: Final = 1_000_000
GB: Final = 1000 * MB
SPINNING: Final = SimulatedDisk(
    id=DeviceId("sda"),
    capacity_bytes_per_s=160.0 * MB,
    scaling=table_scaling({1: 1.0, 2: 0.8, 3: 0.6, 4: 0.45, 6: 0.3, 8: 0.22}),
    memory_bytes_per_s=1000.0 * MB,
    dirty_background_bytes=400 * MB,
    dirty_limit_bytes=800 * MB,
)


class _Recorder:
    """Stands where a controller stands, and keeps what passes."""

    def __init__(self, head: Document) -> None:
        self.lines: list[Document] = [head]
        self._replayed = Replayed(head)
        self.state = self._replayed.state
        self.documents: dict[int, Document] = {}  # of events that are made of one, by identity

    @property
    def rules(self) -> Any:
        return self._replayed.controller.rules

    def step(self, events: Sequence[ev.Event]) -> Plan:
        told = [self.documents.get(id(event)) or document_of(event) for event in events]
        heard = [event_of(document, self.state) for document in told]
        plan = self._replayed.controller.step(heard)
        self.lines.append({"events": told, "plan": self._replayed.describe(plan)})
        return plan


class _Profiles(dict[JobId, Profile]):
    """What jobs do; a start of those in ``broken`` fails, and as often as it says."""

    def __init__(self) -> None:
        super().__init__()
        self.broken: dict[int, int] = {}

    def __getitem__(self, job_id: JobId) -> Profile:
        if self.broken.get(job_id, 0) > 0:
            self.broken[job_id] -= 1
            raise IodaemonError("the directory cannot be made: no space left on device")
        return super().__getitem__(job_id)


class Scene:
    """One node, and what people and chance do to it.

    Args:
        head: the first line of the trace.
        model: what its jobs share.
        seed: of all that is drawn here.
    """

    def __init__(self, head: Document, model: Model, *, seed: int) -> None:
        self.chance = random.Random(seed)
        self.recorder = _Recorder({"format": FORMAT, "seed": seed, **head})
        self._run = _Run(
            self.recorder,  # type: ignore[arg-type]
            (),
            model=model,
            sampling=True,
            on_step=None,
            step_per="instant",
        )
        self._profiles = self._run._profiles = _Profiles()
        node = self._run._node
        node._profile_of = self._profiles.__getitem__
        node._post = self._post
        self._next_id = 1
        self._kept: list[ev.Event] = []  # so that no identity is used twice
        self.instead: list[Callable[[ev.Event], ev.Event | None]] = []
        """Each may put another event in the place of one of the node's, once."""

    def record(self) -> list[Document]:
        """Let an hour pass; the lines of the trace."""
        self._run.timeline.run_until(HOUR_S)
        return self.recorder.lines

    def at(self, at_s: float, document: Document) -> None:
        """Something happens then."""
        told = {"event": document["event"], "at_s": at_s, **document}

        def happen() -> None:
            event = event_of(told, self.recorder.state)
            self.recorder.documents[id(event)] = told
            self._kept.append(event)
            self._run.post(event)

        self._run.timeline.call_at(at_s, happen)

    def ask(self, at_s: float, event: str, job_id: int, **fields: Any) -> None:
        """Somebody asks something of a job, if there still is something to ask."""

        def happen() -> None:
            job = self.recorder.state.jobs.get(JobId(job_id))
            if job is None or (job.state.is_final and event not in _OF_ENDED):
                return
            if event == "ResumeRequested" and not job.user_hold:
                return
            now_s = self._run.timeline.now_s
            told = {"event": event, "at_s": now_s, "job_id": job_id, **fields}
            self._run.post(event_of(told, self.recorder.state))

        self._run.timeline.call_at(at_s, happen)

    def submit(
        self,
        at_s: float,
        profile: Profile,
        *,
        uid: int = 1000,
        held: bool = False,
        fails: int = 0,
        **spec: Any,
    ) -> int:
        """A job comes then; its number.

        Args:
            at_s: when.
            profile: what it does.
            uid: whose it is.
            held: somebody has to let it go.
            fails: so many of its starts fail.
            spec: what it asks for.
        """
        job_id, self._next_id = self._next_id, self._next_id + 1
        self._profiles[JobId(job_id)] = profile
        self._profiles.broken[job_id] = fails
        spec.setdefault("command", ["work"])
        job = {"id": job_id, "uid": uid, "held": held, "spec": spec}
        self.at(at_s, {"event": "JobSubmitted", "job": job})
        return job_id

    def _post(self, event: ev.Event) -> None:
        if isinstance(event, ev.StartFailed):  # not for ever: it is tried again
            event = ev.StartFailed(
                at_s=event.at_s,
                job_id=event.job_id,
                attempt=event.attempt,
                problem=event.problem,
                holds=self._profiles.broken[event.job_id] > 0,
            )
        for number, make in enumerate(self.instead):
            if (other := make(event)) is not None:
                del self.instead[number]
                event = other
                break
        self._run.post(event)

    def replace(
        self, kind: type[ev.Event], job_id: int, *, other: type[ev.Event], **fields: Any
    ) -> None:
        """In place of an event of this kind about this job, another one, once."""

        def make(event: ev.Event) -> ev.Event | None:
            if type(event) is not kind or getattr(event, "job_id", None) != job_id:
                return None
            return other(at_s=event.at_s, job_id=JobId(job_id), **fields)

        self.instead.append(make)


def _phases(
    chance: random.Random, *, compute_s: float, megabytes: float, times: int, **fields: Any
) -> Profile:
    """Computing and reading or writing in turns."""
    move: Any = Read if chance.random() < 0.6 else Write
    steps = (
        Compute(compute_s * chance.uniform(0.5, 1.5)),
        move(int(megabytes * chance.uniform(0.5, 1.5)) * MB),
    )
    return Profile(steps=steps, repeat=times, **fields)


def night() -> list[Document]:
    """A mixed night on a spinning disk, regulated by what jobs get done."""
    head = {
        "about": "a mixed night on a spinning disk: regulation by progress, walltimes, cancels, "
        "holds, suspensions by people, starts that fail",
        "sockets": [[0, 1, 2, 3], [4, 5, 6, 7]],
        "devices": [{"id": "sda", "rotational": True}],
        "config": {"users": {"max_running": 3}},
        "policy": {
            "admission": {"rule": "easy"},
            "placement": {"rule": "least_io"},
            "regulation": {"rule": "adaptive", "timeslice": "2 s"},
        },
    }
    stores = (StoreSpec(id="tmp", capacity_bytes=10 * GB),)
    scene = Scene(head, Model(disk=SPINNING, stores=stores), seed=1)
    chance = scene.chance
    for number in range(110):
        at_s = number * 30.0 + chance.uniform(0.0, 28.0)
        kind = chance.choice(("solver", "reader", "reader", "short", "quiet"))
        profile = {
            "solver": lambda: _phases(chance, compute_s=20.0, megabytes=900.0, times=6),
            "reader": lambda: _phases(chance, compute_s=1.0, megabytes=1500.0, times=9),
            "short": lambda: _phases(chance, compute_s=3.0, megabytes=50.0, times=2),
            "quiet": lambda: Profile(steps=(Compute(chance.uniform(60.0, 400.0)),)),
        }[kind]()
        walltime_s = chance.choice((None, 200.0, 600.0, 1800.0))
        spec: Document = {
            "command": [kind, f"input-{number % 5}"],
            "cpus": chance.choice((1, 1, 2, 4)),
        }
        if walltime_s is not None:
            spec["walltime_s"] = walltime_s
        if number % 9 == 4:
            spec["no_suspend"] = True
        if number % 11 == 5:
            spec["max_suspend_s"] = 30.0
        job_id = scene.submit(
            at_s,
            profile,
            uid=1000 + number % 3,
            held=number % 13 == 6,
            **spec,
        )
        if number % 13 == 6:
            scene.ask(at_s + 120.0, "ResumeRequested", job_id, by="ann")
        if number % 7 == 3:
            scene.ask(at_s + 90.0, "CancelRequested", job_id, by="bob", grace_s=10.0)
        if number % 6 == 1:
            scene.ask(at_s + 60.0, "SuspendRequested", job_id, by="ann", by_uid=0)
            scene.ask(at_s + 150.0, "ResumeRequested", job_id, by="ann")
        if number % 17 == 8:
            scene.ask(at_s + 100.0, "RequeueRequested", job_id, by="ann", grace_s=5.0)
    unlucky = scene.submit(40.0, Profile(steps=(Compute(600.0),)), uid=2001, fails=2)
    scene.ask(400.0, "ResumeRequested", unlucky, by="ann")
    iced = scene.submit(50.0, Profile(steps=(Compute(3000.0),)), uid=2002)
    scene.ask(760.0, "ResumeRequested", iced, by="ann")
    big = scene.submit(500.0, Profile(steps=(Compute(60.0),), holds=(Hold("tmp", 20 * GB),)))
    stubborn = Profile(steps=(Compute(3000.0),), ignores_term=True, exit_code=3)
    deaf = scene.submit(600.0, stubborn, walltime_s=300.0)
    scene.ask(1200.0, "CancelRequested", big, by="root", grace_s=0.0)
    scene.ask(920.0, "StopDelayed", deaf, problem="a process waits for a disk")
    killed = scene.submit(700.0, Profile(steps=(Compute(3000.0),)), memory_bytes=GB)
    scene.replace(
        ev.JobExited,
        killed,
        other=ev.JobExited,
        attempt=1,
        exit=Exit(signal=9, out_of_memory=True),
        io=IoTotals(),
    )
    scene.ask(1500.0, "CancelRequested", killed, by="root", grace_s=0.0)
    lost = scene.submit(1000.0, Profile(steps=(Compute(100.0),)), requeue=True)
    scene.replace(
        ev.JobExited,
        lost,
        other=ev.JobExited,
        attempt=1,
        exit=Exit(),
        io=IoTotals(),
        by_reboot=True,
    )
    gone = scene.submit(1050.0, Profile(steps=(Compute(100.0),)))
    scene.replace(ev.JobExited, gone, other=ev.JobExited, attempt=1, exit=Exit(), io=IoTotals())
    stiff = scene.submit(1100.0, Profile(steps=(Compute(900.0),)))
    scene.replace(
        ev.JobSuspended, stiff, other=ev.SuspendFailed, frozen=False, problem="a process hangs"
    )
    scene.ask(1300.0, "SuspendRequested", stiff, by="ann")
    for at_s, mode in ((2000.0, "shadow"), (2400.0, "off"), (2500.0, "on")):
        scene.at(at_s, {"event": "ModeChanged", "mode": mode, "by": "root"})
    scene.at(2600.0, {"event": "StartsBlocked", "problem": "the journal's disk is full"})
    scene.at(2650.0, {"event": "StartsBlocked", "problem": ""})
    return scene.record()


def packs() -> list[Document]:
    """Packs, of which one job at a time does I/O."""
    head = {
        "about": "packs, and one job at a time that does I/O: jobs that tell of their phases, and "
        "silent ones",
        "sockets": [[0, 1, 2, 3], [4, 5, 6, 7]],
        "devices": [{"id": "sda", "rotational": False}],
        "config": {},
        "policy": {
            "admission": {"rule": "pack", "bandwidth": "400 MB/s", "stretch_bound": 1.0},
            "placement": {"rule": "least_io"},
            "regulation": {"rule": "exclusive", "timeslice": "2 s", "order": "fifo"},
        },
    }
    disk = SimulatedDisk(id=DeviceId("sda"), capacity_bytes_per_s=400.0 * MB)
    scene = Scene(head, Model(disk=disk), seed=2)
    chance = scene.chance
    for number in range(60):
        at_s = number * 50.0 + chance.uniform(0.0, 45.0)
        speaks = number % 3 != 0
        times = chance.randint(3, 10)
        profile = _phases(chance, compute_s=12.0, megabytes=2500.0, times=times, speaks=speaks)
        spec: Document = {"command": ["phased" if speaks else "silent", str(times)]}
        if number % 5 != 4:
            spec |= {
                "walltime_s": 60.0 * times,
                "io_rate_bytes_per_s": chance.choice((100.0, 200.0, 300.0)) * MB,
                "io_share": 0.4,
            }
        job_id = scene.submit(at_s, profile, uid=1000 + number % 2, cpus=1 + number % 2, **spec)
        if number % 8 == 5:
            scene.ask(at_s + 70.0, "SuspendRequested", job_id, by="ann")
            scene.ask(at_s + 130.0, "ResumeRequested", job_id, by="ann")
        if number % 10 == 7:
            scene.ask(at_s + 110.0, "CancelRequested", job_id, by="ann", grace_s=10.0)
    return scene.record()


def space() -> list[Document]:
    """Space of tiers under three policies, with a drain in between."""
    tier = {
        "fast": {
            "rule": "balanced",
            "split": "300 GB",
            "staging": "400 MB/s",
            "disk": [
                {"path": "/scratch/nvme0", "kind": "nvme", "capacity": "800 GB"},
                {"path": "/scratch/nvme1", "kind": "nvme", "capacity": "500 GB"},
            ],
        },
        "slow": {"bandwidth": "120 MB/s"},
    }
    head = {
        "about": "space of storage tiers: storage-aware, then equilibrio, then a budget of I/O, "
        "with a drain, limits of users, and a disk that fails",
        "sockets": [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]],
        "devices": [{"id": "sda", "rotational": False}],
        "config": {"tier": tier, "users": {"fair": True, "max_slots": 7}},
        "scratch_keep_s": 300.0,
        "policy": {
            "admission": {"rule": "storage_aware"},
            "placement": {"rule": "least_io"},
            "regulation": {"rule": "dynamic", "timeslice": "3 s", "io_bound": "300 MB/s"},
        },
    }
    disk = SimulatedDisk(id=DeviceId("sda"), capacity_bytes_per_s=600.0 * MB)
    scene = Scene(head, Model(disk=disk), seed=3)
    chance = scene.chance
    for number in range(90):
        at_s = number * 36.0 + chance.uniform(0.0, 30.0)
        profile = _phases(chance, compute_s=25.0, megabytes=1500.0, times=chance.randint(2, 10))
        spec: Document = {
            "command": [f"app{number % 4}"],
            "cpus": chance.choice((1, 2, 3)),
            "walltime_s": chance.choice((300.0, 600.0, 1200.0)),
        }
        if number % 3 != 2:
            spec["scratch"] = {
                "size_bytes": chance.choice((100, 300, 450, 900)) * GB,
                "fallback": chance.choice(("wait", "slow", "fail")),
                "data_bytes": 20 * GB,
                **({"tier": "fast"} if number % 2 else {}),
            }
        if number % 2:
            spec |= {"io_rate_bytes_per_s": chance.choice((20.0, 80.0, 150.0)) * MB}
        job_id = scene.submit(at_s, profile, uid=1000 + number % 4, **spec)
        if number % 12 == 7:
            scene.ask(at_s + 80.0, "CancelRequested", job_id, by="ann", grace_s=10.0)
        if number % 14 == 9:
            used = {"used_bytes": 900 * GB, "attempt": 1, "is_over": True}
            scene.ask(at_s + 40.0, "ScratchUsed", job_id, **used)
    for job_id in (11, 22):
        scene.replace(
            ev.ScratchRemoved,
            job_id,
            other=ev.ScratchKept,
            attempt=1,
            problem="its output could not be copied out",
            is_result=True,
        )
    scene.ask(1500.0, "ScratchUnwanted", 11, by="ann")
    scene.at(1000.0, {"event": "DiskSeen", "disk": "/scratch/nvme1", "problem": "it is read-only"})
    scene.at(1300.0, {"event": "DiskSeen", "disk": "/scratch/nvme1", "problem": ""})
    regulation = {"rule": "adaptive", "timeslice": "3 s"}
    _reload(
        scene, 1200.0, {"rule": "equilibrio", "intensity": "bytes"}, regulation, {"max_slots": 10}
    )
    scene.at(1800.0, {"event": "DrainBegun", "by": "root", "reason": "new disks"})
    scene.at(2000.0, {"event": "DrainEnded", "by": "root"})
    _reload(
        scene, 2400.0, {"rule": "io_budget", "demand": "mean", "bandwidth": "250 MB/s"}, regulation
    )
    _reload(scene, 3000.0, {"rule": "fcfs"}, {"rule": "none", "timeslice": "3 s"})
    return scene.record()


def _reload(
    scene: Scene,
    at_s: float,
    admission: Document,
    regulation: Document,
    users: Document | None = None,
) -> None:
    policy = {
        "admission": admission,
        "placement": {"rule": "least_io"},
        "regulation": regulation,
    }
    told: Document = {"event": "Reconfigured", "by": "root", "changes": [], "policy": policy}
    scene.at(at_s, told if users is None else {**told, "users": users})


TRACES: Final = {"night": night, "packs": packs, "space": space}
