"""What one job's many processes leave of the sampler's descriptors to the others."""

import os
import resource
import subprocess
import time
from pathlib import Path

import pytest
from sampling import Measured

from iodaemon.node.sampler import job_io
from iodaemon.node.sampler.job_io import MOST_OF_A_JOB, Allowance, Moved

MANY = MOST_OF_A_JOB + 150
"""Processes of a job that has more than are kept."""


@pytest.fixture(scope="module")
def family():
    """A process with many children, and what it reads from a file in the end."""
    script = f"for i in $(seq {MANY}); do sleep 600 & done; echo; read line; kill $(jobs -p); wait"
    with subprocess.Popen(
        ["bash", "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as parent:
        parent.stdout.readline()
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        while not all(map(is_asleep, children)):
            time.sleep(0.05)
        yield [int(word) for word in children]
        parent.stdin.write(b"\n")


def is_asleep(pid):
    """Whether it has read all that a program reads at its start."""
    return "(sleep) S" in Path(f"/proc/{pid}/stat").read_text()


def kept():
    """This process's descriptors of processes' I/O."""
    links = []
    for name in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            continue
    return sum(link.endswith("/io") for link in links)


def test_a_job_of_many_processes_takes_so_many_descriptors_and_no_more(family):
    children = family
    io = Measured("/", Moved, lambda: children)
    counters = [io.read() for _ in range(3)]
    held = kept()
    io.close()

    assert MANY == len(children)
    assert MOST_OF_A_JOB == held
    assert None not in [each.read_bytes for each in counters]
    assert 0 == kept()


def test_all_jobs_together_keep_what_is_allowed_and_are_still_read(family):
    children = family
    shared = Allowance(40)
    jobs = [Measured("/", Moved, lambda: children, allowance=shared) for _ in "abc"]
    before = [io.read() for io in jobs]
    held = kept()
    jobs[0].close()  # the only one that has any
    again = jobs[1].read()

    assert 40 == held
    assert before[0].operations == before[1].operations == before[2].operations
    assert again.operations is not None
    assert 40 == kept()
    for io in jobs[1:]:
        io.close()
    assert not Allowance(0).take()


def test_a_job_that_forks_without_end_leaves_descriptors_to_others(family):
    """With the limit of a shell: others find room, and the job's I/O is known."""
    children = family
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        io = Measured("/", Moved, lambda: children)
        known = io.read().operations
        open("/dev/null").close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        io.close()

    assert known is not None


def test_what_is_kept_counts_for_one_that_is_gone_no_more(tmp_path):
    shared = Allowance(2)
    for number in (1, 2, 3, 4):
        (tmp_path / f"proc/{number}").mkdir(parents=True)
        (tmp_path / f"proc/{number}/io").write_text(Path("/proc/self/io").read_text())
    members = [2, 3]
    io = Measured(tmp_path, Moved, lambda: members, allowance=shared)
    io.read()
    assert not shared.take()
    for number in members:
        (tmp_path / f"proc/{number}/io").write_text("")
    members[:] = [4]
    io.read()
    io.close()

    assert [True, True, False] == [shared.take() for _ in range(3)]


def test_the_share_is_of_this_process_limit_as_it_is():
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)

    assert soft // job_io._SHARE == Allowance()._left
