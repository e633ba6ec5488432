"""The ``iod`` that is installed: where it is, whether everybody can run it and root can trust it.

Root runs it as the supervisor, the daemon's user and every submitter read it, and the sandbox
of the daemon hides the homes and the temporary directories from it.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Final, NamedTuple

import iodaemon
from iodaemon.errors import RequestError
from iodaemon.node.condition import Condition

_HIDDEN: Final = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")  # noqa: S108 - not used
"""What ProtectHome= and PrivateTmp= of iodaemon.service take away (systemd.exec(5))."""
_GOOD_PLACE: Final = "'python3 -m venv /opt/iodaemon' makes a good place"
_MOST_LINKS: Final = 40
"""As the kernel's own limit, path_resolution(7)."""


class Program(NamedTuple):
    """An installed ``iod``.

    Attributes:
        path: what the units call.
        parts: all that must be readable for it to run: the interpreter, the package, the venv.
        name: changes whenever one of its packages does.
    """

    path: str
    parts: tuple[str, ...]
    name: str


def find_program() -> Program:
    """The one that runs now, by the environment that it runs from.

    Raises:
        RequestError: this environment has no ``iod``.
    """
    path = os.path.join(sysconfig.get_path("scripts"), "iod")
    if not os.access(path, os.X_OK):
        raise RequestError(f"{path} is not there: install iodaemon by pip, then call that one")
    package = os.path.dirname(os.path.abspath(iodaemon.__file__))
    is_venv = sys.prefix != sys.base_prefix
    parts = (path, sys.executable, sys.prefix if is_venv else package, package)
    return Program(path, tuple(dict.fromkeys(parts)), _fingerprint())


def _fingerprint() -> str:
    """Names the versions of all packages beside it, and the very files of this one."""
    versions = sorted({f"{each.name}=={each.version}" for each in metadata.distributions()})
    text = [sys.version, *versions]
    try:
        text.append(metadata.distribution("iodaemon").read_text("RECORD") or "")
    except metadata.PackageNotFoundError:
        text.append(iodaemon.__file__)
    short = hashlib.sha256("\n".join(text).encode()).hexdigest()[:16]
    return f"{iodaemon.__version__} {short}"


def find_flaw(
    parts: Iterable[str], root: Path = Path("/"), *, owner_uid: int = 0
) -> Condition | None:
    """Why not everybody can run a program, or how others than root can change it.

    Args:
        parts: absolute paths; of directories everything below them is looked at too.
        root: where they are.
        owner_uid: whom all of it must belong to.

    Returns:
        The first thing that is wrong; None: nothing is.
    """
    try:
        for path, status in (each for part in parts for each in _all_of(part, root)):
            if (flaw := _find_flaw_of(path, status, owner_uid)) is not None:
                return flaw
    except OSError as error:
        path = str(error.filename).removeprefix(str(root).rstrip("/"))
        return Condition(f"{path} cannot be looked at ({error.strerror})", "install it anew")
    return None


def _find_flaw_of(path: str, status: os.stat_result, owner_uid: int) -> Condition | None:
    if path in _HIDDEN:
        fact = f"this iodaemon is installed below {path}, which the service does not see"
        return Condition(fact, _GOOD_PLACE)
    mode, kind = status.st_mode, stat.S_IFMT(status.st_mode)
    if status.st_uid not in (0, owner_uid):
        return Condition(
            f"{path} belongs to uid {status.st_uid}, who could act as root by it",
            f"'chown -R root: {path}', or {_GOOD_PLACE}",
        )
    if kind == stat.S_IFLNK:
        return None
    if mode & stat.S_IWOTH or (mode & stat.S_IWGRP and status.st_gid != 0):
        return Condition(
            f"others than root may write to {path} (mode {mode & 0o7777:04o}), and so act as root",
            f"'chmod go-w {path}', or {_GOOD_PLACE}",
        )
    needed = 0o005 if kind == stat.S_IFDIR else 0o004 | (0o001 if mode & 0o100 else 0)
    if mode & needed != needed:
        return Condition(
            f"{path} is not open to all users (mode {mode & 0o7777:04o}), and jobs are started "
            "as theirs",
            f"'chmod -R go+rX {path}', or {_GOOD_PLACE}",
        )
    return None


def _way_to(path: str, root: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Every directory and link on the way to a path, links followed, and the path itself."""
    todo, at, links = [part for part in reversed(path.split("/")) if part], "/", 0
    while todo:
        part = todo.pop()
        if part in (".", ".."):
            at = os.path.dirname(at) if part == ".." else at
            continue
        before, at = at, os.path.join(at, part)
        status = os.lstat(f"{str(root).rstrip('/')}{at}")
        yield at, status
        if stat.S_ISLNK(status.st_mode) and (links := links + 1) <= _MOST_LINKS:
            target = os.readlink(f"{root}/{at}")
            todo += [part for part in reversed(target.split("/")) if part]
            at = "/" if target.startswith("/") else before


def _all_of(part: str, root: Path) -> Iterator[tuple[str, os.stat_result]]:
    """The way to a path, and everything below it, in order."""
    final = part
    for final, status in _way_to(part, root):
        yield final, status
    top = f"{root}/{final}"
    for folder, folders, files in os.walk(top):
        folders.sort()
        for name in (*folders, *sorted(files)):
            here = os.path.join(folder, name)
            yield f"{final.rstrip('/')}/{os.path.relpath(here, top)}", os.lstat(here)
