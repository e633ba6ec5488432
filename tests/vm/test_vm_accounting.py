"""What is said of a job's reads and writes, beside what iostat says of the disk in the same time.

All is done on the spare disk, where nothing else reads or writes. Each check begins with the
programs it needs in memory, and ends when every counter has come to rest.
"""

import json
import time
from typing import NamedTuple

import pytest

DISK = "vda"
COUNTERS = ("read_bytes", "written_bytes", "device_read_bytes", "device_written_bytes")
MIB = 1 << 20
SIZE = 32 * MIB
RATIO = 0.02
ROOM = MIB // 2
"""Ours and iostat's may differ by RATIO of what was moved and ROOM: the filesystem's own blocks."""
APART = 64 * 1024
"""What the disk may do between iostat's look and ours: blocks of the filesystem."""
CLEAN = """
cd /
swapoff -a
umount /mnt/spare 2>/dev/null || true
vgremove -qqfy spare 2>/dev/null || true
mdadm --stop --scan 2>/dev/null || true
mdadm --zero-superblock --force /dev/vda1 /dev/vda2 2>/dev/null || true
delpart /dev/vda 1 2>/dev/null || true
delpart /dev/vda 2 2>/dev/null || true
wipefs -aqf /dev/vda
"""
HALVES = "addpart /dev/vda 1 2048 204800; addpart /dev/vda 2 206848 204800; udevadm settle"
ARRAY = """
modprobe -a {module}
mdadm --create /dev/md9 --run --assume-clean --metadata=1.2 --level={level} --raid-devices=2 \
    /dev/vda1 /dev/vda2 2>&1
"""
LAYERS = {
    "the disk itself": ("", "/dev/vda"),
    "an LVM volume on it": (
        "vgcreate -qqy spare /dev/vda; lvcreate -qqy -L 200M -n one spare",
        "/dev/spare/one",
    ),
    "a stripe of two partitions": (HALVES + ARRAY.format(module="raid0", level=0), "/dev/md9"),
    "a mirror of two partitions": (HALVES + ARRAY.format(module="raid1", level=1), "/dev/md9"),
}
MOUNT = """
mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0,nodiscard {device}
mkdir -p /mnt/spare; mount -o noatime {device} /mnt/spare; chmod 1777 /mnt/spare; sync
"""
WARM = "dd if=/dev/zero of=/dev/null count=1 2>/dev/null; cat /dev/null; sync /dev/null; sleep 0.1"
PROGRAM = f"""
{WARM}
touch /tmp/warm-$IOD_JOB_ID
until [ -e /tmp/go-$IOD_JOB_ID ]; do sleep 0.2; done
{{}}
touch /tmp/over-$IOD_JOB_ID
exec sleep 900
"""
HOLDS = """
import os, time
def step(name):
    return f"/tmp/{name}-{os.environ['IOD_JOB_ID']}"
data = bytearray(48 << 20)
data[::4096] = b"x" * (len(data) // 4096)
open(step("warm"), "w").close()
while not os.path.exists(step("go")): time.sleep(0.2)
sum(data[::4096])
open(step("over"), "w").close()
time.sleep(900)
"""
RECLAIM = "for i in {{1..20}}; do echo {size} >{cgroup}/memory.reclaim && exit; done; exit 1"
WRITE = "dd if=/dev/zero of=/mnt/spare/out bs=1M count=32 {} 2>/dev/null"
READ = "dd if=/mnt/spare/in of=/dev/null bs=1M {} 2>/dev/null"
IN = "dd if=/dev/zero of=/mnt/spare/in bs=1M count=32 conv=fsync 2>/dev/null"
DROP = "sync; echo 3 >/proc/sys/vm/drop_caches"


class Moved(NamedTuple):
    """Bytes in one time, as each source says; pairs are read and written."""

    job: dict
    """The job's counters, by name."""
    node: tuple
    """The spare disk, as the daemon's samples have it."""
    disk: tuple
    """The spare disk, as iostat has it."""


