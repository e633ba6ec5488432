"""``iod calibrate`` on a small disk of its own: measured, kept, shown, and nothing left."""

import contextlib
import io
import json
import mmap
import os
import signal
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import pytest
from harness import MARK, marked, until
from mounting import make_file_system, mount_image

from iodaemon.calibration.ground import find_sockets, survey
from iodaemon.calibration.measure import Setup, calibrate
from iodaemon.calibration.record import find_problem
from iodaemon.calibration.store import kept_file
from iodaemon.cli import main
from iodaemon.errors import RequestError

pytestmark = pytest.mark.node
MIB = 1 << 20


class Bed:
    """A small file system, a state directory, and ``iod`` with both."""

    def __init__(self, base, point):
        self.point, self.state = point, base / "state"
        self.config = base / "config.toml"
        self.config.write_text(f'state_dir = "{self.state}"\nruntime_dir = "{base}/run"\n')
        self.mark = uuid.uuid4().hex

    def start(self, *words):
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "iodaemon.cli", "--config", str(self.config)),
                *("calibrate", *words),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, MARK: self.mark},
        )

    def run(self, *words):
        """Exit code, standard output, standard error, of a call in this process."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(["--config", str(self.config), "calibrate", *words])
        return code, out.getvalue(), err.getvalue()

    def measure(self, *words):
        """In as little time and room as it takes."""
        quick = ("--time", "5s", "--size", "16M", "--force")
        return self.run(str(self.point), *quick, *words)

    def free_bytes(self):
        status = os.statvfs(self.point)
        return status.f_bfree * status.f_frsize

    def written_bytes(self):
        """What was written to its disk so far, as the kernel counts it."""
        device = os.stat(self.point).st_dev
        counters = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat")
        return 512 * int(counters.read_text().split()[6])

    def readers(self):
        return [pid for pid in marked(self.mark) if "kernels.paced" in command_of(pid)]


def has_read(pid):
    """Whether it is in the middle of a step."""
    with contextlib.suppress(OSError):
        told = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
        return int(told["read_bytes"]) > MIB
    return False


def command_of(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


@pytest.fixture
def bed(tmp_path):
    image, point = tmp_path / "disk", tmp_path / "at"
    make_file_system(image, mib=64)
    point.mkdir()
    mount_image(image, point)
    bed = Bed(tmp_path, point)
    before = bed.free_bytes()
    yield bed
    until(lambda: marked(bed.mark) == [], "end of all that was started")
    os.sync()
    assert sorted(os.listdir(point)) == ["lost+found"]
    assert bed.free_bytes() == before
    subprocess.run(["umount", point], check=True)


def test_it_measures_keeps_shows_and_leaves_nothing(bed):
    code, out, err = bed.measure()

    assert code == 0, err
    for what in ("knee, 1 socket", "io_bound", "lone requests of", "at random", "sockets loaded"):
        assert what in out
    assert "iod config reload" in err
    (made,) = json.loads(kept_file(bed.state).read_text())["calibrations"]
    assert made["path"] == str(bed.point)
    assert made["method"]["file_bytes"] == 16 * MIB
    assert made["method"]["forced"] in (True, False)
    assert made["kernel"] == os.uname().release
    assert made["sequential_bytes_per_s"] > 0 < made["random_bytes_per_s"]
    sockets = len(made["method"]["sockets"])
    assert {load["sockets"] for load in made["loads"]} >= {1, sockets}
    assert len({load["asked_bytes_per_s"] for load in made["loads"]}) > 3
    assert [knee["sockets"] for knee in made["knees"]][-1] == sockets

    again, shown, _ = bed.run("--show")
    assert (again, shown) == (0, out)
    code, listed, _ = bed.run("--show", str(bed.point), "--json")
    assert (code, json.loads(listed)) == (0, [made])


def test_a_dry_run_makes_nothing(bed):
    code, out, err = bed.measure("--dry-run")

    assert code == 0, err
    assert "16 MiB" in out
    assert str(kept_file(bed.state)) in out
    assert not bed.state.exists()


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)],
)
def test_an_interruption_leaves_nothing(bed, number, code):
    process = bed.start(str(bed.point), "--time", "60s", "--force")
    until(lambda: any(map(has_read, bed.readers())), "reading")

    process.send_signal(number)
    _, err = process.communicate(timeout=30)

    assert process.returncode == code, err
    assert "Traceback" not in err
    assert bed.readers() == []
    assert not kept_file(bed.state).exists()


def test_after_a_sigkill_the_readers_end_and_the_room_comes_back(bed):
    process = bed.start(str(bed.point), "--time", "60s", "--force")
    until(bed.readers, "readers")
    until(lambda: bed.free_bytes() < 40 * MIB, "a test file")

    process.kill()
    process.communicate(timeout=30)

    until(lambda: bed.readers() == [], "end of the readers")
    until(lambda: bed.free_bytes() > 40 * MIB, "room")


def test_too_little_room_and_too_little_asked_for_are_refused(bed):
    fill = bed.point / "fill"
    fill.write_bytes(bytes(bed.free_bytes() - 20 * MIB))
    code, out, err = bed.run(str(bed.point), "--force")
    fill.unlink()

    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "32 MiB are needed" in err
    for option, value, told in (
        ("--size", "1M", "--size 1 MiB is too little"),
        ("--time", "1s", "--time"),
        ("--time", "1000d", "more than a day"),
    ):
        code, _, err = bed.run(str(bed.point), option, value, "--force")
        assert (1, True) == (code, told in err)


def write_on(path, until_set):
    """Past the page cache, as fast as it goes."""
    with mmap.mmap(-1, MIB) as buffer:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
        while not until_set.is_set():
            os.pwrite(descriptor, buffer, 0)
        os.close(descriptor)


@pytest.mark.slow
@pytest.mark.parametrize("is_forced", [False, True])
def test_others_who_begin_in_the_middle_are_noticed(bed, tmp_path, is_forced):
    parts, divided = find_sockets()
    setup = Setup(
        ground=survey(str(bed.point)),
        sockets=parts,
        divided=divided,
        file_bytes=16 * MIB,
        seconds=5.0,
        forced=is_forced,
    )
    over = threading.Event()
    other = threading.Thread(target=write_on, args=(tmp_path / "others", over))

    def tell(what, done_s, total_s):
        if what.startswith("one reader"):
            other.start()

    try:
        if is_forced:
            made = calibrate(setup, tell, lambda: None)
        else:
            with pytest.raises(RequestError, match=r"became busy: others moved .* nothing is kept"):
                calibrate(setup, tell, lambda: None)
    finally:
        over.set()
        if other.ident is not None:  # others of this machine may have ended it before
            other.join()
    if is_forced:
        assert made.method.forced
        assert "others moved" in made.method.busy
        assert "busy" in find_problem(made, os.uname().release)


def test_what_was_never_measured_is_not_shown(bed):
    code, out, err = bed.run("--show")

    assert (code, out) == (3, "")
    assert "iod calibrate PATH" in err
    code, _, err = bed.run()
    assert code == 2
    assert "name a directory" in err
    code, _, err = bed.run("--show", str(bed.point / "nothing"))
    assert code == 3
    assert "does not exist" in err


def test_what_is_kept_and_broken_is_told_before_anything_is_measured(bed):
    bed.state.mkdir()
    kept_file(bed.state).write_text("no calibration")

    before = bed.written_bytes()
    code, out, err = bed.measure()

    assert (code, out) == (1, "")
    assert "remove it" in err
    assert bed.written_bytes() - before < MIB  # no test file
    assert kept_file(bed.state).read_text() == "no calibration"
