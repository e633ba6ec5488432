"""The counters of the machine: the memory that jobs share, refaults, idle time of sockets."""

from itertools import count

import msgspec
import pytest

from iodaemon.core.sample import NodeCounters
from iodaemon.node.sampler import node_counters
from iodaemon.node.sampler.node_counters import (
    Available,
    NodeCountersReader,
    SharedMemory,
)
from iodaemon.node.sampler.proc_files import PAGE_BYTES

MIB = 1 << 20
MACHINE = Available(1000 * MIB, 800 * MIB)
MOUNTS = {
    "v1": "35 31 0:32 / /cg rw,relatime - cgroup cgroup rw,memory\n",
    "v2": "41 31 0:38 / /cg rw,relatime - cgroup2 cgroup2 rw\n",
}
FILES = {
    "v1": ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    "v2": ("memory.max", "memory.current"),
}
UNLIMITED = {"v1": "9223372036854771712", "v2": "max"}


class Host:
    """A directory that looks like /, with cgroups of memory and jobs of one process each."""

    def __init__(self, root, version="v1"):
        self.root = root
        self.version = version
        self.pids = {}
        self.looks = 0
        (root / "proc/self").mkdir(parents=True)
        (root / "proc/self/mountinfo").write_text(MOUNTS[version])
        self.group("/")
        self.memory = SharedMemory(root)
        self.clock = map(float, count())

    def group(self, path, limit=None, used=0, cached=0):
        directory = self.root / f"cg/{path.strip('/')}"
        directory.mkdir(parents=True, exist_ok=True)
        limit_file, usage_file = FILES[self.version]
        text = UNLIMITED[self.version] if limit is None else str(limit)
        (directory / limit_file).write_text(f"{text}\n")
        (directory / usage_file).write_text(f"{used}\n")
        prefix = "total_" if self.version == "v1" else ""
        before = "inactive_file 0\nactive_file 0\nhierarchical_memory_limit 1\n" if prefix else ""
        (directory / "memory.stat").write_text(
            f"{before}{prefix}inactive_file {cached}\n{prefix}active_file 0\n"
        )

    def run(self, job_id, path, own=None):
        """A job whose process is in this cgroup; once more: it has moved there."""
        directory = self.root / f"proc/{job_id}"
        directory.mkdir(exist_ok=True)
        controller = "memory" if self.version == "v1" else ""
        (directory / "cgroup").write_text(f"4:{controller}:{path}\n1:name=systemd:/\n")

        def members():
            self.looks += 1
            return [1, job_id]

        cgroup = None if own is None else str(self.root / f"cg/{own.strip('/')}")
        if job_id not in self.pids:
            self.memory.add(job_id, members, cgroup)
        self.pids[job_id] = cgroup

    def read(self, times=1):
        for _ in range(times):
            found = self.memory.read(next(self.clock), MACHINE)
        return found


@pytest.fixture(params=["v1", "v2"])
def host(request, tmp_path):
    return Host(tmp_path, request.param)


def test_without_jobs_or_limits_the_memory_is_the_machines(host):
    assert host.read() == MACHINE

    host.run(11, "/")
    assert host.read(3) == MACHINE


def test_a_limit_above_all_jobs_is_what_they_share(host):
    host.group("/batch", limit=400 * MIB, used=390 * MIB, cached=300 * MIB)
    host.group("/batch/inner")
    host.run(11, "/batch")
    host.run(12, "/batch/inner")

    assert host.read(2) == Available(400 * MIB, 310 * MIB)


def test_of_nested_limits_the_tightest_counts(host):
    host.group("/batch", limit=500 * MIB, used=450 * MIB)
    host.group("/batch/inner", limit=400 * MIB, used=100 * MIB)
    host.run(11, "/batch/inner")

    assert host.read() == Available(400 * MIB, 50 * MIB)


def test_a_limit_never_makes_more_available_than_the_machine_has(host):
    host.group("/batch", limit=900 * MIB)
    host.run(11, "/batch")

    assert host.read() == Available(900 * MIB, 800 * MIB)


def test_a_limit_above_the_machines_memory_is_none(host):
    host.group("/batch", limit=1001 * MIB)
    host.run(11, "/batch")

    assert host.read() == MACHINE


def test_jobs_in_different_limits_share_the_machine(host):
    host.group("/a", limit=400 * MIB)
    host.group("/b", limit=400 * MIB)
    host.run(11, "/a")
    host.run(12, "/b")

    assert host.read(2) == MACHINE


def test_a_jobs_own_limit_is_not_shared(host):
    host.group("/jobs", limit=400 * MIB)
    host.group("/jobs/11.1", limit=100 * MIB)
    host.run(11, "/jobs/11.1/deeper", own="/jobs/11.1")

    assert host.read().memory_bytes == 400 * MIB


def test_a_job_that_enters_a_limited_group_later_is_found_there(host):
    host.group("/batch", limit=400 * MIB)
    host.run(11, "/")
    host.read(5)
    host.run(11, "/batch")

    assert host.read(61).memory_bytes == 400 * MIB


