"""Caps as they are written to a job's cgroup, and what clears them."""

import pytest

from iodaemon.backend.linux.freezer import CgroupFreezer
from iodaemon.backend.linux.io_cap import can_cap, clear_caps, lines_of, set_caps

UNLIMITED = "rbps=max wbps=max riops=max wiops=max"


def test_a_line_a_disk_is_written():
    caps = {"8:16": [None, 5e6], "8:0": [1048576.9, None]}

    assert ["8:0 rbps=1048576 wbps=max", "8:16 rbps=max wbps=5000000"] == lines_of(caps)


@pytest.mark.parametrize(
    "caps",
    [
        {"sda": [1e6, None]},
        {"8:0 rbps=1\n8:16": [1e6, None]},
        {"8:0": [0, None]},
        {"8:0": [-1, None]},
        {"8:0": ["max", None]},
        {"8:0": [1e6]},
    ],
)
def test_what_is_no_cap_is_refused(caps):
    with pytest.raises((TypeError, ValueError)):
        lines_of(caps)


@pytest.fixture
def cgroup(tmp_path):
    """A file in the place of the kernel's, with the line of a disk that is capped."""
    path = tmp_path / "jobs" / "1.1"
    path.mkdir(parents=True)
    (path / "io.max").write_text("8:0 rbps=max wbps=5000000 riops=max wiops=max\n")
    return path


def test_clearing_lifts_every_limit_of_every_disk_that_has_one(cgroup):
    clear_caps(str(cgroup))

    assert (cgroup / "io.max").read_text().startswith(f"8:0 {UNLIMITED}")


def test_a_thaw_clears_the_caps(cgroup, tmp_path):
    (cgroup / "cgroup.freeze").write_text("1")

    CgroupFreezer(str(tmp_path)).thaw("1.1", 0)

    assert "0" == (cgroup / "cgroup.freeze").read_text()
    assert (cgroup / "io.max").read_text().startswith(f"8:0 {UNLIMITED}")


def test_where_there_is_no_such_file_clearing_is_harmless_and_setting_is_told(tmp_path):
    clear_caps(str(tmp_path / "gone"))
    clear_caps(str(tmp_path))

    assert not can_cap(str(tmp_path))
    with pytest.raises(FileNotFoundError):
        set_caps(str(tmp_path), ["8:0 rbps=max wbps=1000000"])
