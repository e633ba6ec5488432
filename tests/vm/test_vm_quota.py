"""Project quotas, which a stock kernel has; tiers of the installed service, wherever they are."""

import io
import json
import tarfile
from pathlib import Path

import pytest
from server import CONFIG

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
told["usage"] = scratch.measure(share, time.monotonic() + 60)[0]
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

MEMORY = "mount -t tmpfs -o size=16m,mode=755 none"
PLACES = {
    "disk": ("/scratch/disk", "mount -o prjquota /dev/vda"),
    "home": ("/home/scratch", MEMORY),
    "tmp": ("/tmp/scratch", MEMORY),
}
"""Tiers, one in a place that anybody sees, two where the daemon's sandbox has nothing."""
WRITE = """
echo "$IOD_SCRATCH"; stat -c '%U %a' "$IOD_SCRATCH"
head -c 6000000 /dev/zero 2>&1 >"$IOD_SCRATCH/f" || true
stat -c %s "$IOD_SCRATCH/f"
"""
MIB = 1 << 20


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


# -- through the service ---------------------------------------------------------------------------


@pytest.fixture
def tiers(service):
    """The service with a tier in each place; it is left without."""
    sh = service.machine.sh
    sh(f"swapoff -a; wipefs -aqf /dev/vda; {DISKS['ext4 with prjquota'][0]}")
    try:
        for path, mount in PLACES.values():
            sh(f"mkdir -p {path}; {mount} {path}")
        tables = (f"[tier.{n}]\n[[tier.{n}.disk]]\npath = '{p}'\n" for n, (p, _) in PLACES.items())
        _restart_with(service, CONFIG + "".join(tables))
        yield
        service.cancel_all()
        paths = " ".join(f"{path}/.iodaemon" for path, _ in PLACES.values())
        names = f"ls -A {paths} | grep -vx -e id -e '.*:' -e ''"
        service.machine.until(f"! {names}", what="removal of all space")
    finally:
        _restart_with(service, CONFIG)
        for path, _ in PLACES.values():
            sh(f"umount {path} || true; rmdir {path} || true")
        sh("wipefs -aqf /dev/vda")


def _restart_with(service, config):
    service.machine.put("/etc/iodaemon/config.toml", config.encode())
    restart = "systemctl reset-failed iodaemon.service; systemctl restart iodaemon.service"
    service.machine.sh(restart, limit_s=200)
    service.await_ready()


@pytest.mark.usefixtures("tiers")
def test_a_tier_may_be_where_the_daemons_sandbox_sees_nothing(service):
    for user in ("ann", "bob"):
        for tier, (place, _) in PLACES.items():
            asked = {"size_bytes": 4 * MIB, "tier": tier}
            printed, shown = service.run(WRITE, user=user, scratch=asked)
            path, whose, *more, size = printed.splitlines()

            assert "COMPLETED" == shown["state"], shown
            assert path.startswith(f"{place}/.iodaemon/")
            assert f"{user} 700" == whose
            assert ("Disk quota exceeded" in "".join(more)) == (tier == "disk")
            assert (int(size) <= 4 * MIB) == (tier == "disk")
    rows = service.ask("GET", "/v1/node")["disks"]
    assert {place for place, _ in PLACES.values()} == {row["path"] for row in rows}
    ended = service.machine.run("iod", "doctor", "--json", check=False, limit_s=300)
    found = [each for each in json.loads(ended.out) if each["what"].startswith("tier ")]
    assert ["ok"] * len(PLACES) == [each["verdict"] for each in found], found


@pytest.mark.usefixtures("tiers")
def test_data_of_a_users_home_is_copied_in_and_out_by_the_service(service):
    sh = service.machine.sh
    sh("rm -rf ~/in ~/out; mkdir -m 0700 ~/in; echo word > ~/in/a", user="ann")
    home = sh("echo ~", user="ann")
    asked = {
        "size_bytes": 4 * MIB,
        "tier": "home",
        "input_path": f"{home}/in",
        "input_bytes": 5,
        "output_path": f"{home}/out",
    }
    script = 'cd "$IOD_SCRATCH"; cat a a > b'
    _, mine = service.run(script, scratch=asked)
    _, others = service.run(script, user="bob", scratch={**asked, "output_path": "/tmp/bobs"})

    assert "COMPLETED" == mine["state"], mine
    assert "b: ann word word" == sh(f"cd {home}/out; stat -c '%n: %U' *; cat *").replace("\n", " ")
    assert ("FAILED", 74) == (others["state"], others["exit_code"])
    assert "Permission denied" in others["reason"]["text"]
    sh("rm -rf ~/in ~/out", user="ann")
