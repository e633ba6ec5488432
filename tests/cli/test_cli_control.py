"""``iod cancel``, ``requeue``, ``suspend``, ``resume``, ``logs``: what is done and what is said."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from functools import partial

import pytest
from fake_daemon import job, on_a_terminal, reason


class Terminal(io.StringIO):
    """Somebody who types."""

    def isatty(self):
        return True


@pytest.fixture
def typed(monkeypatch):
    """Somebody types this; None: nobody is there."""

    def type_(text):
        monkeypatch.setattr(sys, "stdin", io.StringIO() if text is None else Terminal(text))

    return type_


def states(daemon, *ids):
    return [daemon.jobs[job_id]["state"] for job_id in ids]


# -- what becomes of each job ----------------------------------------------------------------------


def test_cancel_says_what_became_of_each(iod, daemon):
    daemon.add(job(1), job(2), job(3, "COMPLETED"))

    result = iod("cancel", "1", "2,3", "9")

    assert (1, "job 1 CANCELLED\njob 2 CANCELLED\n") == (result.code, result.out)
    assert "iod: job 3 has ended already" in result.err
    assert "iod: no job 9" in result.err
    assert 3 == iod("cancel", "8", "9").code  # faults of one kind keep their exit code


def test_requeue_says_what_became_of_each_and_takes_ended_jobs(iod, daemon):
    daemon.add(job(1), job(2, "FAILED"), job(3, "COMPLETED"))

    result = iod("requeue", "1", "2-3", "--grace", "5")

    assert (0, "job 1 PENDING\njob 2 PENDING\njob 3 PENDING\n") == (result.code, result.out)
    assert [{"select": "1,2-3", "grace_s": 5.0}] == daemon.bodies("/v1/jobs/requeue")


def test_the_grace_time_is_sent_in_seconds_where_it_is_given(iod, daemon):
    daemon.add(job(1), job(2))
    iod("cancel", "1", "--grace", "1m")
    iod("cancel", "2")

    sent = [{"select": "1", "grace_s": 60.0}, {"select": "2"}]
    assert sent == daemon.bodies("/v1/jobs/cancel")


@pytest.mark.parametrize(
    ("verb", "state", "line"),
    [
        ("cancel", "RUNNING", "job 1 is not gone yet: sleeps in the kernel"),
        ("requeue", "RUNNING", "job 1 is not requeued, RUNNING: sleeps in the kernel"),
        ("suspend", "RUNNING", "job 1 does not stand still yet, RUNNING: sleeps in the kernel"),
        (
            "resume",
            "SUSPENDED_USER",
            "job 1 does not go on yet, SUSPENDED_USER: sleeps in the kernel",
        ),
    ],
)
def test_what_has_not_come_about_is_exit_code_1_with_the_reason(iod, daemon, verb, state, line):
    daemon.add(job(1, state))
    daemon.effective = False

    assert (1, line) == iod.fails(verb, "1")


def test_json_is_the_answer_for_one_and_a_list_for_several(iod, daemon):
    daemon.add(job(1), job(2), job(3))

    assert True is iod("cancel", "--json", "1").json["gone"]
    assert [2, 3] == [answer["job"]["id"] for answer in iod("cancel", "--json", "2-3").json]


# -- which jobs ------------------------------------------------------------------------------------


def test_a_range_leaves_finished_jobs_alone_and_is_one_request(iod, daemon):
    daemon.add(job(1, "COMPLETED"), *(job(n) for n in range(2, 301)))

    result = iod("cancel", "1-300")

    assert (0, 299) == (result.code, len(result.out.splitlines()))
    assert [("POST", "/v1/jobs/cancel", {"select": "1-300"})] == daemon.seen


def test_a_range_of_ended_jobs_is_told_as_such(iod, daemon):
    daemon.add(job(1, "COMPLETED"), job(2, "FAILED"))

    assert (1, "jobs 1-2 have ended already") == iod.fails("cancel", "1-2")


def test_all_are_the_callers_own_unfinished_jobs(iod, daemon, monkeypatch):
    monkeypatch.setattr("iodaemon.cli.selector.os.geteuid", lambda: 4242)
    daemon.caller_uid = 4242
    daemon.add(job(1, uid=1000), job(2, uid=4242), job(3, "COMPLETED", uid=4242))

    assert (0, "job 2 CANCELLED\n") == ((done := iod("cancel", "all", "--yes")).code, done.out)
    assert ["RUNNING", "CANCELLED", "COMPLETED"] == states(daemon, 1, 2, 3)
    done = iod("cancel", "all", "--yes")
    assert (0, "iod: no unfinished job matches: nothing to do\n") == (done.code, done.err)


@pytest.mark.parametrize("words", [("all",), ("-s", "FAILED"), ("-J", "sim-*"), ("-u", "ann")])
def test_what_no_number_names_is_confirmed_by_a_person_or_by_yes(iod, daemon, typed, words):
    typed(None)
    daemon.add(job(1))
    named = "all" if "all" in words else "without numbers"

    for verb in ("cancel", "requeue"):
        line = f"{verb} {named}: nobody can be asked here, so add --yes"
        assert (2, line) == iod.fails(verb, *words)
    assert daemon.seen == []


@pytest.mark.parametrize(("text", "code"), [("y\n", 0), ("\n", 1), ("", 1), ("no\n", 1)])
@pytest.mark.parametrize(("verb", "after"), [("cancel", "CANCELLED"), ("requeue", "PENDING")])
def test_a_person_is_asked_about_all(iod, daemon, typed, text, code, verb, after):
    typed(text)
    daemon.add(job(1), job(2), job(3, "FAILED"))

    result = iod(verb, "all")

    assert code == result.code
    assert result.err.startswith(f"{verb} jobs 1-2? [y/N] ")
    assert [after if code == 0 else "RUNNING"] * 2 + ["FAILED"] == states(daemon, 1, 2, 3)


def test_jobs_are_selected_by_name_user_and_state(iod, daemon):
    daemon.add(
        job(1, "FAILED", name="sim-a"),
        job(2, "FAILED", name="other"),
        job(3, "COMPLETED", name="sim-b"),
        job(4, "FAILED", name="sim-c", user="bob"),
        job(5, "RUNNING", name="sim-d"),
    )

    assert "job 1 PENDING\n" == iod("requeue", "1-3", "-J", "sim-*", "-s", "F").out
    daemon.add(job(1, "FAILED", name="sim-a"))
    assert "job 4 PENDING\n" == iod("requeue", "-s", "FAILED", "-u", "bob", "-y").out
    assert 1 == iod("show", "1-4", "-s", "f", "-J", "s*", "--json").json["id"]
    assert 3 == iod("cancel", "2", "-J", "sim-*").code


def test_an_empty_name_or_user_does_not_select_every_job(iod, daemon):
    daemon.add(job(1))

    for option in ("-J", "-u"):
        for verb in ("cancel", "requeue", "suspend", "resume", "show", "why"):
            assert 2 == iod(verb, option, "").code
    assert [] == daemon.seen


# -- logs -----------------------------------------------------------------------------------------


def test_logs_of_several_jobs_have_a_line_with_their_number_each(iod, daemon):
    for number in (1, 2, 4):
        daemon.add(job(number, "COMPLETED"))
        daemon.logs[number, "stdout"] = f"of {number}\n".encode()

    several = iod("logs", "1-2,4")
    missing = iod("logs", "1,9")

    assert "==> job 1 <==\nof 1\n\n==> job 2 <==\nof 2\n\n==> job 4 <==\nof 4\n" == several.out
    assert (3, True) == (missing.code, missing.out.startswith("==> job 1 <==\nof 1\n"))
    assert missing.err.count("\n") == 1


def test_logs_asks_for_what_is_wanted(iod, daemon):
    daemon.add(job(1, "COMPLETED"))
    daemon.logs[1, "stderr"] = b"a\nb\nc\n"

    assert iod("logs", "-f", "--err", "--tail", "2", "last").out == "b\nc\n"
    [asked] = [query for _, path, query in daemon.seen if path.endswith("/logs")]
    assert asked == {"stream": ["stderr"], "follow": ["1"], "tail": ["2"]}


ORDERS = b"\x1b]0;title\x07\x1b[2Ja\tb\r\nc\xc2\x9b31m \xff \xe2\x82\xac\x08\n"
SHOWN = (
    rb"\x1b]0;title\x07\x1b[2J" + b"a\tb\r\r\nc" + rb"\x9b31m \xff " + b"\xe2\x82\xac" + rb"\x08"
)


@pytest.mark.parametrize(
    ("options", "shown"),
    [((), SHOWN + b"\r\n"), (("--raw",), ORDERS.replace(b"\n", b"\r\n"))],
    ids=["no orders", "all of it on request"],
)
def test_a_terminal_gets_no_orders_from_what_a_job_wrote(daemon, options, shown):
    """Each terminal's driver puts a carriage return before a line feed."""
    daemon.add(job(1))
    daemon.logs[1, "stdout"] = ORDERS

    assert shown == on_a_terminal("--api", daemon.path, "logs", *options, "1")


