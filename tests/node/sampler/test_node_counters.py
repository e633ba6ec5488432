"""The counters of the machine: the memory that jobs share, refaults, idle time of sockets."""

import msgspec
import pytest

from iodaemon.core.sample import NodeCounters
from iodaemon.node.sampler.node_counters import NodeCountersReader
from iodaemon.node.sampler.proc_files import PAGE_BYTES

MIB = 1 << 20
MACHINE = 1000 * MIB, 800 * MIB
MEMINFO = f"MemTotal: {1000 << 10} kB\nMemAvailable: {800 << 10} kB\nDirty: 0 kB\nWriteback: 0 kB\n"
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
    """A directory that looks like /, with cgroups of memory, and the one in which all jobs are."""

    def __init__(self, root, version="v1", at="/batch"):
        self.root = root
        self.version = version
        (root / "proc/self").mkdir(parents=True)
        (root / "proc/self/mountinfo").write_text(MOUNTS[version])
        controller = "memory" if version == "v1" else ""
        (root / "proc/self/cgroup").write_text(f"4:{controller}:{at}\n1:name=systemd:/\n")
        self.group("/")
        self.group(at)
        (root / "proc/meminfo").write_text(MEMINFO)
        self.reader = NodeCountersReader(root, {})

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

    def read(self):
        """Memory that jobs share, and what of it can be had."""
        found = self.reader.read()
        return found["memory_bytes"], found["available_bytes"]


@pytest.fixture(params=["v1", "v2"])
def host(request, tmp_path):
    return Host(tmp_path, request.param)


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        # no limit
        ({}, MACHINE),
        # above all jobs
        (
            {"/batch": {"limit": 400 * MIB, "used": 390 * MIB, "cached": 300 * MIB}},
            (400 * MIB, 310 * MIB),
        ),
        # the tightest of nested ones
        (
            {
                "/": {"limit": 500 * MIB, "used": 450 * MIB},
                "/batch": {"limit": 400 * MIB, "used": 100 * MIB},
            },
            (400 * MIB, 50 * MIB),
        ),
        # no more than there is
        ({"/batch": {"limit": 900 * MIB}}, (900 * MIB, 800 * MIB)),
        # more than the machine has
        ({"/batch": {"limit": 1001 * MIB}}, MACHINE),
        # beside the jobs, and of one
        ({"/other": {"limit": 400 * MIB}, "/batch/11.1": {"limit": 100 * MIB}}, MACHINE),
    ],
)
def test_the_memory_that_jobs_share_has_the_limits_above_them(host, groups, expected):
    for path, group in groups.items():
        host.group(path, **group)

    assert host.read() == expected


@pytest.mark.parametrize("jobs", ["/cg/batch/jobs", "/elsewhere/jobs"])
def test_where_jobs_have_cgroups_of_version_2_those_count(tmp_path, jobs):
    host = Host(tmp_path, "v2", at="/supervisor")
    host.group("/batch", limit=400 * MIB)
    host.group("/supervisor", limit=300 * MIB)
    host.reader = NodeCountersReader(tmp_path, {}, f"{tmp_path}{jobs}")

    assert host.read()[0] == (400 if "batch" in jobs else 300) * MIB


def test_a_limit_that_is_changed_is_seen(host):
    host.group("/batch", limit=400 * MIB)
    host.read()
    host.group("/batch", limit=300 * MIB)

    assert host.read()[0] == 300 * MIB


@pytest.mark.parametrize("text", ["", "workingset_refault_file 3\n", "inactive_file 1"])
def test_without_a_whole_memory_stat_what_is_left_is_unknown(host, text):
    host.group("/batch", limit=400 * MIB)
    (host.root / "cg/batch/memory.stat").write_text(text)

    assert host.read() == (400 * MIB, None)


def test_a_process_outside_of_what_is_mounted_has_no_limit_to_be_seen(tmp_path):
    host = Host(tmp_path, at="/../other")

    assert host.read() == MACHINE


def test_without_a_hierarchy_the_memory_is_the_machines(tmp_path):
    host = Host(tmp_path)
    (tmp_path / "proc/self/mountinfo").unlink()
    host.reader = NodeCountersReader(tmp_path, {})

    assert host.read() == MACHINE


def test_memory_high_of_version_2_is_a_limit(tmp_path):
    host = Host(tmp_path, "v2")
    host.group("/batch", limit=400 * MIB)
    (tmp_path / "cg/batch/memory.high").write_text(f"{300 * MIB}\n")

    assert host.read()[0] == 300 * MIB


# -- the rest -------------------------------------------------------------------------------------


def write_stat(root, **idle):
    (root / "proc").mkdir(exist_ok=True)
    lines = [f"{cpu} 1 0 1 {ticks} 0 0 0 0 0 0\n" for cpu, ticks in idle.items()]
    (root / "proc/stat").write_text("cpu  9 9 9 9 9 9 9 9 9 9\n" + "".join(lines) + "ctxt 5\n")


def test_a_machine_that_tells_nothing_has_unknown_counters(tmp_path):
    found = NodeCountersReader(tmp_path, {"0": [0]}).read()

    assert NodeCounters() == msgspec.convert(found, NodeCounters)


def test_idle_time_is_summed_over_the_cpus_of_each_partition_once(tmp_path):
    write_stat(tmp_path, cpu0=100, cpu1=200, cpu100=1000, cpu101=2000)
    reader = NodeCountersReader(tmp_path, {"0": [0, 1, 100, 101, 0, 1], "1": [7]})

    assert reader.read()["idle_s"] == {"0": 33.0}


def test_idle_time_does_not_go_back_nor_with_a_cpu_that_goes_offline(tmp_path):
    reader = NodeCountersReader(tmp_path, {"0": [0, 100]})
    told = []
    for cpus in ({"cpu0": 500, "cpu100": 500}, {"cpu0": 497, "cpu100": 600}, {"cpu0": 700}, {}):
        write_stat(tmp_path, **cpus)
        told.append(reader.read()["idle_s"]["0"])

    assert told == [10.0, 11.0, 13.0, 13.0]


def test_refaults_are_told_in_bytes(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/vmstat").write_text("workingset_refault 3\n")

    assert NodeCountersReader(tmp_path, {}).read()["refault_bytes"] == 3 * PAGE_BYTES
