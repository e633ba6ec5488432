"""``iod cancel``, ``suspend``, ``resume``, ``wait``, ``logs``: what is done and what is said."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import signal
import subprocess
import sys
import threading
from functools import partial

import pytest
from fake_daemon import job, reason

from iodaemon.api.client import Client
from iodaemon.cli.selector import format_ids, parse_selectors


class Terminal(io.StringIO):
    """Somebody who types."""

    def isatty(self):
        return True


def test_cancel_says_what_became_of_each(iod, daemon):
    daemon.add(job(1), job(2), job(3, "COMPLETED"))

    result = iod("cancel", "1", "2,3", "9")

    assert result.out == "job 1 CANCELLED\njob 2 CANCELLED\n"
    assert "iod: job 3 has ended already" in result.err
    assert "iod: no job 9" in result.err
    assert result.code == 1


def test_cancel_sends_the_grace_time_in_seconds(iod, daemon):
    daemon.add(job(1), job(2))

    iod("cancel", "1", "--grace", "1m")
    iod("cancel", "2")

    sent = [{"select": "1", "grace_s": 60.0}, {"select": "2"}]
    assert sent == daemon.bodies("/v1/jobs/cancel")


def test_a_job_that_is_not_gone_is_exit_code_1_with_the_reason(iod, daemon):
    daemon.add(job(1))
    daemon.effective = False

    assert iod.fails("cancel", "1") == (1, "job 1 is not gone yet: sleeps in the kernel")


def test_a_range_leaves_finished_jobs_alone(iod, daemon):
    daemon.add(job(1, "COMPLETED"), job(2), job(3))

    assert iod("cancel", "1-3").out == "job 2 CANCELLED\njob 3 CANCELLED\n"


def test_cancel_all_takes_unfinished_jobs_with_yes(iod, daemon):
    daemon.add(job(1, "COMPLETED"), job(2))

    assert (iod("cancel", "all", "--yes").code, "job 2 CANCELLED\n") == (0, "job 2 CANCELLED\n")
    assert daemon.jobs[2]["state"] == "CANCELLED"


def test_cancel_all_without_a_person_wants_yes(iod, daemon, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    daemon.add(job(1))

    assert iod.fails("cancel", "all") == (2, "cancel all: nobody can be asked here, so add --yes")
    assert daemon.seen == []


@pytest.mark.parametrize(("typed", "code"), [("y\n", 0), ("\n", 1), ("", 1), ("no\n", 1)])
def test_cancel_all_asks_a_person(iod, daemon, monkeypatch, typed, code):
    monkeypatch.setattr(sys, "stdin", Terminal(typed))
    daemon.add(job(1), job(2))

    result = iod("cancel", "all")

    assert code == result.code
    assert result.err.startswith("cancel jobs 1-2? [y/N] ")
    assert ("CANCELLED" if code == 0 else "RUNNING") == daemon.jobs[1]["state"]


def test_nothing_to_cancel_is_no_fault(iod, daemon):
    result = iod("cancel", "all", "--yes")

    assert (result.code, result.err) == (0, "iod: no unfinished job matches: nothing to do\n")


def test_all_leaves_other_peoples_jobs_alone(iod, daemon, monkeypatch):
    monkeypatch.setattr("iodaemon.cli.selector.os.geteuid", lambda: 4242)
    daemon.caller_uid = 4242
    daemon.add(job(1, uid=1000), job(2, uid=4242))

    iod("cancel", "all", "--yes")

    assert ["RUNNING", "CANCELLED"] == [daemon.jobs[i]["state"] for i in (1, 2)]


def test_many_jobs_are_one_request(iod, daemon):
    daemon.add(*(job(n) for n in range(1, 301)))

    result = iod("cancel", "1-300")

    assert (0, 300) == (result.code, len(result.out.splitlines()))
    assert [("POST", "/v1/jobs/cancel", {"select": "1-300"})] == daemon.seen


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


@pytest.mark.parametrize("words", [("-s", "FAILED"), ("-J", "sim-*"), ("-u", "ann"), ("all",)])
def test_what_no_number_names_is_confirmed_by_a_person(iod, daemon, monkeypatch, words):
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    daemon.add(job(1))

    for verb in ("cancel", "requeue"):
        assert 2 == iod(verb, *words).code
    assert [] == daemon.seen


def test_an_empty_name_or_user_does_not_select_every_job(iod, daemon):
    daemon.add(job(1))

    for option in ("-J", "-u"):
        for verb in ("cancel", "requeue", "suspend", "resume", "show", "why"):
            assert 2 == iod(verb, option, "").code
    assert [] == daemon.seen


def test_requeue_says_what_became_of_each_and_takes_ended_jobs(iod, daemon):
    daemon.add(job(1), job(2, "FAILED"), job(3, "COMPLETED"))

    result = iod("requeue", "1", "2-3", "--grace", "5")

    assert (0, "job 1 PENDING\njob 2 PENDING\njob 3 PENDING\n") == (result.code, result.out)
    assert [{"select": "1,2-3", "grace_s": 5.0}] == daemon.bodies("/v1/jobs/requeue")


def test_requeue_all_leaves_ended_jobs_alone_and_asks(iod, daemon, monkeypatch):
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    daemon.add(job(1), job(2, "FAILED"))

    result = iod("requeue", "all")

    assert result.err.startswith("requeue job 1? [y/N] ")
    assert ["PENDING", "FAILED"] == [daemon.jobs[i]["state"] for i in (1, 2)]


def test_a_job_that_is_not_requeued_yet_is_exit_code_1_with_the_reason(iod, daemon):
    daemon.add(job(1))
    daemon.effective = False

    assert iod.fails("requeue", "1") == (
        1,
        "job 1 is not requeued, RUNNING: sleeps in the kernel",
    )


def test_suspend_and_resume_say_the_state(iod, daemon):
    daemon.add(job(1))

    assert (iod("suspend", "1").code, "job 1 SUSPENDED_USER\n") == (0, "job 1 SUSPENDED_USER\n")
    assert iod("resume", "last").out == "job 1 RUNNING\n"


def test_a_job_that_does_not_stand_still_is_exit_code_1(iod, daemon):
    daemon.add(job(1), job(2, "SUSPENDED_USER"))
    daemon.effective = False

    line = "job 1 does not stand still yet, RUNNING: sleeps in the kernel"
    assert (1, line) == iod.fails("suspend", "1")
    assert iod.fails("resume", "2")[0] == 1


def test_json_is_the_answer_for_one_and_a_list_for_several(iod, daemon):
    daemon.add(job(1), job(2), job(3))

    assert True is iod("cancel", "--json", "1").json["gone"]
    assert [answer["job"]["id"] for answer in iod("cancel", "--json", "2-3").json] == [2, 3]


def test_faults_of_one_kind_keep_their_exit_code(iod, daemon):
    daemon.add(job(1))

    result = iod("cancel", "1", "8", "9")

    assert result.code == 3


# -- wait -----------------------------------------------------------------------------------------


def test_wait_returns_the_highest_code_and_names_who_failed(iod, daemon):
    daemon.add(
        job(1, "COMPLETED"),
        job(2, "FAILED", exit_code=5, shell_code=5),
        job(3, "FAILED", signal=9, shell_code=137),
    )

    result = iod("wait", "1", "2,3")

    assert (result.code, result.out) == (137, "")
    assert result.err == "iod: job 2 FAILED: exit code 5\niod: job 3 FAILED: signal 9 (SIGKILL)\n"


def test_wait_is_silent_about_success(iod, daemon):
    daemon.add(job(1, "COMPLETED"))

    assert tuple(vars(iod("wait", "1")).values()) == (0, "", "")


def test_the_walltime_is_124(iod, daemon):
    daemon.add(job(1, "TIMEOUT"))

    assert iod("wait", "1").code == 124


def test_an_unknown_end_is_no_success(iod, daemon):
    daemon.add(job(1, "LOST", shell_code=None))

    assert iod("wait", "1").code == 1


def test_wait_json_is_the_apis_answer(iod, daemon):
    daemon.add(job(1, "COMPLETED"))

    answer = iod("wait", "--json", "1").json

    assert (answer["finished"], [made["id"] for made in answer["jobs"]]) == (True, [1])


def test_nothing_to_wait_for_is_no_fault(iod, daemon):
    assert iod("wait", "all").code == 0


def test_wait_outlives_a_restart_of_the_daemon(iod, daemon):
    daemon.add(job(1))
    waits = threading.Event()
    daemon.before_waits = [lambda: None, waits.set]  # the first one only looks

    def restart():
        assert waits.wait(30)
        daemon.stop()
        daemon.end(1, "FAILED", exit_code=4, shell_code=4)
        daemon.start()

    restarter = threading.Thread(target=restart)
    restarter.start()
    result = iod("wait", "1")
    restarter.join()

    assert result.code == 4
    assert "waiting for it to come back, jobs go on meanwhile" in result.err


def test_wait_gives_up_on_a_daemon_that_stays_away(daemon):
    daemon.add(job(1))
    stopper = threading.Thread(target=lambda: (daemon.waiting.wait(10), daemon.stop()))
    stopper.start()
    lost = []

    from iodaemon.errors import NoDaemon

    with pytest.raises(NoDaemon):
        Client(daemon.path, reconnect_s=0.3).wait([1], on_lost=lost.append)
    stopper.join()

    assert len(lost) == 1


@pytest.mark.parametrize("grace_s", [1e300, float("inf"), -1.0])
def test_a_grace_time_that_cannot_be_is_the_daemons_to_refuse(daemon, grace_s):
    daemon.add(job(1))

    assert 1 == Client(daemon.path).cancel(1, grace_s=grace_s)["job"]["id"]


def test_wait_with_a_timeout_answers_unfinished(daemon):
    daemon.add(job(1))

    assert False is Client(daemon.path).wait([1], timeout_s=0.1)["finished"]


def test_ctrl_c_leaves_the_job_running_and_says_so(daemon):
    daemon.add(job(1), job(2))
    process = start(daemon.path, "wait", "1-2")
    assert daemon.waiting.wait(30)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)

    assert (process.returncode, out) == (130, b"")
    assert err == b"iod: jobs 1-2 go on: 'iod wait 1-2' waits again\n"
    assert daemon.jobs[1]["state"] == "RUNNING"


def start(socket_path, *words, **options):
    """``iod`` as a process of its own."""
    command = [sys.executable, "-m", "iodaemon.cli", "--api", socket_path, *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


# -- logs -----------------------------------------------------------------------------------------


def test_logs_prints_the_bytes_as_they_are(daemon):
    daemon.add(job(1))
    daemon.logs[1, "stdout"] = b"\xff\x00line\r\n" * 1000

    out, err = start(daemon.path, "logs", "1").communicate(timeout=30)

    assert (out, err) == (b"\xff\x00line\r\n" * 1000, b"")


def test_logs_of_several_jobs_have_a_line_with_their_number_each(iod, daemon):
    for number in (1, 2, 4):
        daemon.add(job(number, "COMPLETED", shell_code=0))
        daemon.logs[number, "stdout"] = f"of {number}\n".encode()

    several = iod("logs", "1-2,4")
    missing = iod("logs", "1,9")

    assert "==> job 1 <==\nof 1\n\n==> job 2 <==\nof 2\n\n==> job 4 <==\nof 4\n" == several.out
    assert (3, True) == (missing.code, missing.out.startswith("==> job 1 <==\nof 1\n"))
    assert missing.err.count("\n") == 1


def test_logs_asks_for_what_is_wanted(iod, daemon):
    daemon.add(job(1, "COMPLETED", shell_code=0))
    daemon.logs[1, "stderr"] = b"a\nb\nc\n"

    assert iod("logs", "-f", "--err", "--tail", "2", "last").out == "b\nc\n"
    [asked] = [query for _, path, query in daemon.seen if path.endswith("/logs")]
    assert asked == {"stream": ["stderr"], "follow": ["1"], "tail": ["2"]}


def on_a_terminal(*words):
    """What a terminal gets of ``iod``."""
    reader, writer = pty.openpty()
    command = [sys.executable, "-m", "iodaemon.cli", *words]
    subprocess.run(command, stdout=writer, check=True, timeout=60)
    os.close(writer)
    with open(reader, "rb", buffering=0) as terminal, contextlib.suppress(OSError):
        return terminal.read(65536)


ORDERS = b"\x1b]0;title\x07\x1b[2Ja\tb\r\nc\xc2\x9b31m \xff \xe2\x82\xac\x08\n"
SHOWN = (
    rb"\x1b]0;title\x07\x1b[2J" + b"a\tb\r\r\nc" + rb"\x9b31m \xff " + b"\xe2\x82\xac" + rb"\x08"
)


def test_a_terminal_gets_no_orders_from_what_a_job_wrote(daemon):
    daemon.add(job(1))
    daemon.logs[1, "stdout"] = ORDERS

    assert SHOWN + b"\r\n" == on_a_terminal("--api", daemon.path, "logs", "1")


def test_a_terminal_gets_all_of_it_on_request(daemon):
    daemon.add(job(1))
    daemon.logs[1, "stdout"] = ORDERS

    raw = on_a_terminal("--api", daemon.path, "logs", "--raw", "1")

    assert ORDERS.replace(b"\n", b"\r\n") == raw  # as every terminal's driver does


def test_following_tells_what_a_job_waits_for_and_how_it_failed(iod, daemon):
    daemon.add(job(1, "PENDING", reason=reason("waits for 4 slots")))
    daemon.add(job(2, "HELD", reason=reason("held", cure="'iod resume 2'")))
    for job_id in (1, 2):
        daemon.after_follow = [partial(daemon.end, job_id, "FAILED", exit_code=3, shell_code=3)]

        code, out, err = vars(iod("logs", "-f", str(job_id))).values()

        assert (code, out) == (0, "")
        waits, ended = err.splitlines()
        assert ("waits for 4 slots", "'iod resume 2'")[job_id - 1] in waits
        assert f"iod: job {job_id} FAILED: exit code 3" == ended


def test_following_goes_on_after_a_restart_of_the_daemon_where_it_was(iod, daemon):
    daemon.add(job(1))
    daemon.logs[1, "stdout"] = b"one\ntwo\n"

    def restart():
        daemon.stop()
        daemon.logs[1, "stdout"] += b"three\n"
        daemon.end(1, shell_code=0)
        daemon.start()

    daemon.after_follow = [lambda: threading.Thread(target=restart).start()]

    result = iod("logs", "-f", "--tail", "1", "1")

    assert (0, "two\nthree\n") == (result.code, result.out)


def test_following_a_job_that_is_requeued_goes_on_with_its_new_output(iod, daemon):
    daemon.add(job(1))
    daemon.logs[1, "stdout"] = b"first run\n"

    def requeue():
        daemon.logs[1, "stdout"] = b"second\n"
        daemon.end(1, attempt=2, stdout="/out/1.2", shell_code=0)

    daemon.after_follow = [requeue]

    result = iod("logs", "-f", "1")

    assert (0, "first run\nsecond\n", "") == (result.code, result.out, result.err)


def test_events_come_one_by_one(daemon):
    daemon.events = [{"job": 1, "to": "RUNNING"}, {"job": 1, "to": "COMPLETED"}]

    assert daemon.events == list(Client(daemon.path).events())


def test_a_reader_that_goes_away_is_no_fault(daemon):
    daemon.add(*(job(n) for n in range(1, 3000)))
    process = start(daemon.path, "queue")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(10)
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()

    assert (process.wait(30), err) == (141, b"")


def test_a_closed_standard_output_is_no_traceback(daemon):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "iodaemon.cli", "--api", daemon.path, "queue"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, timeout=30, check=False)
    os.close(writer)

    assert (done.returncode, done.stderr) == (141, b"")


# -- selectors ------------------------------------------------------------------------------------


def test_selectors_join(iod):
    selection = parse_selectors(["1,4", "3-9", "last"])

    assert (selection.text, selection.ids, selection.is_plain) == ("1,4,3-9,last", (1, 4), False)


@pytest.mark.parametrize(
    ("ids", "text"), [([7], "7"), ([1, 2, 3], "1-3"), ([3, 1, 5, 4], "1,3-5"), ([], "")]
)
def test_runs_of_numbers_are_ranges(ids, text):
    assert text == format_ids(ids)


@pytest.mark.parametrize("words", [["last"], ["1-2"], ["2"]])
def test_wait_returns_the_code_of_a_job_that_has_ended_however_it_is_named(iod, daemon, words):
    daemon.add(job(1, "COMPLETED"), job(2, "FAILED", exit_code=9, shell_code=9))

    assert iod("wait", *words).code == 9


def test_a_range_of_ended_jobs_is_told_as_such_to_cancel(iod, daemon):
    daemon.add(job(1, "COMPLETED"), job(2, "FAILED", exit_code=9, shell_code=9))

    result = iod("cancel", "1-2")

    assert (result.code, result.err) == (1, "iod: jobs 1-2 have ended already\n")
