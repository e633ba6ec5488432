"""A private daemon for one run, in a directory of its own; all of it is removed afterwards.

Whatever the daemon starts inherits one environment variable, by which what is left of it is found,
however it detached itself. Directories are used and removed as they were made, whoever else may
write around them; what a trial that was killed left is found by the next one.
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
from iodaemon.calibration.store import read
from iodaemon.errors import BackendError, ConfigError, IodaemonError, NoDaemon
from iodaemon.files import (
    Maker,
    find_left,
    find_maker,
    make_directory,
    new_name,
    open_directory,
    remove_directory,
)
from iodaemon.node.sampler.proc_files import is_executing
from iodaemon.supervisor.anchor import Config, find_base

MARK: Final = "IOD_TRIAL_MARK"
_PREFIX: Final = "iod-trial"
_HOME: Final = "daemon"
"""In the directory that the daemon is given."""
_RUN: Final = "run"
"""In that one: the runtime directory of the daemon and its supervisor."""
_ELSEWHERE: Final = "elsewhere"
"""The file with the path of a directory that goes with the one that it is in."""
_BELONGS: Final = "belongs"
"""The file in that other one with the name of the one that it goes with."""
_LONGEST_BYTES: Final = 4096
"""Of either."""
_PATIENCE_S: Final = 30.0
"""For what takes a fraction of a second on an idle machine."""
_LOOK_S: Final = 0.02
_SELF_END_S: Final = 2.0
"""How long processes that were told to end may take before they are killed."""
_TAIL_BYTES: Final = 2000
_SUSPENDED: Final = ("RUNNING", "SUSPENDED_IO")
"""The step in a job's life when regulation suspends it."""


class Private:
    """A daemon that is up; ``private`` makes one. ``environment`` is for its jobs."""

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
    home = base / _HOME
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(mode=0o700)
    config, log_path, state_dir = home / "config.toml", home / "daemon.log", home / "state"
    state_dir.mkdir(mode=0o700)
    if calibration is not None:
        with contextlib.suppress(ConfigError, OSError):  # ``site`` tells why it is left out
            (state_dir / calibration.name).write_bytes(read(calibration))
    places = {"state_dir": str(state_dir), "runtime_dir": str(home / _RUN)}
    config.write_text(toml.dumps({**places, **settings}))
    command = [sys.executable, "-P", "-m", "iodaemon.cli", "--config", str(config), "daemon"]
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [*launcher, *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, MARK: base.name},
            start_new_session=True,
            cwd="/",
        )
    client = Client(str(home / _RUN / "iod.sock"))
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

    ``patience_s`` is how long those that are just ending by themselves may take.
    """
    until_s = time.monotonic() + patience_s
    while (left := _marked(mark)) and time.monotonic() < until_s + _PATIENCE_S:
        if time.monotonic() >= until_s:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)  # a stopped one dies of it as well
        time.sleep(_LOOK_S)


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


# -- directories -----------------------------------------------------------------------------------


@contextlib.contextmanager
def own_directory(
    parent: Path, *, goes_with: Path | None = None, is_held: bool = False
) -> Iterator[Path]:
    """A new directory in this one, gone afterwards; what a killed trial left there goes first.

    Args:
        goes_with: another one, made so: who finds that one after a kill removes this one as well.
        is_held: the path that is yielded leads to the directory whatever is put at its name, for
            this process and others of the same user, while this one lives.

    Raises:
        OSError: it cannot be made.
    """
    sweep(parent, is_trusted=not is_held)
    path = parent.absolute() / new_name(_PREFIX)
    if goes_with is not None:
        (goes_with / _ELSEWHERE).write_bytes(os.fsencode(path))
    descriptor = make_directory(path)
    try:
        held = Path(f"/proc/{os.getpid()}/fd/{descriptor}")
        if goes_with is not None:
            (held / _BELONGS).write_text(goes_with.name)
        yield held if is_held else path
    finally:
        kill_marked(path.name)
        _remove(path.name, descriptor)


def sweep(parent: Path, *, is_trusted: bool = True) -> None:
    """End and remove what trials of this user left here that were killed themselves.

    ``is_trusted``: nobody else may change names there. Where others can, any directory of this
    user's may bear such a name, and only what a trial made has its mark in it.
    """
    for path in find_left(parent, _PREFIX):
        with contextlib.suppress(OSError):  # somebody else's, or swept by another one just now
            descriptor = open_directory(path)
            belongs = _maker(os.fsdecode(_read(_BELONGS, descriptor)))
            if not is_trusted and belongs != _maker(path.name):
                os.close(descriptor)
                continue
            kill_marked(path.name, patience_s=0.0)
            _remove(path.name, descriptor)


def _remove(name: str, descriptor: int) -> None:
    """The directory that was made with this name, what goes with it, and cgroups; closes it."""
    try:
        _remove_other(name, descriptor)
        base = find_base(Config(f"/proc/self/fd/{descriptor}/{_HOME}/{_RUN}", os.geteuid()))
        if base is not None:
            _remove_cgroups(Path(base))
        remove_directory(descriptor)
    finally:
        os.close(descriptor)


def _remove_other(name: str, descriptor: int) -> None:
    """What this one says goes with it, where that says so too; or is empty, as it was made."""
    path = Path(os.fsdecode(_read(_ELSEWHERE, descriptor)))
    maker = _maker(path.name)
    if maker is None or maker != _maker(name):
        return
    with contextlib.suppress(OSError):  # it is gone, or was never made
        other = open_directory(path)
        try:
            if not os.listdir(other) or _read(_BELONGS, other) == name.encode():
                remove_directory(other)
        finally:
            os.close(other)


def _maker(name: str) -> Maker | None:
    return find_maker(name, _PREFIX)


def _read(name: str, directory: int) -> bytes:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        file = os.open(name, flags, dir_fd=directory)
    except OSError:
        return b""
    with open(file, "rb", buffering=0) as opened:
        return opened.read(_LONGEST_BYTES) or b""


def _remove_cgroups(tree: Path) -> None:
    """Those that are empty; a process that was just killed is in one a moment longer."""
    until_s = time.monotonic() + _PATIENCE_S
    while tree.is_dir() and time.monotonic() < until_s:
        for place, _, _ in os.walk(tree, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(place)
        time.sleep(_LOOK_S)
