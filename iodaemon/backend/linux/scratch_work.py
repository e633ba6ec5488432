"""What is done about jobs' directories on tier disks in processes beside the keeper.

A disk that hangs, a hundred thousand files, a user who works against it: each holds up one process
and nobody else. Standard library only.
"""

from __future__ import annotations

import errno
import os
import select
import time
from typing import Final

from iodaemon.backend.linux import scratch
from iodaemon.backend.linux.aside import tell
from iodaemon.backend.linux.protocol import SCRATCH_FILE, Message, read_json
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

    ``is_result``: because they have what was to be copied out.
    """
    reach("scratch.sweeping")
    try:
        scratch.remove(directory, time.monotonic() + TURN_S)
    except scratch.UnfinishedError:
        word: Message = {"state": "unfinished"}
    except scratch.KeptError as error:
        is_result = isinstance(error, scratch.ResultError)
        word = {"state": "kept", "because": str(error), "is_result": is_result}
    else:
        word = {"state": "removed"}
    tell(line, word)


def watch(directory: str, line: int) -> None:
    """Say soon, and every few seconds, what a job's directories hold, until the keeper hangs up."""
    wait_s = _FIRST_LOOK_S
    last: dict[str, scratch.Usage] = {}
    while not select.select([line], [], [], wait_s)[0]:
        record = read_json(os.path.join(directory, SCRATCH_FILE))
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
