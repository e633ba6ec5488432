"""Directories of a trial's own: whoever else may write around them, used and removed as made."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from iodaemon.files import (
    Maker,
    find_left,
    find_maker,
    make_directory,
    new_name,
    open_directory,
    remove_directory,
)
from iodaemon.supervisor.anchor import Config, find_base
from iodaemon.trial.private import HOME, RUN, kill_marked

PREFIX: Final = "iod-trial"
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
    path = parent.absolute() / new_name(PREFIX)
    if goes_with is not None:
        (goes_with / _ELSEWHERE).write_bytes(os.fsencode(path))
    descriptor = make_directory(path)
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
    for path in find_left(parent, PREFIX):
        with contextlib.suppress(OSError):  # somebody else's, or swept by another one just now
            descriptor = open_directory(path)
            if not is_trusted and not _is_marked(descriptor, _maker(path.name)):
                os.close(descriptor)
                continue
            kill_marked(path.name, patience_s=0.0)
            _remove(path.name, descriptor)


def _remove(name: str, descriptor: int) -> None:
    """The directory, what goes with it, and the cgroups of a root side that was killed.

    Args:
        name: that it was made with.
        descriptor: of it; is closed.
    """
    try:
        _remove_other(name, descriptor)
        base = find_base(Config(f"/proc/self/fd/{descriptor}/{HOME}/{RUN}", os.geteuid()))
        if base is not None:
            _remove_cgroups(Path(base))
        remove_directory(descriptor)
    finally:
        os.close(descriptor)


def _remove_other(name: str, descriptor: int) -> None:
    """What this one says goes with it, where that says so too; or is empty, as it was made."""
    path = Path(os.fsdecode(_read(_ELSEWHERE, descriptor)))
    maker = _maker(path.name)
    if maker is None or maker != _maker(name):
        return
    with contextlib.suppress(OSError):  # it is gone, or was never made
        other = open_directory(path)
        try:
            if not os.listdir(other) or _read(_BELONGS, other) == name.encode():
                remove_directory(other)
        finally:
            os.close(other)


def _is_marked(directory: int, maker: Maker | None) -> bool:
    """Whether it says that it goes with another one of the same trial."""
    other = _maker(os.fsdecode(_read(_BELONGS, directory)))
    return other is not None and other == maker


def _maker(name: str) -> Maker | None:
    return find_maker(name, PREFIX)


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


def _remove_cgroups(tree: Path) -> None:
    """Those that are empty; a process that was just killed is in one a moment longer."""
    until_s = time.monotonic() + _PATIENCE_S
    while tree.is_dir() and time.monotonic() < until_s:
        for place, _, _ in os.walk(tree, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(place)
        if tree.is_dir():
            time.sleep(_LOOK_S)
