"""Real jobs that start out of the order in which they came, and what they are told of it."""

import pytest
from harness import direct_reads, until
from process import iod

pytestmark = pytest.mark.node

MB = 1e6
TWO_SLOTS = {"topology": {"sockets": ["0"], "oversubscribe": 2}}


def told(server, *words):
    """What the command line says, on one line."""
    answer = iod(server.runtime / "iod.sock", *words)
    assert answer.returncode == 0, answer.stderr
    return " ".join(answer.stdout.split())


def order(server):
    """The jobs in the order in which their commands began to run."""
    lines = server.ledger.read_text().splitlines()
    return "".join(line.split()[1] for line in lines if line.startswith("start"))


def test_a_queue_of_real_jobs_is_reordered_by_what_they_say_of_their_io(make_server):
    server = make_server(policy="equilibrio", admission={"alpha": 0.7}, **TWO_SLOTS).start()
    first = server.gated("a", cpus=2)
    server.await_state(first, "RUNNING")
    rates = {"b": 0.0, "c": 0.0, "d": 60 * MB, "e": None}
    jobs = {
        name: server.gated(name, **({} if rate is None else {"io_rate_bytes_per_s": rate}))
        for name, rate in rates.items()
    }
    waiting = told(server, "why", str(jobs["d"]))
    assert "PENDING" in waiting
    assert "is number 3 of 4 to start, number 3 by arrival" in waiting
    assert "with alpha 0.7 make" in waiting
    assert f"job {jobs['b']} goes first" in waiting
    assert "needs 1 free CPU" in waiting

    told(server, "cancel", str(first))  # what is cancelled teaches nothing: of e nothing is known
    server.await_state(jobs["d"], "RUNNING")
    server.await_state(jobs["b"], "RUNNING")

    assert ["PENDING", "PENDING"] == server.states(jobs["c"], jobs["e"])
    why = (
        "it takes the mean I/O intensity of the running jobs from 0.0 MB/s to 30.0 MB/s, nearest "
        "to the 20.0 MB/s of all; alpha 0.7; passes 1 earlier job"
    )
    assert f"it was started out of its turn: {why}" in told(server, "why", str(jobs["d"]))
    assert why in told(server, "events", str(jobs["d"]))
    assert "out of its turn" not in told(server, "why", str(jobs["b"]))
    server.open_gate(*rates)
    assert [("COMPLETED", 0)] * 4 == server.outcome(*jobs.values())
    until(lambda: len(order(server)) == 5)
    assert order(server).startswith(("abd", "adb"))  # those two start at once
    assert {"c", "e"} == set(order(server)[3:])


def test_a_short_job_starts_beside_a_head_that_is_not_later_for_it(make_server):
    server = make_server(policy="easy", **TWO_SLOTS).start()
    walltime_s = 240.0
    long = server.gated("long", walltime_s=walltime_s)
    server.await_state(long, "RUNNING")
    head = server.gated("head", cpus=2)
    endless = server.gated("endless")
    short = server.gated("short", walltime_s=100.0)
    server.await_state(short, "RUNNING")

    assert ["PENDING", "PENDING"] == server.states(head, endless)
    of_head = told(server, "why", str(head))
    assert "needs 2 free CPUs on one socket; most free now: 0" in of_head
    assert "at the latest, by the walltimes of those that run" in of_head
    assert f"waits behind job {head}, which waits for 2 CPUs, promised in" in told(
        server, "why", str(endless)
    )
    why = told(server, "why", str(short))
    assert f"it was started out of its turn: fits beside job {head}, which waits for 2 CPUs" in why
    assert "ends in 100 s at the latest; passes 2 earlier jobs" in why
    assert "ends in 100 s at the latest; passes 2 earlier jobs" in told(
        server, "events", str(short)
    )
    server.open_gate("short", "long")
    began_s = server.await_state(head, "RUNNING")["started_s"]
    assert began_s <= server.job(long)["started_s"] + walltime_s
    assert ["PENDING"] == server.states(endless)
    server.open_gate("head", "endless")
    assert [("COMPLETED", 0)] * 4 == server.outcome(long, head, endless, short)


def test_a_job_waits_for_bandwidth_that_another_declared(make_server):
    server = make_server(policy="io-budget", admission={"bandwidth": "100 MB/s"}, **TWO_SLOTS)
    server.start()
    first = server.gated("first", io_rate_bytes_per_s=80 * MB)
    server.await_state(first, "RUNNING")
    second = server.gated("second", io_rate_bytes_per_s=40 * MB)
    silent = server.gated("silent")
    computes = server.gated("computes", io_rate_bytes_per_s=0.0)

    assert ["PENDING", "PENDING"] == server.states(second, silent)
    why = "would add 40.0 MB/s to the 80.0 MB/s that running jobs do, of 100.0 MB/s budgeted"
    assert why in told(server, "why", str(second))
    assert f"waits behind job {second}, which waits for the storage" in told(
        server, "why", str(silent)
    )
    server.open_gate("first")
    server.await_state(second, "RUNNING")
    server.open_gate("second", "silent", "computes")
    assert [("COMPLETED", 0)] * 4 == server.outcome(first, second, silent, computes)


def test_a_job_that_is_known_to_do_io_waits_while_regulation_holds_another(make_server):
    server = make_server(
        policy="equilibrio",
        regulation={"io_bound": "4 MB/s", "timeslice": "250 ms"},
        topology={"sockets": ["0"], "oversubscribe": 4},
    ).start()
    step = direct_reads(server.root)
    readers = [server.gated(name, step=step) for name in ("r1", "r2")]
    until(lambda: "SUSPENDED_IO" in server.states(*readers))
    # neither next to nothing beside what a reader moves here (up to 20 GB/s) nor much more than it
    known = server.gated("known", io_rate_bytes_per_s=200 * MB)
    computes = server.gated("computes", io_rate_bytes_per_s=0.0)
    server.await_state(computes, "RUNNING")

    assert ["PENDING"] == server.states(known)
    why = "would add 200.0 MB/s of I/O; regulation leaves room for none now"
    assert why in told(server, "why", str(known))
    assert "regulation leaves room" in told(server, "queue")
    server.open_gate("r1", "r2")
    server.await_state(known, "RUNNING")
    server.open_gate("known", "computes")
    assert [("COMPLETED", 0)] * 4 == server.outcome(*readers, known, computes)
