"""Real jobs that share the cores of their socket, or take turns to read and write."""

import os

import pytest
from harness import direct_reads, until
from process import iod

pytestmark = pytest.mark.node


def told(server, *words):
    """What the command line says, on one line."""
    answer = iod(server.runtime / "iod.sock", *words)
    assert answer.returncode == 0, answer.stderr
    return " ".join(answer.stdout.split())


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
