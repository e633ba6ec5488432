"""Loop devices on this machine's own disk: swap space, and a file system with little readahead."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from beds.bed import MIB, lacking
from beds.spinning import run

USUAL_READ_AHEAD_KB = 128
"""The kernel's default (VM_READAHEAD_PAGES); disks of virtual machines often have megabytes."""


def missing() -> list[str]:
    """What this machine lacks for a loop device."""
    lacks = lacking("losetup", "mkfs.ext4", "mount")
    lacks += [] if os.path.exists("/dev/loop-control") else ["/dev/loop-control"]
    return lacks if os.geteuid() == 0 else ["root", *lacks]


def missing_swap() -> list[str]:
    """What this machine lacks for swap space; a small one is tried."""
    if lacks := missing() + lacking("mkswap", "swapon"):
        return lacks
    with tempfile.TemporaryDirectory(prefix="iod-bench-", dir="/var/tmp") as base:
        try:
            with swap_space(Path(base), 1):
                return []
        except RuntimeError as error:
            return [f"swap space ({error})"]


@contextlib.contextmanager
def device(file: Path, size_mib: int) -> Iterator[str]:
    """A loop device on a file of this size that is made for it, both gone afterwards."""
    with contextlib.ExitStack() as undo:
        with file.open("wb") as out:
            undo.callback(file.unlink)
            os.posix_fallocate(out.fileno(), 0, size_mib * MIB)
        loop = run("losetup", "--find", "--show", "--direct-io=on", str(file))
        undo.callback(run, "losetup", "--detach", loop, may_fail=True)
        yield loop


@contextlib.contextmanager
def swap_space(base: Path, size_mib: int) -> Iterator[None]:
    """So much swap space, gone afterwards.

    Raises:
        RuntimeError: this machine does not let us have it.
    """
    with device(base / "swap", size_mib) as loop, contextlib.ExitStack() as undo:
        run("mkswap", loop)
        run("swapon", loop)
        undo.callback(run, "swapoff", loop, may_fail=True)
        yield


@contextlib.contextmanager
def file_system(base: Path, size_mib: int) -> Iterator[Path]:
    """A mounted ext4 with the usual readahead, gone afterwards."""
    with device(base / "image", size_mib) as loop, contextlib.ExitStack() as undo:
        queue = Path("/sys/block") / Path(loop).name / "queue"
        (queue / "read_ahead_kb").write_text(str(USUAL_READ_AHEAD_KB))
        run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,nodiscard", "-O^has_journal", loop)
        point = base / "mounted"
        point.mkdir()
        run("mount", "-o", "noatime", loop, str(point))
        undo.callback(run, "umount", "--lazy", str(point), may_fail=True)
        yield point
