"""How jobs end, what their output is, and what the commands that wait for them return."""

import os
import signal
import subprocess

import pytest
from system import until

pytestmark = pytest.mark.node


@pytest.mark.parametrize(
    ("text", "options", "code"),
    [
        ("exit 0", {}, 0),
        ("exit 7", {}, 7),
        ("kill -USR1 $$", {}, 128 + signal.SIGUSR1),
        ("sleep 1000", {"walltime_s": 0.3}, 124),
    ],
)
def test_wait_returns_the_code_of_the_job(plain, text, options, code):
    job = plain.submit(text, **options)

    assert plain.iod("wait", str(job)).code == code
    assert plain.job(job)["shell_code"] == code


def test_wait_returns_the_highest_code_and_names_who_failed(plain):
    jobs = plain.submit_all(["exit 0", "exit 4", "exit 2"])
    waited = plain.iod("wait", *map(str, jobs))

    assert waited.code == 4
    assert [f"job {job} " in waited.err for job in jobs] == [False, True, True]


def test_submit_that_waits_returns_the_code_of_the_job(plain):
    assert plain.iod("submit", "--wait", "--", "sh", "-c", "exit 6").code == 6


def test_waiting_outlives_the_daemon(plain):
    job = plain.gated("it", code=5)
    plain.goes_on("it")
    waiting = plain.later(plain.iod, "wait", str(job))
    plain.await_waiting()
    plain.kill("daemon")
    plain.start()
    plain.open("it")

    assert waiting.result().code == 5


def test_a_job_is_asked_to_end_when_it_has_run_for_its_walltime(plain):
    job = plain.submit(
        "trap 'echo heard >> ledger; exit 3' TERM; while :; do sleep 0.02; done", walltime_s=0.4
    )
    found = plain.end_of(job)

    assert (found["state"], found["exit_code"]) == ("TIMEOUT", 3)
    assert found["run_s"] >= 0.4
    assert plain.ledger() == ["heard"]


def test_a_command_that_cannot_be_run_fails_as_in_a_shell(plain):
    [missing] = plain.post("/v1/jobs", {"jobs": [{"command": ["/no/such"], "cwd": "/"}]})["ids"]
    found = plain.end_of(missing)

    assert (found["state"], found["exit_code"]) == ("FAILED", 127)
    assert found["reason"]["code"] == "StartFailed"


def test_a_job_runs_again_from_its_beginning_also_when_it_had_ended(plain):
    job = plain.submit('echo "$COLOUR" >> ledger; exit 5', {"COLOUR": "blue"})
    plain.outcome(job)
    plain.end()
    plain.start()
    plain.says("requeue", str(job))
    until(lambda: plain.ledger() == ["blue", "blue"], "the second run")

    assert plain.outcome(job) == [("FAILED", 5)]
    assert plain.job(job)["attempt"] == 2


def test_a_waiting_job_that_is_cancelled_never_runs(plain):
    runs = plain.gated("runs")
    waits = plain.gated("waits", cpus=16)
    plain.says("cancel", str(waits))
    plain.open("runs", "waits")

    assert plain.outcome(waits, runs) == [("CANCELLED", None), ("COMPLETED", 0)]
    assert plain.ledger() == ["begin runs", "end runs"]


def test_one_that_ignores_the_request_is_killed_before_it_runs_again(plain):
    text = "trap '' TERM; echo begin >> ledger; while :; do sleep 0.02; done"
    job = plain.submit(text)
    until(lambda: plain.ledger() == ["begin"], "begin of the job")
    plain.says("requeue", "--grace", "0.1", str(job))

    until(lambda: plain.ledger() == ["begin"] * 2, "the second begin")
    assert plain.states(job) == ["RUNNING"]


def test_a_job_whose_output_is_a_pipe_that_nobody_reads_fails(plain):
    os.mkfifo(plain.work / "fifo")
    found = plain.end_of(plain.submit("echo it >> ledger", stdout=str(plain.work / "fifo")))

    assert found["state"] == "FAILED"
    assert found["reason"]["code"] == "StartFailed"
    assert plain.ledger() == []


# -- output --------------------------------------------------------------------------------------


def test_logs_follow_a_job_to_its_end_also_when_the_daemon_is_killed(plain):
    job = plain.submit(
        "echo one; echo two >&2; until [ -e open ]; do sleep 0.02; done; echo three; exit 4"
    )
    with subprocess.Popen(
        plain.command("logs", "-f", str(job)),
        env=plain.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as following:
        first = [following.stdout.readline(), following.stdout.readline()]
        plain.kill("daemon")
        plain.start()
        (plain.work / "open").touch()
        rest, _ = following.communicate()

    assert first == [b"one\n", b"two\n"]
    assert rest == b"three\n"
    assert plain.says("logs", str(job)) == "one\ntwo\nthree\n"
    assert plain.says("logs", "--tail", "1", str(job)) == "three\n"


def test_output_files_are_made_as_the_submitter_would_make_them(plain):
    job = plain.submit(
        "echo out; echo err >&2; touch made",
        stdout="out-%j",
        stderr=str(plain.work / "err"),
        umask=0o027,
    )
    plain.outcome(job)
    paths = [plain.work / name for name in (f"out-{job}", "err", "made")]

    assert [path.read_text() for path in paths] == ["out\n", "err\n", ""]
    assert [path.stat().st_mode & 0o777 for path in paths] == [0o640] * 3
    assert {path.stat().st_uid for path in paths} == {os.geteuid()}


def test_a_job_has_its_own_directory_environment_and_nothing_of_the_daemons(plain):
    job = plain.submit("pwd; echo $COLOUR; ls /proc/self/fd | wc -l; umask", {"COLOUR": "green"})
    plain.outcome(job)

    told = plain.says("logs", str(job)).split()
    assert told == [str(plain.work), "green", "4", "0022"]
