"""What is measured on the user's own machine, where there are four sockets: nothing is divided."""

import json

import pytest

KEPT = "/var/lib/iodaemon/calibration.json"
EACH = ["0", "1", "2", "3"]
WORKLOAD = """
[[job]]
name = "where"
command = ["cat", "{file}"]
file = "1 MiB"
count = 4
"""


@pytest.fixture
def place(service):
    """A directory of ann's on the server's disk, and nobody's calibration."""
    sh = service.machine.sh
    sh("mkdir /var/tmp/trial && chown ann: /var/tmp/trial")
    service.machine.put("/var/tmp/trial/where.toml", WORKLOAD.encode())
    yield "/var/tmp/trial"
    left = sh("ls -A /var/tmp/trial; ls -d /tmp/iod-* 2>/dev/null || true")
    sh(f"rm -rf /var/tmp/trial {KEPT} /var/lib/iodaemon/calibration; systemctl reload iodaemon")
    assert {"where.toml", "iod-compare"} >= set(left.split()), left


def test_readers_are_on_every_socket_and_the_service_judges_by_what_they_found(service, place):
    sh = service.machine.sh
    sh(f"iod calibrate {place} --time 20s --size 64M --force", limit_s=300)
    (made,) = json.loads(sh(f"cat {KEPT}"))["calibrations"]
    sh("systemctl reload iodaemon", limit_s=200)
    node = service.ask("GET", "/v1/node")

    assert (EACH, False, 2) == tuple(
        made["method"][key] for key in ("sockets", "divided", "readers_per_socket")
    )
    assert {1, 2, 3, 4} == {load["sockets"] for load in made["loads"]}
    assert "device" == made["method"]["timed_by"]
    (used,) = node["calibration"]
    assert (made["leaves"][0]["name"], made["at_s"]) == (used["device"], used["measured_s"])


def test_a_user_compares_two_policies_beside_the_service(service, place):
    words = ("compare", f"{place}/where.toml", "--policies", "none,default", "--rounds", "1")
    said = service.machine.run(
        *("sh", "-c", f'cd {place} && iod "$@" --force --json', "sh", *words),
        user="ann",
        limit_s=600,
    )
    document = json.loads(said.out)

    assert ["none", "default"] == [run["policy"] for run in document["runs"]]
    assert all(run["makespan_s"] > 0.0 for run in document["runs"])
