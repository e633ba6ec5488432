"""The knee that ``iod calibrate`` finds is the one that a disk was given.

The disk (spin.c) paces itself: what it carries follows from its parameters, however busy the
machine is that asks it. Needs nbdkit; a machine that must have it says so in IOD_REQUIRE.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from beds import spinning

from iodaemon.calibration.store import kept_file

pytestmark = pytest.mark.disk
BLOCK = 128 << 10
"""What a reader asks for at a time."""
OVERHEAD_S = 1e-4
TRIES = 3
DISK, FILE = 1 << 30, 256 << 20
CLOSE = 0.15
"""The loop device, FUSE and NBD in between take their part, and a step says no more than that."""
LUCKY = 0.25
"""A reader whose next block comes in time is served without a seek: so much more is carried."""


def carried_bytes_per_s(rate, *, seek_s):
    """What the disk carries of readers that it moves its arm to and fro between."""
    return BLOCK / (OVERHEAD_S + seek_s + BLOCK / rate)


@pytest.fixture
def measure(tmp_path):
    """Makes a disk of these parameters and calibrates it; what was found."""
    if lacks := spinning.missing():
        what = f"no spinning disk here: it lacks {', '.join(lacks)}"
        if "nbdkit" in os.environ.get("IOD_REQUIRE", ""):
            pytest.fail(what)
        pytest.skip(what)
    config = tmp_path / "config.toml"
    config.write_text(f'state_dir = "{tmp_path}/state"\nruntime_dir = "{tmp_path}/run"\n')

    def make(**parameters):
        base = Path(tempfile.mkdtemp(dir=tmp_path))
        with spinning.spinning_disk(base, size=str(DISK), **parameters) as disk:
            iod = (sys.executable, "-m", "iodaemon.cli", "--config", str(config))
            words = ("calibrate", str(disk), "--time", "20s", "--size", str(FILE), "--force")
            ended = subprocess.run([*iod, *words], capture_output=True, text=True, check=False)
            assert ended.returncode == 0, ended.stderr
            assert os.listdir(disk) == ["lost+found"]
        return json.loads(kept_file(tmp_path / "state").read_text())["calibrations"][-1]

    return make


def best_of(measure, carried, *, above=CLOSE, **parameters):
    """A calibration of such a disk. What disturbs the imitation makes it slower, never faster.

    So no knee may lie above what the disk carries, and one of three has to be near it.
    """
    for _ in range(TRIES):
        made = measure(**parameters)
        knee = made["knees"][-1]
        assert knee["fine_bytes_per_s"] <= carried * (1 + above)
        if knee["degraded_bytes_per_s"] and knee["fine_bytes_per_s"] >= carried * (1 - CLOSE):
            break
    return made


def test_a_disk_that_only_has_a_rate_is_found_to_carry_it(measure):
    carried = carried_bytes_per_s(40 << 20, seek_s=0.0)

    made = best_of(measure, carried, rate="40M", seek_min="0", seek_max="0", rpm="6000000")

    assert made["sequential_bytes_per_s"] <= carried * (1 + CLOSE)
    _assert_knee_at(made, carried)


def test_a_disk_that_loses_its_way_between_readers_is_found_to_carry_what_is_left(measure):
    left = carried_bytes_per_s(150 << 20, seek_s=0.004)

    seeks = {"seek_min": "4000", "seek_max": "4000", "rpm": "6000000"}
    made = best_of(measure, left, above=LUCKY, rate="150M", **seeks)

    _assert_knee_at(made, left)
    times = made["leaves"][0]["points"]
    at_random = [p for p in times if (p["pattern"], p["kind"]) == ("random", "read")]
    assert at_random
    assert all(p["service_s"] >= 0.004 for p in at_random)


def test_a_disk_of_7200_rpm_is_found_to_carry_what_seeks_by_distance_leave(measure):
    # The kernel's scheduler (mq-deadline) serves its eight readers as they lie in the file.
    seek_s = 0.001 + (0.015 - 0.001) * math.sqrt(FILE / 8 / DISK)
    left = carried_bytes_per_s(150 << 20, seek_s=seek_s + 0.5 * 60.0 / 7200)

    made = best_of(measure, left, above=LUCKY, rate="150M")

    _assert_knee_at(made, left)


def _assert_knee_at(made, carried):
    """With all sockets loaded, and no wider than a step; what is recommended is carried."""
    knee = made["knees"][-1]
    assert carried * (1 - CLOSE) <= knee["fine_bytes_per_s"]
    assert knee["degraded_bytes_per_s"] <= knee["fine_bytes_per_s"] * (1 + CLOSE)
    assert carried * (1 - LUCKY) <= made["io_bound_bytes_per_s"] <= carried * (1 + CLOSE)
