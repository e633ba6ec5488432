"""Points that are armed while processes pass them."""

import os
import signal

import pytest

from iodaemon.supervisor import failpoint as fault


@pytest.fixture
def point(tmp_path, monkeypatch):
    monkeypatch.setattr(fault, "_DIRECTORY", str(tmp_path))
    heard = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: heard.append(number))
    yield tmp_path / "here", heard
    signal.signal(signal.SIGUSR1, before)


def arm(path, passage):
    path.write_text(f"{passage} {signal.SIGUSR1:d}")


def test_a_point_fires_at_the_passage_that_was_asked_for_and_once(point):
    path, heard = point
    arm(path, 3)

    for _ in range(2):
        fault.reach("here")
    assert (1, []) == (len(os.listdir(path.parent)), heard)

    for _ in range(3):
        fault.reach("here")
    assert ([], [signal.SIGUSR1]) == (os.listdir(path.parent), heard)


def test_who_may_only_read_the_file_passes_as_well(point, monkeypatch):
    """A job's child is its user already, and the file root's."""
    path, heard = point
    arm(path, 1)
    real = open

    def read_only(name, mode="r"):
        if mode != "r":
            raise PermissionError(13, "Permission denied", name)
        return real(name, mode)

    monkeypatch.setattr("builtins.open", read_only)
    fault.reach("here")
    assert ([], [signal.SIGUSR1]) == (os.listdir(path.parent), heard)

    arm(path, 2)  # cannot be counted down
    fault.reach("here")
    assert (["here"], [signal.SIGUSR1]) == (os.listdir(path.parent), heard)
