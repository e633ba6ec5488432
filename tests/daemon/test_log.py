"""What the daemon tells, and to whom: journald has the time already, nobody else has."""

import contextlib
import io
import logging
import os
import re
import select
import shlex
import socket
import subprocess
import sys
import tempfile

import pytest
from harness import full_pipe
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from process import READY_S, command, environment, read_until, ready, stop, wait_until

from iodaemon.core.decision import Plan, Transition, TrialStep
from iodaemon.core.job import JobId, JobState, Reason
from iodaemon.daemon.driver import log_plan
from iodaemon.daemon.telltale import LogWriter
from iodaemon.systemd import is_journal_stream, notify
from iodaemon.text import quoted

pytestmark = pytest.mark.node


STAMP = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} level=[A-Z]+ \S"


@pytest.mark.parametrize(
    ("is_journal", "line", "ready_line"),
    [
        (True, r"<[2-7]>level=[A-Z]+ \S", "<6>level=INFO event=ready"),
        (False, STAMP, "event=ready"),
    ],
    ids=["journald", "redirected"],
)
def test_lines_have_a_priority_for_journald_and_else_the_time(
    tmp_path, is_journal, line, ready_line
):
    log = tmp_path / "log"
    with log.open("ab") as file:
        status = os.fstat(file.fileno())
        stream = f"{status.st_dev}:{status.st_ino + (not is_journal)}"
        told = {**environment(tmp_path), "JOURNAL_STREAM": stream}
        words = command(tmp_path / "state", tmp_path / "run")
        process = subprocess.Popen(words, env=told, stdout=file, stderr=file, text=True)
        try:
            ready(process, tmp_path / "run" / "iod.sock")
        finally:
            stop(process)

    lines = log.read_text().splitlines()
    assert all(re.match(line, each) for each in lines)
    assert any(ready_line in each for each in lines)


@pytest.mark.parametrize("value", ["", "1", "1:", ":2", "a:b", "1:2:3", "-1:2", "99999999999:1"])
def test_a_variable_that_means_nothing_is_no_journal(tmp_path, value):
    with (tmp_path / "log").open("w") as stream:
        assert not is_journal_stream(stream, {"JOURNAL_STREAM": value})
    assert not is_journal_stream(io.StringIO(), {"JOURNAL_STREAM": "1:2"})


def test_a_traceback_under_journald_has_a_priority_on_every_line():
    text = (
        "import logging, os, sys\n"
        "from iodaemon.daemon.telltale import begin_log\n"
        "status = os.fstat(2)\n"
        "begin_log('info', {'JOURNAL_STREAM': f'{status.st_dev}:{status.st_ino}'})\n"
        "try: 1 / 0\n"
        "except ZeroDivisionError: logging.critical('event=failed', exc_info=True)\n"
    )
    ended = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)

    lines = ended.stderr.splitlines()
    assert len(lines) > 3
    assert all(line.startswith("<2>") for line in lines)


@pytest.mark.parametrize("kind", ["pipe", "socket", "terminal"])
def test_a_supervisor_whose_messages_nobody_reads_goes_on(kind):
    """A pipe, the journal's socket, a terminal: what it does not take is not waited for."""
    if kind == "terminal":
        here, there = os.openpty()
    elif kind == "pipe":
        here, there = os.pipe()
    else:
        here, there = (end.detach() for end in socket.socketpair())
    text = (
        "from iodaemon.supervisor.syscalls import say\n"
        "for _ in range(1000): say('.' * 1000)\n"
        "print('went on', flush=True)\n"
    )
    words = [sys.executable, "-c", text]
    try:
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=there) as process:
            try:
                assert select.select([process.stdout], [], [], READY_S)[0]
                assert b"went on\n" == process.stdout.readline()
            finally:
                process.kill()
        assert os.get_blocking(there), "others may share it"
    finally:
        os.close(here), os.close(there)


# -- a log that takes nothing ----------------------------------------------------------------------


def read_some(fd, into):
    """Move what is in the pipe; how much that is."""
    try:
        data = os.read(fd, 65536)
    except BlockingIOError:
        return 0
    into.extend(data)
    return len(data)


def count_through(told):
    """The number of the last line, where those that are missing are reported where they belong."""
    expected = 0
    for line in bytes(told).decode().lstrip(".").splitlines():
        if line.startswith("event=log_lines_lost"):
            expected += int(re.search(r"lines=(\d+)", line)[1])
        else:
            assert f"line {expected}" == line
            expected += 1
    return expected - 1


