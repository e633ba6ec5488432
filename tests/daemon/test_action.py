"""Which jobs a request means to whom: acting on many, and ``iod wait all``."""

import asyncio
import contextlib
import json
import time

import pytest
from process import await_read
from served import ANOTHER, ROOT_ONLY, SHARED, Served, as_user

from iodaemon.api.care import begin_drain
from iodaemon.api.shape import Selector
from iodaemon.cli import main
from iodaemon.core import event as ev
from iodaemon.core.job import JobId
from iodaemon.core.limits import Sharing
from iodaemon.daemon.http.access import Actor
from iodaemon.daemon.http.context import LONGEST_BACK_S, WaitMarks
from iodaemon.daemon.http.selector import Ids
from iodaemon.errors import Conflict, NotFound, RequestError

HELD = {"command": ["job", "exit=0"], "hold": True}

# -- selectors -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7", [7]),
        ("3-5", [3, 4, 5]),
        ("1,4", [1, 4]),
        ("1, 4-5 ,last", [1, 4, 5, 9]),
        ("last", [9]),
        ("all", list(range(1, 13))),
        ("5-3", []),
        ("0", []),
        ("999999999999999999", []),
        ("11-999999999999999999", [11, 12]),
    ],
)
def test_a_selector_chooses(text, expected):
    ids = Ids(text, 9)

    assert expected == [job_id for job_id in range(1, 13) if job_id in ids]


@pytest.mark.parametrize(
    "text", [",", "a", "-1", "1-", "1--2", "1.5", "all,1", "last-1", "1\0", "9" * 19, "1 2"]
)
def test_what_is_no_selector_is_refused_with_what_to_write(text):
    with pytest.raises(RequestError, match=r"selects no jobs; write 7, 3-9, 1,4, last or all$"):
        Ids(text, 9)


# -- many in one request -----------------------------------------------------------------------


def outcomes(served, verb, selector, **options):
    """By id: the state of a job that was acted on, else the error."""
    told = served.client.act(verb, selector, **options)
    return {i: each if isinstance(each, Exception) else each["job"]["state"] for i, each in told}


def test_each_job_is_answered_by_itself(served):
    ended, running = served.ended(), served.running()
    told = outcomes(served, "cancel", Selector(f"{ended},{running},999"))

    assert [ended, running, 999] == list(told)
    assert "CANCELLED" == told[running]
    assert isinstance(told[ended], Conflict)
    assert isinstance(told[999], NotFound)
    running = served.running()
    assert isinstance(outcomes(served, "resume", Selector(f"{running},999"))[running], Conflict)


def test_a_range_means_the_jobs_on_which_the_verb_can_act(served):
    ended, running, waiting = served.ended(), served.running(), *served.client.submit([HELD], {})
    failed = served.ended("exit=3", name="sim-1")
    served.ended("exit=3", name="other")

    assert {running: "SUSPENDED_USER", waiting: "HELD"} == outcomes(
        served, "suspend", Selector("1-99")
    )
    assert {running: "RUNNING"} == outcomes(served, "resume", Selector(str(running)))
    chosen = Selector(name="sim-*", states=("f",))
    assert [failed] == list(outcomes(served, "requeue", chosen))
    served.client.wait([failed])
    every = list(outcomes(served, "requeue", Selector("1-99")))
    assert [ended, running, waiting, failed, failed + 1] == every


def test_a_request_that_names_no_job_acts_on_none(served):
    running = served.running()

    def act(verb, **body):
        return served.ask("POST", f"/v1/jobs/{verb}", json.dumps(body).encode()).error[0]

    for verb in ("cancel", "requeue", "suspend", "resume", "scratch/remove"):
        for body in ({}, {"select": ""}, {"state": []}, {"user": "", "name": ""}):
            assert 400 == act(verb, **body)
    assert 400 == act("cancel", select="1", no_such=1)
    assert 400 == act("suspend", select="1", grace_s=1)
    assert 400 == act("cancel", state=["GONE"])
    assert 404 == act("cancel", user="no-such-user")
    assert "RUNNING" == served.state.jobs[JobId(running)].state


def test_requeues_above_a_limit_are_refused_one_by_one(serve):
    served = serve(sharing=Sharing(max_queued=2))
    ids = [served.ended("exit=1") for _ in range(4)]
    begin_drain(served.client)
    told = served.client.act("requeue", Selector(f"{ids[0]}-{ids[-1]}"))

    assert ids == [job_id for job_id, _ in told]
    assert [False, False, True, True] == [isinstance(each, RequestError) for _, each in told]


# -- whose jobs ---------------------------------------------------------------------------------


def ids_of(answer, key="jobs"):
    return [row["id"] for row in answer[key]]


def as_other(served, method, target, **body):
    answer = as_user(served, ANOTHER, method, target, body or None)
    assert answer.status < 300
    return answer.json


def theirs_on(served):
    return as_other(served, "POST", "/v1/jobs", jobs=[HELD])["ids"]


