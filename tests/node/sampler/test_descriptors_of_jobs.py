"""What one job's many processes leave of the sampler's descriptors to the others."""

import os
import resource
import subprocess
import time
from pathlib import Path

import pytest
from sampling import Measured

from iodaemon.node.sampler.job_io import Position
from iodaemon.supervisor.ledger import Use

MANY = 150


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
    return sum(link.startswith("/proc/") and link.endswith("/io") for link in links)


def having(spare):
    position = Position()
    position.spare = spare
    return position


def test_all_jobs_together_keep_what_is_allowed_and_are_still_read(family):
    position = having(40)
    jobs = [Measured("/", Use, lambda: family, position) for _ in "abc"]
    before = [io.read() for io in jobs]
    held = kept()
    jobs[0].close()  # the only one that has any
    again = jobs[1].read()

    assert 40 == held
    assert before[0].operations == before[1].operations == before[2].operations
    assert again.operations is not None
    assert (40, 0) == (kept(), position.spare)
    for io in jobs[1:]:
        io.close()
    assert (0, 40) == (kept(), position.spare)


def test_what_is_kept_counts_for_one_that_is_gone_no_more(tmp_path):
    position = having(2)
    for number in (1, 2, 3, 4):
        (tmp_path / f"proc/{number}").mkdir(parents=True)
        (tmp_path / f"proc/{number}/io").write_text(Path("/proc/self/io").read_text())
    members = [2, 3]
    io = Measured(tmp_path, Use, lambda: members, position)
    io.read()
    full = position.spare
    for number in members:
        (tmp_path / f"proc/{number}/io").write_text("")
    members[:] = [4]
    io.read()
    io.read()

    assert (0, 1) == (full, position.spare)
    io.close()


def test_the_jobs_leave_more_than_they_take():
    """For files that are opened for one reading only."""
    assert 0 < Position().spare < resource.getrlimit(resource.RLIMIT_NOFILE)[0] / 2
