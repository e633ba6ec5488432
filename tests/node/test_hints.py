"""Real jobs teach what the next ones will move: in the queue, after a restart, for placement."""

import json
import os
import subprocess
import sys

import pytest
from harness import Server, until

pytestmark = pytest.mark.node

MIB = 2**20
WRITES = "dd if=/dev/zero of=data-$IOD_JOB_ID bs=1M count=48 conv=fsync 2>/dev/null"
WRITER = f"[ -e quiet ] || {{ {WRITES}; sleep 0.5; }}; while [ -e quiet ]; do sleep 0.05; done"
"""Writes 48 MiB and ends after half a second; while the file 'quiet' is there it only waits."""


def iod(server, *words):
    """The command line of this daemon."""
    ended = subprocess.run(
        [sys.executable, "-m", "iodaemon.cli", "--api", server.client.socket_path, *words],
        env=server.environment,
        cwd=server.place,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def writer(server, **options):
    return server.submit("sh", "-c", WRITER, name="writer", cwd=str(server.place), **options)


def queued(server):
    """What the queue says of the jobs in it, by number."""
    return {job["id"]: job for job in json.loads(iod(server, "queue", "--json"))["jobs"]}


def is_learned(server, job):
    """Whether the daemon expects of it what earlier ones did; it reads them while it serves."""
    return queued(server)[job]["expected"]["source"] == "learned"


@pytest.mark.slow
def test_the_second_of_two_jobs_is_expected_to_move_what_the_first_did(server):
    first = writer(server)
    server.end_of(first)
    told = server.job(first)
    rate = (told["read_bytes"] + told["written_bytes"]) / told["run_s"]
    assert told["written_bytes"] >= 48 * MIB
    assert told["operations"] >= 96  # dd reads and writes a mebibyte at a time
    assert "unknown" == told["expected"]["source"]

    second = writer(server, hold=True)
    for _ in range(2):
        until(lambda: is_learned(server, second), "the past is known")
        expected = queued(server)[second]["expected"]
        assert ("learned", "name:writer", 1) == tuple(expected[k] for k in ("source", "by", "runs"))
        assert pytest.approx(rate, rel=1e-6) == expected["rate_bytes_per_s"]
        server.stop()
        server.start()
    assert " l " in iod(server, "queue")

    server.client.resume(second)
    server.end_of(second)
    told = server.job(second)
    moved = (told["read_bytes"] + told["written_bytes"]) / told["run_s"]
    assert pytest.approx(rate / moved, rel=0.01) == told["expected_ratio"]
    [line] = iod(server, "hint", "show", "name:*").splitlines()[1:2]
    assert ("learned", "name:writer") == (line.split()[0], line.split()[-1])


def test_a_declared_rate_goes_before_what_was_learned(server):
    server.end_of(writer(server))
    script = server.place / "job.sh"
    script.write_text("#!/bin/sh\n#IOD name=writer hold io=40MB/s,20%\ntrue\n")
    script.chmod(0o755)

    iod(server, "submit", "./job.sh")
    [job] = queued(server).values()
    assert ("declared", 8e6, 0.2) == tuple(
        job["expected"][key] for key in ("source", "rate_bytes_per_s", "io_share")
    )


def test_jobs_are_placed_away_from_one_that_is_known_to_write_before_it_does(means):
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("needs two CPUs")
    topology = {"sockets": [str(cpu) for cpu in cpus[:2]], "oversubscribe": 3}
    with Server(means, topology=topology) as server:
        server.start()
        server.end_of(writer(server))

        (server.place / "quiet").touch()
        waits = writer(server)
        others = []
        for number in range(3):
            others.append(server.gated(f"other{number}"))
            server.goes_on(f"other{number}")
        homes = [server.job(job)["socket"] for job in (waits, *others)]

        (server.place / "quiet").unlink()
        server.open_gate(*(f"other{number}" for number in range(3)))
        for job in (waits, *others):
            server.end_of(job)
    assert [0, 1, 1, 1] == homes


def test_a_daemon_killed_with_what_it_learned_knows_it_again(server):
    server.end_of(writer(server))
    server.await_durable(1, "COMPLETED")
    server.kill()
    server.start()

    second = writer(server, hold=True)
    until(lambda: is_learned(server, second), "the past is known")
