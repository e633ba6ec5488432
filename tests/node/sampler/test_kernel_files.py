"""Parsers of kernel files: what every one keeps to, and what each makes of a known text."""

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from iodaemon.errors import NoData
from iodaemon.node.devices import disk_counters
from iodaemon.node.sampler.proc_files import (
    PAGE_BYTES,
    KeptFile,
    Meminfo,
    Statm,
    find_mount,
    find_state,
    parse_cpu_stat,
    parse_diskstats,
    parse_idle,
    parse_io_stat,
    parse_meminfo,
    parse_memory_stat,
    parse_mountinfo,
    parse_pressure,
    parse_proc_cgroup,
    parse_refaults,
    parse_statm,
    read_file,
)
from iodaemon.supervisor.ledger import Use
from iodaemon.supervisor.reap import parse_io

FIXTURES = Path(__file__).parents[2] / "fixtures"
PARSERS: dict[str, Callable[[bytes], object]] = {
    "cpu_stat": parse_cpu_stat,
    "cpu_time": parse_idle,
    "diskstats": parse_diskstats,
    "io_stat": parse_io_stat,
    "meminfo": parse_meminfo,
    "memory_stat": parse_memory_stat,
    "mountinfo": parse_mountinfo,
    "pressure": parse_pressure,
    "proc_cgroup": parse_proc_cgroup,
    "proc_io": parse_io,
    "statm": parse_statm,
    "vmstat": parse_refaults,
}
"""By the first word of their fixtures' names."""
THIS_MACHINE = {
    "cpu_stat": "/sys/fs/cgroup/cpu.stat",
    "cpu_time": "/proc/stat",
    "diskstats": "/proc/diskstats",
    "meminfo": "/proc/meminfo",
    "mountinfo": "/proc/self/mountinfo",
    "pressure": "/proc/pressure/io",
    "proc_cgroup": "/proc/self/cgroup",
    "proc_io": "/proc/self/io",
    "statm": "/proc/self/statm",
    "vmstat": "/proc/vmstat",
}


def fixture(name: str) -> bytes:
    return (FIXTURES / f"{name}.txt").read_bytes()


def write(root: Path, path: str, text: str | bytes) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text.encode() if isinstance(text, str) else text)


# -- all of them -----------------------------------------------------------------------------------

every_parser = pytest.mark.parametrize("parse", PARSERS.values(), ids=PARSERS)
every_fixture = pytest.mark.parametrize(
    ("parse", "text"),
    [
        pytest.param(parse, path.read_bytes(), id=path.name)
        for name, parse in PARSERS.items()
        for path in sorted(FIXTURES.glob(f"{name}-*.txt"))
    ],
)


@pytest.mark.parametrize("name", PARSERS)
def test_a_parser_has_a_text_of_a_real_machine_with_the_kernel_in_its_name(name):
    real = [path for path in FIXTURES.glob(f"{name}-*.txt") if re.search(r"-\d+\.\d+", path.name)]

    assert [] != real


NOTHING = (NoData, ValueError)
NOTHING_SAID = {parse_io_stat: {}, parse_diskstats: {}, parse_cpu_stat: (None, None)}


@pytest.mark.parametrize("text", [b"", b"\n", b"\n\n\n", b"\x00\xff\n", b"no such file\n"])
@every_parser
def test_a_text_of_something_else_is_no_data_or_has_no_device(parse, text):
    if parse in NOTHING_SAID:
        assert NOTHING_SAID[parse] == parse(text)
    else:
        with pytest.raises(NOTHING):
            parse(text)


@every_fixture
def test_a_text_cut_at_any_byte_parses_or_is_no_data(parse, text):
    for length in range(len(text)):
        try:
            parse(text[:length])
        except NOTHING:
            continue


@every_fixture
def test_words_in_the_place_of_numbers_parse_or_are_no_data(parse, text):
    try:
        parse(re.sub(rb"\d+", b"x", text))
    except NOTHING:
        return


@pytest.mark.parametrize("name", THIS_MACHINE)
def test_the_file_of_this_machine_parses_again_and_again_or_has_no_data(name):
    try:
        first, again = (PARSERS[name](read_file(THIS_MACHINE[name])) for _ in range(2))
    except NoData:
        return

    assert type(first) is type(again)


# -- one by one ------------------------------------------------------------------------------------


MEMINFO = fixture("meminfo-6.18.44")
TOTALS = b"total_inactive_file 10\ntotal_active_file 20\n"
VERSION_1 = b"inactive_file 1\nactive_file 2\nhierarchical_memory_limit 9\n"


