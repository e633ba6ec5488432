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


def test_one_socket_is_one_partition(tmp_path):
    machine(tmp_path, {0: singles("0-3")}, nodes={0: "0-3"})

    (partition,) = topology(tmp_path)

    assert slots(partition) == [(0,), (1,), (2,), (3,)]
    assert (partition.id, partition.memory_nodes) == (0, (0,))


def test_a_socket_of_two_numa_nodes_is_one_partition(tmp_path):
    packages = {0: singles("0-3"), 1: singles("4-7")}
    machine(tmp_path, packages, nodes={0: "0-1", 1: "2-3", 2: "4-5", 3: "6-7"})

    partitions = topology(tmp_path)

    assert [partition.memory_nodes for partition in partitions] == [(0, 1), (2, 3)]
    assert [len(partition.slots) for partition in partitions] == [4, 4]


def test_partitions_are_numbered_in_the_order_of_packages(tmp_path):
    machine(tmp_path, {12: singles("0-1"), 3: singles("2-3")})

    partitions = topology(tmp_path)

    assert [(partition.id, slots(partition)) for partition in partitions] == [
        (0, [(2,), (3,)]),
        (1, [(0,), (1,)]),
    ]


def test_a_core_is_one_slot_with_all_its_threads(tmp_path):
    machine(tmp_path, {0: ["0,4", "1,5"], 1: ["2,6", "3,7"]})

    first, second = topology(tmp_path)

    assert slots(first) == [(0, 4), (1, 5)]
    assert [slot.id for slot in second.slots] == [2, 3]


def test_a_thread_is_a_slot_when_asked_for(tmp_path):
    machine(tmp_path, {0: ["0,2", "1,3"]})

    (partition,) = topology(tmp_path, slot="thread")

    assert slots(partition) == [(0,), (1,), (2,), (3,)]


def test_a_core_has_only_its_allowed_threads_and_is_named_after_the_lowest(tmp_path):
    machine(tmp_path, {0: ["0,2", "1,3"]})

    (partition,) = topology(tmp_path, cpus="1-2")

    assert [(slot.id, slot.cpus) for slot in partition.slots] == [(1, (1,)), (2, (2,))]


def test_memory_without_cpus_belongs_to_no_socket(tmp_path):
    packages = {0: singles("0-1"), 1: singles("2-3")}
    machine(tmp_path, packages, nodes={0: "0-1", 1: "2-3", 2: ""})

    assert [partition.memory_nodes for partition in topology(tmp_path)] == [(0,), (1,)]


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


def test_an_offline_cpu_is_not_handed_out(tmp_path):
    machine(tmp_path, {0: ["0,2", "1,3"]}, nodes={0: "0-2"}, online="0-2")

    assert slots(topology(tmp_path)[0]) == [(0, 2), (1,)]


def test_a_confined_daemon_has_only_its_own_sockets(tmp_path):
    packages = {0: singles("0-3"), 1: singles("4-7")}
    machine(tmp_path, packages, nodes={0: "0-3", 1: "4-7"})

    (partition,) = topology(tmp_path, cpus="5-6")

    assert (partition.id, partition.memory_nodes, slots(partition)) == (0, (1,), [(5,), (6,)])


def test_without_a_node_directory_memory_nodes_are_unknown(tmp_path):
    machine(tmp_path, {0: singles("0-1")})

    assert topology(tmp_path)[0].memory_nodes == ()


def test_without_sysfs_the_machine_is_one_socket_of_the_allowed_cpus(tmp_path):
    (partition,) = topology(tmp_path, cpus="2-3")

    assert slots(partition) == [(2,), (3,)]


def test_without_an_allowed_cpu_there_is_no_partition(tmp_path):
    machine(tmp_path, {0: singles("0-1")})

    assert topology(tmp_path, cpus="8") == ()


def test_a_disk_is_near_the_socket_of_its_controllers_node(tmp_path):
    packages = {0: singles("0-1"), 1: singles("2-3")}
    machine(tmp_path, packages, nodes={0: "0-1", 1: "2-3"})
    for name, node in (("nvme0n1", 1), ("nvme1n1", 1), ("sda", 0), ("vda", -1)):
        disk(tmp_path, name, node=node)

    near = [partition.near_devices for partition in topology(tmp_path)]

    assert near == [("sda",), ("nvme0n1", "nvme1n1")]


def test_the_configuration_divides_one_socket_into_two(tmp_path):
    machine(tmp_path, {0: singles("0-3")}, nodes={0: "0-3"})

    first, second = topology(tmp_path, sockets=("2-3", "0,1"))

    assert [slots(first), slots(second)] == [[(2,), (3,)], [(0,), (1,)]]
    assert [first.memory_nodes, second.memory_nodes] == [(0,), (0,)]


def test_the_configuration_may_leave_cpus_out(tmp_path):
    machine(tmp_path, {0: ["0,2", "1,3"]})

    (partition,) = topology(tmp_path, sockets=("1,3",))

    assert slots(partition) == [(1, 3)]


@pytest.mark.parametrize(
    ("sockets", "allowed", "problem"),
    [
        (("0-2", "1-3"), "0-63", "'1-3' has CPU 1-2 in common with '0-2'; name each CPU once"),
        (("0-1", "2-5"), "0-63", "'2-5': CPU 4-5 does not exist or is offline; write CPUs of 0-3"),
        (("0-3",), "1-2", "'0-3': CPU 0,3 may not be used by this daemon; write CPUs of 1-2"),
    ],
    ids=["overlap", "no such CPU", "not allowed"],
)
def test_sockets_that_do_not_fit_are_refused_in_one_line(tmp_path, sockets, allowed, problem):
    machine(tmp_path, {0: singles("0-3")})

    assert f"[topology] sockets: {problem}" == refusal(tmp_path, sockets, cpus=allowed)


@pytest.mark.parametrize("text", ["", " ", "\n"])
def test_an_empty_socket_is_refused(tmp_path, text):
    machine(tmp_path, {0: singles("0-3")})

    assert "is an empty list; write CPUs of 0-3" in refusal(tmp_path, (text,))


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
