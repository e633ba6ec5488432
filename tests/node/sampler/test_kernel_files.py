"""Parsers of kernel files: what every one keeps to, and what each makes of a known text."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from iodaemon.core.platform import DeviceId
from iodaemon.core.sample import DeviceCounters
from iodaemon.errors import NoData
from iodaemon.node.devices import read_disks
from iodaemon.node.sampler.cgroup_files import (
    CpuStat,
    IoStat,
    MemoryStat,
    parse_cpu_stat,
    parse_io_stat,
    parse_memory_stat,
)
from iodaemon.node.sampler.proc_files import (
    KeptFile,
    Meminfo,
    Pressure,
    ProcIo,
    Statm,
    find_mount,
    parse_cpu_ticks,
    parse_diskstats,
    parse_idle,
    parse_meminfo,
    parse_mountinfo,
    parse_pressure,
    parse_proc_cgroup,
    parse_proc_io,
    parse_refaults,
    parse_statm,
    parse_status,
    read_mounts,
    read_status,
)

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
    "proc_io": parse_proc_io,
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


@every_parser
@pytest.mark.parametrize("text", [b"\x00\xff\n", b"no such file\n"])
def test_a_text_of_something_else_is_no_data(parse, text):
    with pytest.raises(NoData):
        parse(text)


@every_parser
@pytest.mark.parametrize("text", [b"", b"\n", b"\n\n\n"])
def test_an_empty_text_is_no_data_but_an_io_stat_without_any_io(parse, text):
    if parse is parse_io_stat:
        assert {} == parse(text)
    else:
        with pytest.raises(NoData):
            parse(text)


@every_fixture
def test_a_text_cut_at_any_byte_parses_or_is_no_data(parse, text):
    for length in range(len(text)):
        try:
            parse(text[:length])
        except NoData:
            continue


@every_fixture
def test_words_in_the_place_of_numbers_parse_or_are_no_data(parse, text):
    try:
        parse(re.sub(rb"\d+", b"x", text))
    except NoData:
        return


@pytest.mark.parametrize("name", THIS_MACHINE)
def test_the_file_of_this_machine_parses_again_and_again_or_has_no_data(name):
    file = KeptFile(THIS_MACHINE[name])
    try:
        first, again = (PARSERS[name](file.read()) for _ in range(2))
    except NoData:
        return
    finally:
        file.close()

    assert type(first) is type(again)


# -- one by one ------------------------------------------------------------------------------------


def disks_of(tmp_path, name, *wanted):
    write(tmp_path, "diskstats", fixture(name))
    return read_disks(wanted, KeptFile(tmp_path / "diskstats"))


def test_a_diskstats_line_of_17_fields_fills_all_counters(tmp_path):
    counters = disks_of(tmp_path, "diskstats-6.18.44", "vda")[DeviceId("vda")]

    expected = DeviceCounters(
        reads=43602,
        reads_merged=10195,
        read_sectors=2339186,
        read_ms=15839,
        writes=7094,
        writes_merged=13184,
        written_sectors=738776,
        write_ms=2162,
        in_flight=0,
        busy_ms=3564,
        queue_ms=18218,
        discards=3366,
        discards_merged=67,
        discarded_sectors=65408,
        discard_ms=184,
        flushes=990,
        flush_ms=31,
    )
    assert expected == counters


def test_a_kernel_before_5_5_has_discards_and_no_flushes(tmp_path):
    counters = disks_of(tmp_path, "diskstats-4.19", "nvme0n1")[DeviceId("nvme0n1")]

    assert (
        counters.discards,
        counters.discards_merged,
        counters.discarded_sectors,
        counters.discard_ms,
        counters.flushes,
        counters.flush_ms,
    ) == (2048, 0, 16777216, 310, 0, 0)


def test_a_kernel_before_4_18_has_neither_discards_nor_flushes(tmp_path):
    counters = disks_of(tmp_path, "diskstats-4.4", "sda")[DeviceId("sda")]

    assert (
        counters.busy_ms,
        counters.queue_ms,
        counters.discards,
        counters.flushes,
    ) == (122512, 463616, 0, 0)


def test_fields_of_a_later_kernel_are_ignored():
    text = fixture("diskstats-6.18.44")
    later = text.replace(b"\n", b" 77 88\n")

    assert parse_diskstats(text) == parse_diskstats(later)


def test_device_names_are_those_of_the_kernel():
    names = list(parse_diskstats(fixture("diskstats-6.1")))

    assert names == ["loop0", "sda", "sda1", "cciss/c0d0"]


def test_only_the_wanted_devices_are_parsed():
    counters = parse_diskstats(fixture("diskstats-6.1"), frozenset({"sda", "sdz"}))

    assert list(counters) == ["sda"]


def test_a_last_line_that_is_cut_short_is_left_out():
    text = fixture("diskstats-6.1")
    cut = text[: text.rindex(b" 0 0\n")]

    assert list(parse_diskstats(cut)) == ["loop0", "sda", "sda1"]


def test_a_kept_descriptor_sees_later_values(tmp_path):
    write(tmp_path, "file", "1\n")
    file = KeptFile(tmp_path / "file")
    first = file.read()
    write(tmp_path, "file", "5\n")

    assert (b"1\n", b"5\n") == (first, file.read())
    file.close()
    file.close()


def test_a_file_longer_than_one_read_is_read_to_its_end(tmp_path):
    write(tmp_path, "file", "line\n" * 5000)

    assert 25_000 == len(KeptFile(tmp_path / "file").read())


def test_proc_io_has_the_seven_counters():
    expected = ProcIo(
        rchar_bytes=1335628,
        wchar_bytes=1310872,
        read_calls=58,
        write_calls=27,
        read_bytes=212992,
        write_bytes=1323008,
        cancelled_write_bytes=1310720,
    )

    assert expected == parse_proc_io(fixture("proc_io-6.18.44"))


def test_proc_io_cut_within_its_last_number_is_no_data():
    with pytest.raises(NoData):
        parse_proc_io(fixture("proc_io-6.18.44")[:-3])


def test_proc_io_of_a_kernel_that_counts_no_bytes_is_no_data():
    with pytest.raises(NoData):
        parse_proc_io(b"rchar: 1\nwchar: 2\nsyscr: 3\nsyscw: 4\n")


def test_pressure_totals_are_seconds():
    expected = Pressure(some_s=2.013255, full_s=1.892051)

    assert expected == parse_pressure(fixture("pressure-6.18.44"))


def test_pressure_without_a_full_line_has_an_unknown_full():
    assert Pressure(some_s=29.304411) == parse_pressure(fixture("pressure-5.10-cpu"))


def test_meminfo_is_in_bytes():
    expected = Meminfo(
        total_bytes=24682416 * 1024,
        dirty_bytes=484 * 1024,
        writeback_bytes=0,
        available_bytes=24369828 * 1024,
    )

    assert expected == parse_meminfo(fixture("meminfo-6.18.44"))


def test_meminfo_of_an_old_kernel_has_unknown_available_memory():
    text = fixture("meminfo-6.18.44").replace(b"MemAvailable:", b"SomethingElse:")

    assert parse_meminfo(text).available_bytes is None


def test_cpu_stat_is_in_seconds():
    expected = CpuStat(usage_s=72.749449, user_s=47.614033)

    assert expected == parse_cpu_stat(fixture("cpu_stat-6.18.44"))


def test_cpu_stat_ignores_what_the_controller_adds():
    expected = CpuStat(usage_s=0.007215, user_s=0.0031)

    assert expected == parse_cpu_stat(fixture("cpu_stat-5.10"))


def test_statm_counts_pages():
    expected = Statm(size_bytes=765 * 4096, resident_bytes=429 * 4096, text_bytes=5 * 4096)

    assert expected == parse_statm(fixture("statm-6.18.44"), page_bytes=4096)


def test_mountinfo_names_source_and_options():
    mount = find_mount(parse_mountinfo(fixture("mountinfo-6.18.44")), "/var/lib")

    assert mount is not None
    assert (
        mount.device_number,
        mount.filesystem,
        mount.source,
        mount.options[1],
    ) == ("254:0", "ext4", "/dev/vda", "discard")


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


def test_of_two_mounts_on_one_directory_the_upper_one_holds():
    text = fixture("mountinfo-6.18.44")

    mount = find_mount(parse_mountinfo(text), "/dev/shm/x")

    assert mount is not None
    assert mount.mount_id == 30


def test_an_escaped_comma_does_not_split_a_mount_option():
    mounts = parse_mountinfo(fixture("mountinfo-6.12-layers"))
    overlay = next(mount for mount in mounts if mount.filesystem == "overlay")

    assert "upperdir=/srv/lvm/up,per" in overlay.options


def test_mountinfo_of_another_process_can_be_read(tmp_path):
    write(tmp_path, "proc/7/mountinfo", fixture("mountinfo-6.18.44"))

    assert len(read_mounts(tmp_path, pid=7)) == 19
    assert () == read_mounts(tmp_path, pid=8)


def test_a_file_that_may_not_be_read_is_not_taken_for_one_that_is_gone(tmp_path):
    file = KeptFile(tmp_path)  # a directory opens and does not read: any other error
    with pytest.raises(IsADirectoryError):
        file.read_record()
    file.close()


def test_a_file_that_appears_later_is_found(tmp_path):
    file = KeptFile(tmp_path / "late")
    with pytest.raises(NoData):
        file.read()
    write(tmp_path, "late", "here\n")

    assert file.read() == b"here\n"


# -- io.stat ---------------------------------------------------------------------------------------


def test_io_stat_has_each_layer_for_itself():
    found = parse_io_stat(fixture("io_stat-6.1-layers"))

    mirror = IoStat(read_bytes=2048, written_bytes=32 << 20)
    assert {"259:0", "254:0", "254:1", "253:0", "9:9"} == found.keys()
    assert (mirror, 64 << 20) == (found["9:9"], found["253:0"].written_bytes)


def test_devices_that_io_stat_names_without_ending_their_line_have_nothing():
    found = parse_io_stat(b"7:7 7:6 8:0 rbytes=4096 wbytes=512 rios=1 wios=1 dbytes=0 dios=0\n")

    moved = IoStat(read_bytes=4096, written_bytes=512)
    assert {"7:7": IoStat(), "7:6": IoStat(), "8:0": moved} == found


def test_what_cost_models_add_to_io_stat_is_passed_over():
    text = b"8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=5 dios=6 cost.usage=7 use_delay=0\n"

    assert {"8:0": IoStat(read_bytes=1, written_bytes=2)} == parse_io_stat(text)


def test_refaults_of_page_cache_and_swap_are_added():
    assert parse_refaults(fixture("vmstat-6.18.44")) == 6383892

    text = b"workingset_refault_anon 5\nworkingset_refault_file 7\n"
    assert parse_refaults(text) == 12


def test_a_kernel_before_5_9_counts_refaults_in_one_line():
    assert parse_refaults(fixture("vmstat-4.19")) == 730


@pytest.mark.parametrize(
    "text",
    [
        b"workingset_refault_file 7\n",
        b"workingset_refault_anon 7\nworkingset_refault_file 1",
        b"workingset_refault",
        b"workingset_refault \n",
        b"nr_workingset_refault 7\n",
    ],
)
def test_refaults_in_a_text_that_is_cut_short_are_no_data(text):
    with pytest.raises(NoData):
        parse_refaults(text)


def test_a_cpu_is_idle_also_while_something_waits_for_io():
    idle_s = parse_idle(fixture("cpu_time-6.18.44"), ticks_per_s=100)

    assert idle_s == {0: 1167.75, 1: 1027.64}


def test_a_cpu_whose_line_is_cut_short_is_not_told():
    text = b"cpu  1 2 3 4 5\ncpu0 1 0 0 700 50 0\ncpu7 1 0 0 700\ncpu8 1 0 0 7"

    assert parse_idle(text, ticks_per_s=100) == {0: 7.5}


def test_the_cgroups_of_a_process_are_told_by_controller():
    paths = parse_proc_cgroup(b"12:cpu,cpuacct:/a\n4:memory:/b:c\n1:name=systemd:/\n0::/d e\n")

    assert paths == {
        "cpu": "/a",
        "cpuacct": "/a",
        "memory": "/b:c",
        "name=systemd": "/",
        "": "/d e",
    }


def test_page_cache_of_a_cgroup_is_what_can_be_given_up_without_shared_memory():
    stat = parse_memory_stat(fixture("memory_stat-6.1-v2"))

    assert stat.cache_bytes == 94371840 + 10436608


def test_version_1_tells_page_cache_with_all_that_is_below():
    text = b"inactive_file 1\nactive_file 2\nhierarchical_memory_limit 9\n"

    with pytest.raises(NoData):
        parse_memory_stat(text)
    assert parse_memory_stat(text + b"total_inactive_file 10\ntotal_active_file 20\n") == (
        MemoryStat(cache_bytes=30)
    )


# -- a process -------------------------------------------------------------------------------------

STATUS = (
    b"Name:\tcat\nState:\tS (sleeping)\nUid:\t1000\t0\t0\t0\nGid:\t5\t6\t7\t8\nGroups:\t20 24 \n"
    b"Mems_allowed_list:\t0-3\n"
)


def test_status_has_the_real_user_and_the_effective_group():
    status = parse_status(STATUS)

    assert ("S", 1000, {6, 20, 24}, "0-3") == status


@pytest.mark.parametrize("length", range(len(STATUS) - len(b"Mems_allowed_list:\t0-3\n")))
def test_a_status_that_is_cut_short_is_no_data(length):
    with pytest.raises(NoData):
        parse_status(STATUS[:length])


def test_this_process_runs_and_one_that_is_gone_has_no_status():
    assert "R" == read_status("self").state
    assert read_status(1 << 30) is None


# -- all CPUs together -----------------------------------------------------------------------------


def test_all_cpus_are_counted_together_up_to_steal():
    text = b"cpu  3759861 2838797 1034663 3330787 350367 0 30185 113276 0 0\ncpu0 1880013 1418345\n"

    assert (3759861, 2838797, 1034663, 3330787, 350367, 0, 30185, 113276) == parse_cpu_ticks(text)


@pytest.mark.parametrize("text", [b"", b"cpu0 1 2\n", b"cpu a b\n", b"intr 1\n", b"cpu 1"])
def test_a_stat_without_a_line_of_all_cpus_has_no_ticks(text):
    assert () == parse_cpu_ticks(text)
