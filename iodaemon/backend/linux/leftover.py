"""Places that are to go with the process that made them, and what one that was killed left behind.

They are made in directories where others may write as well: each is named after its process and
after where that number is its own, entered through no link, and emptied by its descriptor.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
import re
import secrets
import shutil
from pathlib import Path
from typing import Final, NamedTuple

_OWN: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_AFTER_PREFIX: Final = re.compile(r"\.([0-9]+)\.([0-9a-f]+)\.[0-9a-f]+")


class Maker(NamedTuple):
    """The process that a place goes with.

    Attributes:
        pid: its number, in digits.
        where: it has that number: a machine and a PID namespace, hashed.
    """

    pid: str
    where: str


def new_name(prefix: str) -> str:
    """A name for a place of this process that nothing has yet."""
    return f"{prefix}.{os.getpid()}.{_here()}.{secrets.token_hex(4)}"


def find_maker(name: str, prefix: str) -> Maker | None:
    """Whose place bears such a name; None: it is none of ``new_name`` with this prefix."""
    match = _AFTER_PREFIX.fullmatch(name, len(prefix)) if name.startswith(prefix) else None
    return None if match is None else Maker(match[1], match[2])


def find_left(directory: str | Path, prefix: str) -> list[Path]:
    """What is named after processes that are gone, ordered by name; nothing where one may not look.

    What another machine or container has in the same directory is let be: its processes are not
    seen from here. Whose it is, and of what kind, is for the caller to see, once it is open.
    """
    left = []
    for path in sorted(Path(directory).glob(f"{prefix}.*")):
        maker = find_maker(path.name, prefix)
        if maker is None or maker.where != _here() or os.path.exists(f"/proc/{maker.pid}"):
            continue
        left.append(path)
    return left


def make_directory(path: str | Path) -> int:
    """A new directory of this user's alone, open.

    Raises:
        OSError: it cannot be made, or another one is at its name already.
    """
    os.mkdir(path, 0o700)
    try:
        descriptor = open_directory(path)
    except OSError:
        with contextlib.suppress(OSError):
            os.rmdir(path)
        raise
    if os.listdir(descriptor):  # nobody's to be emptied
        os.close(descriptor)
        raise PermissionError(errno.EPERM, "another directory is there now", str(path))
    return descriptor


def open_directory(path: str | Path) -> int:
    """The directory itself, if it is one of this user's.

    Raises:
        OSError: it is not.
    """
    descriptor = os.open(path, _OWN)
    if os.fstat(descriptor).st_uid != os.geteuid():
        os.close(descriptor)
        raise PermissionError(errno.EPERM, "it belongs to somebody else", str(path))
    return descriptor


def remove_directory(descriptor: int) -> None:
    """Remove all that is in the directory, and itself under the name that it has now."""
    for name in os.listdir(descriptor):
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=descriptor)
            continue
        shutil.rmtree(name, ignore_errors=True, dir_fd=descriptor)
    with contextlib.suppress(OSError):
        os.rmdir(os.readlink(f"/proc/self/fd/{descriptor}"))


@functools.cache
def _here() -> str:
    """Where numbers of processes mean what they mean to this one: machine and PID namespace."""
    machine = b""
    with contextlib.suppress(OSError):
        machine = Path("/etc/machine-id").read_bytes()
    namespace = os.stat("/proc/self/ns/pid").st_ino
    words = b"%s %s %d" % (machine.strip(), os.uname().nodename.encode(), namespace)
    return hashlib.sha256(words).hexdigest()[:4]