@ROOT_ONLY
def test_last_is_the_callers_own_newest_job(for_all):
    public = for_all()
    theirs, mine = theirs_on(public), public.running()

    assert theirs == ids_of(as_other(public, "GET", "/v1/jobs?select=last"))
    assert theirs == ids_of(as_other(public, "POST", "/v1/jobs/cancel", select="last"), "results")
    assert [mine] == ids_of(public.client.jobs(select="last"))
    assert theirs == ids_of(public.client.jobs(select="last", user="games"))
    assert "RUNNING" == public.state.jobs[JobId(mine)].state


@ROOT_ONLY
def test_last_is_found_where_only_the_journal_knows_it(for_all):
    public = for_all()
    mine = public.ended()
    public.call(lambda: public.state.jobs.pop(JobId(mine)))
    theirs_on(public)

    assert [mine] == ids_of(public.client.jobs(select="last"))
    assert [mine] == ids_of(public.ask("GET", "/v1/history?select=last").json)
    assert [] == ids_of(as_other(public, "GET", "/v1/history?select=last"))


@ROOT_ONLY
def test_without_ids_a_user_means_the_own_jobs(for_all):
    public = for_all()
    mine, theirs = public.running(), theirs_on(public)

    for body in ({"select": "all"}, {"state": ["RUNNING", "HELD"]}, {"name": "*"}):
        assert theirs == ids_of(as_other(public, "POST", "/v1/jobs/suspend", **body), "results")
    for body in ({"select": "all", "user": "root"}, {"select": str(mine)}):
        [row] = as_other(public, "POST", "/v1/jobs/cancel", **body)["results"]
        assert (mine, "not_permitted") == (row["id"], row["error"]["code"])
    assert "RUNNING" == public.state.jobs[JobId(mine)].state


def test_who_may_is_asked_again_when_the_body_is_there(tmp_path, monkeypatch):
    """Meanwhile an administrator may have suspended the job, which its user may not undo."""
    ann = Actor(pid=1, uid=1001, gids=frozenset({1001}))
    monkeypatch.setattr("iodaemon.daemon.http.access.read_peer", lambda _: ann)
    with contextlib.closing(Served(tmp_path, rights=SHARED)) as served:
        served.context.access.refuse_stranger = lambda *_: asyncio.sleep(0)
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


ANN, BOB = 1000, 1001


def wait_all(served, *words):
    return main(["--api", served.socket_path, "wait", "all", *words])


# -- the command ---------------------------------------------------------------------------------


def test_a_failure_is_counted_and_told_once_whenever_it_came(served, capsys):
    failed = served.ended("exit=3")
    served.ended("exit=0")

    assert 3 == wait_all(served)
    assert f"job {failed} FAILED" in capsys.readouterr().err
    assert 0 == wait_all(served)
    served.submit("compute=0.3s", "exit=4")  # it ends while it is waited for
    assert [4, 0] == [wait_all(served), wait_all(served)]
    served.client.requeue(failed)
    assert served.client.wait([failed], timeout_s=20)["finished"]
    assert 3 == wait_all(served)


def test_a_wait_for_some_leaves_the_mark(served):
    served.ended("exit=3", name="sim-1")
    served.ended("exit=5", name="other")

    assert 3 == main(["--api", served.socket_path, "wait", "-J", "sim-*"])
    assert 5 == wait_all(served, "--since", "1h")
    assert 5 == wait_all(served)
    assert 0 == wait_all(served)
    assert 5 == wait_all(served, "--since", "1h")


def test_an_age_is_judged_by_the_clock_of_the_daemon(tmp_path, monkeypatch, capsys):
    """Which a suspended machine, or one whose clock was set, has left behind."""
    wall = time.time
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: wall() - 3 * 3600.0)
        behind = Served(tmp_path)
    with contextlib.closing(behind):
        behind.ended("exit=3")

        assert 3 == wait_all(behind, "--since", "1h")
        for verb, shown in (("history", "exit=3"), ("events", "exit code 3")):
            capsys.readouterr()
            assert 0 == main(["--api", behind.socket_path, verb, "--since", "1h"])
            assert shown in capsys.readouterr().out


# -- the marks -----------------------------------------------------------------------------------


def test_each_session_has_its_mark_and_others_go_by_their_users_last_wait():
    marks = WaitMarks()
    marks.submitted(ANN, 7, 100.0)
    marks.submitted(ANN, 7, 105.0)
    marks.submitted(ANN, 8, 110.0)
    marks.told(ANN, 8, 120.0)
    marks.told(BOB, 9, 125.0)

    asked = [(ANN, 7, 130.0), (ANN, 8, 130.0), (ANN, 10, 130.0), (BOB, 10, 1e6)]
    assert [100.0, 120.0, 120.0, 1e6 - LONGEST_BACK_S] == [marks.since_s(*each) for each in asked]
    assert 1e6 - LONGEST_BACK_S == WaitMarks().since_s(ANN, 10, 1e6)


def test_marks_are_bounded():
    marks = WaitMarks()
    for session in range(30_000):
        marks.submitted(ANN, session, float(session))

    assert len(marks._marks) <= 10_000
