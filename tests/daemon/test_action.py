"""Acting on many jobs in one request, and which jobs a selector means to whom."""

import asyncio
import json
import os
import pwd
import shutil
import tempfile
from pathlib import Path

import pytest
from process import await_read
from served import Served
from test_attacks import ROOT_ONLY, SHARED
from test_attacks_of_many import as_number

from iodaemon.api.care import begin_drain
from iodaemon.api.shape import Selector
from iodaemon.core import event as ev
from iodaemon.core.job import JobId
from iodaemon.core.limits import Sharing
from iodaemon.daemon.http.access import Actor, Rights
from iodaemon.errors import Conflict, NotFound, RequestError

OTHER = pwd.getpwnam("games").pw_uid


@pytest.fixture
def served(tmp_path):
    served = Served(tmp_path)
    yield served
    served.close()


@pytest.fixture
def public():
    """One that other users reach."""
    path = Path(tempfile.mkdtemp(prefix="iod-"))
    path.chmod(0o755)
    served = Served(path, rights=SHARED)
    os.chmod(served.socket_path, 0o666)
    yield served
    served.close()
    shutil.rmtree(path)


def outcomes(served, verb, selector, **options):
    """By id: the state of a job that was acted on, else the error."""
    told = served.client.act(verb, selector, **options)
    return {i: each if isinstance(each, Exception) else each["job"]["state"] for i, each in told}


def act(served, verb, **body):
    return served.ask("POST", f"/v1/jobs/{verb}", json.dumps(body).encode())


def held(served, count, **fields):
    spec = {"command": ["job", "exit=0"], "hold": True, **fields}
    return served.client.submit([spec] * count, {"A": "1"})


# -- many in one request -----------------------------------------------------------------------


@pytest.mark.slow
def test_a_thousand_jobs_are_cancelled_by_one_request_in_a_few_commits(served):
    ids = held(served, 2000)
    before = served.journal.commits
    told = served.client.act("cancel", Selector(f"{ids[0]}-{ids[-1]}"))

    assert ids == [job_id for job_id, _ in told]
    assert all(answer["gone"] for _, answer in told)
    assert served.journal.commits - before < 20


def test_each_job_is_answered_by_itself(served):
    ended, running = served.ended(), served.running()
    told = outcomes(served, "cancel", Selector(f"{ended},{running},999"))

    assert [ended, running, 999] == list(told)
    assert "CANCELLED" == told[running]
    assert isinstance(told[ended], Conflict)
    assert isinstance(told[999], NotFound)


def test_a_range_means_the_jobs_on_which_the_verb_can_act(served):
    ended, running, waiting = served.ended(), served.running(), *held(served, 1)

    assert {running: "SUSPENDED_USER", waiting: "HELD"} == outcomes(
        served, "suspend", Selector("1-99")
    )
    assert {running: "RUNNING"} == outcomes(served, "resume", Selector(str(running)))
    assert [ended, running, waiting] == list(outcomes(served, "requeue", Selector("1-99")))


def test_failed_jobs_are_requeued_by_their_state_and_name(served):
    failed = served.ended("exit=3", name="sim-1")
    served.ended("exit=3", name="other")
    served.ended(name="sim-2")

    told = outcomes(served, "requeue", Selector(name="sim-*", states=("f",)))

    assert [failed] == list(told)
    assert 2 == served.client.job(failed)["attempt"] or served.client.wait([failed])["finished"]


def test_a_request_that_names_no_job_acts_on_none(served):
    running = served.running()

    for verb in ("cancel", "requeue", "suspend", "resume", "scratch/remove"):
        for body in ({}, {"select": ""}, {"state": []}, {"user": "", "name": ""}):
            assert (400, "refused") == act(served, verb, **body).error[:2]
    assert 400 == act(served, "cancel", select="1", no_such=1).status
    assert 400 == act(served, "suspend", select="1", grace_s=1).status
    assert 400 == act(served, "cancel", state=["GONE"]).status
    assert 404 == act(served, "cancel", user="no-such-user").status
    assert "RUNNING" == served.state.jobs[JobId(running)].state


