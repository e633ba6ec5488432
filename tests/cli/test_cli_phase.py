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


def test_in_a_job_it_waits_for_the_turn_and_says_nothing(iod, daemon, in_job):
    daemon.answers[PATH] = GRANTED

    result = iod("phase", "io", "--expect", "2G")

    assert (0, "", "") == (result.code, result.out, result.err)
    assert [body(expect_bytes=2 << 30)] == daemon.bodies(PATH)


def test_done_gives_it_back(iod, daemon, in_job):
    daemon.answers[PATH] = (200, b'{"job": {}}')

    assert iod("phase", "done").code == 0
    assert [{"phase": "done"}] == daemon.bodies(PATH)


def test_outside_a_job_a_script_goes_on(iod):
    result = iod("phase", "io")

    assert (0, "") == (result.code, result.out)
    assert result.err == "iod: not in a job of iodaemon: nothing to wait for; going on\n"


def test_outside_a_job_it_fails_if_asked_to(iod):
    assert iod.fails("phase", "io", "--strict") == (
        1,
        "not in a job of iodaemon: nothing to wait for: submit the script with 'iod submit'",
    )


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


def test_it_waits_no_longer_than_told(iod, in_job):
    code, said = iod.fails("phase", "io", "--timeout", "0.1", "--strict")

    assert (1, "no turn within 0.1 s: 'iod why' tells who has it") == (code, said)


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

    assert code == 2
    assert message.startswith(said)


# -- the module ------------------------------------------------------------------------------------


def test_a_program_waits_and_gives_back(daemon, in_job):
    daemon.answers[PATH] = GRANTED

    with phase.turn("1 MiB") as had:
        assert had
    assert [body(expect_bytes=1 << 20), {"phase": "done"}] == daemon.bodies(PATH)


def test_a_turn_is_given_back_after_a_failure(daemon, in_job):
    daemon.answers[PATH] = GRANTED

    with pytest.raises(ZeroDivisionError), phase.turn():
        raise ZeroDivisionError
    assert daemon.bodies(PATH)[-1] == {"phase": "done"}


def test_outside_a_job_a_program_goes_on_without_a_word(capsys):
    with phase.turn() as had:
        assert not had
    assert not phase.done()
    assert ("", "") == tuple(capsys.readouterr())


def test_a_program_that_gets_no_turn_says_so_and_goes_on(in_job, capsys):
    assert not phase.io(patience_s=0.0)

    assert "no daemon has answered" in capsys.readouterr().err


@pytest.mark.parametrize("expect", ["much", -1, float("inf"), 2.0**63])
def test_what_is_no_size_is_an_error(in_job, expect):
    with pytest.raises(ValueError, match="expect"):
        phase.io(expect)


def test_what_is_no_iodaemon_is_no_daemon(daemon, in_job, capsys):
    daemon.answers[PATH] = (200, b"<html>")

    assert not phase.io(patience_s=0.0)


def test_the_file_alone_is_enough_and_the_standard_library(tmp_path):
    (tmp_path / "phase.py").write_text((ROOT / "iodaemon/phase.py").read_text())
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import phase; print(phase.io(2**30)); "
        "print(sorted(m for m in sys.modules if m.partition('.')[0] in "
        "('iodaemon', 'msgspec', 'aiohttp', 'typer', 'asyncio')))"
    )
    ended = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={"PATH": os.environ["PATH"]},
    )

    first, loaded = ended.stdout.splitlines()
    assert ("False", []) == (first, ast.literal_eval(loaded))


def test_importing_it_loads_nothing_else_of_ours():
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); import iodaemon.phase; "
        "print(sorted(m for m in sys.modules if m.startswith('iodaemon')))"
    )
    ended = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    )

    assert ["iodaemon", "iodaemon.phase"] == ast.literal_eval(ended.stdout)


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
    daemon.add(job(7, phase=told))

    assert f"I/O phase     {said}\n" in iod("show", "7").out


def test_show_of_a_job_that_tells_nothing_has_no_such_line(iod, daemon):
    daemon.add(job(7, phase=None), job(8))

    assert "I/O phase" not in iod("show", "7", "8").out
