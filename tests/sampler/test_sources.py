"""What each sampler makes of a known text."""

from pathlib import Path

import pytest

from iodaemon.core.sample import DeviceCounters
from iodaemon.errors import NoData
from iodaemon.sampler import KeptFile, diskstats, io_stat, mountinfo, pressure, proc_io
from iodaemon.sampler.cpu_stat import CpuStat, parse_cpu_stat
from iodaemon.sampler.cpu_time import parse_cpu_time
from iodaemon.sampler.diskstats import parse_diskstats
from iodaemon.sampler.io_stat import IoStat, parse_io_stat
from iodaemon.sampler.meminfo import Meminfo, parse_meminfo
from iodaemon.sampler.memory_stat import MemoryStat, parse_memory_stat
from iodaemon.sampler.mountinfo import find_mount, parse_mountinfo
from iodaemon.sampler.pressure import Pressure, parse_pressure
from iodaemon.sampler.proc_cgroup import parse_proc_cgroup
from iodaemon.sampler.proc_io import ProcIo, parse_proc_io
from iodaemon.sampler.statm import Statm, parse_statm
from iodaemon.sampler.vmstat import parse_vmstat

FIXTURES = Path(__file__).parent.parent / "fixtures"


def fixture(name: str) -> bytes:
    return (FIXTURES / f"{name}.txt").read_bytes()


def write(root: Path, path: str, text: str | bytes) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text.encode() if isinstance(text, str) else text)


def test_a_diskstats_line_of_17_fields_fills_all_counters():
    counters = parse_diskstats(fixture("diskstats-6.18.44"))["vda"]

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


def test_a_kernel_before_5_5_has_discards_and_no_flushes():
    counters = parse_diskstats(fixture("diskstats-4.19"))["nvme0n1"]

    assert (
        counters.discards,
        counters.discards_merged,
        counters.discarded_sectors,
        counters.discard_ms,
        counters.flushes,
        counters.flush_ms,
    ) == (2048, 0, 16777216, 310, 0, 0)


def test_a_kernel_before_4_18_has_neither_discards_nor_flushes():
    counters = parse_diskstats(fixture("diskstats-4.4"))["sda"]

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
    write(tmp_path, "proc/diskstats", "8 0 sda 1 0 8 1 0 0 0 0 0 1 1\n")
    sampler = diskstats.Sampler(tmp_path)
    first = sampler.read()["sda"].reads
    write(tmp_path, "proc/diskstats", "8 0 sda 5 0 8 1 0 0 0 0 0 1 1\n")

    assert (first, sampler.read()["sda"].reads) == (1, 5)


def test_a_file_longer_than_one_read_is_read_to_its_end(tmp_path):
    lines = [f"8 {number} sd{number} 1 0 8 1 0 0 0 0 0 1 1\n" for number in range(5000)]
    write(tmp_path, "proc/diskstats", "".join(lines))

    assert len(diskstats.Sampler(tmp_path).read()) == 5000


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
        parse_proc_io("rchar: 1\nwchar: 2\nsyscr: 3\nsyscw: 4\n")


def test_proc_io_is_read_of_the_process_asked_for(tmp_path):
    write(tmp_path, "proc/7/io", fixture("proc_io-6.18.44"))

    assert proc_io.Sampler(tmp_path, pid=7).read().read_calls == 58


def test_pressure_totals_are_seconds():
    expected = Pressure(some_s=2.013255, full_s=1.892051)

    assert expected == parse_pressure(fixture("pressure-6.18.44"))


def test_pressure_without_a_full_line_has_an_unknown_full():
    assert Pressure(some_s=29.304411) == parse_pressure(fixture("pressure-5.10-cpu"))


def test_pressure_of_a_cgroup_is_read_from_its_directory(tmp_path):
    write(tmp_path, "sys/fs/cgroup/job/memory.pressure", fixture("pressure-6.18.44"))
    sampler = pressure.Sampler(tmp_path, resource="memory", cgroup=Path("sys/fs/cgroup/job"))

    assert sampler.read().some_s == 2.013255


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
    expected = CpuStat(usage_s=72.749449, user_s=47.614033, system_s=25.135416)

    assert expected == parse_cpu_stat(fixture("cpu_stat-6.18.44"))


def test_cpu_stat_ignores_what_the_controller_adds():
    expected = CpuStat(usage_s=0.007215, user_s=0.0031, system_s=0.004115)

    assert expected == parse_cpu_stat(fixture("cpu_stat-5.10"))


def test_statm_counts_pages():
    expected = Statm(size_bytes=765 * 4096, resident_bytes=429 * 4096, shared_bytes=401 * 4096)

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

    assert len(mountinfo.Sampler(tmp_path, pid=7).read()) == 19


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

    mirror = IoStat(read_bytes=2048, written_bytes=32 << 20, reads=2, writes=32)
    assert {"259:0", "254:0", "254:1", "253:0", "9:9"} == found.keys()
    assert (mirror, 64 << 20) == (found["9:9"], found["253:0"].written_bytes)


def test_devices_that_io_stat_names_without_ending_their_line_have_nothing():
    found = parse_io_stat("7:7 7:6 8:0 rbytes=4096 wbytes=512 rios=1 wios=1 dbytes=0 dios=0\n")

    moved = IoStat(read_bytes=4096, written_bytes=512, reads=1, writes=1)
    assert {"7:7": IoStat(), "7:6": IoStat(), "8:0": moved} == found


def test_what_cost_models_add_to_io_stat_is_passed_over():
    text = "8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=5 dios=6 cost.usage=7 use_delay=0\n"

    assert {"8:0": IoStat(read_bytes=1, written_bytes=2, reads=3, writes=4)} == parse_io_stat(text)


def test_the_io_stat_of_a_cgroup_without_io_is_empty(tmp_path):
    write(tmp_path, "sys/fs/cgroup/job/io.stat", "")
    sampler = io_stat.Sampler(tmp_path, cgroup=Path("sys/fs/cgroup/job"))

    assert {} == sampler.read()
    sampler.close()


def test_refaults_of_page_cache_and_swap_are_added():
    assert parse_vmstat(fixture("vmstat-6.18.44")).refaulted_pages == 6383892

    text = b"workingset_refault_anon 5\nworkingset_refault_file 7\n"
    assert parse_vmstat(text).refaulted_pages == 12


def test_a_kernel_before_5_9_counts_refaults_in_one_line():
    assert parse_vmstat(fixture("vmstat-4.19")).refaulted_pages == 730


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
        parse_vmstat(text)


def test_a_cpu_is_idle_also_while_something_waits_for_io():
    idle_s = parse_cpu_time(fixture("cpu_time-6.18.44"), ticks_per_s=100)

    assert idle_s == {0: 1167.75, 1: 1027.64}


def test_a_cpu_whose_line_is_cut_short_is_not_told():
    text = b"cpu  1 2 3 4 5\ncpu0 1 0 0 700 50 0\ncpu7 1 0 0 700\ncpu8 1 0 0 7"

    assert parse_cpu_time(text, ticks_per_s=100) == {0: 7.5}


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
