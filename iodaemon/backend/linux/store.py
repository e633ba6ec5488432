"""``.iodaemon`` of a disk: root's, what jobs' directories lie in, and known again by an id.

Whatever is mounted where, nothing is made or removed but in the file system that was meant.
Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from typing import Final

from iodaemon.backend.linux import quota
from iodaemon.backend.linux.beneath import open_directory, unmount_fuse
from iodaemon.backend.linux.protocol import Message, claim, sync_directory, sync_file
from iodaemon.backend.linux.scratch_tree import KeptError, remove_tree
from iodaemon.fault import reach

STORE: Final = ".iodaemon"
STORE_ID: Final = "id"
"""A file in it by which a file system is known again, whatever is mounted where."""
_ID_BYTES: Final = 4096
"""More than that has."""
_OPEN: Final = 0o022
"""Others may change what is in it."""
_OF_DISK: Final[dict[int, str]] = {
    errno.EROFS: "is read-only: mount it writable",
    errno.ENOSPC: "has no room for one more directory: remove files there, or give it more inodes",
    **dict.fromkeys(
        (errno.EIO, errno.EUCLEAN, errno.ENODEV, errno.ENXIO, errno.ESTALE, errno.ESHUTDOWN),
        "does not work: see the kernel's log, then mend or replace it",
    ),
}
"""What a disk is that gives such an error, and the cure; ext4 itself turns read-only after one."""


class ScratchError(Exception):
    """No directory can be had on a disk; one line that says why and what to do."""


class DiskError(ScratchError):
    """The disk is of no use to anybody now, whoever asks; it may be mended.

    Attributes:
        disk: its directory.
    """

    def __init__(self, disk: str, problem: str) -> None:
        super().__init__(problem)
        self.disk = disk


class ElsewhereError(KeptError):
    """The file system that it is on is not there, but another one that is ours."""


class Store:
    """``.iodaemon`` of one disk, open.

    Args:
        disk: its directory.
        new_on: make it, should it not be there, on the file system of this number; empty: on any.
            None: it is there.
        tier: the disk's, for people; empty: not known.

    Raises:
        DiskError: it is not there, or can be of no use now.
        ScratchError: somebody else could change it.
    """

    def __init__(self, disk: str, *, new_on: str | None = None, tier: str = "") -> None:
        self._disk = disk
        self._tier = tier
        try:
            fd = os.open(disk, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            problem = f"cannot be opened ({error.strerror}); is it mounted?"
            raise DiskError(disk, f"the disk's directory {disk} {problem}") from error
        try:
            _check(fd, disk, {0, os.geteuid()}, allow_sticky=True)
            if new_on is not None:
                _check_filesystem(fd, disk, new_on)
                with contextlib.suppress(FileExistsError):
                    os.mkdir(STORE, 0o711, dir_fd=fd)
            self.fd = open_directory(fd, STORE)
        except FileNotFoundError as error:
            problem = f"there is no {STORE} in {disk}; is the disk mounted?"
            raise DiskError(disk, problem) from error
        except OSError as error:
            raise self.trouble(error, STORE) from error
        finally:
            os.close(fd)
        try:
            _check_store(self.fd, f"{disk}/{STORE}")
            if new_on is not None:
                os.fchmod(self.fd, 0o711)
        except OSError as error:
            self.close()
            raise self.trouble(error, STORE) from error
        except BaseException:
            self.close()
            raise

    def trouble(self, error: OSError, name: str = "") -> ScratchError:
        """What such an error means, in one line: the disk's fault, or that of what is there.

        Args:
            error: of whatever was done there.
            name: of what it was done to, in the disk's directory.
        """
        words = _OF_DISK.get(error.errno or 0)
        if words is None:
            return ScratchError(f"{os.path.join(self._disk, name)}: {explain(error)}")
        which = f"{self._disk}, a disk of tier {self._tier}," if self._tier else self._disk
        return DiskError(self._disk, f"{which} {words} ({error.strerror})")

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self.fd)

    def identify(self) -> str:
        """What this very file system is known by; made where it has none."""
        path = f"/proc/self/fd/{self.fd}/{STORE_ID}"
        try:
            if not os.path.lexists(path) and claim(path, {"id": os.urandom(16).hex()}):
                sync_file(path)
                sync_directory(f"/proc/self/fd/{self.fd}")
            found = self._read_id()
        except (OSError, ValueError, LookupError, TypeError) as error:
            name = f"{self._disk}/{STORE}/{STORE_ID}"
            if isinstance(error, OSError) and error.errno != errno.ELOOP:
                raise self.trouble(error, f"{STORE}/{STORE_ID}") from error
            raise ScratchError(f"{name} is damaged; remove it") from error
        return found

    def _read_id(self) -> str:
        """Nothing but a file of ours: no link is followed, no pipe waited for."""
        fd = os.open(
            STORE_ID, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self.fd
        )
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
                raise ValueError("it is no file of ours")
            return str(json.loads(os.read(fd, _ID_BYTES))["id"])
        finally:
            os.close(fd)

    def make(self, share: Message, uid: int) -> None:
        """The user's only at the end: until then nobody is in it."""
        os.mkdir(share["name"], 0o700, dir_fd=self.fd)
        reach("scratch.made")
        fd = open_directory(self.fd, share["name"])
        try:
            os.fchmod(fd, 0o700)
            quota.limit(fd, share["project"], share["size"])
            reach("scratch.limited")
            os.fchown(fd, uid, -1)
        finally:
            os.close(fd)
        reach("scratch.given")

    def remove(self, share: Message, until_s: float) -> None:
        """Remove it, should it be there, and its limit."""
        if not os.path.lexists(f"/proc/self/fd/{self.fd}/{STORE_ID}"):
            raise KeptError("no disk that jobs have used is there now; mount the one that it is on")
        if self.identify() != share["store"]:
            raise ElsewhereError(
                "another file system is there now; mount the one that it is on, or 'iod scratch "
                "remove' the job to have it forgotten"
            )
        unmount_fuse(self.fd, share["name"])
        try:
            fd = open_directory(self.fd, share["name"])
        except FileNotFoundError:
            pass
        else:
            quota.disown(fd)
            os.close(fd)
            remove_tree(self.fd, share["name"], until_s)
        quota.unlimit(self.fd, share["project"])


