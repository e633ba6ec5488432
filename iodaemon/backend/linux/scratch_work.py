"""What is done about jobs' directories on tier disks in processes beside the keeper.

A disk that hangs, a hundred thousand files, a user who works against it: each holds up one process
and nobody else. Standard library only.
"""

from __future__ import annotations

import os
import select
import time
from typing import Final

from iodaemon.backend.linux import scratch
from iodaemon.backend.linux.aside import tell
from iodaemon.backend.linux.protocol import SCRATCH_FILE, read_json
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
    """Remove a job's directories, and say ``removed``, ``unfinished`` or ``kept`` and why."""
    reach("scratch.sweeping")
    try:
        scratch.remove(directory, time.monotonic() + TURN_S)
    except scratch.UnfinishedError:
        word = {"state": "unfinished"}
    except scratch.KeptError as error:
        word = {"state": "kept", "because": str(error)}
    else:
        word = {"state": "removed"}
    tell(line, word)


def watch(directory: str, line: int) -> None:
    """Say soon, and every few seconds, what a job's directories hold, until the keeper hangs up."""
    wait_s = _FIRST_LOOK_S
    while not select.select([line], [], [], wait_s)[0]:
        record = read_json(os.path.join(directory, SCRATCH_FILE))
        if record is None:
            continue
        began_s = time.monotonic()
        used_bytes, files, is_all, is_over = 0, 0, True, False
        for share in record["shares"]:
            try:
                usage = scratch.measure(share, began_s + _LONGEST_LOOK_S)
            except (OSError, scratch.ScratchError):
                is_all = False
                continue
            used_bytes += usage.size_bytes
            files += usage.files
            is_all &= usage.is_all
            is_over |= usage.size_bytes > share["size"]
        state = "over" if is_over else "held"
        usage_told = {"used_bytes": used_bytes, "files": files, "is_all": is_all}
        tell(line, {"state": state, **usage_told})
        wait_s = max(_LOOK_S, _REST * (time.monotonic() - began_s))
