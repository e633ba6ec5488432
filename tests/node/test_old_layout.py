"""Jobs that a release with a keeper left running are found, by its files and by the kernel."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from iodaemon.errors import HopelessError
from iodaemon.node import root_side
from iodaemon.node.old_layout import refuse_old_jobs
from iodaemon.supervisor.ledger import read_boot_id
from iodaemon.supervisor.reap import parse_start_ticks

pytestmark = pytest.mark.node

SHIM = {
    "pid": 17787, "start_ticks": 1186892, "boot_id": read_boot_id(), "main_pid": 1 << 30,
    "main_start_ticks": 1187163, "uid": 0, "freezer": "signals", "cgroup": None,
    "started_s": 1795691904.773695, "started_monotonic_s": 11871.636776885,
    "baseline": [0, 0, 6], "baseline_logical_bytes": 3959,
}  # fmt: skip
"""As version 0.1 wrote it, of a job without anything that lives."""
STATUS = {
    "exit": {"code": 0, "signal": None}, "io": {"read_bytes": 0, "written_bytes": 0},
    "started_s": 1795691904.8, "ended_s": 1795691905.1,
}  # fmt: skip
LOCK = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
print(flush=True)
sys.stdin.read()
"""


class OldState:
    """The state directory of such a release, with its processes that live."""

    def __init__(self, path: Path, processes: ExitStack) -> None:
        self.path = path
        self._processes = processes

    def attempt(self, key: str, **shim: object) -> Path:
        """One that nobody keeps."""
        place = self.path / "jobs" / key
        place.mkdir(parents=True, mode=0o700)
        (place / "shim.lock").touch(0o600)
        (place / "shim.json").write_text(json.dumps({**SHIM, **shim}, separators=(",", ":")))
        (place / "output").touch()
        return place

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._processes.enter_context(process)
        self._processes.callback(process.kill)
        return process

    def keep(self, place: Path) -> None:
        """Have a shim that holds the lock."""
        shim = self.start(sys.executable, "-c", LOCK, str(place / "shim.lock"))
        assert shim.stdout is not None
        assert shim.stdout.readline() == b"\n"

    def refusal(self) -> str:
        """Empty: nothing is refused."""
        try:
            refuse_old_jobs(self.path)
        except HopelessError as error:
            return str(error)
        return ""


@pytest.fixture
def old(tmp_path: Path) -> Iterator[OldState]:
    with ExitStack() as processes:
        yield OldState(tmp_path / "state", processes)


def test_jobs_that_have_a_shim_are_named_with_the_cure(old: OldState) -> None:
    for key in ("2.1", "1.3", "4.1"):
        place = old.attempt(key)
        if key != "4.1":
            old.keep(place)

    assert old.refusal() == (
        f"an earlier release of iodaemon runs jobs 1.3 2.1 (in {old.path}/jobs), "
        "which this one cannot take over; install that one again and 'iod drain --wait' first"
    )


def test_a_job_whose_shim_was_killed_runs_while_its_first_process_does(old: OldState) -> None:
    first = old.start("sleep", "1000")
    ticks = parse_start_ticks(Path(f"/proc/{first.pid}/stat").read_bytes())
    old.attempt("1.1", main_pid=first.pid, main_start_ticks=ticks)
    old.attempt("2.1", main_pid=first.pid, main_start_ticks=ticks + 1)  # the number is another's

    assert "runs jobs 1.1 (in" in old.refusal()

    first.kill()
    first.wait()

    assert "" == old.refusal()


def test_a_job_whose_shim_was_killed_runs_while_its_cgroup_has_processes(
    old: OldState, tmp_path: Path
) -> None:
    members = tmp_path / "cgroup.procs"
    members.write_text("812\n")
    old.attempt("1.1", cgroup=str(tmp_path), freezer="cgroup")
    old.attempt("2.1", cgroup=str(tmp_path / "gone"), freezer="cgroup")

    assert "runs jobs 1.1 (in" in old.refusal()

    members.write_text("")

    assert "" == old.refusal()


def test_what_has_ended_or_cannot_run_any_more_is_no_hindrance(old: OldState) -> None:
    old.keep(ended := old.attempt("1.1"))  # its shim goes on to the next job
    (ended / "status.json").write_text(json.dumps(STATUS))
    first = old.start("sleep", "1000")
    ticks = parse_start_ticks(Path(f"/proc/{first.pid}/stat").read_bytes())
    main = {"main_pid": first.pid, "main_start_ticks": ticks}
    old.attempt("2.1", **main, boot_id="2bb0c6fe-9a3a-49eb-9ee7-000000000000")
    (old.attempt("3.1") / "shim.json").write_text('{"pid":177')
    (old.attempt("4.1") / "shim.json").write_text('{"given_up":true,"pid":1}')
    (old.path / "jobs" / "5.1").mkdir()
    (old.path / "keeper.json").write_text("{}")

    assert "" == old.refusal()


def test_the_root_side_of_a_service_refuses_what_its_daemon_may_not_see(old: OldState) -> None:
    old.keep(old.attempt("1.1"))
    old.path.chmod(0o700)

    with pytest.raises(HopelessError, match="earlier release"):
        root_side._prepare(old.path)
