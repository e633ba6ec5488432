"""The machine goes down with jobs on it: none is silently gone, each is lost or run again."""

import pytest


@pytest.mark.parametrize("how", ["reboot", "cut_power"])
def test_every_job_is_accounted_for_after(service, how):
    running = service.submit("sleep 3000")
    held = service.submit("sleep 3000", user="bob")
    again = service.submit("sleep 3000", user="bob", requeue=True)
    waiting = service.submit("true", hold=True)
    for job in (running, held, again):
        service.await_state(job, "RUNNING")
    service.ask("POST", f"/v1/jobs/{held}/suspend", {}, user="bob")
    service.await_state(held, "SUSPENDED_USER")
    _, done = service.run("exit 4")

    getattr(service.machine, how)()
    service.await_ready()

    assert ["LOST", "LOST"] == [service.show(job)["state"] for job in (running, held)]
    assert 2 == service.await_state(again, "RUNNING")["attempt"]
    assert "HELD" == service.show(waiting)["state"]
    kept = service.show(done["id"])
    assert ("FAILED", 4) == (kept["state"], kept["exit_code"])
    assert [] == service.frozen()
