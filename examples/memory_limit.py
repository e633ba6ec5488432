"""A limit of the memory of a private daemon and its jobs, page cache included.

Root makes a cgroup of its own, in version 1 or 2; a plain user asks the systemd of the user for a
scope. Either way the daemon starts in the limited group, so the cgroups of its jobs are below it:
a job that entered another group by itself could no longer be frozen in version 2.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from iodaemon.files import find_left, new_name

_ROOT: Final = Path("/sys/fs/cgroup")
_PREFIX: Final = "iodaemon-limit"
_ENTER: Final = ("sh", "-c", 'echo $$ > "$0" && exec "$@"')
"""Then come the ``cgroup.procs`` of a group and the command that is to run in it."""
_FIND_LIMIT: Final = 'cat "/sys/fs/cgroup$(sed -n s/^0:://p /proc/self/cgroup)/memory.max"'
_ANSWER_S: Final = 10.0
_PATIENCE_S: Final = 10.0
"""For the end of what was killed."""
_LOOK_S: Final = 0.02


@contextlib.contextmanager
def memory_limit(limit_bytes: int) -> Iterator[tuple[tuple[str, ...], str]]:
    """A limit, while this is open.

    Args:
        limit_bytes: a multiple of the size of a page.

    Yields:
        The words before a command that put it under the limit, and an empty string. Where no
        limit can be had: no words, and why.
    """
    if os.geteuid() != 0:
        yield _scope(limit_bytes)
        return
    with contextlib.ExitStack() as made:
        words: tuple[str, ...] = ()
        why = ""
        try:
            words = (*_ENTER, str(made.enter_context(_group(limit_bytes))))
        except OSError as error:
            why = f"{error.filename}: {error.strerror}"
        yield words, why


@contextlib.contextmanager
def _group(limit_bytes: int) -> Iterator[Path]:
    """The ``cgroup.procs`` of a new group.

    Raises:
        OSError: there is no controller, or it may not be used.
    """
    is_v1 = (_ROOT / "memory/memory.limit_in_bytes").exists()
    parent = _ROOT / "memory" if is_v1 else _ROOT
    if not is_v1 and "memory" not in (_ROOT / "cgroup.controllers").read_text().split():
        raise OSError(errno.ENODEV, "no memory controller", str(_ROOT))
    for left in find_left(parent, _PREFIX):  # of one that was killed
        _remove(left)
    group = parent / new_name(_PREFIX)
    with contextlib.nullcontext() if is_v1 else _enabled(parent / "cgroup.subtree_control"):
        try:
            group.mkdir()
            with contextlib.suppress(OSError):  # a kernel that does not count swap
                (group / ("memory.swappiness" if is_v1 else "memory.swap.max")).write_text("0")
            limit = group / ("memory.limit_in_bytes" if is_v1 else "memory.max")
            _write(limit, str(limit_bytes))
            yield group / "cgroup.procs"
        finally:
            _remove(group)


@contextlib.contextmanager
def _enabled(control: Path) -> Iterator[None]:
    """The memory controller for groups below this one; afterwards as before.

    Raises:
        OSError: it cannot be enabled: in a container, processes are in the group itself.
    """
    if "memory" in control.read_text().split():
        yield
        return
    _write(control, "+memory")
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # others use it meanwhile
            control.write_text("-memory")


def _write(path: Path, text: str) -> None:
    """Write it; what the kernel refuses has no name of a file by itself."""
    try:
        path.write_text(text)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def _remove(group: Path) -> None:
    """Kill what is in it and below it, and remove it."""
    until_s = time.monotonic() + _PATIENCE_S
    while group.exists() and time.monotonic() < until_s:
        for place, _, _ in os.walk(group, topdown=False):
            with contextlib.suppress(OSError):
                for pid in (Path(place) / "cgroup.procs").read_text().split():
                    os.kill(int(pid), signal.SIGKILL)
            with contextlib.suppress(OSError):
                Path(place).rmdir()
        if group.exists():
            time.sleep(_LOOK_S)


def _scope(limit_bytes: int) -> tuple[tuple[str, ...], str]:
    """As of ``memory_limit``, by the user's systemd; whether it limits anything is tried.

    systemd accepts MemoryMax= also where the user has no memory controller, and does nothing.
    """
    words = ["systemd-run", "--user", "--scope", "--quiet", "--collect"]
    for setting in (f"MemoryMax={limit_bytes}", "MemorySwapMax=0", "Delegate=yes"):
        words += ["-p", setting]
    words.append("--")
    try:
        ended = subprocess.run(
            [*words, "sh", "-c", _FIND_LIMIT],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_ANSWER_S,
            check=False,
        )
    except OSError as error:
        return (), f"systemd-run: {error.strerror}"
    except subprocess.TimeoutExpired:
        return (), f"systemd-run does not answer within {_ANSWER_S:g} s"
    if ended.stdout.strip() == str(limit_bytes):
        return tuple(words), ""
    said = ended.stderr.strip().splitlines()
    return (), said[-1] if said else "systemd-run set no limit"
