"""A private daemon for one run, and all of it taken away afterwards, whatever happens.

Everything that it starts inherits one environment variable, by which leftovers are found however
they detached themselves.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import toml

from iodaemon.api.client import Client
from iodaemon.calibration.putting import read
from iodaemon.calibration.store import MOST_BYTES
from iodaemon.errors import BackendError, ConfigError, IodaemonError, NoDaemon
from iodaemon.node.sampler.proc_files import is_executing

MARK: Final = "IOD_TRIAL_MARK"
HOME: Final = "daemon"
"""In the directory that it is given."""
RUN: Final = "run"
"""In HOME: the runtime directory of the daemon and its supervisor."""
_PATIENCE_S: Final = 30.0
"""For what takes a fraction of a second on an idle machine."""
_LOOK_S: Final = 0.02
_SELF_END_S: Final = 2.0
"""How long what was told to end is left to end by itself."""
_TAIL_BYTES: Final = 2000
_SUSPENDED: Final = ("RUNNING", "SUSPENDED_IO")
"""The step in a job's life when regulation suspends it."""


class Private:
    """A daemon that is up; ``private`` makes one.

    Attributes:
        client: speaks to it.
        log: what it wrote.
        environment: for the jobs.
    """

    def __init__(self, client: Client, log: Path, mark: str) -> None:
        self.client = client
        self.log = log
        self.environment = {**os.environ, MARK: mark}

    def suspensions(self) -> int:
        """How often a job was suspended for I/O, by the steps of the jobs' lives."""
        steps = self.client.events(since_s=0.0, follow=False)
        return sum((step.get("before"), step.get("after")) == _SUSPENDED for step in steps)


@contextlib.contextmanager
def private(
    base: Path,
    settings: Mapping[str, Any],
    *,
    calibration: Path | None = None,
    launcher: Sequence[str] = (),
) -> Iterator[Private]:
    """A daemon in a directory of its own below this one, gone afterwards with its jobs.

    Args:
        base: made by ``own_directory``; of a short path, for there are sockets in it.
        settings: as in a configuration file; the places are added.
        calibration: a file that this daemon is to find in its state directory. None: none.
        launcher: the words before the daemon's command. They end in an exec of what follows them.

    Raises:
        BackendError: it does not start, or fails; what it wrote last is in the message.
    """
    home = base / HOME
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(mode=0o700)
    config, log_path = home / "config.toml", home / "daemon.log"
    state_dir = home / "state"
    state_dir.mkdir(mode=0o700)
    if calibration is not None:
        with contextlib.suppress(ConfigError, OSError):  # which is told of the disks (machine)
            (state_dir / calibration.name).write_bytes(read(calibration, MOST_BYTES))
    places = {"state_dir": str(state_dir), "runtime_dir": str(home / RUN)}
    config.write_text(toml.dumps({**places, **settings}))
    command = [
        *launcher,
        sys.executable,
        "-P",
        "-m",
        "iodaemon.cli",
        "--config",
        str(config),
        "daemon",
    ]
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, MARK: base.name},
            start_new_session=True,
            cwd="/",
        )
    client = Client(str(home / RUN / "iod.sock"))
    try:
        _connect(client, process, log_path)
        yield Private(client, log_path, base.name)
    finally:
        code = _stop(client, process)
        kill_marked(base.name)
    if code != 0:
        raise BackendError(f"the private daemon ended with code {code}; {_last_words(log_path)}")


def kill_marked(mark: str, *, patience_s: float = _SELF_END_S) -> None:
    """SIGKILL to what a daemon started and did not end: its root side, jobs after a failure.

    Args:
        mark: of all that belongs to it.
        patience_s: how long those that are just ending by themselves may take.
    """
    until_s = time.monotonic() + patience_s
    while (left := _marked(mark)) and time.monotonic() < until_s:
        time.sleep(_LOOK_S)
    while left and time.monotonic() < until_s + _PATIENCE_S:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # a stopped one dies of it as well
        time.sleep(_LOOK_S)
        left = _marked(mark)


def _marked(mark: str) -> list[int]:
    """All processes but this one with the mark in their environment."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if is_executing(int(name)):  # it may hang there, and would not answer
                continue
            if wanted in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                found.append(int(name))
    return found


def _connect(client: Client, process: subprocess.Popen[bytes], log: Path) -> None:
    until_s = time.monotonic() + _PATIENCE_S
    while process.poll() is None and time.monotonic() < until_s:
        with contextlib.suppress(NoDaemon):
            client.jobs()
            return
        time.sleep(_LOOK_S)
    raise BackendError(f"the private daemon does not start; {_last_words(log)}")


def _last_words(log: Path) -> str:
    said = " ".join(log.read_text(errors="replace")[-_TAIL_BYTES:].split())
    return f"it said last: {said or 'nothing'}"


def _stop(client: Client, process: subprocess.Popen[bytes]) -> int:
    """Cancel what still runs, then end the daemon; its exit code."""
    with contextlib.suppress(IodaemonError, OSError):
        left = [job["id"] for job in client.jobs()["jobs"] if job["ended_s"] is None]
        for _ in client.cancel_each(left, grace_s=0.0):
            pass
    process.terminate()
    try:
        return process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
