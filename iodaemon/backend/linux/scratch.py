"""Directories of jobs on the disks of storage tiers: made, measured and removed.

They lie in ``<disk>/.iodaemon``, which belongs to root, each under a name of 64 random bits; all
within one is its user's. What is to be made is written to the job's own directory first
(``scratch.json``), so that the next keeper or daemon knows what to remove, and that nothing else
may be removed. Whatever touches such a disk is done in a short-lived process with a deadline: of
the shim (``make``) or of the keeper (``serve``). Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import stat
import time
from typing import Any, Final

from iodaemon import disk_trouble
from iodaemon.backend.linux.aside import tell
from iodaemon.backend.linux.attempt_record import (
    RecordError,
    read_scratch,
    read_shim,
    read_stage,
    read_status,
)
from iodaemon.backend.linux.beneath import open_below, open_directory
from iodaemon.backend.linux.process import in_time, read_boot_id
from iodaemon.backend.linux.protocol import SCRATCH_FILE, Message, encode, parse_job_key, write_json
from iodaemon.backend.linux.scratch_tree import KeptError, UnfinishedError, remove_tree
from iodaemon.fault import reach

STORE: Final = ".iodaemon"
MAKE_S: Final = 10.0
"""For all directories of a job to be made."""
TURN_S: Final = 20.0
"""For one turn of removing, s; what is left then is removed in another turn."""
_LATE_S: Final = 5
"""A helper that is so much over its turn is killed: its disk does not answer."""
_MEASURE_S: Final = 10
_BLOCK_BYTES: Final = 512  # of st_blocks, inode(7)
TOOLS: Final = {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}

Shares = list[dict[str, Any]]
"""Each with ``path`` of the disk, ``tier``, ``size`` in bytes, ``name`` of the directory, and
``filesystem``: the device number of the disk; empty: any will do."""


class ScratchError(Exception):
    """No directory can be made; one line that says why and what to do.

    Attributes:
        disk: of no use to any job now; empty: the disk is not at fault.
        is_silent: it does not answer, and may hold the helper that asked it.
    """

    def __init__(self, problem: str, disk: str = "", *, is_silent: bool = False) -> None:
        super().__init__(problem)
        self.disk = disk
        self.is_silent = is_silent


class LostHelperError(Exception):
    """Helpers were killed before they had made all; the next start may succeed."""


class ResultError(KeptError):
    """The directory contains what should have been copied out and was not."""


def plan(key: str, asked: Shares) -> Shares:
    """Name the directories of an attempt, the largest first: that is where input is copied to.

    Args:
        key: of the attempt.
        asked: of the launch (``scratch``).
    """
    job, attempt = parse_job_key(key) or (0, 0)
    return [
        {
            "path": os.path.abspath(str(share["path"])),
            "size": int(share["size"]),
            "name": f"{job}-{attempt}-{os.urandom(8).hex()}",
            "filesystem": str(share.get("filesystem", "")),
            "tier": str(share.get("tier", "")),
        }
        for share in sorted(asked, key=lambda share: -int(share["size"]))
    ]


def paths_of(shares: Shares) -> list[str]:
    """Return the paths of the directories."""
    return [os.path.join(share["path"], STORE, share["name"]) for share in shares]


def environment_of(shares: Shares) -> dict[str, str]:
    """Return what the job is told: all paths in one variable, and each in one of its own."""
    paths = paths_of(shares)
    numbered = {f"IOD_SCRATCH_{number}": path for number, path in enumerate(paths)}
    return {"IOD_SCRATCH": ":".join(paths), **numbered} if paths else {}


def words_of(failed: Message) -> str:
    """Tell a failed step of staging in one line: which program, its exit, its last line."""
    program, code, number = (failed.get(name) for name in ("program", "code", "signal"))
    if program is None:
        return str(failed["line"])
    ended = f"was killed by signal {number}" if code is None else f"ended with {code}"
    return f"{program} {ended}" + (f": {failed['line']}" if failed["line"] else "")


# -- make ------------------------------------------------------------------------------------------


def make(directory: str, record: Message) -> None:
    """Make the directories in a helper, which is killed at its deadline.

    Args:
        directory: of the attempt.
        record: ``uid``; ``shares`` of ``plan``; ``output``: None, or ``path`` and ``on``.

    Raises:
        ScratchError: a directory cannot be made; what was made is in ``scratch.json``.
        LostHelperError: see there.
        OSError: there can be no helper.
    """

    def work(line: int) -> None:
        try:
            _make(directory, record)
        except ScratchError as error:
            os.write(line, encode({"problem": str(error), "disk": error.disk}))
        except OSError as error:
            os.write(line, encode({"problem": f"{directory}: {error.strerror}", "disk": ""}))
        else:
            os.write(line, encode({}))

    data, is_done = in_time(work, MAKE_S)
    if is_done and not data:  # the helper was killed, by chance: another one goes on
        data, is_done = in_time(work, MAKE_S)
    if not is_done:
        share = record["shares"][0]
        silent = disk_trouble.sentence(share["path"], disk_trouble.SILENT, share["tier"])
        raise ScratchError(silent, share["path"], is_silent=True)
    if not data.endswith(b"\n"):
        raise LostHelperError
    if told := json.loads(data):
        raise ScratchError(told["problem"], told["disk"])


def _make(directory: str, record: Message) -> None:
    with contextlib.ExitStack() as stack:
        stores = []
        for share in record["shares"]:
            store = _open_store(share, makes=True)
            stack.callback(os.close, store)
            share["filesystem"] = str(os.fstat(store).st_dev)
            stores.append((share, store))
        record = {**record, "boot_id": read_boot_id()}
        write_json(os.path.join(directory, SCRATCH_FILE), record, durable=True)
        reach("scratch.noted")
        for share, store in stores:
            try:
                _make_one(store, share["name"], record["uid"])
            except OSError as error:
                raise _trouble(share, error) from error


def _make_one(store: int, name: str, uid: int) -> None:
    """Nobody but root is in it until it is the user's."""
    with contextlib.suppress(FileExistsError):  # of a helper that was killed
        os.mkdir(name, 0o700, dir_fd=store)
    reach("scratch.made")
    fd = open_directory(store, name)
    try:
        os.fchmod(fd, 0o700)
        os.fchown(fd, uid, -1)
    finally:
        os.close(fd)
    reach("scratch.given")


