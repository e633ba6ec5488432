"""Real jobs under the shipped policy ``exclusive``: those that tell nothing, and who is next."""

import contextlib
import sys
from pathlib import Path

import pytest
from harness import Server, direct_reads, until

pytestmark = pytest.mark.node

ROOT = Path(__file__).parents[2]
QUICK = {"timeslice": "0.2 s", "heavy": "1 MB/s"}
"""Of the policy file: who is heavy is known after half a second."""
DIRECT_WRITES = "dd if=/dev/zero of=written bs=1M count=8 oflag=direct conv=notrunc 2>/dev/null"
QUIET_SLICES = 5
"""A silent job whose turn is to end falls quiet for one second."""
NEVER_QUIET = 10**6
"""However long a slow disk gives a silent job nothing, that leaves it its turn."""


def exclusive(**regulation):
    return {"policy": "exclusive", "regulation": {**QUICK, **regulation}}


# -- jobs that tell nothing ------------------------------------------------------------------------


@pytest.fixture
def silent(make_server, request):
    """One job that reads and one that writes, past the page cache; who has the turn, who stands."""
    server = make_server(**exclusive(quiet_slices=request.param)).start()
    does = {"reads": direct_reads(server.root, 16), "writes": DIRECT_WRITES}
    holder, waiter = (
        server.gated(name, step=f"if [ -e quiet-{name} ]; then sleep 0.02; else {step}; fi")
        for name, step in does.items()
    )
    suspended = until(
        lambda: next((j for j in (holder, waiter) if is_suspended(server, j)), None),
        "suspension of one of two heavy jobs",
    )
    names = {holder: "reads", waiter: "writes"}
    other = holder if suspended == waiter else waiter
    return server, (other, names[other]), (suspended, names[suspended])


def is_suspended(server, job):
    return server.job(job)["state"] == "SUSPENDED_IO"


@pytest.mark.parametrize("silent", [NEVER_QUIET], indirect=True)
def test_one_silent_job_stands_still_until_the_other_ends(silent):
    server, (holder, holds), (waiter, waits) = silent
    reason = server.job(waiter)["reason"]
    server.goes_on(holds)

    assert server.stands_still(waits)
    assert "IoTurn" == reason["code"]
    assert "MB/s out of its turn" in reason["text"]
    assert reason["text"].endswith(f"job {holder} has it")
    server.open_gate(holds)
    assert [("COMPLETED", 0)] == server.outcome(holder)
    server.await_state(waiter, "RUNNING")
    server.goes_on(waits)
    server.open_gate(waits)
    assert [("COMPLETED", 0)] == server.outcome(waiter)


@pytest.mark.parametrize("silent", [QUIET_SLICES], indirect=True)
def test_a_silent_job_that_falls_quiet_loses_the_turn_and_stands_still_when_it_reads_again(silent):
    server, (holder, holds), (waiter, waits) = silent
    (server.place / f"quiet-{holds}").touch()
    server.await_state(waiter, "RUNNING")
    server.goes_on(waits)

    assert ["RUNNING", "RUNNING"] == server.states(holder, waiter)
    (server.place / f"quiet-{holds}").unlink()
    server.await_state(holder, "SUSPENDED_IO")
    server.goes_on(waits)
    assert server.stands_still(holds)
    server.open_gate(holds, waits)
    assert [("COMPLETED", 0)] * 2 == server.outcome(waiter, holder)


# -- jobs that tell --------------------------------------------------------------------------------


ASK = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from iodaemon import phase

name, expect = sys.argv[2], int(sys.argv[3])

def await_file(path):
    while not os.path.exists(path):
        time.sleep(0.02)

await_file(f"ask-{name}")
assert phase.io(expect)
with open(f"data-{name}", "wb") as data:
    while True:
        data.write(os.urandom(expect))
        os.fsync(data.fileno())
        data.seek(0)
        if len(sys.argv) == 4 or os.path.exists(f"idle-{name}"):
            break
os.write(os.open("ledger", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), f"{name}\\n".encode())
await_file(f"gate-{name}")
if len(sys.argv) == 4:
    phase.done()
"""
KEEPS_IT = "does not give it back, and does I/O until it is to be idle"


def asker(server, name, megabytes, *further):
    size = str(megabytes << 20)
    return server.submit(sys.executable, "-S", "-c", ASK, str(ROOT), name, size, *further)


def ask(server, name, job):
    """Let the job ask for its turn; what the daemon knows of it."""
    (server.place / f"ask-{name}").touch()
    return until(lambda: server.job(job)["phase"], f"phase of job {job}")


@pytest.fixture
def make_teller():
    """Makes servers; nobody is suspended on them, so by what means it would be is all the same."""
    with contextlib.ExitStack() as servers:
        yield lambda **rule: servers.enter_context(Server("auto", **exclusive(**rule))).start()


def test_a_job_that_told_of_its_io_and_does_none_loses_the_turn(make_teller):
    server = make_teller(idle="1 s")
    holder, waiter = (asker(server, name, 1, KEEPS_IT) for name in ("holds", "waits"))
    ask(server, "holds", holder)
    until((server.place / "data-holds").exists, "I/O of the first job")
    waits_behind = ask(server, "waits", waiter)["granted_s"] is None
    for name in ("holds", "waits"):
        (server.place / f"idle-{name}").touch()
    until(lambda: ["holds", "waits"] == server.lines(), "I/O of the second job")

    assert waits_behind
    assert "RUNNING" == server.job(holder)["state"]
    assert server.job(holder)["phase"] is None
    server.open_gate("holds", "waits")
    assert [("COMPLETED", 0)] * 2 == server.outcome(holder, waiter)


@pytest.mark.parametrize(("order", "turns"), [("fifo", "bca"), ("shortest_io", "cab")])
def test_turns_come_in_the_order_of_the_policy(make_teller, order, turns):
    """While x has it they ask in the order b, c, a; a expects 2 MiB, b 3 and c 1."""
    server = make_teller(order=order)
    sizes = {"x": 1, "a": 2, "b": 3, "c": 1}
    jobs = {name: asker(server, name, size) for name, size in sizes.items()}
    ask(server, "x", jobs["x"])
    until(lambda: ["x"] == server.lines(), "turn of the first job")
    waiting = [ask(server, name, jobs[name])["granted_s"] is None for name in "bca"]
    server.open_gate(*jobs)
    ended = server.outcome(*jobs.values())

    assert [True] * 3 == waiting
    assert [("COMPLETED", 0)] * 4 == ended
    assert f"x{turns}" == "".join(server.ledger.read_text().split())
