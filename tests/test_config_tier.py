"""Tiers as the configuration declares them, and their disks as they are found."""

import math
import os

import pytest

from iodaemon.config import load_config
from iodaemon.config.tier import SIMULATED_BYTES, build_tiers
from iodaemon.core.platform import Device, DeviceId
from iodaemon.core.storage import DiskFacts
from iodaemon.errors import ConfigError
from iodaemon.node.devices import PathDevice
from iodaemon.node.tier_disk import find_kind, probe_disk
from iodaemon.supervisor import disk_trouble

GB = 10**9
TWO = """
[tier.fast]
split = "50 GB"
[[tier.fast.disk]]
path = "/a"
capacity = "100 GB"
[[tier.fast.disk]]
path = "/b/"
kind = "nvme"
write = "1 GB/s"
[tier.slow]
bandwidth = "200 MB/s"
"""


def tables(tmp_path, text):
    path = tmp_path / "config.toml"
    path.write_text(text)
    return load_config(path, {"HOME": "/home/ann"}, 1000, {}).tier


def found(number, **changes):
    made = {"filesystem": str(number), "total_bytes": 200 * GB, "free_bytes": 1, "kind": "hdd"}
    return DiskFacts(**(made | changes))


def facts(**of_b):
    return {"/a": found(1), "/b/": found(2, **of_b)}


def test_what_is_not_said_is_as_it_was_found_or_usual_for_the_kind(tmp_path):
    fast, slow = build_tiers(tables(tmp_path, TWO), facts())
    a, b = fast.disks

    assert ("/a", 100 * GB, 150e6, 150e6, "hdd") == (
        a.id,
        a.capacity_bytes,
        a.read_bytes_per_s,
        a.write_bytes_per_s,
        a.kind,
    )
    assert ("/b", 200 * GB, 3e9, 1e9, "nvme") == (
        b.id,
        b.capacity_bytes,
        b.read_bytes_per_s,
        b.write_bytes_per_s,
        b.kind,
    )
    assert (50 * GB, 1.15e9, 200e6) == (
        fast.split_bytes,
        fast.bandwidth_bytes_per_s,
        fast.staging_bytes_per_s,
    )
    assert (None, 200e6, math.inf) == (
        slow.storage,
        slow.bandwidth_bytes_per_s,
        slow.staging_bytes_per_s,
    )


def test_of_a_pretended_machine_nothing_is_looked_at(tmp_path):
    fast, _ = build_tiers(tables(tmp_path, TWO), None)

    assert [100 * GB, SIMULATED_BYTES] == [disk.capacity_bytes for disk in fast.disks]


@pytest.mark.parametrize(
    ("of_b", "line"),
    [
        (
            {"problem": "does not exist; make it, or mount what belongs there"},
            "tier fast: disk /b does not exist; make it, or mount what belongs there",
        ),
        (
            {"problem": disk_trouble.READ_ONLY},
            "tier fast: disk /b is read-only; mount it writable",
        ),
        (
            {"is_on_root": True},
            (
                "tier fast: disk /b is on the filesystem of /; mount what belongs there, "
                "or write on_root = true for it"
            ),
        ),
        (
            {"filesystem": "1"},
            (
                "tier fast: disk /b is on the same filesystem as disk /a of tier fast, whose "
                "space would be promised twice; give each disk a filesystem of its own"
            ),
        ),
    ],
)
def test_a_disk_that_cannot_be_used_is_refused_in_a_line(tmp_path, of_b, line):
    with pytest.raises(ConfigError) as caught:
        build_tiers(tables(tmp_path, TWO), facts(**of_b))

    assert line == str(caught.value)


def test_a_disk_may_be_on_the_filesystem_of_root_where_that_is_meant(tmp_path):
    meant = TWO.replace('kind = "nvme"', 'kind = "nvme"\non_root = true')
    fast, _ = build_tiers(tables(tmp_path, meant), facts(is_on_root=True))

    assert ["1", "2"] == [disk.filesystem for disk in fast.disks]


