"""Jobs run on the CPUs they were given and prefer the memory beside them."""

import json
import os
import sys

import pytest
from harness import Server

pytestmark = pytest.mark.node

POLICIES = (["prefer:0"], ["prefer (many):0"])
"""Before Linux 5.15, and since."""
PLACED = """
import json, os, re
with open("/proc/self/status") as file:
    status = dict(line.split(":", 1) for line in file)
with open("/proc/self/numa_maps") as file:
    policies = sorted({re.match(r"\\S+ (prefer( .many.)?:\\d+|\\S+)", line)[1] for line in file})
print(json.dumps({"cpus": sorted(os.sched_getaffinity(0)), "policies": policies,
    "socket": os.environ["IOD_CPU_SOCKET"], "list": os.environ["IOD_CPU_LIST"]}))
"""


@pytest.fixture(scope="module")
def two_sockets(means):
    """Every CPU of ours is a socket."""
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("needs two CPUs")
    sockets = [str(cpu) for cpu in cpus[:2]]
    with Server(means, topology={"sockets": sockets}) as server:
        yield server.start(), cpus


def placed(server, job):
    server.end_of(job)
    return json.loads(server.output(job))


def test_each_job_stays_on_the_socket_it_was_placed_on(two_sockets):
    server, cpus = two_sockets
    gate = server.gated("first")
    server.goes_on("first")
    second = placed(server, server.submit(sys.executable, "-S", "-c", PLACED))
    first = os.sched_getaffinity(server.main_pid(gate))
    server.open_gate("first")
    server.end_of(gate)

    assert sorted([*first, *second["cpus"]]) == cpus[:2]
    assert second["list"] == str(second["cpus"][0])


def test_memory_is_preferred_from_the_socket_and_children_inherit_it(two_sockets):
    if not os.path.exists("/proc/self/numa_maps"):
        pytest.skip("a kernel without NUMA")
    server, _ = two_sockets
    shell = f"{sys.executable} -S -c '{PLACED}'"
    found = placed(server, server.script(shell))

    assert found["policies"] in POLICIES
