"""Records in job directories that cannot be read: no job runs twice, none is out of reach."""

import pytest
from harness import until

pytestmark = pytest.mark.node


def start(server, name):
    job = server.gated(name, code=3)
    server.await_state(job, "RUNNING")
    server.goes_on(name)
    return job


def damage(server, job, name):
    server.directory(job).joinpath(name).write_text("{}\n")


def test_a_running_job_whose_shim_record_cannot_be_read_is_not_started_again(server):
    job = start(server, "it")
    damage(server, job, "shim.json")
    server.kill_both()
    server.restart()
    found = server.await_state(job, "RUNNING")
    pids = server.job(job)["pids"]
    answer = server.client.cancel(job, grace_s=5.0)

    assert 1 == found["attempt"]
    assert pids
    assert ["start it"] == server.lines()
    assert "CANCELLED" == answer["job"]["state"]


@pytest.mark.slow
def test_a_suspended_job_whose_shim_record_cannot_be_read_is_resumed(server):
    job = start(server, "it")
    server.suspend(job)
    server.await_state(job, "SUSPENDED_USER")
    damage(server, job, "shim.json")
    server.kill_both()
    server.restart()
    server.await_state(job, "SUSPENDED_USER")
    server.client.resume(job)
    server.goes_on("it")
    server.open_gate("it")

    assert [("FAILED", 3)] == server.outcome(job)
    assert ["done it", "start it"] == server.lines()


@pytest.mark.slow
def test_an_ended_job_whose_status_cannot_be_read_is_lost_and_its_file_is_named(server):
    job, other = start(server, "it"), start(server, "other")
    server.kill()
    server.open_gate("it")
    until(lambda: not server.stands_still("other") and server.stands_still("it"), "its end")
    status = server.directory(job) / "status.json"
    until(status.exists, "its status")
    damage(server, job, "status.json")
    server.restart()
    found = server.end_of(job)
    server.open_gate("other")

    assert "LOST" == found["state"]
    assert str(status) in found["reason"]["text"]
    assert [("FAILED", 3)] == server.outcome(other)


@pytest.mark.slow
def test_a_status_that_cannot_be_read_ends_no_running_job(server):
    job = start(server, "it")
    damage(server, job, "status.json")
    server.kill_both()
    server.restart()
    server.await_state(job, "RUNNING")
    server.goes_on("it")
    server.open_gate("it")

    assert [("FAILED", 3)] == server.outcome(job)
    assert ["done it", "start it"] == server.lines()
