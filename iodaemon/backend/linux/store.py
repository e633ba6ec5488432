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

from iodaemon import disk_trouble
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
            raise self._of_no_use(disk_trouble.of_way(error)) from error
        try:
            if trouble := self._find_trouble(fd, new_on):
                raise self._of_no_use(trouble)
            if new_on is not None:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(STORE, 0o711, dir_fd=fd)
            self.fd = open_directory(fd, STORE)
        except FileNotFoundError as error:
            raise self._of_no_use(f"has no {STORE}; mount what belongs there") from error
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

    def _find_trouble(self, fd: int, new_on: str | None) -> str:
        """As a look from outside finds it."""
        found, owner = os.fstat(fd), os.geteuid()
        if new_on is None:
            return disk_trouble.of_owner(self._disk, found, owner)
        sizes = os.fstatvfs(fd)
        if sizes.f_flag & os.ST_RDONLY:
            return disk_trouble.READ_ONLY
        if new_on not in ("", str(found.st_dev)):  # it lies below a disk that is not mounted
            return disk_trouble.REPLACED
        return disk_trouble.of_use(self._disk, found, sizes, owner)

    def trouble(self, error: OSError, name: str = "") -> ScratchError:
        """What such an error means, in one line: the disk's fault, or that of what is there.

        Args:
            error: of whatever was done there.
            name: of what it was done to, in the disk's directory.
        """
        trouble = disk_trouble.of_error(error)
        if not trouble:
            return ScratchError(f"{os.path.join(self._disk, name)}: {explain(error)}")
        if error.errno == errno.ENOSPC:
            with contextlib.suppress(OSError):
                trouble = disk_trouble.of_room(os.statvfs(self._disk)) or trouble
        return self._of_no_use(trouble)

    def _of_no_use(self, trouble: str) -> DiskError:
        return DiskError(self._disk, disk_trouble.sentence(self._disk, trouble, self._tier))

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


def _check_store(fd: int, path: str) -> None:
    """What another made may hold anything: to give it to us is not enough."""
    found, me = os.fstat(fd), os.geteuid()
    if found.st_uid != me:
        raise ScratchError(f"{path} was made by somebody else; move it away")
    if found.st_mode & disk_trouble.OPEN:
        raise ScratchError(f"{path} {disk_trouble.not_ours(path, found, me)}")


def explain(error: OSError) -> str:
    """What is in the way, for people."""
    if error.errno in (errno.EXDEV, errno.EBUSY):
        return "something else is mounted there; unmount it"
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        return "it is no directory; move it away"
    return error.strerror or str(error)