@pytest.fixture
def disk(service):
    """``disk(layer)`` makes a filesystem of it at /mnt/spare; it is gone afterwards."""
    service.machine.sh(CLEAN, limit_s=200)

    def mount(layer):
        script, device = LAYERS[layer]
        service.machine.sh(f"{script}\n{MOUNT.format(device=device)}", limit_s=200)

    yield mount
    service.cancel_all()
    service.leftovers()
    service.machine.sh(CLEAN, limit_s=200)


AT_REST = 6
"""Samples."""


def begin(service, program):
    """A job that has its programs in memory and waits to be let go."""
    job = service.submit(program)
    service.machine.until(f"[ -e /tmp/warm-{job} ]", what="warming up", limit_s=120)
    return job


def go(service, job):
    service.machine.sh(f"touch /tmp/go-{job}")
    service.machine.until(f"[ -e /tmp/over-{job} ]", what="the work", limit_s=300)


def look(service, job):
    """All counters once they are at rest: the same in so many samples after each other.

    Bytes by device are up to four samples old.
    """
    began_s, until_s = clock(service), time.monotonic() + 90
    while time.monotonic() < until_s:
        answer = service.ask("GET", f"/v1/samples?since={began_s}", user="root")
        found = [figures(sample, job) for sample in answer["samples"][-AT_REST:]]
        if len(found) == AT_REST and all(each == found[0] for each in found):
            return *found[0], iostat(service)
        time.sleep(0.3)
    raise AssertionError(f"never at rest: {found}")


def figures(sample, job):
    """Of one sample: the job's bytes, and the disk's."""
    counters = sample["jobs"].get(str(job), {})
    # Leaves alone, whatever is on them; the other one has the journal, and never rests.
    assert {"nvme0n1", DISK} == set(sample["devices"])
    disk = sample["devices"][DISK]
    job_bytes = {name: counters.get(name) for name in COUNTERS}
    return job_bytes, (disk["read_sectors"] * 512, disk["written_sectors"] * 512)


def clock(service):
    return float(service.machine.sh("date +%s.%N"))


def iostat(service):
    """What the disk moved since boot, in bytes: read, written."""
    said = json.loads(service.machine.sh("iostat -d -k -o JSON"))
    [statistics] = said["sysstat"]["hosts"][0]["statistics"]
    [disk] = (each for each in statistics["disk"] if each["disk_device"] == DISK)
    return disk["kB_read"] * 1024, disk["kB_wrtn"] * 1024


def measure(service, work, *, then=""):
    """What one job's work moved; ``then`` is root's, when the job has done its part."""
    job = begin(service, PROGRAM.format(work))
    before = look(service, job)
    go(service, job)
    service.machine.sh(then or "true", limit_s=200)
    after = look(service, job)
    shown = service.show(job)["counters"]
    assert after[0] == {name: shown[name] for name in COUNTERS}
    return moved(before, after)


def moved(before, after):
    (job, node, disk), (job_then, node_then, disk_then) = before, after
    return Moved(
        job={name: job_then[name] - job[name] for name in job},
        node=grown(node, node_then),
        disk=grown(disk, disk_then),
    )


def grown(before, after):
    return tuple(later - earlier for earlier, later in zip(before, after, strict=True))


def about(size, *, of=SIZE):
    """Equal to within RATIO of what was moved, and ROOM."""
    return pytest.approx(size, abs=RATIO * of + ROOM)


# -- one disk ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("work", "read", "written"),
    [
        (READ.format("iflag=direct"), SIZE, 0),
        (READ.format(""), SIZE, 0),
        (WRITE.format("oflag=direct"), 0, SIZE),
        (WRITE.format("conv=fsync"), 0, SIZE),
    ],
    ids=["direct reads", "buffered reads", "direct writes", "buffered writes with fsync"],
)
def test_a_jobs_bytes_are_those_of_the_disk(service, disk, work, read, written):
    disk("the disk itself")
    service.machine.sh(f"{IN}; {DROP}")

    said = measure(service, work)

    print(said)
    assert (about(read), about(written)) == said.disk
    assert pytest.approx(said.disk, abs=APART) == said.node
    assert [about(read), about(written)] * 2 == list(said.job.values())


