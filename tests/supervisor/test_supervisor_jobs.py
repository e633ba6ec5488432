"""What a job is told, and what is told of it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from root_side import RootSide, is_alive, state_of, wait_until

pytestmark = pytest.mark.node


def test_a_job_runs_and_ends_with_its_exit_code(root: RootSide) -> None:
    daemon = root.connect()

    report = daemon.run("1.1", "sh", "-c", "exit 42")
    ended = daemon.await_state("1.1", "ended")

    assert report["state"] in ("running", "ended")
    assert {"code": 42, "signal": None} == ended["exit"]
    assert ended["whole"] is True
