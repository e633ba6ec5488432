"""The topology from sysfs trees as different machines have them, and from this machine."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from iodaemon.core.platform import Partition
from iodaemon.errors import ConfigError
from iodaemon.node.topology import (
    format_cpu_list,
    own_limits,
    parse_cpu_list,
    read_topology,
)


def machine(
    root: Path,
    packages: Mapping[int, Sequence[str]],
    *,
    nodes: Mapping[int, str] | None = None,
    memory: str = "",
    online: str = "",
) -> Path:
    """A sysfs tree: for each package its cores as CPU lists, for each NUMA node its CPU list."""
    every = {cpu for cores in packages.values() for core in cores for cpu in parse_cpu_list(core)}
    there = parse_cpu_list(online) if online else frozenset(every)
    write(root, "cpu/online", format_cpu_list(there))
    for package, cores in packages.items():
        for core in cores:
            threads = parse_cpu_list(core) & there
            for cpu in threads:
                write(root, f"cpu/cpu{cpu}/topology/physical_package_id", str(package))
                siblings = format_cpu_list(threads)
                write(root, f"cpu/cpu{cpu}/topology/thread_siblings_list", siblings)
    if nodes is not None:
        write(root, "node/online", format_cpu_list(nodes))
        write(root, "node/has_memory", memory or format_cpu_list(nodes))
        for node, cpus in nodes.items():
            write(root, f"node/node{node}/cpulist", cpus)
    return root


def write(root: Path, path: str, text: str) -> None:
    file = root / "sys/devices/system" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text + "\n")


def disk(root: Path, name: str, *, node: int) -> None:
    controller = root / f"sys/devices/pci0000:00/{name}-controller"
    directory = controller / f"host0/block/{name}"
    directory.mkdir(parents=True)
    (directory / "size").write_text("1000\n")
    (controller / "numa_node").write_text(f"{node}\n")
    for link in ("sys/block", "sys/class/block"):
        (root / link).mkdir(parents=True, exist_ok=True)
        (root / link / name).symlink_to(os.path.relpath(directory, root / link))


def topology(root: Path, *, cpus: str = "0-63", **options) -> tuple[Partition, ...]:
    nodes = options.pop("nodes", None)
    return read_topology(root, allowed_cpus=parse_cpu_list(cpus), allowed_nodes=nodes, **options)


def slots(partition: Partition) -> list[tuple[int, ...]]:
    return [slot.cpus for slot in partition.slots]


def singles(cpus: str) -> list[str]:
    return [str(cpu) for cpu in sorted(parse_cpu_list(cpus))]


def refusal(root: Path, sockets: Sequence[str], *, cpus: str = "0-63") -> str:
    with pytest.raises(ConfigError) as caught:
        topology(root, cpus=cpus, sockets=sockets)
    return str(caught.value)


@pytest.mark.parametrize(
    ("packages", "options", "expected"),
    [
        # one socket
        ({0: singles("0-3")}, {}, {0: [(0,), (1,), (2,), (3,)]}),
        # numbered in the order of packages
        ({12: singles("0-1"), 3: singles("2-3")}, {}, {0: [(2,), (3,)], 1: [(0,), (1,)]}),
        # a core is one slot with all its threads
        ({0: ["0,4", "1,5"], 1: ["2,6", "3,7"]}, {}, {0: [(0, 4), (1, 5)], 1: [(2, 6), (3, 7)]}),
        # a thread is a slot when asked for
        ({0: ["0,2", "1,3"]}, {"slot": "thread"}, {0: [(0,), (1,), (2,), (3,)]}),
        # a core has only its allowed threads
        ({0: ["0,2", "1,3"]}, {"cpus": "1-2"}, {0: [(1,), (2,)]}),
        # not an offline one
        ({0: ["0,2", "1,3"]}, {"online": "0-2"}, {0: [(0, 2), (1,)]}),
        # no allowed CPU
        ({0: singles("0-1")}, {"cpus": "8"}, {}),
        # without sysfs
        ({}, {"cpus": "2-3"}, {0: [(2,), (3,)]}),
        # CPUs left out
        ({0: ["0,2", "1,3"]}, {"sockets": ("1,3",)}, {0: [(1, 3)]}),
        # one divided into two
        ({0: singles("0-3")}, {"sockets": ("2-3", "0,1")}, {0: [(2,), (3,)], 1: [(0,), (1,)]}),
    ],
)
def test_sockets_are_partitions_and_cores_are_slots(tmp_path, packages, options, expected):
    if packages:
        machine(tmp_path, packages, online=options.get("online", ""))
    asked = {name: value for name, value in options.items() if name != "online"}
    partitions = topology(tmp_path, **asked)

    assert expected == {partition.id: slots(partition) for partition in partitions}
    for partition in partitions:
        assert [each[0] for each in slots(partition)] == [slot.id for slot in partition.slots]
        assert partition.memory_nodes == ()  # without a node directory


@pytest.mark.parametrize(
    ("nodes", "options", "expected"),
    [
        ({0: "0-1", 1: "2-3", 2: "4-5", 3: "6-7"}, {}, [(0, 1), (2, 3)]),
        ({0: "0-3", 1: "4-7", 2: ""}, {}, [(0,), (1,)]),  # memory without CPUs
        ({0: "0-3", 1: "4-7"}, {"cpus": "5-6"}, [(1,)]),  # a confined daemon
        ({0: "0-7"}, {"sockets": ("0-3", "4-7")}, [(0,), (0,)]),
    ],
)
def test_a_socket_has_the_memory_of_its_nodes(tmp_path, nodes, options, expected):
    machine(tmp_path, {0: singles("0-3"), 1: singles("4-7")}, nodes=nodes)

    assert expected == [partition.memory_nodes for partition in topology(tmp_path, **options)]


@pytest.mark.parametrize(
    ("memory", "allowed", "expected"),
    [
        ("0", None, [(0,), ()]),
        ("", None, [(0,), (1,)]),  # a kernel without has_memory
        ("0-1", {1}, [(), (1,)]),
    ],
    ids=["without memory", "not told", "not allowed"],
)
def test_memory_nodes_have_memory_and_are_allowed(tmp_path, memory, allowed, expected):
    packages = {0: singles("0-1"), 1: singles("2-3")}
    machine(tmp_path, packages, nodes={0: "0-1", 1: "2-3"}, memory=memory)
    if not memory:
        (tmp_path / "sys/devices/system/node/has_memory").unlink()
    nodes = None if allowed is None else frozenset(allowed)

    assert expected == [each.memory_nodes for each in topology(tmp_path, nodes=nodes)]


def test_a_disk_is_near_the_socket_of_its_controllers_node(tmp_path):
    packages = {0: singles("0-1"), 1: singles("2-3")}
    machine(tmp_path, packages, nodes={0: "0-1", 1: "2-3"})
    for name, node in (("nvme0n1", 1), ("nvme1n1", 1), ("sda", 0), ("vda", -1)):
        disk(tmp_path, name, node=node)

    near = [partition.near_devices for partition in topology(tmp_path)]

    assert near == [("sda",), ("nvme0n1", "nvme1n1")]


@pytest.mark.parametrize(
    ("sockets", "allowed", "problem"),
    [
        (("0-2", "1-3"), "0-63", "'1-3' has CPU 1-2 in common with '0-2'; name each CPU once"),
        (("0-1", "2-5"), "0-63", "'2-5': CPU 4-5 does not exist or is offline; write CPUs of 0-3"),
        ((" ",), "0-63", "' ' is an empty list; write CPUs of 0-3, or leave it out"),
        (("0-3",), "1-2", "'0-3': CPU 0,3 may not be used by this daemon; write CPUs of 1-2"),
    ],
    ids=["overlap", "no such CPU", "empty", "not allowed"],
)
def test_sockets_that_do_not_fit_are_refused_in_one_line(tmp_path, sockets, allowed, problem):
    machine(tmp_path, {0: singles("0-3")})

    assert f"[topology] sockets: {problem}" == refusal(tmp_path, sockets, cpus=allowed)


@pytest.mark.parametrize("text", ["a", "0-", "-3", "3-1", "0,,1", "0-1-2", "99999999999", "0x1"])
def test_a_malformed_socket_is_refused_with_the_key_and_what_to_write(tmp_path, text):
    machine(tmp_path, {0: singles("0-3")})

    message = refusal(tmp_path, (text,))

    assert message.startswith("[topology] sockets: ")
    assert message.endswith("; write CPUs of 0-3")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("", []),
        ("\n", []),
        ("0\n", [0]),
        ("0-3,8", [0, 1, 2, 3, 8]),
        ("0-1,4-5\n", [0, 1, 4, 5]),
        (" 1 , 3 - 4 ", [1, 3, 4]),
        ("5-5", [5]),
    ],
)
def test_a_cpu_list_is_parsed(text, numbers):
    assert parse_cpu_list(text) == frozenset(numbers)


@pytest.mark.parametrize("text", ["", "0", "0-3,8", "1,3,5-6", "0-127"])
def test_a_cpu_list_is_written_as_the_kernel_does(text):
    assert format_cpu_list(parse_cpu_list(text)) == text


@pytest.mark.node
def test_the_slots_of_this_machine_are_the_cpus_this_process_may_use():
    cpus, nodes = own_limits()

    partitions = read_topology(Path("/"), allowed_cpus=cpus, allowed_nodes=nodes, slot="thread")

    found = [cpu for partition in partitions for slot in partition.slots for cpu in slot.cpus]
    assert sorted(found) == sorted(os.sched_getaffinity(0))


@pytest.mark.node
def test_own_limits_follow_the_affinity_of_this_process():
    before = os.sched_getaffinity(0)
    one = {min(before)}
    os.sched_setaffinity(0, one)
    try:
        cpus, nodes = own_limits()
    finally:
        os.sched_setaffinity(0, before)

    assert cpus == one
    assert nodes is None or nodes
