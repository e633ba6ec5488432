"""``make demo`` with small files: what it prints, what it cannot do, and what is left: nothing."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from harness import cgroup_is_writable, until

from iodaemon.supervisor.cgroup import find_mount

pytestmark = [
    pytest.mark.node,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
]

ROOT = Path(__file__).parents[2]
PATIENCE_S = 240.0
"""For what takes seconds on a free machine."""
SIZE_MIB = 4
SMALL = f"""
import sys
sys.path.insert(0, {str(ROOT / "examples")!r})
import demo
demo.LEAST_MIB = demo.MOST_MIB = {SIZE_MIB}
demo.AT_ONCE_S, demo.MEASURED_S = 1.0, 0.1
demo.PASSES, demo.LOOKUPS = (20, 20), (1000, 1000)
sys.exit(demo.main())
"""


def within(step):
    """The words before a command that take this step in a mount namespace before it."""
    return ["unshare", "--mount", "sh", "-c", f'{step} && exec "$@"', "sh"]


NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
NO_CGROUPS = within("mount -t tmpfs none /sys/fs/cgroup")
BOTH = ["All at once the jobs took", "Without a limit, on this machine's own disk, the same jobs"]
LEFT_OUT = "The part past a memory limit is left out"


class Place:
    """A directory for all files of one demo, and a cgroup for all processes."""

    def __init__(self):
        self.path = Path(tempfile.mkdtemp(prefix="iodd", dir="/tmp"))
        self.pids = []
        self.group = None
        if cgroup_is_writable():
            self.group = Path(find_mount()[0]) / f"iodd-{uuid.uuid4().hex[:8]}"
            self.group.mkdir()

    def start(self, by=()):
        """A demo; ``by`` are the words before its command."""
        enter = []
        if self.group is not None:
            enter = ["sh", "-c", f'echo $$ > {self.group}/cgroup.procs; exec "$@"', "sh"]
        process = subprocess.Popen(
            [*enter, *by, sys.executable, "-c", SMALL],
            env={**os.environ, "TMPDIR": str(self.path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.pids.append(process.pid)
        return process

    def run(self, by):
        """Its exit code, its output and the lines of its errors."""
        with self.start(by) as process:
            out, err = process.communicate(timeout=PATIENCE_S)
        return process.returncode, out, err.splitlines()

    def find_left(self):
        """What is there after the demos of this place."""
        left = [str(path) for path in self.path.iterdir()]
        groups = {name for _, names, _ in os.walk("/sys/fs/cgroup") for name in names}
        for pid in self.pids:
            left += [name for name in groups if name.startswith(f"iodaemon-limit.{pid}.")]
        if self.group is not None:
            left += [str(path) for path in self.group.iterdir() if path.is_dir()]
            left += (self.group / "cgroup.procs").read_text().split()
        return left

    def close(self):
        """Remove it, and whatever a demo that failed has left."""
        shutil.rmtree(self.path)
        if self.group is not None:
            (self.group / "cgroup.kill").write_text("1")
            until(self._remove_groups, "the removal of its cgroups")

    def _remove_groups(self):
        for path, _, _ in os.walk(self.group, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(path)
        return not self.group.exists()


@pytest.fixture
def place():
    with contextlib.closing(Place()) as place:
        yield place
        assert [] == place.find_left()


def seen(out):
    """Those sentences with figures that are printed, by their beginnings."""
    return [begin for begin in BOTH if begin in out]


@pytest.mark.slow
def test_without_a_memory_controller_it_prints_the_second_part_and_why(place):
    code, out, err = place.run(by=NO_CGROUPS)

    assert (0, BOTH[1:], 1) == (code, seen(out), out.count(LEFT_OUT)), err


class Phase(NamedTuple):
    """When a demo gets which signal."""

    text: str
    number: signal.Signals


PHASES = {
    "files": Phase("writing", signal.SIGINT),
    "first": Phase("past the limit, all at once", signal.SIGTERM),
    "second": Phase("past the limit, regulated", signal.SIGINT),
    "last": Phase("no limit, regulated", signal.SIGHUP),
}


def interrupt(process, phase):
    """Send its signal twice as soon as the demo says that it is in this phase."""
    while phase.text not in (line := process.stderr.readline()):
        assert line, f"it ended before {phase.text!r}"
    for _ in range(2):
        process.send_signal(phase.number)


def test_a_signal_in_any_phase_ends_it_after_what_it_found_so_far_and_leaves_nothing():
    with contextlib.ExitStack() as stack:
        places = {name: stack.enter_context(contextlib.closing(Place())) for name in PHASES}
        begun = {name: places[name].start() for name in PHASES}
        with ThreadPoolExecutor(len(PHASES)) as pool:  # one that is waited for ends meanwhile
            for each in [pool.submit(interrupt, begun[name], PHASES[name]) for name in PHASES]:
                each.result()
        ends = {}
        for name, process in begun.items():
            out, err = process.communicate(timeout=PATIENCE_S)
            told = [line for line in err.splitlines() if not line.startswith(("past", "no"))]
            left = places[name].find_left()
            ends[name] = (process.returncode, seen(out), told[-1:], left)

    told = ["demo: interrupted; removing jobs and files"]
    assert {
        name: (128 + phase.number, BOTH[:1] if name == "last" else [], told, [])
        for name, phase in PHASES.items()
    } == ends


@pytest.mark.parametrize(
    ("by", "text"),
    [
        (["prlimit", f"--fsize={3 << 20}"], "File too large"),
        (["prlimit", f"--fsize={SIZE_MIB << 20}"], "disk"),
        (within('mount -t tmpfs -o size=1m none "$TMPDIR"'), "free; set TMPDIR"),
        (NOBODY, "cannot be written to"),
        ([*NO_CGROUPS, "sh", "-c", 'exec "$@" > /dev/full', "sh"], "standard output: No space"),
        (["sh", "-c", 'exec "$@" >&-', "sh"], "standard output: closed"),
    ],
    ids=["large", "large-database", "full", "unwritable", "output-full", "output-closed"],
)
def test_what_it_cannot_do_is_one_line_and_leaves_nothing(place, by, text):
    code, out, err = place.run(by=by)

    [line] = [line for line in err if not line.startswith(("writing", "all at once get"))]
    assert (1, "") == (code, out)
    assert text in line
