"""Readers of the records in job directories and of ``keeper.json``: each one checked before use.

A record may be damaged by a disk, by a power failure or by hand. ``read_*`` returns a record whose
fields have the types that its users expect, None where there is no such file, and raises
``RecordError`` otherwise. It reads regular files alone: it follows no link and waits for no pipe.
Fields that are unknown here are left as they are. Standard library only.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import stat
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

from iodaemon.backend.linux.protocol import (
    KEEPER_FILE,
    SCRATCH_FILE,
    SHIM_FILE,
    STAGE_FILE,
    STATUS_FILE,
    STOPPED_FILE,
    Message,
)

LARGEST_BYTES: Final = 1 << 20
"""Of a record. The largest that is written, of 256 shares with paths of 4 KiB, is 1 MiB."""
_LARGEST_COUNT: Final = 2**63 - 1
"""SQLite's largest number (https://www.sqlite.org/datatype3.html)."""
NO_PID: Final = 1 << 30
"""In a record: the process is not known. No process has a number so large, PID_MAX_LIMIT is 2^22
(include/linux/threads.h)."""
_LARGEST_TIME_S: Final = 1e11
"""Seconds since 1970, in the year 5138."""
_LARGEST_CODE: Final = 255
_LARGEST_SIGNAL: Final = 127
"""What wait(2) has room for."""
_MAY_PASS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR})
"""Errors of the reader, which say nothing about the file."""
_OPEN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

Check = Callable[[Any], str]
"""Returns the path of the first field that is wrong (``.io.read_bytes``); empty: none is."""


class RecordError(Exception):
    """A record cannot be read or is not what it should be; names the file."""


def read_status(directory: str) -> Message | None:
    """How the attempt ended.

    Raises:
        RecordError: as above.
        OSError: this process has no descriptor or memory left; says nothing about the file.
    """
    return _read(directory, STATUS_FILE, _status)


def read_shim(directory: str) -> Message | None:
    """What the shim wrote of itself, or that the attempt was given up; raises as above."""
    return _read(directory, SHIM_FILE, _shim)


def read_stage(directory: str) -> Message | None:
    """Which step of the job is under way; raises as above."""
    return _read(directory, STAGE_FILE, _STAGE)


def read_scratch(directory: str) -> Message | None:
    """What was made for the attempt on tier disks; raises as above."""
    return _read(directory, SCRATCH_FILE, _SCRATCH)


def read_stopped(directory: str) -> Message | None:
    """Which processes signals hold outside of the job's session; raises as above."""
    return _read(directory, STOPPED_FILE, _STOPPED)


def read_keeper(state: str) -> Message | None:
    """Which keeper serves the state directory, or did last; raises as above."""
    return _read(state, KEEPER_FILE, _KEEPER)


def check_status(status: object, source: str) -> Message:
    """The status, checked.

    Args:
        status: as somebody else has read it.
        source: for the message.

    Raises:
        RecordError: it is none.
    """
    return _checked(status, _status, source)


def check_shim(record: object, source: str) -> Message:
    """The shim's record, checked; as ``check_status``."""
    return _checked(record, _shim, source)


def lost_status(note: str, at_s: float) -> Message:
    """The status of an attempt of which nobody knows how it ended.

    Args:
        note: for people.
        at_s: when it is taken for ended, wall time.
    """
    return {
        "exit": {"code": None, "signal": None},
        "io": {"read_bytes": 0, "written_bytes": 0},
        "started_s": at_s,
        "ended_s": at_s,
        "note": note,
    }


def read_regular(path: str, most_bytes: int = LARGEST_BYTES) -> bytes | None:
    """What a regular file contains; None: there is none of that name.

    Raises:
        RecordError: it is something else, larger, or cannot be read.
        OSError: as ``read_status``.
    """
    try:
        fd = os.open(path, _OPEN)
    except FileNotFoundError:
        return None
    except OSError as error:
        _fail(path, error)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise RecordError(f"{path} cannot be read (it is no regular file)")
        data = b""
        while chunk := os.read(fd, most_bytes + 1 - len(data)):
            data += chunk
            if len(data) > most_bytes:
                raise RecordError(f"{path} cannot be read (it has more than {most_bytes} bytes)")
    except OSError as error:
        _fail(path, error)
    finally:
        os.close(fd)
    return data


def _fail(path: str, error: OSError) -> NoReturn:
    if error.errno in _MAY_PASS:
        raise error
    what = "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror
    raise RecordError(f"{path} cannot be read ({what})") from error


def _read(directory: str, name: str, check: Check) -> Message | None:
    path = os.path.join(directory, name)
    data = read_regular(path)
    if data is None:
        return None
    try:
        value = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        what = "it is empty" if not data else "it is no JSON"
        raise RecordError(f"{path} cannot be read ({what})") from error
    return _checked(value, check, path)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _checked(value: object, check: Check, source: str) -> Message:
    if wrong := check(value):
        what = f"field {wrong[1:]} is missing or wrong" if wrong != "." else "it is no record"
        raise RecordError(f"{source} cannot be used ({what})")
    assert isinstance(value, dict)
    return value


# -- what a field may be ---------------------------------------------------------------------------


def _whole(least: int, most: int) -> Check:
    return lambda value: "" if type(value) is int and least <= value <= most else "."


