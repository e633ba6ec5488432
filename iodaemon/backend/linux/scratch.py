"""A job's own directories on the disks of storage tiers: planned, made, and removed for good.

What is to be made is written down in the job's directory first, so that whoever comes by after any
death knows what to remove, and that nothing else is ours. They lie in ``<disk>/.iodaemon``, which
is root's, each under a name that nobody can guess or take; within it everything is the user's and
is touched only as ``scratch_tree`` does. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any, Final

from iodaemon.backend.linux import quota
from iodaemon.backend.linux.attempt_record import (
    RecordError,
    read_scratch,
    read_shim,
    read_stage,
    read_status,
)
from iodaemon.backend.linux.lingering import find_held, find_lingering
from iodaemon.backend.linux.manifest import is_at_work, is_whole, read_manifest
from iodaemon.backend.linux.process import read_boot_id
from iodaemon.backend.linux.protocol import (
    FREED_FILE,
    SCRATCH_FILE,
    STATUS_FILE,
    Message,
    parse_job_key,
    write_json,
)
from iodaemon.backend.linux.scratch_tree import (
    KeptError,
    UnfinishedError,
    Usage,
    has_unknown,
    measure_tree,
)
from iodaemon.backend.linux.store import (
    STORE,
    DiskError,
    ElsewhereError,
    ScratchError,
    Store,
    explain,
)
from iodaemon.fault import reach


class ResultError(KeptError):
    """It has what was to be copied out, and was not."""


class OpenError(KeptError):
    """All of it is removed, and some is open still: there is nothing to copy."""


Shares = list[dict[str, Any]]
"""Each with ``path`` of the disk, ``tier``, ``size`` in bytes, ``name`` of the directory,
``project``."""
_TRIFLE_BYTES: Final = 1 << 20
"""Of deleted files, for which nobody's space is withheld."""


