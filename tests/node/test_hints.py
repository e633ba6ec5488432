"""Real jobs teach what the next ones will move: in the queue, and after a restart."""

import json
import subprocess
import sys

import pytest
from harness import until

pytestmark = pytest.mark.node

MIB = 2**20
WRITER = "dd if=/dev/zero of=data-$IOD_JOB_ID bs=1M count=48 conv=fsync 2>/dev/null; sleep 0.5"


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


def test_the_second_of_two_jobs_is_expected_to_move_what_the_first_did(server):
    """Also by a daemon that is started after a kill, and not against the word of its submitter."""
    first = writer(server)
    server.end_of(first)
    told = server.job(first)
    rate = (told["read_bytes"] + told["written_bytes"]) / told["run_s"]
    assert told["written_bytes"] >= 48 * MIB
    assert told["operations"] >= 96  # dd reads and writes a mebibyte at a time
    assert "unknown" == told["expected"]["source"]

    second = writer(server, hold=True)
    server.await_durable(first, "COMPLETED")
    for is_first in (True, False):
        until(lambda: is_learned(server, second), "the past is known")
        expected = queued(server)[second]["expected"]
        assert ("learned", "name:writer", 1) == tuple(expected[k] for k in ("source", "by", "runs"))
        assert pytest.approx(rate, rel=1e-6) == expected["rate_bytes_per_s"]
        if is_first:
            server.kill()
            server.start()
    assert " l " in iod(server, "queue")

    server.client.resume(second)
    server.end_of(second)
    told = server.job(second)
    moved = (told["read_bytes"] + told["written_bytes"]) / told["run_s"]
    assert pytest.approx(rate / moved, rel=0.01) == told["expected_ratio"]
    [line] = iod(server, "hint", "show", "name:*").splitlines()[1:2]
    assert ("learned", "name:writer") == (line.split()[0], line.split()[-1])

    script = server.place / "job.sh"
    script.write_text("#!/bin/sh\n#IOD name=writer hold io=40MB/s,20%\ntrue\n")
    script.chmod(0o755)
    iod(server, "submit", "./job.sh")
    [job] = queued(server).values()
    assert ("declared", 8e6, 0.2) == tuple(
        job["expected"][key] for key in ("source", "rate_bytes_per_s", "io_share")
    )
