"""One job's I/O, on a real subreaper and its short-lived children, double forks and orphans."""

import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from sampling import Measured

from iodaemon.node.sampler.proc_files import parse_cpu_stat, read_members, read_mounts
from iodaemon.supervisor.ledger import Use
from iodaemon.supervisor.reap import children_of, parse_io, tree_of

pytestmark = pytest.mark.node

MIB = 1024 * 1024

# The script stands for a supervisor: a subreaper that starts 120 dd of 2 MiB each, of which
# 40 are children of a shell, 40 orphans (double fork), 40 orphans in sessions of their own.

DD_COUNT = 120
SCRIPT = """
import ctypes, os, subprocess, sys

assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0  # PR_SET_CHILD_SUBREAPER
file, cgroup = sys.argv[1:3]
dd = f"dd if={file} of=/dev/null bs=2M count=1 iflag=direct status=none"

def enter():
    if cgroup:
        with open(f"{cgroup}/cgroup.procs", "w") as procs:
            procs.write("0")

def run(script):
    subprocess.Popen(["sh", "-c", script], preexec_fn=enter)
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return

run(f"setsid {dd}")  # programs are read from the disk now, not later
with open("/proc/self/io") as io:
    print(" ".join(line.split()[1] for line in io), flush=True)
run(f"i=0; while [ $i -lt 40 ]; do {dd}; i=$((i+1)); done")
for _ in range(8):
    run(f"for i in 1 2 3 4 5; do ( ( {dd} ) & ) & done")
    run(f"for i in 1 2; do ( setsid sh -c '{dd}; {dd}' & ) done; (setsid {dd} &)")
print("done", flush=True)
sys.stdin.read()
"""


@contextmanager
def real_reaper(file: Path, cgroup: str = "") -> Iterator[subprocess.Popen[str]]:
    reaper = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", SCRIPT, str(file), cgroup],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert reaper.stdin is not None
    assert reaper.stdout is not None
    try:
        yield reaper
        reaper.stdin.close()
        reaper.wait(timeout=20)
    finally:
        for pid in reversed(tree_of([reaper.pid])):
            if reaper.poll() is None:
                with suppress(ProcessLookupError):
                    os.kill(pid, 9)
        reaper.wait()
        reaper.stdin.close()
        reaper.stdout.close()


@pytest.fixture
def file(tmp_path):
    """2 MiB on a filesystem that can read directly."""
    path = tmp_path / "file"
    path.write_bytes(os.urandom(2 * MIB))
    os.sync()
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        pytest.skip(f"{tmp_path} is on a filesystem without direct I/O")
    return path


@pytest.fixture
def real_cgroup():
    """An empty cgroup of this test's own; removed afterwards."""
    roots = [mount.mount_point for mount in read_mounts() if mount.filesystem == "cgroup2"]
    if not roots:
        pytest.skip("no cgroup v2 is mounted")
    directory = Path(roots[0]) / f"iodaemon-test-{os.getpid()}"
    try:
        directory.mkdir()
    except OSError as error:
        pytest.skip(f"cannot make {directory}: {error.strerror}")
    yield directory
    if directory.exists():
        directory.rmdir()


def sample_to_the_end(
    reaper: subprocess.Popen[str], members: Callable[[], Iterable[int]]
) -> list[int | None]:
    """Bytes read by the job, sampled every 20 ms until the reaper says that it is done."""
    assert reaper.stdout is not None
    _, _, reads, writes, read, written, cancelled = map(int, reaper.stdout.readline().split())
    before = Use(read, written, reads + writes, 0, 0, cancelled)

    def reaped() -> Use:
        now = parse_io(Path(f"/proc/{reaper.pid}/io").read_bytes())._replace(logical_bytes=0)
        return Use(*map(int.__sub__, now, before))

    io = Measured("/", reaped, members)
    totals: list[int | None] = []
    while not select.select([reaper.stdout], [], [], 0.02)[0]:
        totals.append(io.read().read_bytes)
    assert reaper.stdout.readline() == "done\n"
    totals.append(io.read().read_bytes)
    io.close()
    return totals


def test_short_lived_and_orphaned_readers_are_measured_within_one_percent(file):
    with real_reaper(file) as reaper:
        totals = sample_to_the_end(reaper, lambda: tree_of(children_of(reaper.pid)))

    assert totals == sorted(totals)
    assert totals[-1] == pytest.approx(DD_COUNT * 2 * MIB, rel=0.01)


def test_the_same_job_enumerated_by_its_cgroup_is_measured_within_one_percent(file, real_cgroup):
    with real_reaper(file, str(real_cgroup)) as reaper:
        totals = sample_to_the_end(reaper, lambda: read_members(str(real_cgroup)))
        cpu = parse_cpu_stat((real_cgroup / "cpu.stat").read_bytes())
    real_cgroup.rmdir()

    assert totals == sorted(totals)
    assert totals[-1] == pytest.approx(DD_COUNT * 2 * MIB, rel=0.01)
    assert 0 < cpu[1] <= cpu[0]
    assert [] == read_members(str(real_cgroup))  # which is removed


def test_the_descriptor_of_a_reaped_process_is_gone_and_of_a_zombie_still_answers():
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    io = Measured("/", Use, lambda: [child.pid] if child.returncode is None else [])
    alive = io.read().operations
    assert child.stdin is not None
    child.stdin.close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    zombie = io.read().operations
    child.wait()
    reaped = io.read().operations

    assert alive is not None
    assert zombie is not None
    assert zombie >= alive
    assert reaped == zombie
    assert io.io._files == {}
