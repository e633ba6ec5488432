"""Hearing of a file that got its name."""

import asyncio
import os
from pathlib import Path

from iodaemon.backend.linux.notice import Notices


def hear(directory, *names, watching=True):
    """Rename a file to each of these names in turn; how often the callback for ``status`` ran."""
    heard = []

    async def listen():
        notices = Notices("status")
        watch = notices.add(str(directory), lambda: heard.append(1))
        if not watching:
            notices.remove(watch)
        for name in names:
            (directory / "temporary").write_text("x")
            os.rename(directory / "temporary", directory / name)
        await asyncio.sleep(0.05)
        notices.close()

    asyncio.run(listen())
    return len(heard)


def test_a_file_that_gets_the_name_is_heard_of(tmp_path):
    assert hear(tmp_path, "status") == 1


def test_other_names_are_not_heard_of(tmp_path):
    assert hear(tmp_path, "shim", "output") == 0


def test_a_directory_that_is_watched_no_more_is_not_heard_of(tmp_path):
    assert hear(tmp_path, "status", watching=False) == 0


def test_a_directory_that_does_not_exist_cannot_be_watched(tmp_path):
    async def watch():
        notices = Notices("status")
        found = notices.add(str(tmp_path / "none"), lambda: None)
        notices.remove(found)
        notices.close()
        return found

    assert asyncio.run(watch()) is None


def test_where_the_kernel_lost_count_everybody_is_called(tmp_path):
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    busy, quiet = tmp_path / "busy", tmp_path / "quiet"
    busy.mkdir()
    quiet.mkdir()
    heard = []

    async def listen():
        notices = Notices("status")
        notices.add(str(busy), lambda: None)
        notices.add(str(quiet), lambda: heard.append(1))
        (busy / "0").touch()
        for number in range(most + 1):
            os.rename(busy / str(number % 2), busy / str((number + 1) % 2))
        (quiet / "temporary").touch()
        os.rename(quiet / "temporary", quiet / "status")  # there is no room for this one
        notices.read()
        notices.close()

    asyncio.run(listen())
    assert heard == [1]