def _open_store(share: Message, *, makes: bool = False) -> int:
    """Open ``.iodaemon`` of a disk, which only root, or this user, can change.

    Raises:
        ScratchError: it is missing or another user's, or the disk is of no use now.
    """
    disk, name, owner = share["path"], f"{share['path']}/{STORE}", os.geteuid()
    try:
        fd = os.open(disk, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise _useless(share, disk_trouble.of_way(error)) from error
    try:
        found = os.fstat(fd)
        if not makes:
            problem = disk_trouble.of_owner(disk, found, owner)
        elif os.fstatvfs(fd).f_flag & os.ST_RDONLY:
            problem = disk_trouble.READ_ONLY
        elif share["filesystem"] not in ("", str(found.st_dev)):
            problem = disk_trouble.REPLACED
        else:
            problem = disk_trouble.of_use(disk, found, os.fstatvfs(fd), owner)
        if problem:
            raise _useless(share, problem)
        if makes:
            with contextlib.suppress(FileExistsError):
                os.mkdir(STORE, 0o711, dir_fd=fd)
        store = open_directory(fd, STORE)
    except FileNotFoundError as error:
        raise _useless(share, f"has no {STORE}; mount what belongs there") from error
    except OSError as error:
        raise _trouble(share, error, STORE) from error
    finally:
        os.close(fd)
    found = os.fstat(store)
    if found.st_uid != owner or found.st_mode & disk_trouble.OPEN:
        os.close(store)
        if found.st_uid != owner:  # it may contain anything: to give it to root is not enough
            raise ScratchError(f"{name} was made by another user; move it away")
        raise ScratchError(f"{name} {disk_trouble.not_ours(name, found, owner)}")
    if makes:
        os.fchmod(store, 0o711)
    return store


def _useless(share: Message, trouble: str) -> ScratchError:
    line = disk_trouble.sentence(share["path"], trouble, share.get("tier", ""))
    return ScratchError(line, share["path"])


def _trouble(share: Message, error: OSError, name: str = "") -> ScratchError:
    """What an error of an operation on the disk means: the disk's fault, or that of a name."""
    trouble = disk_trouble.of_error(error)
    if not trouble:
        return ScratchError(f"{os.path.join(share['path'], name)}: {_explain(error)}")
    if error.errno == errno.ENOSPC:
        with contextlib.suppress(OSError):
            trouble = disk_trouble.of_room(os.statvfs(share["path"])) or trouble
    return _useless(share, trouble)


def _explain(error: OSError) -> str:
    if error.errno in (errno.EXDEV, errno.EBUSY):
        return "something else is mounted there; unmount it"
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        return "it is no directory; move it away"
    return error.strerror or str(error)


# -- measure and remove, in a process beside the keeper --------------------------------------------


def measure(directory: str, line: int) -> None:
    """Report how much is in the job's directories: ``used_bytes``, ``is_over``, ``is_all``.

    ``is_all``: False if it is at least so much: something could not be read, or there was no time.
    """
    signal.alarm(int(_MEASURE_S) + _LATE_S)
    with contextlib.suppress(RecordError):
        if (record := read_scratch(directory)) is not None:
            tell(line, {"state": "held", **_measure(record["shares"])})
    signal.alarm(0)


def _measure(shares: Shares) -> Message:
    until_s = time.monotonic() + _MEASURE_S
    used, is_over, is_all = 0, False, True
    for share in shares:
        try:
            root = _open_one(share)
        except (OSError, ScratchError) as error:
            is_all = False
            is_over |= getattr(error, "errno", None) == errno.EXDEV  # what a mount hides
            continue
        found, is_whole = _sum(root, until_s)
        os.close(root)
        used, is_over, is_all = used + found, is_over or found > share["size"], is_all and is_whole
    return {"used_bytes": used, "is_over": is_over, "is_all": is_all}


def _sum(root: int, until_s: float) -> tuple[int, bool]:
    """Bytes of disk that is in a directory, each file once; and whether that is all of it."""
    used, is_all, waiting = 0, True, ["."]
    linked: set[int] = set()
    while waiting:
        if time.monotonic() > until_s:
            return used, False
        at = waiting.pop()
        try:
            fd = open_below(root, at)
        except OSError as error:
            is_all &= error.errno == errno.ENOENT
            continue
        with os.scandir(fd) as entries:
            for entry in entries:
                try:
                    found = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                is_directory = stat.S_ISDIR(found.st_mode)
                if found.st_nlink == 1 or is_directory or found.st_ino not in linked:
                    used += found.st_blocks * _BLOCK_BYTES
                if is_directory:
                    waiting.append(f"{at}/{entry.name}")
                elif found.st_nlink > 1:
                    linked.add(found.st_ino)
        os.close(fd)
    return used, is_all


def _open_one(share: Message) -> int:
    store = _open_store(share)
    try:
        return open_directory(store, share["name"])
    finally:
        os.close(store)


def remove(directory: str, line: int, *, is_freed: bool) -> None:
    """Remove the directories of an ended attempt; report ``removed``, ``unfinished`` or ``kept``.

    Args:
        directory: of the attempt.
        line: to the keeper.
        is_freed: nobody needs what could not be copied out.
    """
    signal.alarm(int(TURN_S) + _LATE_S)
    reach("scratch.sweeping")
    word: Message = {"state": "removed"}
    try:
        _remove(directory, time.monotonic() + TURN_S, is_freed=is_freed)
    except UnfinishedError:
        word = {"state": "unfinished"}
    except ResultError as error:
        word = {"state": "kept", "because": str(error), "is_result": True}
    except (KeptError, OSError) as error:
        word = {"state": "kept", "because": str(error), "is_result": False}
    signal.alarm(0)
    tell(line, word)


def _remove(directory: str, until_s: float, *, is_freed: bool) -> None:
    path = os.path.join(directory, SCRATCH_FILE)
    try:
        record = read_scratch(directory)
    except RecordError as error:
        if not is_freed:
            raise KeptError(f"{error}; what was made for it is not known") from error
        record = None
    shares: Shares = [] if record is None else record["shares"]
    if record is not None and not is_freed:
        need = _find_need(directory, record)
        if need and not all(map(_is_empty, shares)):
            raise ResultError(f"{need}; it lies in {' and '.join(paths_of(shares))}")
    problems = []
    for share in shares:
        try:
            _remove_one(share, (record or {}).get("boot_id"), until_s, is_freed=is_freed)
        except (ScratchError, KeptError) as error:
            problems.append(f"{paths_of([share])[0]}: {error}")
        except OSError as error:
            problems.append(f"{paths_of([share])[0]}: {_trouble(share, error)}")
    if problems:
        raise KeptError("; ".join(problems))
    reach("scratch.removed")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    reach("scratch.forgotten")


def _remove_one(share: Message, boot_id: str | None, until_s: float, *, is_freed: bool) -> None:
    store = _open_store(share)
    try:
        try:
            os.stat(share["name"], dir_fd=store, follow_symlinks=False)
        except FileNotFoundError as error:
            is_other = share.get("filesystem", "") not in ("", str(os.fstat(store).st_dev))
            if is_other and boot_id == read_boot_id() and not is_freed:
                raise KeptError(
                    "another file system is there now; mount the one that it is on, or "
                    "'iod scratch remove' the job to have it forgotten"
                ) from error
            return
        remove_tree(store, share["name"], until_s)
    finally:
        os.close(store)


def _is_empty(share: Message) -> bool:
    try:
        fd = _open_one(share)
    except FileNotFoundError:
        return True
    except (ScratchError, OSError):
        return False
    try:
        return not os.listdir(fd)
    finally:
        os.close(fd)


def _find_need(directory: str, record: Message) -> str:
    """Why what the attempt left is needed; empty: it is not.

    Without a status the shim was killed: then it is kept if it may be a result. That it is not if
    the command never began, or if the machine went down with a job that wants only the output of
    a success.
    """
    output = record["output"]
    if output is None:
        return ""
    with contextlib.suppress(RecordError):
        if (status := read_status(directory)) is not None:
            failed = status.get("stage_failed") or {}
            if failed.get("step") == "out":
                what = f"what the job left was not copied to {output['path']}"
                return f"{what}: {words_of(failed)}"
            return str(status.get("stage_out", ""))  # of a shim of an earlier release
    step = ""
    with contextlib.suppress(RecordError):
        step = (read_stage(directory) or {}).get("step", "")
    is_wanted = output["on"] == "always" or step == "out" or _is_of_this_boot(directory)
    if step == "in" or not is_wanted:
        return ""
    return f"its shim was killed before all was copied to {output['path']}"


def _is_of_this_boot(directory: str) -> bool:
    try:
        shim = read_shim(directory)
    except RecordError:
        return True
    return shim is not None and shim.get("boot_id") == read_boot_id()