def test_following_tells_what_a_job_waits_for_and_how_it_failed(iod, daemon):
    daemon.add(job(1, "PENDING", reason=reason("waits for 4 slots")))
    daemon.add(job(2, "HELD", reason=reason("held", cure="'iod resume 2'")))
    for job_id, words in ((1, "waits for 4 slots"), (2, "'iod resume 2'")):
        daemon.after_follow = [partial(daemon.end, job_id, "FAILED", exit_code=3, shell_code=3)]

        code, out, err = vars(iod("logs", "-f", str(job_id))).values()

        waits, ended = err.splitlines()
        assert (0, "") == (code, out)
        assert words in waits
        assert f"iod: job {job_id} FAILED: exit code 3" == ended


def test_following_a_job_that_is_requeued_goes_on_with_its_new_output(iod, daemon):
    daemon.add(job(1))
    daemon.logs[1, "stdout"] = b"first run\n"

    def requeue():
        daemon.logs[1, "stdout"] = b"second\n"
        daemon.end(1, attempt=2, stdout="/out/1.2")

    daemon.after_follow = [requeue]

    result = iod("logs", "-f", "1")

    assert (0, "first run\nsecond\n", "") == (result.code, result.out, result.err)


# -- a standard output that goes away -------------------------------------------------------------


@pytest.mark.parametrize("when", ["at once", "in the middle"])
def test_a_reader_that_goes_away_is_no_fault_and_no_traceback(daemon, when):
    daemon.add(*(job(n) for n in range(1, 3000)))
    reader, writer = os.pipe()
    command = [sys.executable, "-m", "iodaemon.cli", "--api", daemon.path, "queue"]
    if when == "at once":
        os.close(reader)
    with subprocess.Popen(command, stdout=writer, stderr=subprocess.PIPE) as process:
        os.close(writer)
        if when == "in the middle":
            os.read(reader, 10)
            os.close(reader)
        err = process.stderr.read()

    assert (141, b"") == (process.returncode, err)