@pytest.mark.parametrize(
    ("parse", "text", "expected"),
    [
        (parse_pressure, fixture("pressure-6.18.44"), 2.013255),
        (parse_pressure, fixture("pressure-5.10-cpu"), 29.304411),  # without a line of full
        (parse_cpu_stat, fixture("cpu_stat-6.18.44"), (72.749449, 47.614033)),
        (parse_cpu_stat, fixture("cpu_stat-5.10"), (0.007215, 0.0031)),  # with the controller's
        (parse_refaults, fixture("vmstat-6.18.44"), 6383892),
        (parse_refaults, fixture("vmstat-4.19"), 730),  # in one line
        (parse_refaults, b"workingset_refault_anon 5\nworkingset_refault_file 7\n", 12),
        (
            lambda text: parse_memory_stat(text)[0],  # without shared memory
            fixture("memory_stat-6.1-v2"),
            94371840 + 10436608,
        ),
        (
            parse_io_stat,  # Linux 5.10 does not end the line of a device of which it says nothing
            b"7:7 7:6 8:0 rbytes=4096 wbytes=512 rios=1 wios=1 dbytes=0 dios=0\n",
            {"8:0": (4096, 512)},
        ),
        (
            parse_io_stat,
            b"8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=5 dios=6 cost.usage=7 use_delay=0\n",
            {"8:0": (1, 2)},
        ),
        (
            parse_statm,
            fixture("statm-6.18.44"),
            Statm(765 * PAGE_BYTES, 429 * PAGE_BYTES, 5 * PAGE_BYTES),
        ),
        (
            parse_io,
            fixture("proc_io-6.18.44"),
            Use(212992, 1323008, 58 + 27, 0, 1335628 + 1310872, 1310720),
        ),
        (parse_meminfo, MEMINFO, Meminfo(24682416 << 10, 484 << 10, 0, 24369828 << 10)),
        (
            parse_meminfo,  # before Linux 3.14
            MEMINFO.replace(b"MemAvailable:", b"SomethingElse:"),
            Meminfo(24682416 << 10, 484 << 10, 0, None),
        ),
        (parse_idle, fixture("cpu_time-6.18.44"), {0: 1167.75, 1: 1027.64}),  # and waits for I/O
        (parse_idle, b"cpu  1 2 3 4 5\ncpu0 1 0 0 700 50 0\ncpu7 1 0 0 700\ncpu8 1 0", {0: 7.5}),
        (
            parse_proc_cgroup,
            b"12:cpu,cpuacct:/a\n4:memory:/b:c\n1:name=systemd:/\n0::/d e\n",
            {"cpu": "/a", "cpuacct": "/a", "memory": "/b:c", "name=systemd": "/", "": "/d e"},
        ),
        (
            parse_memory_stat,
            VERSION_1 + b"total_inactive_file 10\ntotal_active_file 20\n",
            (30, None),
        ),
    ],
)
def test_a_known_text_has_known_counters_in_base_units(parse, text, expected):
    assert expected == parse(text)


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_refaults, b"workingset_refault_file 7\n"),
        (parse_refaults, b"workingset_refault_anon 7\nworkingset_refault_file 1"),
        (parse_refaults, b"workingset_refault"),
        (parse_refaults, b"workingset_refault \n"),
        (parse_refaults, b"nr_workingset_refault 7\n"),
        (parse_memory_stat, VERSION_1),  # page cache is told with all that is below, or not
    ],
)
def test_a_text_that_is_cut_short_is_no_data(parse, text):
    with pytest.raises(NoData):
        parse(text)


@pytest.mark.parametrize(
    ("name", "disk", "last"),
    [
        ("diskstats-4.19", "nvme0n1", (2048, 0, 16777216, 310, 0, 0)),  # no flushes before 5.5
        ("diskstats-4.4", "sda", (0, 0, 0, 0, 0, 0)),  # no discards before 4.18
    ],
)
def test_what_an_older_kernel_does_not_count_is_0(name, disk, last):
    assert last == parse_diskstats(fixture(name))[disk][-6:]


def test_devices_have_the_kernels_names_and_a_line_that_is_cut_short_none():
    text = fixture("diskstats-6.1")

    assert ["loop0", "sda", "sda1", "cciss/c0d0"] == list(parse_diskstats(text))
    assert ["loop0", "sda", "sda1"] == list(parse_diskstats(text[: text.rindex(b" 0 0\n")]))
    assert ["sda"] == list(parse_diskstats(text, frozenset({"sda", "sdz"})))


