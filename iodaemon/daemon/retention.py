"""Finds the output files of jobs that ended long ago."""

from __future__ import annotations

import os
from pathlib import Path

from iodaemon.supervisor.ledger import Key, parse_key


def find_old_outputs(outputs: Path, before_s: float) -> list[Key]:
    """Attempts whose output file, or report, was last written before this time.

    Only names that are a key are looked at. A job that still runs may be among them.
    """
    old: dict[Key, bool] = {}
    try:
        entries = os.scandir(outputs)
    except OSError:
        return []
    with entries:
        for entry in entries:
            try:
                key = parse_key(entry.name.removesuffix(".report"))
                is_old = entry.stat(follow_symlinks=False).st_mtime < before_s
            except (OSError, ValueError):
                continue
            old[key] = old.get(key, True) and is_old
    return sorted(key for key, is_old in old.items() if is_old)
