"""Real jobs under the shipped policies ``packs`` and ``exclusive``, by their own clocks."""

import sys
from itertools import pairwise
from pathlib import Path

import pytest
from builders import PACKS_NEEDS, PACKS_OVERRIDES
from harness import MARK, direct_reads, until

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


DIRECT_WRITES = "dd if=/dev/zero of=written bs=1M count=8 oflag=direct conv=notrunc 2>/dev/null"


# -- jobs that tell nothing ------------------------------------------------------------------------


def test_one_silent_job_stands_still_until_the_other_falls_quiet_or_ends(make_server):
    """One reads and one writes, past the page cache. Who is heavy is known after half a second."""
    quick = {"timeslice": "0.2 s", "heavy": "1 MB/s", "quiet_slices": 5}
    server = make_server(policy="exclusive", regulation=quick).start()
    does = {"reads": direct_reads(server.root, 16), "writes": DIRECT_WRITES}
    names = {
        server.gated(name, step=f"if [ -e quiet-{name} ]; then sleep 0.02; else {step}; fi"): name
        for name, step in does.items()
    }

    def find_held():
        return next((job for job in names if server.job(job)["state"] == "SUSPENDED_IO"), None)

    waiter = until(find_held, "suspension of one of two heavy jobs")
    [holder] = names.keys() - {waiter}
    reason = server.job(waiter)["reason"]
    assert ("IoTurn", True) == (reason["code"], reason["text"].endswith(f"job {holder} has it"))
    assert "MB/s out of its turn" in reason["text"]

    (server.place / f"quiet-{names[holder]}").touch()
    server.await_state(waiter, "RUNNING")
    server.goes_on(names[waiter])
    (server.place / f"quiet-{names[holder]}").unlink()
    server.await_state(holder, "SUSPENDED_IO")
    server.goes_on(names[waiter])
    assert server.stands_still(names[holder])
    server.open_gate(*names.values())
    assert [("COMPLETED", 0)] * 2 == server.outcome(waiter, holder)
