"""Files and directories where others may write: made whole, removed as made, through no link.

A temporary directory goes with the process that made it. It is named after that process and the
machine and PID namespace in which that number is its own, so that a later process finds and removes
what a killed one left; it is entered through no link and emptied by its descriptor.
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
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final, NamedTuple

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OWN: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_AFTER_PREFIX: Final = re.compile(r"\.([0-9]+)\.([0-9a-f]+)\.[0-9a-f]+")


@contextlib.contextmanager
def whole_file(directory: int, name: str, mode: int) -> Iterator[IO[bytes]]:
    """A new file, which gets its name when the block ends without an exception.

    Args:
        directory: a descriptor of the directory itself.
        name: in it. A file or link of that name is replaced, not followed or written to; after an
            exception it stays as it is.
        mode: as of open(2), less the umask.

    Raises:
        OSError: the file cannot be made, or not get its name.
    """
    temporary = f".{name}.{secrets.token_hex(8)}"
    descriptor = os.open(temporary, _NEW, mode, dir_fd=directory)
    try:
        with open(descriptor, "wb") as file:
            yield file
        os.replace(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=directory)
        raise


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
