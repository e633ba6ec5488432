"""Deaths of the sampler lose no byte; a job that hangs in execve(2) is its submitter's trouble."""

import itertools
import os
import signal
import subprocess

import pytest
from harness import Server, end, find_state, until
from stuck_exec import silent_file_system, stuck_command

pytestmark = pytest.mark.node


PART = 3 << 20
WRITER = """
until [ "$word" = end ]; do
    read -r word < words || continue
    head -c %d /dev/zero >> data
done
exit 3
"""


class Writer:
    """A job that writes a part for each word, by a process that it waits for."""

    def __init__(self, server):
        self.server = server
        self.words = server.place / "words"
        os.mkfifo(self.words)
        (server.place / "data").touch()
        self.number = server.script(WRITER % PART)
        self.parts = 0

    def writes(self):
        """One more part; the total of logical bytes, which grows by as many each time.

        Of bytes on disks nobody knows beforehand: the process pays for the file system's own.
        """
        self.words.write_text("go\n")
        self.parts += 1
        until(self.has_all, lambda: f"{self.parts} parts: {self.counters()}")
        return self.settled()

    def counters(self):
        return self.server.job(self.number)["counters"] or {}

    def has_all(self):
        return (self.counters().get("written_bytes") or 0) >= self.parts * PART

    def settled(self):
        """Its logical bytes once it waits for the next word."""
        seen = {}

        def look():
            counted = self.counters().get("logical_bytes")
            if counted is not None:
                seen.setdefault(counted, set()).add(last_sample(self.server))
            return next((each for each, at in seen.items() if len(at) > 3), None)

        return until(look, "a total that stays")


def sampler_of(server):
    return until(lambda: server.of_role("iod-sampler"), "a sampler")[0]


def growth(totals):
    return {after - before for before, after in itertools.pairwise(totals)}


def last_sample(server):
    return server.client.node()["sampling"]["last_s"]


def dies_in_a_sweep(server):
    server.arm("sampler.sweeping", passage=2)
    until(lambda: not server.armed(), "its death")


def is_stopped(server):
    """Nobody waits for it; it is killed, and another one begins."""
    sampler = sampler_of(server)
    server.stop_processes(sampler)
    assert [("FAILED", 4)] == server.outcome(server.script("exit 4"))
    until(lambda: find_state(sampler) in (None, "Z"), "its end")


def dies_with_both(server):
    server.kill_both()
    server.restart()


def test_totals_are_exact_whoever_dies(make_server):
    server = make_server(has_faults=True, regulation={"timeslice": "100 ms"}).start()
    job = Writer(server)
    counted = [job.writes() for _ in "abc"]  # what a shell does once is over
    for strike in (dies_in_a_sweep, is_stopped, Server.kill_supervisor, dies_with_both):
        strike(server)
        counted.append(job.writes())
    stopped = (server.anchor_pid(), server.supervisor_pid())
    server.stop_processes(*stopped)
    end(sampler_of(server))
    before = last_sample(server)
    until(
        lambda: last_sample(server) > before and job.counters().get("written_bytes") is None,
        "a sample without one",
    )
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    counted.append(job.writes())
    job.words.write_text("end\n")
    ended = server.end_of(job.number)

    assert 1 == len(growth(counted[1:])), counted
    assert ended["written_bytes"] >= 8 * PART


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
