"""Project quotas, which a stock kernel has: a job's directory holds what was asked for, no more."""

import io
import json
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLACE = "/usr/local/lib/quota"
PROGRAM = """
import ctypes, errno, json, os, subprocess, sys, time
sys.path.insert(0, sys.argv[1])
from iodaemon.backend.linux import quota, scratch
MIB = 1 << 20
disk, jobs = sys.argv[2], "/tmp/quota-job"
os.makedirs(jobs, exist_ok=True)
shares = scratch.plan("1.1", [{"path": disk, "size": 8 * MIB}])
scratch.make(jobs, shares, 65534, None)
[path] = scratch.paths_of(shares)
[share] = shares
def as_nobody(work):
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        os.setgroups([]); os.setgid(65534); os.setuid(65534)
        try:
            told = work()
        except OSError as error:
            told = errno.errorcode[error.errno]
        os.write(write, json.dumps(told).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    return json.loads(os.read(read, 4096))
def fill():
    os.mkdir(f"{path}/sub")
    written = 0
    with open(f"{path}/sub/file", "wb", buffering=0) as file:
        try:
            while written < 32 * MIB:
                written += file.write(bytes(65536))
        except OSError as error:
            return [written, errno.errorcode[error.errno]]
    return [written, ""]
told = {"filled": as_nobody(fill)}
told["usage"] = scratch.measure(share, time.monotonic() + 60)
store = os.open(f"{disk}/.iodaemon", os.O_RDONLY)
told["counted"] = quota.used_bytes(store, share["project"])
told["escape"] = as_nobody(lambda: quota._adopt(os.open(f"{path}/sub", os.O_RDONLY), 0))
scratch.remove(jobs, time.monotonic() + 60)
told["after"] = quota.used_bytes(store, share["project"])
told["left"] = os.listdir(f"{disk}/.iodaemon")
told["record"] = os.listdir(jobs)
print(json.dumps(told))
"""
DISKS = {
    "ext4 with prjquota": (
        "mkfs.ext4 -qF -O project,quota -E quotatype=prjquota /dev/vda",
        "prjquota",
    ),
    "ext4 that only counts": (
        "mkfs.ext4 -qF -O project,quota -E quotatype=prjquota /dev/vda",
        "defaults",
    ),
    "ext4 without": ("mkfs.ext4 -qF /dev/vda", "defaults"),
}


@pytest.fixture(scope="module")
def code(machine):
    """The package, where no installation is needed to run it."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for path in (ROOT / "iodaemon").rglob("*.py"):
            archive.add(path, path.relative_to(ROOT))
    machine.put("/tmp/quota.tar", data.getvalue())
    machine.sh(f"mkdir -p {PLACE}; tar -xf /tmp/quota.tar -C {PLACE}")


@pytest.mark.usefixtures("code")
@pytest.mark.parametrize("kind", DISKS)
def test_a_directory_is_held_to_its_size_where_the_kernel_enforces_it(machine, kind):
    make, options = DISKS[kind]
    machine.sh(f"swapoff -a; wipefs -aqf /dev/vda; {make}; mkdir -p /mnt/quota")
    machine.sh(f"mount -o {options} /dev/vda /mnt/quota")
    try:
        ended = machine.program(PROGRAM, PLACE, "/mnt/quota")
    finally:
        machine.sh("umount /mnt/quota; wipefs -aqf /dev/vda")
    assert ended.code == 0, ended
    told = json.loads(ended.out)
    print(kind, told)

    written, error = told["filled"]
    mib = 1 << 20
    if "with prjquota" in kind:
        assert "EDQUOT" == error
        assert 7 * mib < written <= 8 * mib
        assert told["counted"] <= 8 * mib
        assert 0 == told["after"]
        assert told["escape"] is None  # the hole that docs/threats.md names
    else:
        assert (32 * mib, "") == (written, error)
        assert told["usage"][0] > 8 * mib
    assert told["usage"][2]
    assert ["id"] == told["left"]
    assert [] == told["record"]