def test_a_daemon_whose_log_takes_nothing_suspends_answers_and_ends(tmp_path):
    with full_pipe() as (_, writer):
        process = subprocess.Popen(
            command(tmp_path / "state", tmp_path / "run", "--log-level", "debug"),
            env=environment(tmp_path),
            stdout=subprocess.DEVNULL,
            stderr=writer,
        )
        try:
            client = ready(process, tmp_path / "run" / "iod.sock")
            ids = client.submit([{"command": ["compute=1000s"]}] * 2, {})
            assert wait_until(lambda: client.job(ids[0])["state"] == "RUNNING")
            suspended = client.suspend(ids[0])["job"]
            resumed = client.resume(ids[0])["job"]
            process.terminate()

            assert ("SUSPENDED_USER", "RUNNING") == (suspended["state"], resumed["state"])
            assert 0 == process.wait(READY_S)
        finally:
            process.kill()
            process.wait()


def new_writer(fd, **options):
    writer = LogWriter(fd, **options)
    writer.setFormatter(logging.Formatter("%(message)s"))
    return writer


def record(text):
    return logging.makeLogRecord({"msg": text, "levelno": logging.INFO})


def test_lines_without_room_are_lost_counted_and_reported_in_their_place():
    told = bytearray()
    with full_pipe() as (reader, writer):
        log = new_writer(writer, most_bytes=1000)
        for number in range(1000):
            log.emit(record(f"line {number}"))
        assert not log.drain(0.0)
        assert log.lost > 0
        os.set_blocking(reader, False)
        assert wait_until(lambda: not read_some(reader, told) and log.drain(0.0))
        log.emit(record("line 1000"))
        assert wait_until(lambda: log.drain(0.0) and not read_some(reader, told))

    assert 1000 == count_through(told)


def test_a_log_that_nobody_will_ever_read_loses_its_lines_and_ends_nothing():
    with full_pipe() as (reader, writer):
        os.close(reader)
        log = new_writer(writer)
        log.emit(record("to nobody"))

        assert log.drain(30.0)
        assert 1 == log.lost


def test_a_record_that_cannot_be_formatted_is_counted(capfd):
    with full_pipe() as (reader, writer):
        log = new_writer(writer)
        log.emit(logging.makeLogRecord({"msg": "%d lines", "args": ("no number",)}))
        read_until(reader, b"lines=1")

    assert 1 == log.lost
    assert ("", "") == capfd.readouterr()


def test_a_systemd_that_takes_no_messages_is_not_waited_for(monkeypatch):
    with (
        tempfile.TemporaryDirectory() as place,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other,
    ):
        listener.bind(f"{place}/notify")
        other.setblocking(False)
        other.connect(f"{place}/notify")
        with contextlib.suppress(BlockingIOError):
            while True:
                other.send(b"full")
        monkeypatch.setenv("NOTIFY_SOCKET", f"{place}/notify")

        notify("WATCHDOG=1")


def line_of(caplog, text):
    caplog.clear()
    step = Transition(
        job_id=JobId(7),
        at_s=1.0,
        before=JobState.STARTING,
        after=JobState.FAILED,
        reason=Reason(code="StartFailed", text=text),
    )
    with caplog.at_level(logging.INFO):
        log_plan(Plan(transitions=(step,)))
    [record] = caplog.records
    return record.getMessage()


@pytest.mark.parametrize(
    "text", ['/home/me/x" event=ready job="8', "ends in \\", '\\" event=ready', '"', 'a\n\x1b[2J"']
)
def test_a_text_makes_no_field(caplog, text):
    line = line_of(caplog, text)
    fields = [field.partition("=")[0] for field in shlex.split(line)]

    assert ["event", "job", "from", "to", "reason", "text"] == fields
    assert line.isprintable()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.sampled_from('"\\ =a\n'), max_size=12))
def test_any_text_is_read_again_as_it_was(text):
    """By a shell's rules, but for what cannot be printed."""
    [read] = shlex.split(quoted(text))

    assert text.replace("\n", "\\n") == read


def test_a_trial_is_a_line(caplog):
    trial = TrialStep(resource="memory", verdict="kept", before=6, tried=2, text='so it "is"')
    with caplog.at_level(logging.INFO):
        log_plan(Plan(trials=(trial,)))

    line = 'event=trial resource="memory" verdict=kept before=6 tried=2 gain=unknown shadow=no '
    assert [f'{line}text="so it \\"is\\""'] == caplog.messages
