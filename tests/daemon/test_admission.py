"""Real jobs that start out of turn or share cores, and what they are told of it."""

import os

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


def topology(oversubscribe):
    cpus = sorted(os.sched_getaffinity(0))[:2]
    if len(cpus) < 2:
        pytest.skip("needs two CPUs")
    return {"sockets": [",".join(map(str, cpus))], "oversubscribe": oversubscribe}


def affinity(server, job):
    return sorted(os.sched_getaffinity(server.main_pid(job)))


def test_jobs_that_ask_for_no_cpus_run_on_all_of_their_socket(make_server):
    layout = topology("auto")
    cpus = [int(cpu) for cpu in layout["sockets"][0].split(",")]
    server = make_server(topology=layout).start()
    own, shared = server.gated("own", cpus=1), server.gated("shared", shares_cores=True)
    late = server.gated("late", shares_cores=True)
    for job in (own, shared):
        server.await_state(job, "RUNNING")
        server.goes_on("own" if job == own else "shared")

    assert (cpus[:1], cpus) == (affinity(server, own), affinity(server, shared))
    why = told(server, "why", str(late))
    assert "all 2 cores of the socket are busy or taken" in why
    assert "Slots" in told(server, "queue", "--json")
    [socket] = server.client.node()["sockets"]
    assert (2, 0) == (socket["slots"], socket["slots_free"])
    assert (1, 1, 0) == tuple(
        socket[key] for key in ("cores_taken", "jobs_sharing", "more_than_cores")
    )
    server.open_gate("own", "shared", "late")
    assert [("COMPLETED", 0)] * 3 == server.outcome(own, shared, late)
