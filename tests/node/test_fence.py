"""What jobs' cgroups may have, in words, and what a job is fenced to."""

from iodaemon.core.platform import Partition, PartitionId, Slot, SlotId
from iodaemon.daemon.launching import fence_of
from iodaemon.node.feature import CONTROLS, flags_of, words_of


def test_every_control_is_told_with_and_without():
    with_all = words_of([control.name for control in CONTROLS])
    without = words_of([])

    assert with_all.keys() == without.keys()
    assert not set(with_all.values()) & set(without.values())
    rest = dict.fromkeys(("io", "memory", "pids", "pressure", "cap"), False)
    assert {"cpuset": True, **rest} == flags_of(["cpuset"])


def test_the_fence_is_the_whole_socket_or_what_was_configured():
    slots = tuple(Slot(id=SlotId(cpu), cpus=(cpu, cpu + 8)) for cpu in (4, 5))
    partition = Partition(id=PartitionId(1), slots=slots, memory_nodes=(2, 3))

    cpus = [4, 5, 12, 13]
    assert {"cpus": cpus, "memory_nodes": [2, 3]} == fence_of(partition, "socket")
    assert {"cpus": cpus, "memory_nodes": []} == fence_of(partition, "cpus")
    assert {} == fence_of(partition, "none")
