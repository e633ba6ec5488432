"""What is below a directory that is copied, and whether it still is that. Standard library only."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from iodaemon.backend.linux.manifest import kind_of
from iodaemon.backend.linux.stage_file import StageError, version

Census = dict[str, os.stat_result]
"""By name below the top, each directory before what is in it."""


def walk(top: str) -> Iterator[tuple[str, os.stat_result]]:
    """All below a directory, each directory before what is in it; no link is followed.

    Raises:
        OSError: a directory cannot be read, or is gone.
    """
    waiting = [""]
    while waiting:
        place = waiting.pop()
        with os.scandir(os.path.join(top, place) if place else top) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
        for entry in found:
            name = os.path.join(place, entry.name)
            status = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                waiting.append(name)
            yield name, status


def refuse_change(top: str, before: Census) -> None:
    """Make sure that below a directory there is what was there before, and nothing else.

    Raises:
        StageError: names the first difference.
        OSError: a directory cannot be read, or is gone.
    """
    there = set()
    for name, found in walk(top):
        if not kind_of(found):
            continue
        was = before.get(name)
        if was is None:
            raise StageError(f"{os.path.join(top, name)!a} appeared while the input was copied")
        is_same = kind_of(was) == kind_of(found)
        if not is_same or not (stat.S_ISDIR(found.st_mode) or version(was) == version(found)):
            raise StageError(f"{os.path.join(top, name)!a} changed while it was copied")
        there.add(name)
    for name, was in before.items():
        if kind_of(was) and name not in there:
            raise StageError(f"{os.path.join(top, name)!a} vanished while it was copied")
