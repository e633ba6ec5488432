"""What is done about jobs' directories on tier disks in processes beside the keeper.

A disk that hangs, a hundred thousand files, a user who works against it: each holds up one process
and nobody else. Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import time
from typing import Final

from iodaemon.backend.linux import scratch
from iodaemon.backend.linux.aside import tell
from iodaemon.backend.linux.attempt_record import RecordError, read_scratch
from iodaemon.backend.linux.process import is_readable
from iodaemon.backend.linux.protocol import Message
from iodaemon.fault import reach

TURN_S: Final = 20.0
"""Of one job at removing; then it is others' turn."""
_FIRST_LOOK_S: Final = 1.0
"""Until a job is measured for the first time."""
_LOOK_S: Final = 5.0
"""From one measuring of a job to the next, at least."""
_REST: Final = 50
"""Times as long as one took, at least: 2 % of a CPU."""
_LONGEST_LOOK_S: Final = 10.0


def remove(directory: str, line: int) -> None:
    """Remove a job's directories, and say ``removed``, ``unfinished`` or ``kept`` and why.

    ``is_result``: because they have what was to be copied out. ``is_open``: all is removed, and
    takes space for as long as somebody has it open.
    """
    reach("scratch.sweeping")
    try:
        scratch.remove(directory, time.monotonic() + TURN_S)
    except scratch.UnfinishedError:
        word: Message = {"state": "unfinished"}
    except scratch.KeptError as error:
        is_result = isinstance(error, scratch.ResultError)
        word = {"state": "kept", "because": str(error), "is_result": is_result}
        word["is_open"] = isinstance(error, scratch.OpenError)
    else:
        word = {"state": "removed"}
    tell(line, word)


def watch(directory: str, line: int) -> None:
    """Say soon, and every few seconds, what a job's directories hold, until the keeper hangs up."""
    wait_s = _FIRST_LOOK_S
    last: dict[str, scratch.Usage] = {}
    while not is_readable(line, wait_s):
        record = None
        with contextlib.suppress(RecordError):
            record = read_scratch(directory)
        if record is None:
            continue
        began_s = time.monotonic()
        tell(line, _measure(record, last, began_s + _LONGEST_LOOK_S))
        wait_s = max(_LOOK_S, _REST * (time.monotonic() - began_s))


def _measure(record: Message, last: dict[str, scratch.Usage], until_s: float) -> Message:
    """What all directories hold; where one cannot be entered now, it holds what it held last.

    One on which something is mounted counts as over: what it hides is not to be known. What the
    quota counts is told, and makes nobody over: others may add to it.
    """
    is_over, used_bytes = False, 0
    for share in record["shares"]:
        before = last.get(share["name"], scratch.Usage(0, 0, is_all=True))
        counted = 0
        try:
            usage, counted = scratch.measure(share, until_s)
        except (OSError, scratch.ScratchError) as error:
            usage = before._replace(is_all=False)
            is_over |= isinstance(error, OSError) and error.errno == errno.EXDEV
        last[share["name"]] = usage
        used_bytes += max(usage.size_bytes, counted)
        is_over |= usage.size_bytes > share["size"]
    return {
        "state": "over" if is_over else "held",
        "used_bytes": used_bytes,
        "files": sum(usage.files for usage in last.values()),
        "is_all": all(usage.is_all for usage in last.values()),
    }
