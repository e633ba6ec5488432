"""What the daemon tells, and to whom: journald has the time already, nobody else has."""

import io
import logging
import os
import re
import subprocess
import sys

import pytest
from process import command, environment, ready, stop

from iodaemon.daemon.telltale import priority_of
from iodaemon.systemd import is_journal_stream

STAMP = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} level=[A-Z]+ \S")


def run(tmp_path, log, variables):
    """A daemon from start to stop, with its standard error in a file."""
    with log.open("ab") as file:
        told = {**environment(tmp_path), **variables(os.fstat(file.fileno()))}
        words = command(tmp_path / "state", tmp_path / "run")
        process = subprocess.Popen(words, env=told, stdout=file, stderr=file, text=True)
        try:
            ready(process, tmp_path / "run" / "iod.sock")
            yield process
        finally:
            stop(process)


def journal(status):
    return {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"}


def test_under_journald_lines_have_a_priority_and_no_time(tmp_path):
    log = tmp_path / "log"
    for _ in run(tmp_path, log, journal):
        pass

    lines = log.read_text().splitlines()
    assert lines
    assert all(re.match(r"<[2-7]>level=[A-Z]+ \S", line) for line in lines)
    assert any(line.startswith("<6>level=INFO event=ready") for line in lines)


@pytest.mark.parametrize(
    "variables",
    [lambda _: {}, lambda status: {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino + 1}"}],
    ids=["by hand", "redirected"],
)
def test_elsewhere_lines_begin_with_the_time(tmp_path, variables):
    log = tmp_path / "log"
    for _ in run(tmp_path, log, variables):
        pass

    lines = log.read_text().splitlines()
    assert lines
    assert all(STAMP.match(line) for line in lines)


def test_a_log_that_is_cut_where_it_stands_goes_on_from_its_beginning(tmp_path):
    """Logrotate's copytruncate with ``2>>log``: every write goes to the end there is."""
    log = tmp_path / "log"
    for _ in run(tmp_path, log, lambda _: {}):
        copy = log.read_bytes()
        os.truncate(log, 0)

    assert b"event=ready" in copy
    told = log.read_bytes()
    assert told.startswith(b"20")
    assert b"event=stopped" in told
    assert b"\0" not in told


def test_a_log_that_is_renamed_keeps_what_comes_after(tmp_path):
    """There is nothing to open anew: the shell opened it, and rotation needs copytruncate."""
    log = tmp_path / "log"
    for _ in run(tmp_path, log, lambda _: {}):
        log.rename(tmp_path / "log.1")

    assert not log.exists()
    assert "event=stopped" in (tmp_path / "log.1").read_text()


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        (logging.CRITICAL, 2),
        (logging.ERROR, 3),
        (logging.WARNING, 4),
        (logging.INFO, 6),
        (logging.DEBUG, 7),
        (5, 7),
    ],
)
def test_each_level_has_its_priority(level, expected):
    assert expected == priority_of(level)


@pytest.mark.parametrize("value", ["", "1", "1:", ":2", "a:b", "1:2:3", "-1:2", "99999999999:1"])
def test_a_variable_that_means_nothing_is_no_journal(tmp_path, value):
    with (tmp_path / "log").open("w") as stream:
        assert not is_journal_stream(stream, {"JOURNAL_STREAM": value})


def test_what_is_no_file_is_no_journal():
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


@pytest.mark.parametrize(
    ("is_journal", "expected"), [(True, r"<5>hello"), (False, r"\d{4}-.* keeper\[\d+\]: hello")]
)
def test_the_keeper_tells_it_the_same_way(is_journal, expected):
    text = (
        "import os\n"
        "status = os.fstat(2)\n"
        f"if {is_journal}: os.environ['JOURNAL_STREAM'] = f'{{status.st_dev}}:{{status.st_ino}}'\n"
        "from iodaemon.backend.linux.service import say\n"
        "say('hello')\n"
    )
    ended = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)

    assert re.fullmatch(expected, ended.stderr.strip())
