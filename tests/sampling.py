"""A sampler of a test's own, started as the supervisor does it, and jobs for it."""

import asyncio
import json
import os
import subprocess
from pathlib import Path

from iodaemon.node.sampler.client import SamplerClient, Track, _Row
from iodaemon.node.sampler.job_io import JobIo, Position
from iodaemon.node.sampler.sweep import Sampler, Settings
from iodaemon.supervisor.anchor import SAMPLER, command
from iodaemon.supervisor.ledger import Key, Use

BLIND = (
    "from iodaemon.node.sampler import job_io, sweep; "
    "job_io.is_executing = sweep.is_executing = lambda _: False; "
)


class Samplers:
    """A client, and the samplers that it has started; a context manager.

    Args:
        blind: no sampler sees beforehand that a process does not answer.
        settings: of ``sweep.Settings``, but for address and user.

    Attributes:
        client: samples.
        has_any: whether one can be had; the supervisor is away if not.
    """

    def __init__(self, *, devices=(), partitions=(), root="/", blind=False, **settings):
        self.settings = settings
        self.children = []
        self.has_any = True
        self.environment = dict(os.environ)
        self.client = SamplerClient(self.start, devices, partitions, root=Path(root))
        self._before = BLIND if blind else ""
        self._runner = asyncio.Runner()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.run(self._leave())
        self._runner.close()
        for child in self.children:
            child.kill()
            child.wait()

    async def _leave(self):
        self.client.close()

    def run(self, work):
        return self._runner.run(work)

    def start(self, address):
        """What the client is given."""
        if not self.has_any:
            return False
        for child in self.living:
            child.kill()
        settings = Settings(address=address, parent=os.getpid(), uid=os.geteuid(), **self.settings)
        words = command(SAMPLER, json.dumps(settings._asdict()))
        words[4] = words[4].replace("; from", f"; {self._before}from", 1)
        self.children.append(subprocess.Popen(words, env=self.environment))
        return True

    @property
    def living(self):
        return [child for child in self.children if child.poll() is None]

    def take(self, *attempts, times=1, **options):
        """The last of so many samples, with these attempts (key and holder) from now on."""
        for key, holder in attempts:
            self.client.add(key, holder, **options)
        for at_s in range(times):
            sample = self.run(self.client.read(float(at_s)))
        return sample


class Measured:
    """One job as sampler and daemon measure it together, in one process.

    Args:
        root: ``/``, or a directory that looks like it.
        reaped: what was waited for outside of it; asked before the members.
        members: its processes.
        position: of its own if None.
    """

    def __init__(self, root, reaped, members, position=None):
        self.io = JobIo(str(root), Position() if position is None else position)
        self._reaped, self._members = reaped, members
        self._track = Track(Key(1, 1), None, None)

    def read(self):
        """Its counters now."""
        self._track.reaped = self._reaped()
        try:
            moved = self.io.read(list(self._members()))
        except OSError:
            moved = None
        self._track.row = _Row(1, 1, None, moved, (None,) * 8)
        return self._track.count()

    def close(self):
        self.io.close()


class Reading:
    """One job as the sampler reads it, in this process.

    Args:
        root: a directory that looks like ``/``; jobs' cgroups are in it.
        settings: further ones of ``sweep.Settings``.
    """

    def __init__(self, root, attempt=(1, 1), holder=None, **settings):
        given = {"jobs": str(root), "root": str(root), **settings}
        self.number = attempt[0]
        opened = {"devices": {"vda": "254:0"}, "cpus": {}}
        self.sampler = Sampler(Settings(address="", parent=0, uid=0, **given), opened, Position())
        self._request = {"jobs": [[*attempt, holder, None]]}

    def sweep(self, *, is_wanted=False):
        """The counters that are told; None: none are, since it has not run."""
        request, self._request = self._request, {}
        answer = self.sampler.sweep(request | {"read": [self.number] if is_wanted else []})
        if not answer["jobs"]:
            return None
        track = Track(Key(1, 1), None, Use())
        track.row = _Row(*answer["jobs"][0])
        return track.count()

    def close(self):
        self.sampler.sweep({"jobs": []})
