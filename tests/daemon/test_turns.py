"""Real jobs that tell of their I/O under the shipped policy ``packs``, by their own clocks."""

import contextlib
import json
import sqlite3
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from builders import PACKS_NEEDS, PACKS_OVERRIDES
from harness import MARK, until

pytestmark = pytest.mark.node

ROOT = Path(__file__).parents[2]
TWO_SOCKETS = {
    "policy": "packs",
    "topology": {"sockets": ["0", "1"], "oversubscribe": 2},
    **PACKS_OVERRIDES,
}
PROGRAM = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from iodaemon import phase

name = os.environ["IOD_JOB_ID"]
ledger = os.open("ledger", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

def stamp(word):
    os.write(ledger, f"{word} {name} {time.monotonic()}\\n".encode())

stamp("start")
for _ in range(2):
    time.sleep(0.05)
    with phase.turn("8 MiB") as had:
        assert had
        stamp("in")
        with open(f"data-{name}", "wb") as data:
            data.write(os.urandom(8 << 20))
            os.fsync(data.fileno())
        time.sleep(0.05)
        stamp("out")
stamp("end")
"""
CLOCK = "python -S -c 'import time; print(time.monotonic())'"
SCRIPT = f"""
set -e
say() {{ echo "$1 $IOD_JOB_ID $({CLOCK})" >> ledger; }}
say start
$IOD phase io --expect 8M --strict
say in
dd if=/dev/zero of=data-$IOD_JOB_ID bs=1M count=8 conv=fsync 2>/dev/null
say out
$IOD phase done --strict
say end
"""


def specs(place):
    """Eight jobs of two kinds, of which two at a time fit the share of a socket."""
    told = {"cwd": str(place), "cpus": 1, **PACKS_NEEDS}
    program = [sys.executable, "-c", PROGRAM, str(ROOT)]
    script = ["/bin/sh", "-c", SCRIPT.replace("python", sys.executable)]
    return [{**told, "command": command} for command in [program] * 5 + [script] * 3]


def read_ledger(server):
    """By word and job, the times stamped, in order."""
    stamps = {}
    for line in server.ledger.read_text().splitlines():
        word, job, at_s = line.split()
        stamps.setdefault(word, {}).setdefault(int(job), []).append(float(at_s))
    return stamps


def phase_of(server, job):
    return server.job(job)["phase"]


def await_phase(server, job):
    """Wait until the job has told of a phase; False sorts the one that has its turn first."""
    return until(lambda: phase_of(server, job), f"phase of job {job}")["granted_s"] is None


def await_turn(server, job):
    until(lambda: (phase_of(server, job) or {}).get("granted_s"), f"turn of job {job}")


def await_durable_turn(server, job):
    """Wait until the journal on the disk has the job with its turn."""

    def look():
        with contextlib.closing(sqlite3.connect(server.state / "journal.db")) as journal:
            [(record,)] = journal.execute(
                "SELECT record FROM life WHERE job_id = ?", (job,)
            ).fetchall()
        return (json.loads(record).get("phase") or {}).get("granted_s")

    until(look, f"turn of job {job} in the journal")


def test_packs_run_one_after_the_other_and_one_job_at_a_time_does_io(make_server):
    server = make_server(**TWO_SOCKETS).start()
    environment = {
        "IOD": f"{sys.executable} -m iodaemon.cli",
        "PYTHONPATH": str(ROOT),
        MARK: server.mark,
    }
    ids = server.submit_many(specs(server.place), environment)
    ended = [server.end_of(job) for job in ids]
    stamps = read_ledger(server)

    assert [("COMPLETED", 0)] * 8 == [(job["state"], job["exit_code"]) for job in ended]
    phases = sorted(
        span for job in ids for span in zip(stamps["in"][job], stamps["out"][job], strict=True)
    )
    assert len(phases) == 5 * 2 + 3
    for (_, out_s), (in_s, _) in pairwise(phases):
        assert out_s <= in_s, "two jobs were in their I/O at the same time"
    for socket in (0, 1):
        there = [job["id"] for job in ended if job["socket"] == socket]
        assert len(there) == 4
        there.sort(key=lambda job: stamps["start"][job])
        first, second = there[:2], there[2:]
        last_end_s = max(stamps["end"][job][0] for job in first)
        assert last_end_s <= min(stamps["start"][job][0] for job in second)
    assert all(job["phase"] is None for job in ended)


def test_a_job_that_dies_in_its_turn_lets_the_next_one_go_on(make_server):
    server = make_server(**TWO_SOCKETS).start()
    text = f'{sys.executable} -m iodaemon.cli phase io --strict; echo "in $0" >> ledger; sleep 1000'
    environment = {"PYTHONPATH": str(ROOT)}
    first, second = (
        server.submit("/bin/sh", "-c", text, str(number), env=environment) for number in (1, 2)
    )
    holder, waiter = sorted([first, second], key=lambda job: await_phase(server, job))
    server.client.cancel(holder, grace_s=0.0)

    await_turn(server, waiter)


@pytest.mark.slow
def test_a_turn_outlives_the_daemon_and_a_client_asks_the_next_one(make_server):
    server = make_server(**TWO_SOCKETS).start()
    iod = f"{sys.executable} -m iodaemon.cli phase"
    text = f'{iod} io --strict; echo "in $0" >> ledger; while [ ! -e gate-$0 ]; do sleep 0.02; done'
    text += f'; echo "out $0" >> ledger; {iod} done --strict'
    environment = {"PYTHONPATH": str(ROOT)}
    names = ("1", "2")
    jobs = [server.submit("/bin/sh", "-c", text, name, env=environment) for name in names]
    holder, waiter = sorted(jobs, key=lambda job: await_phase(server, job))
    await_durable_turn(server, holder)
    server.kill()
    server.restart()
    await_phase(server, waiter)

    assert server.job(holder)["phase"]["granted_s"] is not None
    assert server.job(waiter)["phase"]["granted_s"] is None
    server.open_gate(*names)
    assert [("COMPLETED", 0)] * 2 == server.outcome(*jobs)
    words = [line.split()[0] for line in server.ledger.read_text().splitlines()]
    assert ["in", "out", "in", "out"] == words
