"""Real jobs that share the cores of their socket, and others that have some for their own."""

import os

import pytest
from process import iod

pytestmark = pytest.mark.node


def topology(oversubscribe):
    cpus = sorted(os.sched_getaffinity(0))[:2]
    if len(cpus) < 2:
        pytest.skip("needs two CPUs")
    return {"sockets": [",".join(map(str, cpus))], "oversubscribe": oversubscribe}


def affinity(server, job):
    return sorted(os.sched_getaffinity(server.main_pid(job)))


def told(server, *words):
    answer = iod(server.runtime / "iod.sock", *words)
    assert answer.returncode == 0, answer.stderr
    return " ".join(answer.stdout.split())


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


@pytest.mark.parametrize(("before", "after"), [("auto", 1)])
def test_jobs_outlive_a_change_between_two_daemons(make_server, before, after):
    server = make_server(topology=topology(before)).start()
    jobs = [server.gated("own", cpus=1), server.gated("shared", shares_cores=True)]
    for job, name in zip(jobs, ("own", "shared"), strict=True):
        server.await_state(job, "RUNNING")
        server.goes_on(name)
    server.stop()
    text = server.config.read_text()
    written = '"auto"' if after == "auto" else str(after)
    old = '"auto"' if before == "auto" else str(before)
    server.config.write_text(text.replace(f"oversubscribe = {old}", f"oversubscribe = {written}"))
    server.restart()

    assert ["RUNNING", "RUNNING"] == server.states(*jobs)
    server.open_gate("own", "shared")
    assert [("COMPLETED", 0)] * 2 == server.outcome(*jobs)
    after_it = server.gated("after", shares_cores=True)
    server.open_gate("after")
    assert [("COMPLETED", 0)] == server.outcome(after_it)