def test_the_filesystem_of_root_is_known():
    assert probe_disk("/").is_on_root
    assert not probe_disk("/proc").is_on_root


def test_more_capacity_than_there_is_is_refused_in_a_line(tmp_path):
    small = {"/a": found(1, total_bytes=10 * GB), "/b/": found(2)}

    with pytest.raises(ConfigError) as caught:
        build_tiers(tables(tmp_path, TWO), small)

    assert (
        "tier fast: disk /a is to have 93.1 GiB, and its filesystem has 9.3 GiB; write no more "
        "than that, or leave capacity out"
    ) == str(caught.value)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[tier.slow]\n", "[tier.slow] has no disk, so it has to say its bandwidth"),
        (
            '[tier.a]\nbandwidth = "1 GB/s"\n[tier.b]\nbandwidth = "1 GB/s"\n',
            "[tier.a] has no disk; only the last, the slowest, may be without",
        ),
        (
            '[[tier.a.disk]]\npath = "/x"\n[[tier.b.disk]]\npath = "/x/"\n',
            "[tier.b] has disk /x, which is in [tier.a] already",
        ),
        ('[[tier.a.disk]]\npath = "x"\n', "path is 'x'; write an absolute path"),
        (
            '[[tier.a.disk]]\npath = "/x\\u0000y"\n',
            "path is '/x\\x00y'; no path has a NUL character, write another",
        ),
        ('tier = "fast"\n', "tier must be a table, not a text"),
        ('[tier.a.disk.x]\npath = "/x"\n', "[tier.a]: disk must be a list, not a table"),
    ],
)
def test_what_is_wrong_with_the_table_is_a_line(tmp_path, text, line):
    with pytest.raises(ConfigError) as caught:
        tables(tmp_path, text)

    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_rule_that_is_not_there_is_told_with_the_tier(tmp_path):
    text = '[tier.a]\nrule = "balance"\n[[tier.a.disk]]\npath = "/x"\n'

    with pytest.raises(ConfigError, match=r"\[tier.a\]: rule: unknown allocation rule 'balance'"):
        build_tiers(tables(tmp_path, text), None)


def test_a_directory_of_this_machine_is_found_with_its_size(tmp_path):
    sizes = os.statvfs(tmp_path)
    seen = probe_disk(str(tmp_path))

    assert "" == seen.problem
    assert str(tmp_path.stat().st_dev) == seen.filesystem
    assert 0 < seen.total_bytes <= sizes.f_blocks * sizes.f_frsize


def test_what_is_no_directory_of_its_own_is_told(tmp_path):
    file, link, around = tmp_path / "file", tmp_path / "link", tmp_path / "round"
    file.touch()
    link.symlink_to(tmp_path)
    around.symlink_to("round")

    assert "does not exist; make it, or mount what belongs there" == probe_disk("/no/disk").problem
    assert "is no directory; name one" == probe_disk(str(file)).problem
    assert f"leads over a symbolic link; write {tmp_path}" == probe_disk(str(link)).problem
    assert "Too many levels" in probe_disk(str(around)).problem


@pytest.mark.parametrize(
    ("kind", "disks", "expected"),
    [
        ("tmpfs", (), "memory"),
        ("nfs", (), "hdd"),
        ("disk", (("nvme0n1x", False),), "nvme"),
        ("disk", (("sdzz9", False),), "ssd"),
        ("disk", (("sdzz9", True),), "hdd"),
        ("disk", (("sdzz9", None),), "hdd"),
        ("lvm", (("nvme0n1x", False), ("sdzz9", True)), "hdd"),
        ("md", (("nvme0n1x", False), ("sdzz9", False)), "ssd"),
    ],
)
def test_the_kind_is_that_of_the_slowest_disk_below(kind, disks, expected):
    devices = tuple(Device(id=DeviceId(name), rotational=turns) for name, turns in disks)
    below = PathDevice(path="/x", kind=kind, description="", devices=devices)

    assert expected == find_kind(below)
