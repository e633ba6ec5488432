"""``iod wait``: the code it returns, and what it tells of jobs that only a person lets go on."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest
from fake_daemon import job, reason

from iodaemon.api import client
from iodaemon.api.client import Client
from iodaemon.errors import NoDaemon

BY_ANN = "suspended by ann; 'iod resume 1' lets it go"
HELD = reason("suspended by ann", "Suspended", cure="'iod resume 1'")


def nothing():
    """Nothing is done."""


# -- the code --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("1",), 0, ""),
        (
            ("1", "2,3"),
            137,
            "iod: job 2 FAILED: exit code 5\niod: job 3 FAILED: signal 9 (SIGKILL)\n",
        ),
        (("2",), 5, "iod: job 2 FAILED: exit code 5\n"),
        (("1-2",), 5, "iod: job 2 FAILED: exit code 5\n"),
        (("4",), 124, None),
        (("last",), 1, None),  # an unknown end is no success
        (("all",), 0, None),
    ],
)
def test_wait_returns_the_highest_code_and_names_who_failed(iod, daemon, words, code, told):
    if words != ("all",):
        daemon.add(
            job(1, "COMPLETED"),
            job(2, "FAILED", exit_code=5, shell_code=5),
            job(3, "FAILED", signal=9, shell_code=137),
            job(4, "TIMEOUT"),
            job(5, "LOST", shell_code=None),
        )

    result = iod("wait", *words)

    assert (code, "") == (result.code, result.out)
    assert told in (None, result.err)


def test_wait_gives_up_on_a_daemon_that_stays_away(daemon):
    daemon.add(job(1))
    stopper = threading.Thread(target=lambda: (daemon.waiting.wait(10), daemon.stop()))
    stopper.start()
    lost = []

    with pytest.raises(NoDaemon):
        Client(daemon.path, reconnect_s=0.3).wait([1], on_lost=lost.append)
    stopper.join()

    assert len(lost) == 1


def test_ctrl_c_leaves_the_job_running_and_says_so(daemon):
    daemon.add(job(1), job(2))
    command = [sys.executable, "-m", "iodaemon.cli", "--api", daemon.path, "wait", "1-2"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert daemon.waiting.wait(30)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)

    assert (130, b"") == (process.returncode, out)
    assert err == b"iod: jobs 1-2 go on: 'iod wait 1-2' waits again\n"
    assert daemon.jobs[1]["state"] == "RUNNING"


# -- jobs that only a person lets go on ------------------------------------------------------------


def told_of(iod, daemon, *jobs):
    """What is told of these jobs, which end after a first look at them."""
    daemon.add(*jobs)
    daemon.before_waits = [nothing, lambda: [daemon.end(made["id"]) for made in jobs]]
    return iod("wait", *(str(made["id"]) for made in jobs)).err


@pytest.mark.parametrize(
    ("state", "words"), [("HELD", "waits to be released"), ("SUSPENDED_USER", "stands still")]
)
def test_who_waits_is_told_once_of_a_job_that_only_a_person_lets_go(iod, daemon, state, words):
    daemon.hurried = True
    daemon.add(job(1, state, reason=HELD))
    daemon.before_waits = [nothing, nothing, lambda: daemon.end(1)]
    result = iod("wait", "1")

    assert (0, "") == (result.code, result.out)
    assert result.err == f"iod: job 1 {words}: {BY_ANN}\n"
    assert [0.0, 30.0] == [body["timeout_s"] for body in daemon.bodies("/v1/wait")][:2]


def test_who_waits_is_told_of_a_job_that_becomes_held(iod, daemon):
    daemon.hurried = True
    daemon.add(job(1))
    daemon.before_waits = [
        nothing,
        lambda: daemon.add(job(1, "HELD", reason=HELD)),
        lambda: daemon.add(job(1)),
        lambda: daemon.add(job(1, "HELD", reason=HELD)),
        lambda: daemon.end(1),
    ]

    assert iod("wait", "1").err == 2 * f"iod: job 1 waits to be released: {BY_ANN}\n"


ODD = range(1, 400, 2)
SOME = "among them 1,3,5,7,9,11,13,15: 'iod queue -s h,su' lists them\n"
THEIRS = "wait for their users or an administrator to let them go"
NO_ANSWER = reason("no answer in 5 s", "SuspendFailed")


def held(ids, state="HELD", why=HELD, **fields):
    return [job(number, state, reason=why, **fields) for number in ids]


@pytest.mark.parametrize(
    ("uid", "jobs", "told"),
    [
        (  # what to do is told also where the reason does not say it
            None,
            held([1], "SUSPENDED_USER", NO_ANSWER),
            "iod: job 1 stands still: no answer in 5 s; 'iod resume 1' lets it go\n",
        ),
        (
            None,
            [*held([1, 2, 3]), job(4)],
            "iod: jobs 1-3 wait for 'iod resume 1-3': 'iod why 1-3' tells why\n",
        ),
        (None, held(ODD), f"iod: 200 jobs wait for 'iod resume', {SOME}"),
        (
            None,
            held(range(1, 201)),
            "iod: jobs 1-200 wait for 'iod resume 1-200': 'iod why 1-200' tells why\n",
        ),
        *(
            (
                4242,
                held([1], why=reason("suspended by root", "S", cure), user="bob", uid=4243),
                (
                    "iod: job 1 waits to be released: suspended by root;"
                    " its user, bob, or an administrator can let it go\n"
                ),
            )
            for cure in ("'iod resume 1'", "an administrator's 'iod resume 1'", "")
        ),
        (
            4242,
            [
                *held([1, 2], "SUSPENDED_USER", uid=4242),
                *held([3, 4, 5], user="bob", uid=4243),
            ],
            (
                "iod: jobs 1-2 wait for 'iod resume 1-2': 'iod why 1-2' tells why\n"
                f"iod: jobs 3-5 {THEIRS}: 'iod why 3-5' tells why\n"
            ),
        ),
        (4242, held(ODD, uid=4243), f"iod: 200 jobs {THEIRS}, {SOME}"),
        (0, held([1], user="bob", uid=4243), f"iod: job 1 waits to be released: {BY_ANN}\n"),
    ],
    ids=["cure", "some", "many", "in a row", *3 * ["another's"], "both", "many others'", "root"],
)
def test_of_held_jobs_it_is_told_in_a_line_who_lets_them_go(
    iod, daemon, monkeypatch, uid, jobs, told
):
    if uid is not None:
        monkeypatch.setattr("iodaemon.cli.selector.os.geteuid", lambda: uid)

    assert told == told_of(iod, daemon, *jobs)


# -- a job that waits itself ---------------------------------------------------------------------


@pytest.fixture(params=["here", "elsewhere"])
def is_here(request, daemon):
    """Whether this process belongs to job 2 of the daemon."""
    daemon.own_job = 2 if request.param == "here" else None
    daemon.add(job(1), job(2), job(3))
    daemon.before_waits = [nothing, lambda: [daemon.end(n) for n in (1, 2, 3)]]
    daemon.after_follow = [lambda: daemon.end(2)]
    return request.param == "here"


@pytest.mark.parametrize("words", [("all",), ("1-3",), ("-J", "job*")])
def test_a_job_does_not_wait_for_itself(iod, daemon, is_here, words):
    code = iod("wait", *words).code

    waits = daemon.bodies("/v1/wait")
    assert code == 0
    assert {tuple(body["ids"]) for body in waits} == {(1, 3) if is_here else (1, 2, 3)}


@pytest.mark.parametrize("words", [("wait", "2"), ("wait", "1,2"), ("logs", "-f", "2")])
def test_a_job_that_names_itself_is_refused(iod, daemon, is_here, words):
    result = iod(*words)

    assert (result.code == 1) is is_here
    assert ("never end" in result.err) is is_here


def test_a_job_does_not_drain_the_node_of_itself(iod, daemon, is_here):
    told = iod("drain", "--wait").err

    assert ("job 2 is the one that waits here, and holds CPUs itself" in told) is is_here


# -- more jobs than one request may wait for ----------------------------------------------------


def test_a_held_job_of_a_later_batch_is_told_of_before_the_first_long_wait(
    iod, daemon, monkeypatch
):
    monkeypatch.setattr(client, "_AWAITED_AT_ONCE", 2)
    daemon.add(job(1), job(2), job(3, "HELD", reason=reason("held at submission", "Held")))
    told_before = []

    def look():
        told_before.append(iod.capsys.readouterr().err)
        daemon.end(1), daemon.end(2), daemon.end(3)

    daemon.before_waits = [nothing, nothing, look]
    result = iod("wait", "1-3")

    told = "iod: job 3 waits to be released: held at submission; 'iod resume 3' lets it go\n"
    assert (told_before, result.err) == ([told], "")


def test_a_batch_that_has_ended_at_the_first_look_is_not_asked_for_again(daemon, monkeypatch):
    monkeypatch.setattr(client, "_AWAITED_AT_ONCE", 1)
    daemon.add(job(1, "COMPLETED"), job(2, "FAILED"))
    answer = Client(daemon.path).wait([1, 2], on_told=lambda _: None)

    assert ([1, 2], True) == ([made["id"] for made in answer["jobs"]], answer["finished"])
    assert [[1], [2]] == [body["ids"] for body in daemon.bodies("/v1/wait")]
