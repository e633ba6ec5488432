"""The virtual server itself: without these nothing that is tested on it would mean anything."""


def test_it_has_four_sockets_with_a_memory_node_each(machine):
    sockets = machine.sh("cat /sys/devices/system/cpu/cpu*/topology/physical_package_id")
    cpus = machine.sh("cat /sys/devices/system/node/node*/cpulist")

    assert sorted(sockets.split()) == ["0", "1", "2", "3"]
    assert sorted(cpus.split()) == ["0", "1", "2", "3"]


def test_systemd_runs_it_with_cgroup_v2_and_all_controllers(machine):
    controllers = machine.sh("cat /sys/fs/cgroup/cgroup.controllers").split()

    assert machine.sh("systemctl is-system-running") == "running"
    assert {"cpu", "cpuset", "io", "memory", "pids"} <= set(controllers)


def test_commands_run_as_whom_they_should(machine):
    ended = machine.run("sh", "-c", "id -un; cat; exit 3", user="bob", stdin=b"word", check=False)

    assert (3, "bob\nword") == (ended.code, ended.out)
