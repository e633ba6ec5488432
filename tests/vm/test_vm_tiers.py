"""Tiers of the installed service, wherever their disks are."""

import json

import pytest
from server import CONFIG

MEMORY = "mount -t tmpfs -o size=16m,mode=755 none"
PLACES = {
    "disk": ("/scratch/disk", "mount /dev/vda"),
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


@pytest.fixture
def tiers(service):
    """The service with a tier in each place; it is left without."""
    sh = service.machine.sh
    sh("swapoff -a; wipefs -aqf /dev/vda; mkfs.ext4 -qF /dev/vda")
    try:
        for path, mount in PLACES.values():
            sh(f"mkdir -p {path}; {mount} {path}")
        tables = (f"[tier.{n}]\n[[tier.{n}.disk]]\npath = '{p}'\n" for n, (p, _) in PLACES.items())
        _restart_with(service, CONFIG + "".join(tables))
        yield
        service.cancel_all()
        paths = " ".join(f"{path}/.iodaemon" for path, _ in PLACES.values())
        names = f"ls -A {paths} | grep -vx -e '.*:' -e ''"
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
            path, whose, size = printed.splitlines()

            assert "COMPLETED" == shown["state"], shown
            assert path.startswith(f"{place}/.iodaemon/")
            assert f"{user} 700" == whose
            assert 6_000_000 == int(size)
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
    copied = sh(f"cd {home}/out; stat -c '%n: %U' *; cat *").replace("\n", " ")
    assert "b: ann word word" == copied  # not a: it is as it came in
    assert ("FAILED", 74) == (others["state"], others["exit_code"])
    assert "Permission denied" in others["reason"]["text"]
    sh("rm -rf ~/in ~/out", user="ann")