def _number(value: object) -> str:
    if type(value) not in (int, float):
        return "."
    assert isinstance(value, int | float)
    return "" if math.isfinite(value) and 0 <= value <= _LARGEST_TIME_S else "."


def _text(value: object) -> str:
    return "" if type(value) is str else "."


def _path(value: object) -> str:
    return "" if type(value) is str and value.startswith("/") and "\0" not in value else "."


def _flag(value: object) -> str:
    return "" if type(value) is bool else "."


def _matching(pattern: str) -> Check:
    compiled = re.compile(pattern)
    return lambda value: "" if type(value) is str and compiled.fullmatch(value) else "."


def _or_none(check: Check) -> Check:
    return lambda value: "" if value is None else check(value)


def _list(check: Check, length: int | None = None) -> Check:
    def look(value: object) -> str:
        if not isinstance(value, list) or (length is not None and len(value) != length):
            return "."
        return next(
            (f".{at}{wrong}" for at, each in enumerate(value) if (wrong := check(each))), ""
        )

    return look


def _tuple(*checks: Check) -> Check:
    def look(value: object) -> str:
        if not isinstance(value, list) or len(value) != len(checks):
            return "."
        is_wrong = any(check(each) for check, each in zip(checks, value, strict=True))
        return "." if is_wrong else ""

    return look


def _record(needed: Mapping[str, Check], optional: Mapping[str, Check] | None = None) -> Check:
    checks = {**needed, **(optional or {})}

    def look(value: object) -> str:
        if not isinstance(value, dict):
            return "."
        for name, check in checks.items():
            if name not in value and name not in needed:
                continue
            if name not in value or (wrong := check(value[name])):
                return f".{name}{'' if name not in value else wrong.rstrip('.')}"
        return ""

    return look


_COUNT: Final = _whole(0, _LARGEST_COUNT)
_PID: Final = _whole(1, NO_PID)
_CODE: Final = _or_none(_whole(0, _LARGEST_CODE))
_SIGNAL: Final = _or_none(_whole(1, _LARGEST_SIGNAL))
_IDENTITY: Final[Mapping[str, Check]] = {
    "pid": _PID,
    "start_ticks": _COUNT,
    "boot_id": _text,
}
_TIMES: Final[Mapping[str, Check]] = {
    "boot_id": _text,
    "started_monotonic_s": _number,
    "ended_monotonic_s": _number,
}
_GIVEN_UP: Final = _record({"given_up": _flag})
_RAN: Final = _record(
    {
        **_IDENTITY,
        "main_pid": _or_none(_PID),
        "main_start_ticks": _or_none(_COUNT),
        "freezer": _matching("cgroup|signals"),
        "cgroup": _or_none(_path),
        "started_s": _number,
        "baseline": _list(_COUNT, 3),
    },
    {
        "started_monotonic_s": _number,
        "uid": _or_none(_COUNT),
        "baseline_logical_bytes": _COUNT,
    },
)
_MEMORY_END: Final = _record(
    {
        "at_limit": _COUNT,
        "limit_bytes": _or_none(_COUNT),
        "nodes": _text,
        "killed": _COUNT,
    }
)
_STAGED: Final = _record(
    {"came_bytes": _COUNT, "went_bytes": _COUNT, "moved_bytes": _COUNT},
    {"has_come": _or_none(_flag), "has_gone": _or_none(_flag)},
)
_STAGE_FAILED: Final = _record(
    {"step": _matching("in|out"), "line": _text},
    {"program": _text, "code": _CODE, "signal": _SIGNAL},
)
_NEVER_RAN: Final = _record(
    {"never_ran": _text, "exit_code": _CODE},
    {**_TIMES, "ended_s": _number, "of_user": _flag, "holds": _flag, "disk": _path},
)
_ENDED: Final = _record(
    {
        "exit": _record({"code": _CODE, "signal": _SIGNAL}),
        "io": _record(
            {"read_bytes": _COUNT, "written_bytes": _COUNT}, {"operations": _or_none(_COUNT)}
        ),
        "started_s": _number,
        "ended_s": _number,
    },
    {
        **_TIMES,
        "memory_end": _or_none(_MEMORY_END),
        "stopped_from_outside": _flag,
        "staged": _or_none(_STAGED),
        "stage_failed": _STAGE_FAILED,
        "stage_out": _text,
        "note": _text,
    },
)
_STAGE: Final = _record({"step": _text})
_OUTPUT: Final = _record(
    {"path": _text, "on": _matching("always|success")},
)
_SHARE: Final = _record(
    {
        "path": _path,
        "size": _COUNT,
        "name": _matching(r"[0-9]+-[0-9]+-[0-9a-f]+"),
    },
    {"filesystem": _text, "tier": _text},
)
_SCRATCH: Final = _record(
    {"uid": _COUNT, "shares": _list(_SHARE), "output": _or_none(_OUTPUT)}, {"boot_id": _text}
)
_STOPPED: Final = _record({"processes": _list(_tuple(_PID, _COUNT, _text))})
_KEEPER: Final = _record({**_IDENTITY}, {"base": _or_none(_path)})


def _shim(value: object) -> str:
    is_given_up = isinstance(value, dict) and value.get("given_up") is True
    return _GIVEN_UP(value) if is_given_up else _RAN(value)


def _status(value: object) -> str:
    return _NEVER_RAN(value) if isinstance(value, dict) and "never_ran" in value else _ENDED(value)
