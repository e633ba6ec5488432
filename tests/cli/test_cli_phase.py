"""``iod phase`` and the module behind it: in a job, outside one, and where there is no turn."""

import ast
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_daemon import NOW_S, job

from iodaemon import phase

ROOT = Path(__file__).parents[2]
PATH = "/v1/jobs/7/phase"
GRANTED = (200, b'\n\n{"granted": true, "job": {}}')


@pytest.fixture
def in_job(monkeypatch, socket_path):
    monkeypatch.setenv("IOD_JOB_ID", "7")
    monkeypatch.setenv("IOD_API_SOCKET", socket_path)


@pytest.fixture(autouse=True)
def outside(monkeypatch):
    for name in ("IOD_JOB_ID", "IOD_API_SOCKET"):
        monkeypatch.delenv(name, raising=False)


def body(**fields):
    return {"phase": "io", "expect_bytes": None} | fields


# -- the command -----------------------------------------------------------------------------------


def test_in_a_job_it_waits_for_the_turn_gives_it_back_and_says_nothing(iod, daemon, in_job):
    daemon.answers[PATH] = GRANTED

    for words in (("io", "--expect", "2G"), ("done",)):
        result = iod("phase", *words)
        assert (0, "", "") == (result.code, result.out, result.err)
    assert [body(expect_bytes=2 << 30), {"phase": "done"}] == daemon.bodies(PATH)


OUTSIDE = "not in a job of iodaemon: nothing to wait for"


def test_outside_a_job_a_script_goes_on_or_fails_if_asked_to(iod):
    result = iod("phase", "io")

    assert (0, "", f"iod: {OUTSIDE}; going on\n") == (result.code, result.out, result.err)
    told = f"{OUTSIDE}: submit the script with 'iod submit'"
    assert (1, told) == iod.fails("phase", "io", "--strict")


def test_a_refusal_does_not_stop_a_script(iod, daemon, in_job):
    daemon.answers[PATH] = (400, b'{"error": {"code": "refused", "message": "job 7 is COMPLETED"}}')

    result = iod("phase", "io")
    assert (0, "iod: job 7 is COMPLETED; going on\n") == (result.code, result.err)
    assert iod.fails("phase", "io", "--strict")[0] == 1


def test_without_a_daemon_a_script_goes_on_after_a_while(iod, in_job, monkeypatch):
    monkeypatch.setattr(phase, "GIVE_BACK_S", 0.0)
    monkeypatch.setattr(phase.give_back, "__kwdefaults__", {"patience_s": 0.0, "api": None})

    result = iod("phase", "done")
    assert result.code == 0
    assert "no daemon has answered" in result.err
    assert iod.fails("phase", "done", "--strict")[0] == 7
    waited = iod.fails("phase", "io", "--timeout", "0.1", "--strict")
    assert (1, "no turn within 0.1 s: 'iod why' tells who has it") == waited


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["io", "--expect", "much"], "--expect: 'much' is not a size"),
        (["io", "--timeout", "soon"], "--timeout: 'soon' is not a duration"),
        (["out"], "no verb 'out'"),
    ],
)
def test_wrong_usage_is_an_error_in_a_script_too(iod, words, said):
    code, message = iod.fails("phase", *words)

    assert (2, True) == (code, message.startswith(said)), message


# -- the module ------------------------------------------------------------------------------------


def test_a_program_waits_and_gives_back_also_after_a_failure(daemon, in_job):
    daemon.answers[PATH] = GRANTED

    with phase.turn("1 MiB") as had:
        assert had
    with pytest.raises(ZeroDivisionError), phase.turn("1 MiB"):
        raise ZeroDivisionError
    assert 2 * [body(expect_bytes=1 << 20), {"phase": "done"}] == daemon.bodies(PATH)


def test_a_program_that_gets_no_turn_says_so_and_goes_on(daemon, in_job, capsys):
    daemon.answers[PATH] = (200, b"<html>")  # it is no iodaemon
    assert not phase.io(patience_s=0.0)
    daemon.stop()
    assert not phase.io(patience_s=0.0)

    assert "no daemon has answered" in capsys.readouterr().err


def alone(*words, code):
    """What a program prints that has the standard library only, as a literal a line."""
    command = [sys.executable, "-I", "-S", "-c", code, *words]
    path = {"PATH": os.environ["PATH"]}
    ended = subprocess.run(command, capture_output=True, text=True, check=True, env=path)
    return [ast.literal_eval(line) for line in ended.stdout.splitlines()]


def test_the_file_alone_is_enough_and_the_standard_library(tmp_path):
    (tmp_path / "phase.py").write_text((ROOT / "iodaemon/phase.py").read_text())
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import phase; print(phase.io(2**30)); "
        "print(sorted(m for m in sys.modules if m.partition('.')[0] in "
        "('iodaemon', 'msgspec', 'aiohttp', 'typer', 'asyncio')))"
    )

    assert [False, []] == alone(str(tmp_path), code=code)


# -- what others see of it -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("granted_s", "said"),
    [
        (None, "waits for its turn since 2027-01-15 07:59:00, 2 GiB expected"),
        (NOW_S - 30, "has its turn since 2027-01-15 07:59:30, 2 GiB expected"),
    ],
)
def test_show_tells_of_the_phase(iod, daemon, monkeypatch, granted_s, said):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    told = {"asked_s": NOW_S - 60, "expect_bytes": 2 << 30, "granted_s": granted_s}
    daemon.add(job(7, phase=told), job(8))

    assert f"I/O phase     {said}\n" in iod("show", "7").out
    assert "I/O phase" not in iod("show", "8").out
