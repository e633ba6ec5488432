"""Points that are armed while processes pass them."""

import os
import signal

from iodaemon.supervisor import failpoint as fault


def test_a_point_fires_at_the_passage_that_was_asked_for_and_once(tmp_path, monkeypatch):
    """Who may only read the file passes as well: a job's child is its user already."""
    monkeypatch.setattr(fault, "_DIRECTORY", str(tmp_path))
    real, heard = open, []

    def read_only(name, mode="r"):
        if mode != "r":
            raise PermissionError(13, "Permission denied", name)
        return real(name, mode)

    def passed(armed=None):
        """The points that are armed after a passage, and how many signals came until then."""
        if armed:
            (tmp_path / "here").write_text(f"{armed} {signal.SIGUSR1:d}")
        fault.reach("here")
        return os.listdir(tmp_path), len(heard)

    before = signal.signal(signal.SIGUSR1, lambda *_: heard.append(1))
    try:
        assert [(["here"], 0), ([], 1), ([], 1)] == [passed(armed=2), passed(), passed()]

        monkeypatch.setattr("builtins.open", read_only)
        assert ([], 2) == passed(armed=1)
        assert (["here"], 2) == passed(armed=2)  # cannot be counted down
    finally:
        signal.signal(signal.SIGUSR1, before)