def test_requeues_above_a_limit_are_refused_one_by_one(tmp_path):
    served = Served(tmp_path, sharing=Sharing(max_queued=2))
    try:
        ids = [served.ended("exit=1") for _ in range(4)]
        begin_drain(served.client)
        told = served.client.act("requeue", Selector(f"{ids[0]}-{ids[-1]}"))
    finally:
        served.close()

    assert ids == [job_id for job_id, _ in told]
    assert [False, False, True, True] == [isinstance(each, RequestError) for _, each in told]


# -- whose jobs ---------------------------------------------------------------------------------


def as_other(served, method, target, **body):
    data = json.dumps(body).encode() if body else b""
    status, text = as_number(served, OTHER, method, target, data)
    return status, json.loads(text)


@ROOT_ONLY
def test_last_is_the_callers_own_newest_job(public):
    status, theirs = as_other(public, "POST", "/v1/jobs", jobs=[{"command": ["x"]}])
    assert 201 == status
    mine = public.running()

    listed = as_other(public, "GET", "/v1/jobs?select=last")[1]["jobs"]
    cancelled = as_other(public, "POST", "/v1/jobs/cancel", select="last")[1]["results"]

    assert theirs["ids"] == [job["id"] for job in listed]
    assert theirs["ids"] == [row["id"] for row in cancelled]
    assert [mine] == [job["id"] for job in public.client.jobs(select="last")["jobs"]]
    by_name = public.client.jobs(select="last", user="games")["jobs"]
    assert theirs["ids"] == [job["id"] for job in by_name]
    assert "RUNNING" == public.state.jobs[JobId(mine)].state


@ROOT_ONLY
def test_last_is_found_where_only_the_journal_knows_it(public):
    mine = public.ended()
    public.call(lambda: public.state.jobs.pop(JobId(mine)))
    as_other(public, "POST", "/v1/jobs", jobs=[{"command": ["x"], "hold": True}])

    assert [mine] == [job["id"] for job in public.client.jobs(select="last")["jobs"]]
    ended = public.ask("GET", "/v1/history?select=last").json["jobs"]
    assert [mine] == [job["id"] for job in ended]
    assert [] == as_other(public, "GET", "/v1/history?select=last")[1]["jobs"]


@ROOT_ONLY
def test_without_ids_a_user_means_the_own_jobs(public):
    mine = public.running()
    theirs = as_other(public, "POST", "/v1/jobs", jobs=[{"command": ["x"], "hold": True}])[1]["ids"]

    for body in ({"select": "all"}, {"state": ["RUNNING", "HELD"]}, {"name": "*"}):
        rows = as_other(public, "POST", "/v1/jobs/suspend", **body)[1]["results"]
        assert theirs == [row["id"] for row in rows]
    [row] = as_other(public, "POST", "/v1/jobs/cancel", select="all", user="root")[1]["results"]
    assert (mine, "not_permitted") == (row["id"], row["error"]["code"])
    [row] = as_other(public, "POST", "/v1/jobs/cancel", select=str(mine))[1]["results"]
    assert (mine, "not_permitted") == (row["id"], row["error"]["code"])
    assert "RUNNING" == public.state.jobs[JobId(mine)].state


def test_who_may_is_asked_again_when_the_body_is_there(tmp_path, monkeypatch):
    """Meanwhile an administrator may have suspended the job, which its user may not undo."""
    ann = Actor(pid=1, uid=1001, gids=frozenset({1001}))
    monkeypatch.setattr("iodaemon.daemon.http.access.read_peer", lambda _: ann)
    served = Served(tmp_path, rights=Rights(owner_uid=4242, is_shared=True))
    served.context.access.refuse_stranger = lambda *_: asyncio.sleep(0)
    try:
        job_id = served.running()
        served.client.suspend(job_id)
        connection = served.raw()
        head = f"POST /v1/jobs/{job_id}/resume HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n"
        connection.sendall(f"{head}Connection: close\r\n\r\n".encode())
        await_read(connection)
        now_s = served.driver.timeline.now_s
        event = ev.SuspendRequested(at_s=now_s, job_id=JobId(job_id), by="root", by_uid=0)
        served.call(lambda: served.driver.post(event))
        served.until(lambda: served.state.jobs[JobId(job_id)].held_by_uid == 0)
        connection.sendall(b"{}")
        told = connection.makefile("rb").read()
        connection.close()

        assert b"403" in told.splitlines()[0]
        assert b"an administrator suspended it" in told
    finally:
        served.close()
