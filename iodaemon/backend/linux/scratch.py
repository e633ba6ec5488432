"""A job's own directories on the disks of storage tiers: planned, made, and removed for good.

What is to be made is written down in the job's directory first, so that whoever comes by after any
death knows what to remove, and that nothing else is ours. They lie in ``<disk>/.iodaemon``, which
is root's, each under a name that nobody can guess or take; within it everything is the user's and
is touched only as ``scratch_tree`` does. Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import Any, Final

from iodaemon.backend.linux import quota
from iodaemon.backend.linux.beneath import open_directory
from iodaemon.backend.linux.manifest import read_manifest
from iodaemon.backend.linux.process import read_boot_id
from iodaemon.backend.linux.protocol import (
    FREED_FILE,
    SCRATCH_FILE,
    SHIM_FILE,
    STAGE_FILE,
    STATUS_FILE,
    Message,
    claim,
    parse_job_key,
    read_json,
    sync_directory,
    sync_file,
    write_json,
)
from iodaemon.backend.linux.scratch_tree import (
    KeptError,
    UnfinishedError,
    Usage,
    has_unknown,
    measure_tree,
    remove_tree,
)
from iodaemon.fault import reach

STORE: Final = ".iodaemon"
STORE_ID: Final = "id"
"""A file in it by which a file system is known again, whatever is mounted where."""
_OPEN: Final = 0o022
"""Others may change what is in it."""

Shares = list[dict[str, Any]]
"""Each with ``path`` of the disk, ``size`` in bytes, ``name`` of the directory, ``project``."""


class ScratchError(Exception):
    """No directory can be had on a disk; one line that says why and what to do."""


def plan(key: str, asked: Shares) -> Shares:
    """What is to be made for an attempt, under names that are new.

    Args:
        key: of the attempt.
        asked: of the launch (``scratch``): ``path`` and ``size`` of each, and ``filesystem``, its
            number as the daemon found it; empty: any will do.
    """
    job, attempt = parse_job_key(key) or (0, 0)
    return [
        {
            "path": os.path.abspath(str(share["path"])),
            "size": int(share["size"]),
            "name": f"{job}-{attempt}-{os.urandom(8).hex()}",
            "project": quota.new_project(),
            "filesystem": str(share.get("filesystem", "")),
        }
        for share in asked
    ]


def paths_of(shares: Shares) -> list[str]:
    """Where the directories are."""
    return [os.path.join(share["path"], STORE, share["name"]) for share in shares]


def environment_of(shares: Shares) -> dict[str, str]:
    """What the job is told: all in one variable, and each in one of its own."""
    paths = paths_of(shares)
    numbered = {f"IOD_SCRATCH_{number}": path for number, path in enumerate(paths)}
    return {"IOD_SCRATCH": ":".join(paths), **numbered} if paths else {}


def make(directory: str, shares: Shares, uid: int, output: Message | None) -> None:
    """Write down what comes, then make it and give it to the user.

    Args:
        directory: the job's.
        shares: of ``plan``.
        uid: whose it will be.
        output: what is to be copied out at the end, which decides what may be removed; None: none.

    Raises:
        ScratchError: a disk is not as it must be, or full; what was made is still written down.
    """
    for share in shares:
        with contextlib.closing(_Store(share["path"], new_on=share["filesystem"])) as store:
            share["store"] = store.identify()
    path = os.path.join(directory, SCRATCH_FILE)
    write_json(path, {"uid": uid, "shares": shares, "output": output}, durable=True)
    reach("scratch.noted")
    for share in shares:
        with contextlib.closing(_Store(share["path"])) as store:
            try:
                store.make(share, uid)
            except OSError as error:
                raise ScratchError(f"{share['path']}: {error.strerror}") from error


def remove(directory: str, until_s: float) -> None:
    """Remove all that the job's directory says was made, and then that it says so.

    Raises:
        KeptError: not all can be removed.
        UnfinishedError: the time is up.
    """
    path = os.path.join(directory, SCRATCH_FILE)
    record = read_json(path)
    if record is not None and _has_result(directory, record, until_s):
        raise KeptError(_untold(record))
    problems = []
    for share in () if record is None else record["shares"]:
        try:
            with contextlib.closing(_Store(share["path"])) as store:
                store.remove(share, until_s)
        except (ScratchError, KeptError) as error:
            problems.append(f"{paths_of([share])[0]}: {error}")
        except OSError as error:
            problems.append(f"{paths_of([share])[0]}: {_explain(error)}")
    if problems:
        raise KeptError("; ".join(problems))
    reach("scratch.removed")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    reach("scratch.forgotten")


def find_need(directory: str) -> str:
    """Why what an ended job left may not be removed yet, and where it lies; empty: it may.

    What was to be copied out, and could not be, is kept until somebody says that it may go.

    Args:
        directory: the job's.
    """
    record = read_json(os.path.join(directory, SCRATCH_FILE))
    output = None if record is None else record["output"]
    if record is None or output is None or os.path.exists(os.path.join(directory, FREED_FILE)):
        return ""
    status = read_json(os.path.join(directory, STATUS_FILE))
    need = ""
    if status is not None:
        need = str(status.get("stage_out", ""))
    else:
        stage = read_json(os.path.join(directory, STAGE_FILE)) or {}
        if output["on"] == "always" or stage.get("step") == "out":
            return _untold(record)
    return need and f"{need}; {_whereabouts(record)}"


def _untold(record: Message) -> str:
    path, where = record["output"]["path"], _whereabouts(record)
    return f"its shim was killed before all was copied to {path}; {where}"


def _whereabouts(record: Message) -> str:
    return f"it lies in {' and '.join(paths_of(record['shares']))}"


def _has_result(directory: str, record: Message, until_s: float) -> bool:
    """Whether there is anything that a killed shim was to copy out if its job ended well.

    Nobody knows how it ended. A job that the machine took down with it has not ended well.
    """
    files = (FREED_FILE, STATUS_FILE)
    if record["output"] is None or any(os.path.exists(os.path.join(directory, f)) for f in files):
        return False
    shim = read_json(os.path.join(directory, SHIM_FILE)) or {}
    if shim.get("boot_id") != read_boot_id():
        return False
    came = read_manifest(directory, "in")
    if came is not None:
        stage = read_json(os.path.join(directory, STAGE_FILE)) or {}
        if len(came.copied) < stage.get("total_files", 1):
            return False  # its command has never begun
    for place, share in enumerate(record["shares"]):

        def is_known(name: str, found: os.stat_result, place: int = place) -> bool:
            return came is not None and came.has(name, found, place)

        with contextlib.suppress(ScratchError), contextlib.closing(_Store(share["path"])) as store:
            if has_unknown(store.fd, share["name"], is_known, until_s):
                return True
    return False


def measure(share: Message, until_s: float) -> Usage:
    """What is in the directory now.

    Raises:
        OSError, ScratchError: it cannot be entered.
    """
    with contextlib.closing(_Store(share["path"])) as store:
        usage = measure_tree(store.fd, share["name"], until_s)
        counted = quota.used_bytes(store.fd, share["project"]) or 0
    return usage._replace(size_bytes=max(usage.size_bytes, counted))


class _Store:
    """``.iodaemon`` of one disk, open.

    Args:
        disk: its directory.
        new_on: make it, should it not be there, on the file system of this number; empty: on any.
            None: it is there.

    Raises:
        ScratchError: it is not there, or somebody else could change it.
    """

    def __init__(self, disk: str, *, new_on: str | None = None) -> None:
        self._disk = disk
        try:
            fd = os.open(disk, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise ScratchError(
                f"the disk's directory {disk} cannot be opened ({error.strerror}); is it mounted?"
            ) from error
        try:
            _check(fd, disk, {0, os.geteuid()}, allow_sticky=True)
            if new_on is not None:
                _check_filesystem(fd, disk, new_on)
                with contextlib.suppress(FileExistsError):
                    os.mkdir(STORE, 0o711, dir_fd=fd)
            self.fd = open_directory(fd, STORE)
        except FileNotFoundError as error:
            raise ScratchError(f"there is no {STORE} in {disk}; is the disk mounted?") from error
        except OSError as error:
            raise ScratchError(f"{disk}/{STORE}: {_explain(error)}") from error
        finally:
            os.close(fd)
        try:
            _check(self.fd, f"{disk}/{STORE}", {os.geteuid()}, allow_sticky=False)
            if new_on is not None:
                os.fchmod(self.fd, 0o711)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self.fd)

    def identify(self) -> str:
        """What this very file system is known by; made where it has none."""
        path = f"/proc/self/fd/{self.fd}/{STORE_ID}"
        try:
            if not os.path.exists(path) and claim(path, {"id": os.urandom(16).hex()}):
                sync_file(path)
                sync_directory(f"/proc/self/fd/{self.fd}")
            found = read_json(path)
        except OSError as error:
            raise ScratchError(f"{self._disk}: {error.strerror}") from error
        if found is None:
            raise ScratchError(f"{self._disk}/{STORE}/{STORE_ID} is damaged; remove it")
        return str(found["id"])

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
        if self.identify() != share["store"]:
            raise KeptError("another file system is there now; mount the one that it is on")
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


def _check_filesystem(fd: int, disk: str, number: str) -> None:
    """Refuse what lies below a disk that is not mounted: its space is not what was handed out."""
    if number and number != str(os.fstat(fd).st_dev):
        raise ScratchError(
            f"another file system is at {disk} than when the daemon was started; mount what "
            "belongs there, or restart the daemon if that is meant"
        )


def _explain(error: OSError) -> str:
    if error.errno in (errno.EXDEV, errno.EBUSY):
        return "something else is mounted there; unmount it"
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        return "it is no directory; move it away"
    return error.strerror or str(error)


__all__ = ["KeptError", "ScratchError", "UnfinishedError"]
