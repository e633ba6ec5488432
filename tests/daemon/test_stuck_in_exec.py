"""A job that hangs in execve(2) is its submitter's trouble alone."""

import subprocess

import pytest
from harness import Server, end, until
from stuck_exec import silent_file_system, stuck_command

pytestmark = pytest.mark.node


@pytest.fixture
def files(tmp_path):
    files = silent_file_system(tmp_path)
    yield files
    files.let_go()


def start_stuck(server, files, **options):
    """A job, and its process that hangs by now."""
    job = server.submit(*stuck_command(files.path), **options)
    return job, files.wait_for(1)[0]


def metrics(server):
    words = ["curl", "-s", "--unix-socket", str(server.runtime / "iod.sock"), "http://x/metrics"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def silence_of(server, job):
    """The reason of the job once its I/O is unknown for that."""

    def look():
        reason = server.job(job)["reason"]
        return reason if reason and reason["code"] == "ProcessSilent" else None

    return until(look, "a sample without it")


def test_its_io_is_unknown_and_all_others_are_measured(shared, files):
    job, pid = start_stuck(shared, files)
    reason = silence_of(shared, job)
    page = metrics(shared)
    other = shared.gated("it")
    until(lambda: shared.job(other)["bandwidth"], "a rate of another job")
    files.let_go()
    until(lambda: shared.job(job)["state"] != "RUNNING", "its end")
    shared.open_gate("it")

    assert reason["pid"] == pid
    assert reason["text"] == f"I/O unknown: process {pid} does not answer"
    assert "\niodaemon_silent_processes 1" in page
    assert shared.log.read_text().count(f"event=process_silent job={job} ") == 1
    assert [("COMPLETED", 0)] * 2 == shared.outcome(job, other)


def test_daemon_and_supervisor_come_back_to_it_and_let_go_what_they_hold(server, files):
    job, _ = start_stuck(server, files)
    server.kill_both()
    server.restart()
    again = silence_of(server, job)
    server.kill_supervisor()
    ended = server.outcome(server.script("exit 3"))
    held = server.gated("held")
    server.goes_on("held")
    server.suspend(held)
    code = server.stop()
    frozen = server.frozen()
    server.open_gate("held")

    assert again["code"] == "ProcessSilent"
    assert [("FAILED", 3)] == ended
    assert (0, []) == (code, frozen)


def test_the_death_of_its_holder_stops_nobody(files):
    """Without cgroups; its state cannot be read by /proc/PID/stat, which would wait for it."""
    with Server("signals") as server:
        server.start()
        start_stuck(server, files)
        [holder] = server.of_role("iod-holder")
        end(holder)

        assert [("FAILED", 3)] == server.outcome(server.script("exit 3"))
        server.kill_supervisor()
        assert [("FAILED", 3)] == server.outcome(server.script("exit 3"))
        files.let_go()


def test_a_cancel_says_what_hangs(shared, files):
    job, pid = start_stuck(shared, files)
    starting = shared.submit("true", stdout=files.path)
    files.wait_for(2)
    answers = dict(shared.client.cancel_each([job, starting], grace_s=0.0))
    texts = {i: answer["job"]["reason"]["text"] for i, answer in answers.items()}
    others = shared.outcome(shared.script("exit 3"))
    files.let_go()

    assert not any(answer["gone"] for answer in answers.values())
    assert f"process {pid} hangs in execve" in texts[job]
    assert "its start hangs" in texts[starting]
    assert [("FAILED", 3)] == others
    assert ["CANCELLED"] * 2 == [shared.end_of(each)["state"] for each in (job, starting)]


def test_its_walltime_ends_it(shared, files):
    job, _ = start_stuck(shared, files, walltime_s=1)
    shared.await_state(job, "STOPPING")
    files.let_go()

    assert "TIMEOUT" == shared.end_of(job)["state"]
