"""What jobs' cgroups may have, in words, and what a job is fenced to."""

import pytest

from iodaemon.config import load_config
from iodaemon.core.platform import Partition, PartitionId, Slot, SlotId
from iodaemon.daemon.launching import fence_of
from iodaemon.errors import ConfigError
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


@pytest.mark.parametrize(
    ("text", "processes", "output_bytes"),
    [
        ("", 32768, 10 << 30),
        ('max_processes = 64\noutput_max = "2 MiB"', 64, 2 << 20),
        ('max_processes = "none"\noutput_max = "none"', None, None),
    ],
)
def test_what_each_job_may_have_is_configured(tmp_path, text, processes, output_bytes):
    file = tmp_path / "config.toml"
    file.write_text(text)
    config = load_config(file, {"HOME": "/"}, 0, {})

    assert (processes, output_bytes) == (config.max_processes, config.output_max_bytes)


@pytest.mark.parametrize("name", ["max_processes", "output_max"])
@pytest.mark.parametrize("value", ["0", "-1", '"much"'])
def test_a_limit_under_which_nothing_would_run_is_refused(tmp_path, name, value):
    file = tmp_path / "config.toml"
    file.write_text(f"{name} = {value}")

    with pytest.raises(ConfigError, match=name):
        load_config(file, {"HOME": "/"}, 0, {})