def _check(fd: int, path: str, owners: set[int], *, allow_sticky: bool) -> None:
    """Refuse a directory in which others could lay something in the way.

    Args:
        fd: of it.
        path: for people.
        owners: whose it may be.
        allow_sticky: as ``/tmp`` is: what one has there, others cannot move away.
    """
    found = os.fstat(fd)
    is_safe = not found.st_mode & _OPEN or (allow_sticky and found.st_mode & stat.S_ISVTX)
    if found.st_uid not in owners or not is_safe:
        mode, me = stat.S_IMODE(found.st_mode), os.geteuid()
        raise ScratchError(
            f"{path} belongs to uid {found.st_uid}, mode {mode:04o}, so that others could change "
            f"what is in it: 'chown {me} {path}; chmod go-w {path}'"
        )


def _check_store(fd: int, path: str) -> None:
    """What another made may hold anything: to give it to us is not enough."""
    if os.fstat(fd).st_uid != os.geteuid():
        raise ScratchError(f"{path} was made by somebody else; move it away")
    _check(fd, path, {os.geteuid()}, allow_sticky=False)


def _check_filesystem(fd: int, disk: str, number: str) -> None:
    """Refuse what lies below a disk that is not mounted: its space is not what was handed out."""
    if number and number != str(os.fstat(fd).st_dev):
        raise DiskError(
            disk,
            f"another file system is at {disk} than when the daemon was started; mount what "
            "belongs there, or restart the daemon if that is meant",
        )


def explain(error: OSError) -> str:
    """What is in the way, for people."""
    if error.errno in (errno.EXDEV, errno.EBUSY):
        return "something else is mounted there; unmount it"
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        return "it is no directory; move it away"
    return error.strerror or str(error)