def test_what_is_written_back_later_is_still_the_jobs(service, disk):
    """Made dirty in its slice, written in root's time, while the job stands still."""
    disk("the disk itself")
    service.machine.sh("sysctl -qw vm.dirty_expire_centisecs=60000 vm.dirty_writeback_centisecs=0")
    try:
        job = begin(service, PROGRAM.format(WRITE.format("")))
        at_first = look(service, job)
        go(service, job)
        service.ask("POST", f"/v1/jobs/{job}/suspend", {})
        service.await_state(job, "SUSPENDED_USER")
        dirty = look(service, job)
        service.machine.sh("sync")
        synced = look(service, job)
    finally:
        service.machine.sh(
            "sysctl -qw vm.dirty_expire_centisecs=3000 vm.dirty_writeback_centisecs=500"
        )

    early, late = moved(at_first, dirty), moved(dirty, synced)
    print(early, late)
    assert (about(SIZE), about(0)) == (early.job["written_bytes"], late.job["written_bytes"])
    assert (about(0), about(0)) == (early.job["device_written_bytes"], early.disk[1])
    assert (about(SIZE), about(SIZE)) == (late.job["device_written_bytes"], late.disk[1])
    assert pytest.approx(late.disk, abs=APART) == late.node


def test_what_a_job_that_has_ended_left_to_write_is_in_its_account(service, disk):
    disk("the disk itself")
    before = iostat(service)
    _, shown = service.run(WRITE.format(""))
    service.machine.sh("sync")

    written = grown(before, iostat(service))[1]
    print(shown["written_bytes"], written)
    assert (about(SIZE), about(SIZE)) == (shown["written_bytes"], written)


# -- layers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("layer", list(LAYERS)[1:])
def test_layers_are_counted_once_where_the_bytes_end(service, disk, layer):
    times = 2 if "mirror" in layer else 1
    disk(layer)
    service.machine.sh(f"{IN}; {DROP}")
    work = f"{READ.format('iflag=direct')}; {WRITE.format('conv=fsync')}"

    said = measure(service, work, then="sync")

    print(said)
    assert (about(SIZE), about(times * SIZE, of=times * SIZE)) == said.disk
    assert pytest.approx(said.disk, abs=APART) == said.node
    assert about(said.disk[0]) == said.job["device_read_bytes"]
    assert about(said.disk[1], of=times * SIZE) == said.job["device_written_bytes"]
    assert (about(SIZE), about(SIZE)) == (said.job["read_bytes"], said.job["written_bytes"])


# -- swap --------------------------------------------------------------------------------------


def test_swap_is_the_disks_traffic_and_not_what_the_job_wrote(service, disk):
    """Out by force of the kernel's reclaim, in again when the job touches its pages."""
    service.machine.sh("mkswap -q /dev/vda; swapon /dev/vda")
    service.machine.put("/usr/local/lib/holds.py", HOLDS.encode())
    job = begin(service, "exec python3 -I -S /usr/local/lib/holds.py")
    at_first = look(service, job)
    service.machine.sh(RECLAIM.format(size=SIZE, cgroup=service.cgroup(job)), limit_s=200)
    is_out = look(service, job)
    go(service, job)
    is_in = look(service, job)

    out, back = moved(at_first, is_out), moved(is_out, is_in)
    print(out, back)
    (_, went), (came, _) = out.disk, back.disk
    assert min(went, came) > 0.9 * SIZE
    assert [about(0), about(0), about(0), about(went)] == list(out.job.values())
    assert [about(came), about(0), about(came), about(0)] == list(back.job.values())
    assert (out.disk, back.disk) == (out.node, back.node)
