"""What this kernel offers besides: the fence, the limit, what reaches the disks, and what waits."""

import json

import pytest
from server import SCOPE

ENDS = ("COMPLETED", "FAILED", "LOST", "CANCELLED", "OUT_OF_MEMORY")
MIB = 1 << 20
FENCED = """
import json, os, subprocess
def takes(*words):
    return subprocess.run(words, capture_output=True).returncode == 0
def sets(cpus):
    try:
        os.sched_setaffinity(0, cpus)
    except OSError:
        return []
    return sorted(os.sched_getaffinity(0))
status = dict(line.split(":\\t") for line in open("/proc/self/status").read().splitlines())
print(json.dumps({
    "mems": status["Mems_allowed_list"],
    "each": [cpu for cpu in range(4) if sets({cpu})],
    "all": sets(range(4)),
    "taskset": [cpu for cpu in range(4) if takes("taskset", "-c", str(cpu), "true")],
    "membind": [node for node in range(4) if takes("numactl", f"--membind={node}", "true")],
    "cpubind": [node for node in range(4) if takes("numactl", f"--cpunodebind={node}", "true")],
}))
"""
HOG = "data = bytearray({} << 20)\nfor i in range(0, len(data), 4096): data[i] = 1"
STACK = """
modprobe -a dm_mod raid1
dmsetup create one --table '0 204800 linear /dev/vda 0'
dmsetup create two --table '0 204800 linear /dev/vda 204800'
mdadm --create /dev/md9 --run --assume-clean --metadata=1.2 --level=1 --raid-devices=2 \
    /dev/mapper/one /dev/mapper/two 2>&1
mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 /dev/md9
mkdir -p /mnt/stack; mount /dev/md9 /mnt/stack; chmod 1777 /mnt/stack; sync
"""
NO_STACK = """
umount /mnt/stack || true
mdadm --stop /dev/md9 2>/dev/null || true
dmsetup remove two || true
dmsetup remove one || true
wipefs -aq /dev/vda
"""


def hog(mib):
    return f"/usr/bin/python3 -I -S -c '{HOG.format(mib)}'"


def written(service, job):
    """Its counters once its write is through, and what its io.stat says of each device."""
    gate = f"/tmp/written-{job}"
    service.machine.until(f"[ -e {gate} ]", what="the write", limit_s=200)
    service.machine.sh("sleep 3")  # a sample or two
    counters = service.show(job)["counters"]
    text = service.machine.sh(f"cat {service.cgroup(job)}/io.stat")
    devices = {line.split()[0]: line for line in text.splitlines()}
    return counters, devices


def writer(service, folder, mib):
    script = f"dd if=/dev/zero of={folder}/$IOD_JOB_ID bs=1M count={mib} conv=fsync 2>&1"
    job = service.submit(f"{script}; touch /tmp/written-$IOD_JOB_ID; exec sleep 600")
    service.await_state(job, "RUNNING")
    return job


@pytest.fixture
def stack(service):
    """A mirror on two volumes on one disk: each byte written is four times in io.stat, and more."""
    service.machine.sh(NO_STACK)
    service.machine.sh(STACK, limit_s=200)
    yield "/mnt/stack"
    service.cancel_all()
    service.machine.sh(NO_STACK, limit_s=200)


def test_the_node_says_that_jobs_have_it_all(service):
    measured = service.ask("GET", "/v1/node")["measured"]

    assert {"cap", "cpuset", "io", "memory", "pids", "pressure"} == set(measured["controls"])
    assert all(measured["controls"].values())
    assert "stays in" in measured["socket_fence"]


def test_a_job_cannot_leave_its_socket(service):
    service.machine.put("/usr/local/lib/fenced.py", FENCED.encode())
    jobs = [service.submit("exec python3 -I -S /usr/local/lib/fenced.py") for _ in range(2)]
    shown = [service.await_state(job, *ENDS, limit_s=200) for job in jobs]

    assert 2 == len({each["socket"] for each in shown})
    for job, each in zip(jobs, shown, strict=True):
        socket, said = each["socket"], json.loads(service.output(job))
        assert str(socket) == said.pop("mems")
        assert {name: [socket] for name in said} == said


