"""The sampler as a process: what its death costs, and what the daemon believes of it."""

import asyncio
import itertools
import json
import socket
import subprocess
import sys

import pytest
from harness import until
from sampling import Samplers

from iodaemon.node.sampler import client as module
from iodaemon.node.sampler.client import SamplerClient
from iodaemon.supervisor.ledger import Key

pytestmark = pytest.mark.node

MIB = 1 << 20
WORKER = """
import os, sys
for line in sys.stdin:
    if line == "child\\n":
        pid = os.fork()
        if pid == 0:
            os.read(os.open("/dev/zero", os.O_RDONLY), 1 << 20)
            os._exit(0)
        os.waitpid(pid, 0)
    else:
        os.read(os.open("/dev/zero", os.O_RDONLY), int(line))
    print(flush=True)
"""


HOLDER = "import subprocess, sys; subprocess.call([sys.executable, '-ISc', sys.argv[1]])"


class Worker:
    """A job whose process reads so much as it is told, below another one, its holder."""

    def __init__(self):
        words = [sys.executable, "-ISc", HOLDER, WORKER]
        pipe = subprocess.PIPE
        self.child = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True)
        self.live = self.attempt(1)
        self.does(0)

    def attempt(self, number):
        return Key(1, number), self.child.pid

    def does(self, word):
        self.child.stdin.write(f"{word}\n")
        self.child.stdin.flush()
        self.child.stdout.readline()

    def end(self):
        self.child.communicate()


@pytest.fixture
def worker():
    worker = Worker()
    yield worker
    worker.end()


def used(**moved):
    return {"read_bytes": 0, "written_bytes": 0, "calls": 0, **moved}


def logical(sample):
    return sample.jobs[1].logical_bytes


def test_totals_are_exact_over_deaths_of_the_sampler(worker):
    with Samplers() as samplers:
        totals = [logical(samplers.take(worker.live))]
        for word in (5, "child", 7):
            samplers.children[-1].kill()
            samplers.children[-1].wait()
            worker.does(word)
            totals.append(logical(samplers.take()))

    said = [len("5\n") + 1, len("child\n") + 1, len("7\n") + 1]  # and a line feed each
    moved = [after - before for before, after in itertools.pairwise(totals)]
    assert [5 + said[0], MIB + said[1], 7 + said[2]] == moved


def test_what_is_waited_for_in_a_sweep_counts_in_the_next_and_no_total_falls(worker):
    with Samplers() as samplers:
        first = samplers.take(worker.live)
        worker.does(MIB)
        second = samplers.take()

        async def read():
            reading = asyncio.ensure_future(samplers.client.read(2.0))
            await asyncio.sleep(0)
            samplers.client.take_use(Key(1, 1), used(logical_bytes=100))
            return await reading

        third = samplers.run(read())
        worker.child.communicate()
        samplers.client.take_use(Key(1, 1), used(logical_bytes=50))
        last = samplers.take()

    assert logical(second) >= logical(first) + MIB
    assert logical(third) == logical(second)
    assert logical(last) >= logical(second)


def test_a_job_that_has_not_moved_has_the_very_same_counters(worker):
    """By this the rules know that it did nothing."""
    with Samplers() as samplers:
        samplers.take(worker.live, times=3)
        first, again = samplers.take(), samplers.take()

        assert first.jobs[1] is again.jobs[1]
        samplers.children[-1].kill()
        assert samplers.take().jobs[1] is first.jobs[1]


def test_of_an_adopted_job_nothing_is_known_until_it_is_told_what_was_waited_for(worker):
    with Samplers() as samplers:
        unknown = samplers.take(worker.live, times=2, is_adopted=True)
        samplers.client.take_use(Key(1, 1), used(read_bytes=1 << 40))
        known = samplers.take()

    assert unknown.jobs[1].read_bytes is None
    assert 1 << 40 <= known.jobs[1].read_bytes < 1 << 41


def test_another_attempt_begins_at_nothing(worker):
    with Samplers() as samplers:
        samplers.take(worker.live)
        samplers.client.take_use(Key(1, 1), used(read_bytes=1 << 40))
        before = samplers.take()

        assert before.jobs[1].read_bytes >= 1 << 40
        assert samplers.take(worker.attempt(2)).jobs[1].read_bytes < 1 << 40


def test_it_ends_with_the_line_of_the_daemon(worker):
    with Samplers() as samplers:
        samplers.take(worker.live)
        samplers.run(samplers._leave())

        until(lambda: not samplers.living, "its end")
        assert 0 == samplers.children[0].wait()


NODE = b'"node": {"available_bytes": 7}'
EIGHT = b"null, " * 7 + b"null"
BAD = {
    "no JSON": b"none\n",
    "no object": b"[]\n",
    "not UTF-8": b'{"node": {"refaults_of": "\xff"}}\n',
    "a count below 0": b'{"jobs": [[-1, 1, null, null, [' + EIGHT + b"]]], " + NODE + b"}\n",
    "seven gauges": b'{"jobs": [[1, 1, null, null, [' + EIGHT[6:] + b"]]], " + NODE + b"}\n",
    "half a row": b'{"jobs": [[1, null]], ' + NODE + b"}\n",
    "a disk with two fields": b'{"disks": {"sda": [1, 2]}, ' + NODE + b"}\n",
    "idle time of nobody": b'{"node": {"available_bytes": 7, "idle_s": {"x": 1.0}}}\n',
    "no mounts": b'{"files": [[1, 2]], ' + NODE + b"}\n",
    "too deep": b'{"x": ' + b"[" * 100_000 + b"\n",
    "too much": b'{"x": "' + b"x" * 2000 + b'", ' + NODE + b"}\n",
    "nothing": b"",
    "half an object": b'{"no',
}


def sample_of(said):
    """A sample of a client whose sampler says this, and no more."""
    peers = []

    def start(address):
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        peer.connect(bytes.fromhex(address))
        peer.sendall(said)
        peer.shutdown(socket.SHUT_WR)
        peers.append(peer)
        return True

    async def read():
        client = SamplerClient(start, ())
        sample = await client.read(0.0)
        client.close()
        return sample

    sample = asyncio.run(read())
    for peer in peers:
        peer.close()
    return sample


@pytest.mark.parametrize("said", BAD.values(), ids=BAD.keys())
def test_one_that_says_what_is_no_row_is_not_believed(said, monkeypatch):
    """And nobody waits for it."""
    monkeypatch.setattr(module, "_LARGEST", 1000)

    assert sample_of(said).node.available_bytes is None


def test_rows_of_jobs_that_nobody_asked_for_are_not_taken():
    row = [9, 1, None, [0] * 6, [0] * 8]
    said = {"jobs": [row], "disks": {"sdz": [0] * 17}, "node": {"available_bytes": 7}}
    sample = sample_of(json.dumps(said).encode() + b"\n")

    assert ({}, {}) == (sample.jobs, sample.devices)
    assert 7 == sample.node.available_bytes
