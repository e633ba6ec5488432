"""Where can be measured, and where not: one line that says why."""

import contextlib
import os
import subprocess

import pytest
from leaving import name_of
from mounting import make_file_system, mount, mount_image, small_disk

from iodaemon.calibration import ground
from iodaemon.calibration.ground import PREFIX, check_kind, identities_of, survey
from iodaemon.errors import NotFound, NotPermitted, RequestError
from iodaemon.node.devices import NETWORK, PathDevice, find_identity


def told(path, error=RequestError):
    """The one line of a refusal."""
    with pytest.raises(error) as caught:
        survey(str(path))
    text = str(caught.value)
    assert "\n" not in text
    assert str(path) in text
    return text


@pytest.fixture
def mounted(tmp_path):
    """Mounts a small ext4 by these options; all are gone afterwards."""
    points = []

    def make(*options, mib=8):
        image, point = tmp_path / f"disk{len(points)}", tmp_path / f"at{len(points)}"
        make_file_system(image, mib=mib)
        point.mkdir()
        mount_image(image, point, *options)
        points.append(point)
        return point

    yield make
    for point in points:
        subprocess.run(["umount", "--lazy", point], check=True)


def test_a_directory_on_a_disk_can_be_measured(tmp_path):
    found = survey(str(tmp_path))

    assert found.path == os.path.realpath(tmp_path)
    assert len(found.devices) >= 1
    assert all(find_identity(device.id) for device in found.devices)
    assert os.listdir(tmp_path) == []


def test_what_does_not_exist_and_what_is_no_directory_is_said(tmp_path):
    (tmp_path / "file").touch()

    assert "does not exist" in told(tmp_path / "nothing", NotFound)
    with pytest.raises(NotFound, match=r"^'' does not exist; name a directory$"):
        survey("")
    with pytest.raises(NotFound, match="does not exist"):
        identities_of(str(tmp_path / "nothing"))
    assert "is no directory" in told(tmp_path / "file")


@pytest.mark.node
def test_a_file_system_in_memory_has_nothing_to_measure(tmp_path):
    with small_disk(tmp_path, kib=1024):
        assert "there is no device to measure" in told(tmp_path)


@pytest.mark.node
def test_a_loop_device_that_is_read_through_the_page_cache_is_refused(tmp_path):
    image, point = tmp_path / "image", tmp_path / "at"
    make_file_system(image, mib=8)
    point.mkdir()
    mount("-o", "loop", str(image), str(point))
    try:
        text = told(point)
    finally:
        subprocess.run(["umount", point], check=True)

    assert f"of file {image}" in text
    assert "losetup --direct-io=on /dev/loop" in text


def test_proc_is_on_no_disk():
    assert "no disk of this machine" in told("/proc")


@pytest.mark.parametrize("filesystem", sorted(NETWORK))
def test_a_network_file_system_is_refused_by_name(filesystem):
    kind = "nfs" if filesystem.startswith("nfs") else "other"
    text = f"{filesystem} from server:/home (network, no disk here)"
    below = PathDevice(path="/home", kind=kind, description=text, filesystem=filesystem)

    with pytest.raises(RequestError, match=r"server:/home.*network file system") as caught:
        check_kind("/home", below)

    assert "\n" not in str(caught.value)


@pytest.mark.node
def test_a_read_only_file_system_is_refused(mounted):
    point = mounted("ro")

    assert f"the file system of {point} is read-only (" in told(point)


@pytest.mark.node
def test_a_full_file_system_is_refused(mounted):
    point = mounted()
    with (point / "fill").open("wb", buffering=0) as fill, contextlib.suppress(OSError):
        while fill.write(bytes(4096)):
            pass

    assert f"no space is left on the file system of {point} (" in told(point)


def test_a_directory_of_somebody_else_is_not_permitted():
    if os.geteuid() != 0:
        told("/usr", NotPermitted)
        return
    child = os.fork()  # root may write anywhere
    if child == 0:
        code = 1
        with contextlib.suppress(BaseException):
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            told("/usr", NotPermitted)
            code = 0
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_test_file_never_has_a_name(tmp_path):
    with ground.test_file(str(tmp_path)) as descriptor:
        os.write(descriptor, b"x")
        assert os.listdir(tmp_path) == []
        assert os.fstat(descriptor).st_nlink == 0


def test_what_a_killed_one_left_is_removed_and_what_a_living_one_has_is_not(tmp_path):
    left, lives = name_of(PREFIX), name_of(PREFIX, pid=os.getpid())
    kept = [lives, name_of(PREFIX, is_elsewhere=True), f"{PREFIX}.x", "mine"]
    for name in (left, *kept):
        (tmp_path / name).touch()

    with ground.test_file(str(tmp_path)):
        pass

    assert sorted(os.listdir(tmp_path)) == sorted(kept)


def test_a_disk_is_known_by_its_own_word_before_the_kernels(tmp_path):
    disk = tmp_path / "sys/devices/sda"
    (disk / "device").mkdir(parents=True)
    (tmp_path / "sys/class/block").mkdir(parents=True)
    (tmp_path / "sys/class/block/sda").symlink_to(disk)
    (disk / "size").write_text("100\n")

    assert find_identity("sda", tmp_path) == "name sda, 100 sectors"
    (disk / "serial").write_text("abc  def\n")
    assert find_identity("sda", tmp_path) == "serial abc def, 100 sectors"
    (disk / "device/wwid").write_text("naa.5000\n")
    assert find_identity("sda", tmp_path) == "wwid naa.5000, 100 sectors"
    (disk / "loop").mkdir()
    (disk / "loop/backing_file").write_text("/srv/disk\n")
    assert find_identity("sda", tmp_path) == "file /srv/disk, 100 sectors"
    assert find_identity("sdb", tmp_path) == ""