def plan(key: str, asked: Shares) -> Shares:
    """What is to be made for an attempt, under names that are new.

    Args:
        key: of the attempt.
        asked: of the launch (``scratch``): ``path`` and ``size`` of each, and ``filesystem``, its
            number as the daemon found it; empty: any will do; ``tier``, for people.
    """
    job, attempt = parse_job_key(key) or (0, 0)
    return [
        {
            "path": os.path.abspath(str(share["path"])),
            "size": int(share["size"]),
            "name": f"{job}-{attempt}-{os.urandom(8).hex()}",
            "project": quota.new_project(),
            "filesystem": str(share.get("filesystem", "")),
            "tier": str(share.get("tier", "")),
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
            ``has_input``: not unless all of that had come.

    Raises:
        DiskError: a disk is of no use to anybody now; what was made is still written down.
        ScratchError: there is no directory for another reason; likewise.
    """
    for share in shares:
        with _open_store(share, new_on=share["filesystem"]) as store:
            share["store"] = store.identify()
    path = os.path.join(directory, SCRATCH_FILE)
    try:
        write_json(path, {"uid": uid, "shares": shares, "output": output}, durable=True)
    except OSError as error:
        raise ScratchError(f"{path} cannot be written: {explain(error)}") from error
    reach("scratch.noted")
    for share in shares:
        with _open_store(share) as store:
            try:
                store.make(share, uid)
            except OSError as error:
                raise store.trouble(error) from error


def _open_store(share: Message, new_on: str | None = None) -> contextlib.closing[Store]:
    return contextlib.closing(Store(share["path"], new_on=new_on, tier=share["tier"]))


def remove(directory: str, until_s: float) -> None:
    """Remove all that the job's directory says was made, and then that it says so.

    Of a disk that was replaced it is forgotten, once somebody said that it may go. So is a record
    that cannot be read: what it says of was made somewhere, and nobody knows where.

    Raises:
        KeptError: not all can be removed; ResultError: not all may be.
        UnfinishedError: the time is up.
    """
    path = os.path.join(directory, SCRATCH_FILE)
    is_freed = os.path.exists(os.path.join(directory, FREED_FILE))
    try:
        record = read_scratch(directory)
    except RecordError as error:
        if not is_freed:
            raise KeptError(f"{error}; what was made for it is not known") from error
        record = None
    if record is not None and _has_result(directory, record, until_s):
        raise ResultError(_untold(record))
    if record is not None and not os.path.exists(os.path.join(directory, STATUS_FILE)):
        _refuse_company(directory, record)
    problems = []
    for share in () if record is None else record["shares"]:
        try:
            with _open_store(share) as store:
                try:
                    store.remove(share, until_s)
                except OSError as error:
                    raise store.trouble(error) from error
        except (ScratchError, KeptError) as error:
            if is_freed and isinstance(error, ElsewhereError):
                continue
            problems.append(f"{paths_of([share])[0]}: {error}")
        except OSError as error:
            problems.append(f"{paths_of([share])[0]}: {explain(error)}")
    if problems:
        raise KeptError("; ".join(problems))
    if record is not None and not is_freed:
        _refuse_holders(record)
    reach("scratch.removed")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    reach("scratch.forgotten")


def _refuse_company(directory: str, record: Message) -> None:
    """Of a job whose shim was killed somebody may be left whom nobody sees.

    Raises:
        KeptError: somebody is.
    """
    if is_at_work(directory, "out"):
        raise KeptError(f"what copies it to {record['output']['path']} is still at it")
    paths = paths_of(record["shares"])
    if (found := find_lingering(paths, uid=int(record["uid"]))) is not None:
        uses = "does not answer and may use" if found.is_silent else "still uses"
        whose = f"process {found.pid} {uses} {' and '.join(paths)}"
        raise KeptError(f"its shim was killed, and {whose}; it goes when that has ended")


def _refuse_holders(record: Message) -> None:
    """What was removed takes space for as long as somebody has it open.

    Raises:
        OpenError: somebody has.
    """
    paths = paths_of(record["shares"])
    held = find_held(paths, {int(record["uid"]), 0})
    if held is not None and held.size_bytes > _TRIFLE_BYTES:
        what = f"deleted files of {' and '.join(paths)} are still open in process {held.pid}"
        takes = f"they take {held.size_bytes / (1 << 20):.0f} MiB of the disk until it ends"
        raise OpenError(f"{what}; {takes}, and nothing else is left")


def find_need(directory: str) -> str:
    """Why what an ended job left may not be removed yet, and where it lies; empty: it may.

    What was to be copied out, and could not be, is kept until somebody says that it may go.

    Args:
        directory: the job's.

    Raises:
        RecordError: what it has cannot be read.
    """
    record = read_scratch(directory)
    output = None if record is None else record["output"]
    if record is None or output is None or os.path.exists(os.path.join(directory, FREED_FILE)):
        return ""
    status = None
    with contextlib.suppress(RecordError):
        status = read_status(directory)
    if status is not None:
        need = str(status.get("stage_out", ""))
        return need and f"{need}; {whereabouts(record)}"
    is_wanted = output["on"] == "always" or _was_copied_out(directory)
    return _untold(record) if is_wanted and has_come(directory, output) else ""


def _was_copied_out(directory: str) -> bool:
    """Whether copying out had begun, or may have."""
    try:
        stage = read_stage(directory)
    except RecordError:
        return True
    return stage is not None and stage["step"] == "out"


def has_come(directory: str, output: Message) -> bool:
    """Whether the command may have begun: what was cut off while it came is nobody's result.

    Args:
        directory: the job's.
        output: of its record.
    """
    return not output.get("has_input") or is_whole(directory, "in")


def _untold(record: Message) -> str:
    path, where = record["output"]["path"], whereabouts(record)
    return f"its shim was killed before all was copied to {path}; {where}"


def whereabouts(record: Message) -> str:
    """For people."""
    return f"it lies in {' and '.join(paths_of(record['shares']))}"


def _has_result(directory: str, record: Message, until_s: float) -> bool:
    """Whether there is anything that a killed shim was to copy out if its job ended well.

    Nobody knows how it ended. A job that the machine took down with it has not ended well.
    """
    files = (FREED_FILE, STATUS_FILE)
    output = record["output"]
    if output is None or any(os.path.exists(os.path.join(directory, f)) for f in files):
        return False
    if not _is_of_this_boot(directory) or not has_come(directory, output):
        return False
    came = read_manifest(directory, "in")
    for place, share in enumerate(record["shares"]):

        def is_known(name: str, found: os.stat_result, place: int = place) -> bool:
            return came is not None and came.has(name, found, place)

        with contextlib.suppress(ScratchError), contextlib.closing(Store(share["path"])) as store:
            if has_unknown(store.fd, share["name"], is_known, until_s):
                return True
    return False


def _is_of_this_boot(directory: str) -> bool:
    """Whether its shim lived in this boot, or may have."""
    try:
        shim = read_shim(directory)
    except RecordError:
        return True
    return shim is not None and shim.get("boot_id") == read_boot_id()


def measure(share: Message, until_s: float) -> tuple[Usage, int]:
    """What is in the directory now; and what the quota counts, with deleted files that are open.

    The latter need not be the job's: who owns a file elsewhere may give it to any project.

    Raises:
        OSError, ScratchError: it cannot be entered.
    """
    with contextlib.closing(Store(share["path"])) as store:
        usage = measure_tree(store.fd, share["name"], until_s)
        counted = quota.used_bytes(store.fd, share["project"]) or 0
    return usage, counted


__all__ = [
    "DiskError",
    "KeptError",
    "OpenError",
    "ResultError",
    "ScratchError",
    "UnfinishedError",
    "Usage",
]