@pytest.mark.parametrize("how", ["reload iodaemon-supervisor", "restart iodaemon", "daemon-reload"])
def test_fence_and_limit_outlive_what_happens_to_the_units(service, how):
    job = service.submit("sleep 600", memory_bytes=96 * MIB)
    shown = service.await_state(job, "RUNNING")
    service.machine.sh(f"systemctl {how}", limit_s=200)
    service.await_ready()

    after = service.run("grep Mems_allowed_list /proc/self/status | cut -f2", memory_bytes=96 * MIB)
    files = ("cpuset.mems.effective", "cpuset.cpus.effective", "memory.max", "memory.swap.max")
    cgroup = service.cgroup(job)
    found = service.machine.sh(" ".join(["cat", *(f"{cgroup}/{name}" for name in files)]))

    assert [str(shown["socket"])] * 2 + [str(96 * MIB), "0"] == found.split()
    assert f"{after[1]['socket']}\n" == after[0]


def test_another_scope_has_it_all_as_well(service):
    service.machine.sh("systemctl stop iodaemon-jobs.scope", limit_s=200)

    script = "grep Mems_allowed_list /proc/self/status | cut -f2"
    printed, shown = service.run(script, memory_bytes=96 * MIB)

    assert f"{shown['socket']}\n" == printed


def test_what_the_kernel_says_of_a_want_of_memory(service):
    """The very texts that the parsers are tested with."""
    script = f"trap : TERM; {hog(200)} & wait; sleep 1; true"
    job = service.submit(script, memory_bytes=96 * MIB)
    shown = service.await_state(job, *ENDS, limit_s=200)

    print(service.machine.sh(f"head -50 {SCOPE}/jobs/memory.events {SCOPE}/jobs/io.stat"))

    assert "OUT_OF_MEMORY" == shown["state"]  # all of the job, though one process took it all


def test_a_job_over_its_limit_ends_as_out_of_memory_and_says_so(service):
    job = service.submit(f"{hog(200)}; echo went on", memory_bytes=96 * MIB)
    shown = service.await_state(job, *ENDS, limit_s=200)

    assert "OUT_OF_MEMORY" == shown["state"]
    assert "its limit of 96 MiB (--mem) was reached" in shown["reason"]["text"]
    assert "" == service.output(job)


def test_a_job_within_its_limit_completes(service):
    printed, shown = service.run(f"{hog(32)}; echo went on", memory_bytes=96 * MIB)

    assert ("went on\n", "COMPLETED") == (printed, shown["state"])


def test_a_job_that_is_just_killed_is_not_out_of_memory(service):
    job = service.submit("kill -KILL $$", memory_bytes=96 * MIB)

    assert "FAILED" == service.await_state(job, *ENDS)["state"]


def test_memory_of_the_socket_that_runs_out_is_told_apart(service):
    job = service.submit(f"exec {hog(700)}")
    shown = service.await_state(job, *ENDS, limit_s=300)

    assert "OUT_OF_MEMORY" == shown["state"]
    assert f"no memory was left on NUMA node {shown['socket']}" in shown["reason"]["text"]
    assert 0 == service.run("true")[1]["exit_code"]


def test_what_reaches_the_disk_is_counted_and_how_long_it_waits(service):
    job = writer(service, "/var/tmp", 64)
    counters, _ = written(service, job)

    assert 64 * MIB <= counters["device_written_bytes"] < 68 * MIB
    assert counters["io_stall_s"] > 0
    assert counters["memory_stall_s"] is not None


def test_layers_are_not_counted_twice(service, stack):
    job = writer(service, stack, 32)
    counters, devices = written(service, job)
    print(json.dumps(devices, indent=1))

    disk = service.machine.sh("cat /sys/block/vda/dev")
    assert len(devices) >= 4, devices
    assert disk in devices
    assert 64 * MIB <= counters["device_written_bytes"] < 68 * MIB


def test_doctor_finds_nothing_of_it_lacking(service):
    printed = service.iod("doctor", user="root", check=False, limit_s=400).out

    for what in ("socket fence", "job disk bytes", "memory limit", "process limit", "job pressure"):
        assert f"ok       {what}" in printed
