"""Every way to go wrong: one line on standard error, and the exit code that belongs to it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from fake_daemon import job
from hypothesis import given
from hypothesis import strategies as st

from iodaemon.api import connection
from iodaemon.api.client import Client
from iodaemon.api.connection import Response
from iodaemon.cli import main
from iodaemon.cli.program import POINTERS, VERBS
from iodaemon.config import load_config
from iodaemon.errors import ConfigError

VERBS_OF_A_DAEMON = ["queue", "why 1", "events", "mode", "replay", "history", "node"]


@pytest.mark.parametrize("words", VERBS_OF_A_DAEMON)
def test_no_daemon_is_exit_code_7_and_says_how_to_start_one(iod, socket_path, words):
    told = f"no daemon answers on {socket_path}: start one with 'iod daemon'"

    assert (7, told) == iod.fails(*words.split())


@pytest.mark.parametrize("is_socket", [True, False])
def test_what_nobody_serves_is_no_daemon(iod, socket_path, is_socket):
    with socket.socket(socket.AF_UNIX) as left_behind:
        if is_socket:
            left_behind.bind(socket_path)
        else:
            Path(socket_path).touch()

    assert iod.fails("queue")[0] == 7


def test_a_socket_path_that_is_too_long_is_told_with_its_limit(capsys):
    folder = "/tmp/" + "x" * 190
    path = f"{folder}/supervisor.sock"
    told = f"socket path {path} has {len(path)} bytes, the kernel takes 107; "
    code = main(["--api", path, "queue"])

    assert code == 1
    assert told in capsys.readouterr().err
    with pytest.raises(ConfigError) as refused:
        load_config(None, {"HOME": "/"}, 1000, {"runtime_dir": folder})
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("status", "data"),
    [
        (0, b"SSH-2.0-OpenSSH_9.2\r\n"),
        (0, b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{]}"),
        (200, b"\xff\xfe"),
        (200, b"[]"),
        (200, b'{"jobs": 3, "node": {}}'),
        (200, b'{"jobs": [{"id": 1}], "node": {}}'),
    ],
)
def test_a_daemon_that_answers_garbage_is_told_in_one_line(iod, daemon, status, data):
    daemon.answers["/v1/jobs"] = (status, data)

    code, line = iod.fails("queue")

    assert code == 1
    assert "is not an iodaemon" in line
    assert line.endswith("check --api")


@pytest.mark.parametrize("data", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"])
def test_a_daemon_that_goes_away_is_exit_code_7(iod, daemon, data):
    daemon.answers["/v1/jobs"] = (0, data)

    code, line = iod.fails("queue")

    assert (7, True) == (code, "went away before its answer was complete" in line), line


def test_the_daemons_refusal_is_shown_in_its_words_and_one_without_a_body_by_its_status(
    iod, daemon
):
    error = {"error": {"code": "unavailable", "message": "journal full:\n free space on /var"}}
    daemon.answers["/v1/node"] = (503, json.dumps(error).encode())
    told = iod.fails("node")
    daemon.answers["/v1/node"] = (500, b"oops")
    code, line = iod.fails("node")

    assert (1, "journal full: free space on /var") == told
    assert (1, True) == (code, "500" in line)


@pytest.mark.parametrize(
    "words", [("show", "99"), ("cancel", "99"), ("suspend", "99"), ("wait", "99"), ("logs", "99")]
)
def test_an_unknown_job_is_exit_code_3(iod, daemon, words):
    code, line = iod.fails(*words)

    assert code == 3
    assert line.startswith("no job 99")


def test_an_unknown_job_in_the_queue_is_exit_code_3_after_the_others(iod, daemon):
    daemon.add(job(1))

    result = iod("queue", "--no-header", "1,99")

    assert result.code == 3
    assert "1" == result.out.split()[0]
    assert result.err == "iod: no job 99: 'iod queue -a' lists them\n"


def test_what_is_not_permitted_is_exit_code_4(iod, daemon, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    daemon.add(job(1, uid=os.geteuid() + 1))

    assert iod.fails("cancel", "1") == (4, "job 1 is not yours")
    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert iod.fails("queue")[0] == 4


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ((), "no verb given: 'iod --help' lists them"),
        (("submt",), "no verb 'submt': did you mean submit?"),
        (("--dbug", "queue"), "no option --dbug in 'iod': did you mean --debug?"),
        (("queue", "--jsn"), "no option --jsn in 'iod queue': did you mean --json?"),
        (
            ("submit", "--array", "1-4", "true"),
            "no option --array: there are no job arrays: submit one command a line with --from",
        ),
        (("queue", "-Q"), "no option -Q in 'iod queue': 'iod queue --help' lists them"),
        (("queue", "--api", "/x"), "--api goes before the verb, as in 'iod --api ... queue'"),
        (("policy",), "no verb given: 'iod policy --help' lists them"),
        (("show",), "no job given: write 7, 3-9, 1,4, last or all, or select by -J, -u or -s"),
        (("show", "x7"), "'x7' selects no job: write 7, 3-9, 1,4, last or all, or -J NAME"),
        (("show", "9-3"), "'9-3' runs backwards: write 3-9"),
        (("logs", "-f", "1,3"), "-f follows one job: write 7 or last"),
        (
            ("logs", "1", "--tail", "ten"),
            "--tail: 'ten' is no number of lines: write for example --tail 20",
        ),
        (("queue", "-s", "RUNING"), "--state: no state 'RUNING': did you mean RUNNING?"),
        (
            ("queue", "-w", "often"),
            "--watch: 'often' is no number of seconds: write for example -w 2",
        ),
        (("cancel", "1", "--grace", "2 days"), "--grace: '2 days' is more than a day"),
        (("daemon", "--log-level", "dbug"), "--log-level: no level 'dbug': did you mean debug?"),
    ],
)
def test_a_wrong_command_line_is_exit_code_2_and_says_what_is_right(iod, words, line):
    assert (2, line) == iod.fails(*words)


@pytest.mark.parametrize(
    ("word", "verb"),
    [
        ("hold", "iod suspend"),
        ("release", "iod resume"),
        ("kill", "iod cancel"),
        ("edit", "iod cancel"),
        ("status", "iod queue"),
        ("sbmit", "submit"),
        ("nonsense", "iod --help"),
    ],
)
def test_a_verb_of_another_batch_system_points_to_ours(iod, word, verb):
    code, line = iod.fails(word, "7")

    assert code == 2
    assert verb in line


def test_every_pointer_names_a_verb_that_is_there():
    assert not POINTERS.keys() & VERBS.keys()
    named = re.findall(r"'iod (\w+)", " ".join(POINTERS.values()))
    assert set(named) <= VERBS.keys()


def test_a_bug_is_one_line_and_a_traceback_only_with_debug(iod, daemon, monkeypatch, capsys):
    def break_down(*_args, **_kwargs):
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("iodaemon.api.client.Client.node", break_down)

    code, line = iod.fails("node")
    with_debug = main(["--debug", "--api", iod.socket_path, "node"])

    assert 1 == code == with_debug
    assert "internal error, ZeroDivisionError" in line
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_a_full_backlog_is_waited_for(iod, socket_path, daemon):
    daemon.add(job(1))
    results = []
    clients = [
        threading.Thread(target=lambda: results.append(main(["--api", socket_path, "show", "1"])))
        for _ in range(20)
    ]
    for client in clients:
        client.start()
    for client in clients:
        client.join()

    assert results == [0] * 20


def test_where_the_service_is_installed_root_is_to_start_it(iod, tmp_path, monkeypatch):
    (tmp_path / "iodaemon.socket").touch()
    monkeypatch.setattr(connection, "_INSTALLED", str(tmp_path / "iodaemon.socket"))

    code, line = iod.fails("queue")

    assert 7 == code
    assert line.endswith(
        "ask root for 'systemctl restart iodaemon.socket iodaemon' (jobs run on), "
        "or start your own with 'iod daemon'"
    )


def shell(socket_path, words, redirect):
    """Exit code and standard error of a command line in a real process."""
    line = f"exec {sys.executable} -m iodaemon.cli --api {socket_path} {words} {redirect}"
    ended = subprocess.run(["sh", "-c", line], stderr=subprocess.PIPE, text=True, check=False)
    return ended.returncode, ended.stderr


@pytest.mark.parametrize("words", ["submit -- true", "queue", "node", "--version", "cancel 1"])
def test_a_standard_output_that_is_closed_keeps_nothing_from_being_done(daemon, socket_path, words):
    daemon.jobs[1] = job(1)

    assert (0, "") == shell(socket_path, words, ">&-")


def test_a_standard_error_that_is_closed_takes_no_other_file(daemon, socket_path):
    code, _ = shell(socket_path, "show 99", ">&- 2>&- <&-")

    assert 3 == code


@pytest.mark.parametrize(
    ("words", "done"),
    [
        ("submit -- true", "job 2 submitted, but "),
        ("cancel 1", "it was done, but "),
        ("suspend 1", "it was done, but "),
        ("mode shadow", "it was done, but "),
        ("queue --all", ""),
    ],
)
def test_what_was_done_is_said_where_standard_output_is_full(daemon, socket_path, words, done):
    daemon.jobs[1] = job(1)
    code, told = shell(socket_path, words, ">/dev/full")

    full = "standard output cannot be written: No space left on device"
    assert (74, f"iod: {done}{full}\n") == (code, told)


SHOWN_BY = [
    (("cancel", "1"), "'iod queue -a' shows the jobs"),
    (("drain", "on"), "'iod drain' shows whether the node is drained"),
    (("mode", "off"), "'iod mode' shows the mode"),
    (("config", "reload"), "'iod config show --running' shows what is in force"),
    (("hint", "forget", "x"), "'iod hint show' shows what is known"),
]


@pytest.mark.parametrize(("words", "shown_by"), SHOWN_BY)
def test_after_a_lost_answer_the_command_is_named_that_shows_it(
    iod, daemon, monkeypatch, words, shown_by
):
    monkeypatch.setitem(Client.__init__.__kwdefaults__, "reconnect_s", 0.0)
    for path in ("jobs/cancel", "drain", "mode", "config/reload", "hints/forget"):
        daemon.answers[f"/v1/{path}"] = (0, b"")

    code, line = iod.fails(*words)

    assert 8 == code
    assert line.endswith(f"not known whether that was done; {shown_by}")


def test_a_daemon_that_is_silent_is_not_to_be_started(iod, socket_path, monkeypatch):
    monkeypatch.setattr(Client.__init__, "__defaults__", (0.2,))
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(socket_path)
        silent.listen()
        code, line = iod.fails("queue")

    assert 7 == code
    assert line.endswith("keeps silent: look at its log, or ask again")


@pytest.mark.parametrize(("words", "shown_by"), SHOWN_BY[:3])
def test_what_is_not_known_after_an_interrupt_is_said(tmp_path, words, shown_by):
    """By a daemon that hears and says nothing."""
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "iod.sock"))
        silent.listen()
        place = str(tmp_path / "iod.sock")
        command = [sys.executable, "-m", "iodaemon.cli", "--api", place, *words]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            connection, _ = silent.accept()
            assert connection.recv(65536)
            process.send_signal(signal.SIGINT)
            told = process.stderr.read()
            connection.close()

    assert 130 == process.returncode
    assert f"iod: not known whether that was done: {shown_by}" in told


# -- answers as they come over the socket ----------------------------------------------------------

OK = b"HTTP/1.1 200 OK\r\n"


def response(data):
    return Response(io.BufferedReader(io.BytesIO(data)))


def test_a_head_is_read_as_it_was_sent():
    found = response(OK + b"Last-Event-ID: 7\r\nX:y:z\r\nContent-Length: 0\r\n\r\n")

    assert (200, "OK") == (found.status, found.reason)
    assert {"Last-Event-ID": "7", "X": "y:z", "Content-Length": "0"} == found.headers


@pytest.mark.parametrize(
    ("rest", "body"),
    [
        (b"Content-Length: 5\r\n\r\nhellonot of it", b"hello"),
        (b"\r\nuntil the end", b"until the end"),
        (b"transfer-encoding: Chunked\r\n\r\n5\r\nhello\r\n1;x=y\r\n!\r\n0\r\n\r\nrest", b"hello!"),
        (b"Transfer-Encoding: chunked\r\n\r\n0\r\nTrailer: x\r\n\r\n", b""),
    ],
)
def test_a_body_ends_where_its_head_says(rest, body):
    assert body == response(OK + rest).read()


def test_two_answers_follow_each_other_on_one_connection():
    file = io.BufferedReader(io.BytesIO(2 * (OK + b"Content-Length: 2\r\n\r\n{}")))

    assert [b"{}", b"{}"] == [Response(file).read() for _ in range(2)]


@pytest.mark.parametrize(
    "answer",
    [
        OK + b"Content-Length: 5\r\n\r\nhello",
        OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    ],
)
def test_an_answer_that_is_cut_anywhere_is_never_taken_for_whole(answer):
    for length in range(len(answer)):
        with pytest.raises((ConnectionError, ValueError)):
            response(answer[:length]).read()


@given(st.binary(max_size=200))
def test_whatever_comes_is_an_answer_or_one_of_two_errors(data):
    with contextlib.suppress(ConnectionError, ValueError):
        response(data).read()
