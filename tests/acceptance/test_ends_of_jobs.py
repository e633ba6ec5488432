"""How jobs end, what their output is, and what the commands that wait for them return."""

import os
import signal
import subprocess

import pytest
from harness import until

pytestmark = pytest.mark.node


def test_wait_returns_the_highest_code_and_names_who_failed(plain):
    """That of a signal as in a shell, that of a walltime as of timeout(1)."""
    texts = {"exit 0": 0, "exit 7": 7, "kill -USR1 $$": 128 + signal.SIGUSR1}
    jobs = {plain.script(text): code for text, code in texts.items()}
    jobs[plain.script("sleep 1000", walltime_s=0.3)] = 124
    waited = plain.iod("wait", *map(str, jobs))

    assert waited.code == max(jobs.values())
    assert [f"job {job} " in waited.err for job in jobs] == [False, True, True, True]
    assert {job: plain.job(job)["shell_code"] for job in jobs} == jobs


def test_submit_that_waits_returns_the_code_of_the_job(plain):
    assert plain.iod("submit", "--wait", "--", "sh", "-c", "exit 6").code == 6


def test_waiting_outlives_the_daemon(plain):
    job = plain.gated("it", code=5)
    plain.goes_on("it")
    waiting = plain.later(plain.iod, "wait", str(job))
    plain.await_waiting()
    plain.kill()
    plain.start()
    plain.open_gate("it")

    assert waiting.result().code == 5


def test_a_job_is_asked_to_end_when_it_has_run_for_its_walltime(plain):
    job = plain.script(
        "trap 'echo heard >> ledger; exit 3' TERM; while :; do sleep 0.02; done", walltime_s=0.4
    )
    found = plain.end_of(job)

    assert (found["state"], found["exit_code"]) == ("TIMEOUT", 3)
    assert found["run_s"] >= 0.4
    assert plain.lines() == ["heard"]


def test_a_job_runs_again_from_its_beginning_also_when_it_had_ended(plain):
    job = plain.script('echo "$COLOUR" >> ledger; exit 5', env={"COLOUR": "blue"})
    plain.outcome(job)
    plain.stop()
    plain.start()
    plain.says("requeue", str(job))
    until(lambda: plain.lines() == ["blue", "blue"], "the second run")

    assert plain.outcome(job) == [("FAILED", 5)]
    assert plain.job(job)["attempt"] == 2


def test_a_waiting_job_that_is_cancelled_never_runs(plain):
    runs = plain.gated("runs")
    waits = plain.gated("waits", cpus=16)
    plain.says("cancel", str(waits))
    plain.open_gate("runs", "waits")

    assert plain.outcome(waits, runs) == [("CANCELLED", None), ("COMPLETED", 0)]
    assert plain.lines() == ["done runs", "start runs"]


# -- output --------------------------------------------------------------------------------------


def test_logs_follow_a_job_to_its_end_also_when_the_daemon_is_killed(plain):
    job = plain.script(
        "echo one; echo two >&2; until [ -e open ]; do sleep 0.02; done; echo three; exit 4"
    )
    with subprocess.Popen(
        plain.words("logs", "-f", str(job)),
        env=plain.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as following:
        first = [following.stdout.readline(), following.stdout.readline()]
        plain.kill()
        plain.start()
        (plain.place / "open").touch()
        rest, _ = following.communicate()

    assert first == [b"one\n", b"two\n"]
    assert rest == b"three\n"
    assert plain.says("logs", str(job)) == "one\ntwo\nthree\n"
    assert plain.says("logs", "--tail", "1", str(job)) == "three\n"


def test_output_files_are_made_as_the_submitter_would_make_them(plain):
    job = plain.script(
        "echo out; echo err >&2; touch made",
        stdout="out-%j",
        stderr=str(plain.place / "err"),
        umask=0o027,
    )
    plain.outcome(job)
    paths = [plain.place / name for name in (f"out-{job}", "err", "made")]

    assert [path.read_text() for path in paths] == ["out\n", "err\n", ""]
    assert [path.stat().st_mode & 0o777 for path in paths] == [0o640] * 3
    assert {path.stat().st_uid for path in paths} == {os.geteuid()}


def test_a_job_has_its_own_directory_environment_and_nothing_of_the_daemons(plain):
    job = plain.script(
        "pwd; echo $COLOUR; ls /proc/self/fd | wc -l; umask", env={"COLOUR": "green"}
    )
    plain.outcome(job)

    told = plain.says("logs", str(job)).split()
    assert told == [str(plain.place), "green", "4", "0022"]
