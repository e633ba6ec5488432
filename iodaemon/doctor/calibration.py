"""What was measured of the disks, and whether it still fits."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from iodaemon.calibration.record import Kept, find_problem, known_leaves
from iodaemon.calibration.store import AGAIN, load, why_unread
from iodaemon.doctor.finding import Finding, broken, judge, lacking
from iodaemon.errors import ConfigError
from iodaemon.node.devices import find_identity, leaf_devices
from iodaemon.units import format_rate

_WHAT: Final = "calibration"
_WITHOUT: Final = "what a lone request takes is learned while jobs run, and guessed until then"
_RELOAD: Final = "'iod config reload'"

Row = Mapping[str, Any]
"""One disk, as in the answer of ``GET /v1/node``."""


def examine_calibration(state_dir: Path, node: Mapping[str, Any] | None) -> Iterator[Finding]:
    """By the word of the daemon that runs, else by what it would find.

    Raises:
        PermissionError: what is kept may not be read, and no daemon answers.
    """
    problem = str((node or {}).get("calibration_problem", ""))
    if problem:
        yield _judge_problem(problem)
        return
    kept = Kept()
    try:
        kept = load(state_dir)
    except PermissionError:
        if node is None:  # else it is that daemon's, which may read it
            raise
    except (ConfigError, OSError) as error:
        fact, _, remedy = why_unread(state_dir, error).partition("; ")
        yield broken(_WHAT, fact, cost=_WITHOUT, remedy=remedy)
        return
    yield from judge_calibration(probe_calibration(kept) if node is None else _told(node))


def _judge_problem(problem: str) -> Finding:
    """What the daemon that runs says of a file that it has left out, with what to do."""
    shown, _, remedy = problem.partition("; ")
    if _RELOAD not in remedy:
        remedy = f"{remedy}; then {_RELOAD}"
    return broken(_WHAT, f"{shown}, when the daemon read it", cost=_WITHOUT, remedy=remedy)


def _told(node: Mapping[str, Any]) -> list[Row]:
    rows = node.get("calibration", [])
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def probe_calibration(kept: Kept) -> list[Row]:
    """What is kept of the disks of this machine."""
    identities = {device.id: find_identity(device.id) for device in leaf_devices()}
    release = os.uname().release
    return [
        {
            "device": name,
            "measured_s": made.at_s,
            "loaded_bytes_per_s": made.loaded_bytes_per_s,
            "problem": find_problem(made, release),
        }
        for name, (made, _) in known_leaves(kept, identities).items()
    ]


def judge_calibration(rows: Sequence[Row]) -> Iterator[Finding]:
    """Each disk that was measured; that none was."""
    if not rows:
        yield lacking(
            _WHAT,
            "no disk of this machine was measured",
            cost=_WITHOUT,
            remedy="'iod calibrate PATH' on a disk, when the machine is quiet",
        )
    for row in rows:
        when = time.strftime("%Y-%m-%d", time.localtime(row["measured_s"]))
        carried = format_rate(row["loaded_bytes_per_s"])
        what = f"{_WHAT} of {row['device']}"
        shown = f"{when}: {carried} with all sockets loaded"
        values = {"device": row["device"], "measured_s": row["measured_s"]}
        shown += f"; {row['problem']}" if row["problem"] else ""
        cost = "waits are held against what may not be so any more"
        yield judge(not row["problem"], what, shown, values, cost=cost, remedy=AGAIN)
