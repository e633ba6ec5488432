"""The limit cycle of a bound in MB/s that one job alone exceeds, with real jobs on a real disk.

``dynamic`` stops all, sees nothing moved, lets one go, sees too much, stops it again, for ever.
``adaptive`` under the same bound takes jobs off down to one and lets that run; without a bound it
stops nobody again whom it let go. The three daemons have the same work.
"""

import contextlib
import os
import re
import sys

import pytest
from harness import Server, until

pytestmark = pytest.mark.node

JOBS = 4
CYCLES = 5
"""Of ``dynamic``, to be waited for: each takes it two timeslices."""
TIMESLICE = "500 ms"
BOUND = "4 MB/s"
READER = """
import mmap, os, sys, time
fd = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT)
buffer = mmap.mmap(-1, 1 << 19)
while True:
    os.preadv(fd, [buffer], 0)
    time.sleep(0.05)
"""
"""Reads at most 10 MB/s, past the page cache: more than the bound, little for any disk."""
CASES = {
    "dynamic, 4 MB/s": {"rule": "dynamic", "timeslice": TIMESLICE, "io_bound": BOUND},
    "adaptive, 4 MB/s": {"rule": "adaptive", "timeslice": TIMESLICE, "io_bound": BOUND},
    "adaptive": {"rule": "adaptive", "timeslice": TIMESLICE},
}


def decisions(server):
    """Suspends and resumes in order, each with its job."""
    return re.findall(r"decision=(suspend|resume) job=(\d+)", server.log.read_text())


def cycles(server):
    """How often a job that had been let go was stopped again."""
    let_go, count = set(), 0
    for what, job in decisions(server):
        if what == "resume":
            let_go.add(job)
        elif job in let_go:
            let_go.discard(job)
            count += 1
    return count


@pytest.fixture
def servers():
    """One for each case, all with the same work."""
    with contextlib.ExitStack() as stack:
        made = {}
        for name, regulation in CASES.items():
            server = stack.enter_context(Server("cgroup", regulation=regulation))
            made[name] = server.start()
            data = server.root / "data"
            data.write_bytes(os.urandom(1 << 19))
            with data.open("rb") as file:
                os.fsync(file.fileno())
            server.submit_many([{"command": [sys.executable, "-c", READER, str(data)]}] * JOBS)
        yield made


@pytest.mark.slow
def test_a_bound_that_one_job_exceeds_drives_dynamic_round_and_adaptive_does_not_cycle(servers):
    plain, capped, free = servers.values()
    cut = JOBS - 1
    until(lambda: len(decisions(capped)) >= cut, "the cap")
    until(lambda: cycles(plain) >= CYCLES, "the limit cycle")

    rows = {name: (len(decisions(server)), cycles(server)) for name, server in servers.items()}
    print(
        "\n".join(
            f"{name:<16} {all_:>3} decisions {again:>3} cycles"
            for name, (all_, again) in rows.items()
        )
    )
    assert ["suspend"] * cut == [what for what, _ in decisions(capped)]
    assert 0 == cycles(free)
