"""Deaths of the process that reads the counters, and of those beside it: no byte is lost."""

import itertools
import os
import signal

import pytest
from harness import Server, end, find_state, until

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
