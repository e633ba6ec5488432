"""Our device figures beside those that iostat prints for the same counters."""

import pytest
from test_kernel_files import fixture

from iodaemon.core.meter import device_load
from iodaemon.node.devices import disk_counters
from iodaemon.node.sampler.proc_files import parse_diskstats

AT_BOOT = disk_counters((0,) * 17)
SINCE_BOOT_S = 20.0
PRINTED = {
    "r/s": 2180.10, "w/s": 354.70, "rkB/s": 58479.65, "wkB/s": 18469.40,
    "r_await": 0.36, "w_await": 0.30, "aqu-sz": 0.91, "util": 17.82,
}  # fmt: skip
"""By iostat 12.6.1 with -x -k, which was given these counters and this uptime as its /sys/block and
/proc/uptime."""
ROUNDING = 0.006
"""It prints two decimals (of ms, for the waiting times)."""


def test_device_figures_are_those_of_iostat():
    counters = disk_counters(parse_diskstats(fixture("diskstats-6.18.44"))["vda"])
    load = device_load(AT_BOOT, counters, SINCE_BOOT_S)

    ours = {
        "r/s": load.reads_per_s,
        "w/s": load.writes_per_s,
        "rkB/s": load.read_bytes_per_s / 1024,
        "wkB/s": load.written_bytes_per_s / 1024,
        "r_await": load.read_await_s * 1000,
        "w_await": load.write_await_s * 1000,
        "aqu-sz": load.queue_length,
        "util": load.busy_ratio * 100,
    }
    assert pytest.approx(PRINTED, abs=ROUNDING) == ours
