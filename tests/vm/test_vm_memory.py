"""A job's memory is on its socket's node and stays there; what happens when that is full."""

import json
import re

MIB = 1 << 20
ENDS = ("COMPLETED", "FAILED", "LOST", "CANCELLED", "OUT_OF_MEMORY")
HELD_MIB = 64
HOLDS = """
import os, sys, time
data = bytearray(int(sys.argv[1]) << 20)
data[::4096] = b"x" * (len(data) // 4096)
open(f"/tmp/held-{os.environ['IOD_JOB_ID']}", "w").close()
time.sleep(float(sys.argv[2]))
print(sum(data[::4096]) // ord("x"))
"""
MOVES = """
import ctypes, json, os, subprocess
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *words):
    return libc.syscall(number, *words) == 0 or os.strerror(ctypes.get_errno())
def mask(node):
    return ctypes.byref(ctypes.c_ulong(1 << node))
status = dict(line.split(":\\t") for line in open("/proc/self/status").read().splitlines())
def migrates(pid, node):
    words = ["migratepages", str(pid), status["Mems_allowed_list"], str(node)]
    return subprocess.run(words, capture_output=True).returncode == 0
data = bytearray(16 << 20)
data[::4096] = b"x" * (len(data) // 4096)
MBIND, SET_MEMPOLICY, SIZE = 237, 238, ctypes.c_ulong(8 << 20)
start = (ctypes.addressof(ctypes.c_char.from_buffer(data)) + 4095) & ~4095
print(json.dumps({
    "set_mempolicy": [n for n in range(4) if call(SET_MEMPOLICY, 2, mask(n), 65) is True],
    "mbind": [n for n in range(4)
              if call(MBIND, ctypes.c_void_p(start), SIZE, 2, mask(n), 65, 2) is True],
    "migratepages": [n for n in range(4) if migrates(os.getpid(), n)],
    "numactl": [n for n in range(4) if subprocess.run(
        ["numactl", f"--membind={n}", "true"], capture_output=True).returncode == 0],
}), flush=True)
open(f"/tmp/held-{os.environ['IOD_JOB_ID']}", "w").close()
import time; time.sleep(600)
"""
EMPTY = "sync; echo 3 >/proc/sys/vm/drop_caches"
SWAP = f"{EMPTY}; swapoff -a; wipefs -aqf /dev/vda; mkswap -q /dev/vda; swapon /dev/vda"


def hold(service, mib, seconds, **spec):
    """A job that takes so much memory and keeps it so long."""
    service.machine.put("/usr/local/lib/holds.py", HOLDS.encode())
    command = f"exec python3 -I -S /usr/local/lib/holds.py {mib} {seconds}"
    return service.submit(command, **spec)


def await_held(service, job):
    service.await_state(job, "RUNNING", "OUT_OF_MEMORY")
    done = f"[ -e /tmp/held-{job} ] || [ ! -d {service.cgroup(job)} ]"
    service.machine.until(done, what="its memory", limit_s=300)
    assert "RUNNING" == service.show(job)["state"]


def mib_by_node(service, job):
    """Where the pages of the job's processes are, by numastat."""
    [pid, *_] = service.pids(job)
    text = service.machine.sh(f"numastat -p {pid}")
    total = next(line for line in text.splitlines() if line.startswith("Total"))
    *nodes, _ = map(float, re.findall(r"[\d.]+", total))
    return dict(enumerate(nodes))


def test_each_jobs_pages_are_on_its_node_alone(service):
    jobs = [hold(service, HELD_MIB, 600, user=user) for user in ("ann", "bob", "ann", "bob")]
    for job in jobs:
        await_held(service, job)

    sockets = [service.show(job)["socket"] for job in jobs]
    assert {0, 1, 2, 3} == set(sockets)
    for job, socket in zip(jobs, sockets, strict=True):
        pages = mib_by_node(service, job)
        print(job, socket, pages)
        assert pages[socket] >= HELD_MIB
        # Of what is elsewhere: shared libraries that were in the page cache before.
        assert sum(pages.values()) - pages[socket] < 10


def test_a_job_cannot_move_its_memory_to_another_node(service):
    service.machine.put("/usr/local/lib/moves.py", MOVES.encode())
    job = service.submit("exec python3 -I -S /usr/local/lib/moves.py")
    await_held(service, job)

    socket, said = service.show(job)["socket"], json.loads(service.output(job))
    pages = mib_by_node(service, job)
    assert {name: [socket] for name in said} == said
    assert pages[socket] >= 16
    assert sum(pages.values()) - pages[socket] < 10


def test_page_cache_makes_room_for_a_job_before_anything_else_happens(service):
    """It reads as much as its node has, then takes most of it: nothing is ended, nothing spills."""
    fill = "dd if=/dev/zero of=/var/tmp/cache bs=1M count=400 conv=fsync 2>/dev/null"
    service.machine.put("/usr/local/lib/holds.py", HOLDS.encode())
    job = service.submit(f"{fill}; exec python3 -I -S /usr/local/lib/holds.py 300 600")
    await_held(service, job)

    socket, pages = service.show(job)["socket"], mib_by_node(service, job)
    print(pages)
    assert pages[socket] >= 300
    service.machine.sh("rm -f /var/tmp/cache")


def test_with_swap_a_job_larger_than_its_node_swaps_and_does_not_spill(service):
    service.machine.sh(SWAP)
    try:
        job = hold(service, 560, 600)
        await_held(service, job)
        socket, pages = service.show(job)["socket"], mib_by_node(service, job)
        swapped = int(service.machine.sh(f"cat {service.cgroup(job)}/memory.swap.current"))
        counters = service.show(job)["counters"]
    finally:
        service.cancel_all()
        service.leftovers()
        service.machine.sh("swapoff -a; wipefs -aqf /dev/vda", limit_s=200)

    print(pages, swapped / MIB, counters)
    assert swapped > 48 * MIB
    assert sum(pages.values()) - pages[socket] < 10


def test_fenced_by_cpus_alone_it_spills_to_another_node(service):
    path = "/etc/iodaemon/config.toml"
    before = service.machine.sh(f"cat {path}")
    service.machine.put(path, f'{before}\nfence = "cpus"\n'.encode())
    try:
        service.machine.sh("systemctl restart iodaemon", limit_s=200)
        service.await_ready()
        service.machine.sh(EMPTY)
        job = hold(service, 560, 600)
        await_held(service, job)
        socket, pages = service.show(job)["socket"], mib_by_node(service, job)
        cpus = service.machine.sh(f"cat {service.cgroup(job)}/cpuset.cpus.effective")
    finally:
        service.machine.put(path, f"{before}\n".encode())
        service.machine.sh("systemctl restart iodaemon", limit_s=200)
        service.await_ready()

    print(pages)
    assert str(socket) == cpus
    assert sum(pages.values()) >= 560
    assert pages[socket] > 200
    assert sum(pages.values()) - pages[socket] > 30