def test_a_diskstats_line_of_17_fields_fills_all_counters():
    counters = disk_counters(parse_diskstats(fixture("diskstats-6.18.44"))["vda"])

    expected = (
        43602, 10195, 2339186, 15839, 7094, 13184, 738776, 2162, 0, 3564, 18218,
        3366, 67, 65408, 184, 990, 31,
    )  # fmt: skip
    assert expected == msgspec.structs.astuple(counters)


def test_fields_of_a_later_kernel_are_ignored():
    text = fixture("diskstats-6.18.44")
    later = text.replace(b"\n", b" 77 88\n")

    assert parse_diskstats(text) == parse_diskstats(later)


def test_a_kept_descriptor_sees_later_values(tmp_path):
    write(tmp_path, "file", "1\n")
    file = KeptFile(str(tmp_path / "file"))
    first = file.read()
    write(tmp_path, "file", "5\n")

    assert (b"1\n", b"5\n") == (first, file.read())
    file.close()
    file.close()


def test_a_kept_descriptor_that_may_not_be_read_for_once_is_not_opened_anew(tmp_path, monkeypatch):
    """The process has become another user's; its number may be another process's later."""
    write(tmp_path, "file", "1\n")
    file = KeptFile(str(tmp_path / "file"))
    file.read()
    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", refuse)
        with pytest.raises(PermissionError):
            file.read()
    (tmp_path / "file").unlink()
    write(tmp_path, "file", "5\n")

    assert b"1\n" == file.read()
    file.close()


def refuse(*_):
    raise PermissionError(errno.EACCES, "Permission denied")


def test_a_file_longer_than_one_read_is_read_to_its_end(tmp_path):
    write(tmp_path, "file", "line\n" * 5000)

    assert 25_000 == len(read_file(tmp_path / "file"))
    assert 25_000 == len(read_file(tmp_path / "file", 25_000))
    with pytest.raises(NoData, match="longer than 24999 bytes"):
        read_file(tmp_path / "file", 24_999)


@pytest.mark.parametrize(
    ("path", "filesystem", "mount_point"),
    [
        ("/", "ext4", "/"),
        ("/srv", "ext4", "/"),
        ("/srv/lvm", "ext4", "/srv/lvm"),
        ("/srv/lvmx", "ext4", "/"),
        ("/srv/home/me/file", "btrfs", "/srv/home"),
        ("/srv/with space/x", "tmpfs", "/srv/with space"),
        ("/srv/a/deep/x", "tmpfs", "/srv/a"),
    ],
)
def test_a_path_is_on_the_mount_that_the_kernel_walks_to(path, filesystem, mount_point):
    mount = find_mount(parse_mountinfo(fixture("mountinfo-6.12-layers")), path)

    assert mount is not None
    assert (filesystem, mount_point) == (mount.filesystem, mount.mount_point)


def test_a_mount_has_number_source_and_options_and_of_two_on_one_directory_the_upper_holds():
    mounts = parse_mountinfo(fixture("mountinfo-6.18.44"))
    mount = find_mount(mounts, "/var/lib")

    found = (mount.device_number, mount.filesystem, mount.source, mount.options[1])
    assert ("254:0", "ext4", "/dev/vda", "discard") == found
    assert 30 == find_mount(mounts, "/dev/shm/x").mount_id


def test_io_stat_has_each_layer_for_itself():
    found = parse_io_stat(fixture("io_stat-6.1-layers"))

    mirror = (2048, 32 << 20)
    assert {"259:0", "254:0", "254:1", "253:0", "9:9"} == found.keys()
    assert (mirror, 64 << 20) == (found["9:9"], found["253:0"][1])


def test_an_escaped_comma_does_not_split_a_mount_option():
    mounts = parse_mountinfo(fixture("mountinfo-6.12-layers"))
    overlay = next(mount for mount in mounts if mount.filesystem == "overlay")

    assert "upperdir=/srv/lvm/up,per" in overlay.options


def test_a_file_that_may_not_be_read_is_not_taken_for_one_that_is_gone(tmp_path):
    with pytest.raises(IsADirectoryError):  # it opens and does not read: any other error
        KeptFile(str(tmp_path)).read()
    with pytest.raises(IsADirectoryError):
        read_file(tmp_path)


def test_a_file_that_appears_later_is_found(tmp_path):
    file = KeptFile(str(tmp_path / "late"))
    with pytest.raises(NoData):
        file.read()
    write(tmp_path, "late", "here\n")

    assert file.read() == b"here\n"
    file.close()


def test_this_process_runs_and_one_that_is_gone_has_no_state():
    assert "R" == find_state("self")
    assert find_state(1 << 30) is None
