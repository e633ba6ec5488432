"""A spinning disk without one: nbdkit with the filter spin.c <- nbdfuse <- loop <- ext4.

Needs root, gcc, nbdkit with its headers (nbdkit-plugin-dev), nbdfuse (libnbd-bin), fuse3,
losetup, mkfs.ext4, /dev/fuse and /dev/loop-control. The data lies in the memory of nbdkit.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
TOOLS = ("gcc", "nbdkit", "nbdfuse", "fusermount3", "losetup", "mkfs.ext4", "mount")
PATIENCE_S = 10.0


def missing() -> list[str]:
    """What this machine lacks for such a disk; empty: it can be had."""
    nodes = [path for path in ("/dev/fuse", "/dev/loop-control") if not os.path.exists(path)]
    header = [] if Path("/usr/include/nbdkit-filter.h").exists() else ["nbdkit-plugin-dev"]
    root = [] if os.geteuid() == 0 else ["root"]
    return [*root, *(tool for tool in TOOLS if shutil.which(tool) is None), *header, *nodes]


def run(*command: str, may_fail: bool = False) -> str:
    """What the command printed."""
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode != 0 and not may_fail:
        raise RuntimeError(f"{' '.join(command)}: {ended.stderr.strip()}")
    return ended.stdout.strip()


@contextlib.contextmanager
def spinning_disk(base: Path, *, size: str = "4G", **parameters: str) -> Iterator[Path]:
    """A directory on such a disk, gone afterwards with all that it was made of.

    Args:
        base: a directory for its parts.
        size: of the disk.
        parameters: of the filter, for example ``readahead="512k"``; see spin.c.
    """
    with contextlib.ExitStack() as undo:
        program = base / "nbdkit-spin-filter.so"
        source = str(HERE / "spin.c")
        run("gcc", "-O2", "-fPIC", "-shared", "-o", str(program), source, "-lm")
        address = start_nbdkit(undo, base, program, size, parameters)
        image = start_nbdfuse(undo, base, address)
        loop = run("losetup", "--find", "--show", "--direct-io=on", str(image))
        undo.callback(run, "losetup", "--detach", loop, may_fail=True)
        pose(Path("/sys/block") / Path(loop).name / "queue")
        # All of it is written now: the kernel's thread would do it later, beside what is measured.
        run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,nodiscard", "-O^has_journal", loop)
        point = base / "spinning"
        point.mkdir()
        run("mount", "-o", "noatime", loop, str(point))
        undo.callback(run, "umount", "--lazy", str(point), may_fail=True)
        yield point


def pose(queue: Path) -> None:
    """Let the kernel treat a loop device as it treats a disk with an arm, by its defaults."""
    for name, value in (
        ("rotational", "1"),
        ("scheduler", "mq-deadline"),
        ("read_ahead_kb", "128"),
    ):
        (queue / name).write_text(value)


def start_nbdkit(
    undo: contextlib.ExitStack, base: Path, program: Path, size: str, parameters: dict[str, str]
) -> str:
    """The disk itself; it detaches, so that a signal to our group does not reach it."""
    socket, pid_file = base / "nbd.sock", base / "nbdkit.pid"
    words = [f"spin-{name.replace('_', '-')}={text}" for name, text in parameters.items()]
    undo.callback(stop, pid_file)
    run(
        *("setsid", "nbdkit", "--pidfile", str(pid_file), "--threads", "16", "--unix", str(socket)),
        *(f"--filter={program}", "memory", size, *words),
    )
    return f"nbd+unix:///?socket={socket}"


def stop(pid_file: Path) -> None:
    """End the process that wrote this file, and wait for it."""
    with contextlib.suppress(FileNotFoundError, ValueError, ProcessLookupError):
        pid = int(pid_file.read_text())
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), "end of nbdkit")


def start_nbdfuse(undo: contextlib.ExitStack, base: Path, address: str) -> Path:
    """The disk as a file."""
    image = base / "disk"
    image.touch()
    process = subprocess.Popen(
        ["nbdfuse", str(image), address],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    undo.callback(end, process)
    undo.callback(run, "fusermount3", "-u", "-z", str(image), may_fail=True)
    wait_until(lambda: image.stat().st_size > 0, "a disk from nbdfuse")
    return image


def end(nbdfuse: subprocess.Popen[bytes]) -> None:
    """It ends with its last mount; a copy of that may be left in another mount namespace."""
    try:
        nbdfuse.wait(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        nbdfuse.kill()
        nbdfuse.wait()


def wait_until(holds, what: str) -> None:  # type: ignore[no-untyped-def]
    """Wait for it, not for ever."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"{what}: not within {PATIENCE_S:g} s")
        time.sleep(0.05)
