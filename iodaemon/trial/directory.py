"""Directories of a trial's own: whoever else may write around them, used and removed as made."""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from iodaemon.backend.linux.protocol import KEEPER_FILE, read_json
from iodaemon.trial.private import HOME, STATE, kill_marked

PREFIX: Final = "iod-trial"
_NAME: Final = re.compile(rf"{re.escape(PREFIX)}\.(\d+)\.([0-9a-f]+)\.[0-9a-f]+")
"""With the process that made it, and where that number is its own: what a killed one left is found
by the next, and a trial of another machine or container below the same directory is let be."""
_ELSEWHERE: Final = "elsewhere"
"""The file with the path of a directory that goes with the one that it is in."""
_BELONGS: Final = "belongs"
"""The file in that other one with the name of the one that it goes with."""
_LONGEST_BYTES: Final = 4096
_PATIENCE_S: Final = 30.0
"""For what takes a fraction of a second on an idle machine."""
_LOOK_S: Final = 0.02


@contextlib.contextmanager
def own_directory(
    parent: Path, *, goes_with: Path | None = None, is_held: bool = False
) -> Iterator[Path]:
    """A new directory in this one, gone afterwards; what a killed trial left there goes first.

    Args:
        parent: exists.
        goes_with: another one, made so: who finds that one after a kill removes this one as well.
        is_held: the path that is yielded leads to the directory whatever is put at its name, for
            this process and others of the same user, while this one lives.

    Raises:
        OSError: it cannot be made.
    """
    sweep(parent, is_trusted=not is_held)
    path = parent.absolute() / f"{PREFIX}.{os.getpid()}.{_here()}.{secrets.token_hex(4)}"
    if goes_with is not None:
        (goes_with / _ELSEWHERE).write_bytes(os.fsencode(path))
    descriptor = _make(path)
    try:
        held = Path(f"/proc/{os.getpid()}/fd/{descriptor}")
        if goes_with is not None:
            (held / _BELONGS).write_text(goes_with.name)
        yield held if is_held else path
    finally:
        kill_marked(path.name)
        _remove(path.name, descriptor)


def sweep(parent: Path, *, is_trusted: bool = True) -> None:
    """End and remove what trials of this user left here that were killed themselves.

    Args:
        parent: a directory.
        is_trusted: nobody else may change names there. Where others can, any directory of this
            user's may bear such a name, and only what a trial made has its mark in it.
    """
    for path in sorted(parent.glob(f"{PREFIX}.*")):
        match = _NAME.fullmatch(path.name)
        if match is None or match[2] != _here() or os.path.exists(f"/proc/{match[1]}"):
            continue
        with contextlib.suppress(OSError):  # somebody else's, or swept by another one just now
            descriptor = _open_own(path)
            if not is_trusted and not _is_marked(descriptor, match):
                os.close(descriptor)
                continue
            kill_marked(path.name, patience_s=0.0)
            _remove(path.name, descriptor)


@functools.cache
def _here() -> str:
    """Where numbers of processes mean what they mean to this one: machine and PID namespace."""
    machine = b""
    with contextlib.suppress(OSError):
        machine = Path("/etc/machine-id").read_bytes()
    namespace = os.stat("/proc/self/ns/pid").st_ino
    words = b"%s %s %d" % (machine.strip(), os.uname().nodename.encode(), namespace)
    return hashlib.sha256(words).hexdigest()[:4]


def _make(path: Path) -> int:
    """A new directory, open.

    Raises:
        OSError: it cannot be made, or another one is at its name already.
    """
    os.mkdir(path, 0o700)
    try:
        descriptor = _open_own(path)
    except OSError:
        with contextlib.suppress(OSError):
            os.rmdir(path)
        raise
    if os.listdir(descriptor):  # nobody's to be emptied
        os.close(descriptor)
        raise PermissionError(errno.EPERM, "another directory is there now", str(path))
    return descriptor


def _open_own(path: Path) -> int:
    """The directory itself, if it is one of this user's.

    Raises:
        OSError: it is not.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags)
    if os.fstat(descriptor).st_uid != os.geteuid():
        os.close(descriptor)
        raise PermissionError(errno.EPERM, "it belongs to somebody else", str(path))
    return descriptor


def _remove(name: str, descriptor: int) -> None:
    """The directory, what goes with it, and the cgroups of a keeper that could not remove them.

    Args:
        name: that it was made with.
        descriptor: of it; is closed.
    """
    try:
        _remove_other(name, descriptor)
        state_dir = Path(f"/proc/self/fd/{descriptor}") / HOME / STATE
        record = read_json(str(state_dir / KEEPER_FILE)) if state_dir.is_dir() else None
        if record is not None and record.get("base"):
            _remove_cgroups(Path(record["base"]))
        _empty(descriptor)
    finally:
        os.close(descriptor)


def _remove_other(name: str, descriptor: int) -> None:
    """What this one says goes with it, where that says so too; or is empty, as it was made."""
    path = Path(os.fsdecode(_read(_ELSEWHERE, descriptor)))
    match, own = _NAME.fullmatch(path.name), _NAME.fullmatch(name)
    if match is None or own is None or match.groups() != own.groups():
        return
    with contextlib.suppress(OSError):  # it is gone, or was never made
        other = _open_own(path)
        try:
            if not os.listdir(other) or _read(_BELONGS, other) == name.encode():
                _empty(other)
        finally:
            os.close(other)


def _is_marked(directory: int, name: re.Match[str]) -> bool:
    """Whether it says that it goes with another one of the same trial."""
    other = _NAME.fullmatch(os.fsdecode(_read(_BELONGS, directory)))
    return other is not None and other.groups() == name.groups()


def _read(name: str, directory: int) -> bytes:
    """A short file there; empty where there is none."""
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        file = os.open(name, flags, dir_fd=directory)
    except OSError:
        return b""
    try:
        return os.read(file, _LONGEST_BYTES)
    finally:
        os.close(file)


def _empty(descriptor: int) -> None:
    """Remove all that is in the directory, and itself under the name that it has now."""
    for name in os.listdir(descriptor):
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=descriptor)
            continue
        shutil.rmtree(name, ignore_errors=True, dir_fd=descriptor)
    with contextlib.suppress(OSError):
        os.rmdir(os.readlink(f"/proc/self/fd/{descriptor}"))


def _remove_cgroups(tree: Path) -> None:
    """Those that are empty; who was just killed is in one for a moment more."""
    until_s = time.monotonic() + _PATIENCE_S
    while tree.is_dir() and time.monotonic() < until_s:
        for place, _, _ in os.walk(tree, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(place)
        if tree.is_dir():
            time.sleep(_LOOK_S)