def test_a_job_that_has_just_begun_does_not_change_what_the_others_share(host):
    host.group("/batch", limit=400 * MIB)
    host.run(11, "/batch")
    host.read(3)
    host.run(12, "/")

    assert [host.read().memory_bytes for _ in "ab"] == [400 * MIB, 1000 * MIB]


def test_a_job_that_ends_while_it_is_looked_at_counts_as_it_was_seen(host):
    host.group("/batch", limit=400 * MIB)
    host.run(11, "/batch")
    host.read(2)
    (host.root / "proc/11/cgroup").unlink()

    assert host.read(20).memory_bytes == 400 * MIB


def test_a_limit_that_is_changed_is_seen_within_seconds(host):
    host.group("/batch", limit=400 * MIB)
    host.run(11, "/batch")
    host.read(5)
    host.group("/batch", limit=300 * MIB)

    assert host.read(11).memory_bytes == 300 * MIB


@pytest.mark.parametrize("text", ["", "workingset_refault_file 3\n", "inactive_file 1"])
def test_without_a_whole_memory_stat_what_is_left_is_unknown(host, text):
    host.group("/batch", limit=400 * MIB)
    host.run(11, "/batch")
    (host.root / "cg/batch/memory.stat").write_text(text)

    assert host.read() == Available(400 * MIB, None)


def test_a_group_that_is_removed_under_its_jobs_leaves_the_rest_unknown(host):
    host.group("/batch", limit=400 * MIB)
    host.run(11, "/batch")
    host.read(3)
    for file in (host.root / "cg/batch").iterdir():
        file.write_text("")

    assert host.read() == Available(400 * MIB, None)


def test_a_process_outside_of_what_is_mounted_has_no_limit_to_be_seen(host):
    host.run(11, "/../other")

    assert host.read() == MACHINE


def test_without_a_hierarchy_the_memory_is_the_machines(tmp_path):
    (tmp_path / "proc/11").mkdir(parents=True)
    memory = SharedMemory(tmp_path)
    memory.add(11, lambda: [11], None)

    assert memory.read(0.0, MACHINE) == MACHINE


def test_memory_high_of_version_2_is_a_limit(tmp_path):
    host = Host(tmp_path, "v2")
    host.group("/batch", limit=400 * MIB)
    (tmp_path / "cg/batch/memory.high").write_text(f"{300 * MIB}\n")
    host.run(11, "/batch")

    assert host.read().memory_bytes == 300 * MIB


def test_jobs_without_a_process_are_asked_again_and_hold_up_no_other(host):
    host.group("/batch", limit=400 * MIB)
    for number in range(1, 40):
        host.memory.add(number, list, None)
    host.run(99, "/batch")

    assert host.read(10).memory_bytes == 400 * MIB


def test_few_jobs_are_looked_at_in_one_reading_and_each_within_its_time(host):
    for job_id in range(101, 165):
        host.run(job_id, "/")
    looks = []
    for _ in range(112):
        before = host.looks
        host.read()
        looks.append(host.looks - before)

    assert max(looks) <= node_counters._MOST_LOOKS
    assert sum(looks[:48]) == 64 * node_counters._FIRST_LOOKS
    assert looks[48:] == [1] * 64


# -- the rest -------------------------------------------------------------------------------------


def write_stat(root, **idle):
    (root / "proc").mkdir(exist_ok=True)
    lines = [f"{cpu} 1 0 1 {ticks} 0 0 0 0 0 0\n" for cpu, ticks in idle.items()]
    (root / "proc/stat").write_text("cpu  9 9 9 9 9 9 9 9 9 9\n" + "".join(lines) + "ctxt 5\n")


def test_a_machine_that_tells_nothing_has_unknown_counters(tmp_path):
    found = NodeCountersReader(tmp_path, {"0": [0]}).read(0.0)

    assert NodeCounters() == msgspec.convert(found, NodeCounters)


def test_idle_time_is_summed_over_the_cpus_of_each_partition_once(tmp_path):
    write_stat(tmp_path, cpu0=100, cpu1=200, cpu100=1000, cpu101=2000)
    reader = NodeCountersReader(tmp_path, {"0": [0, 1, 100, 101, 0, 1], "1": [7]})

    assert reader.read(0.0)["idle_s"] == {"0": 33.0}


def test_idle_time_does_not_go_back_nor_with_a_cpu_that_goes_offline(tmp_path):
    reader = NodeCountersReader(tmp_path, {"0": [0, 100]})
    told = []
    for cpus in ({"cpu0": 500, "cpu100": 500}, {"cpu0": 497, "cpu100": 600}, {"cpu0": 700}, {}):
        write_stat(tmp_path, **cpus)
        told.append(reader.read(0.0)["idle_s"]["0"])

    assert told == [10.0, 11.0, 13.0, 13.0]


def test_refaults_are_told_in_bytes(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/vmstat").write_text("workingset_refault 3\n")

    assert NodeCountersReader(tmp_path, {}).read(0.0)["refault_bytes"] == 3 * PAGE_BYTES
