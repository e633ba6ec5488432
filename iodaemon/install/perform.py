"""Does what a plan says, step by step, and tells each one once it is done."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterable
from typing import Final

from iodaemon.errors import RequestError
from iodaemon.install.host import Host
from iodaemon.install.step import (
    Delete,
    DeleteFolder,
    DeleteStore,
    DeleteTree,
    EndJobs,
    Leave,
    Put,
    Run,
    Save,
    Step,
    Tell,
    done_line_of,
)

_PATIENCE_S: Final = 300.0
"""For one command; systemd itself gives up on a unit much earlier."""


def perform(
    steps: Iterable[Step],
    host: Host,
    *,
    end_jobs: Callable[[tuple[int, ...]], None],
    tell: Callable[[str], None],
) -> None:
    """Do all steps in order; the first that fails is the last.

    Args:
        steps: the plan.
        host: where.
        end_jobs: cancels jobs, by number, and returns when they are gone or cannot be had.
        tell: is given one line for each step.

    Raises:
        RequestError: a step failed; what it was, and what to do.
    """
    for step in steps:
        try:
            is_done = _do(step, host, end_jobs)
        except OSError as error:
            line = f"{error.filename or step}: {error.strerror or error}"
            raise RequestError(f"{line}; mend that, then repeat") from error
        if is_done:
            tell(done_line_of(step))


def _do(step: Step, host: Host, end_jobs: Callable[[tuple[int, ...]], None]) -> bool:
    """True when there was something to do."""
    match step:
        case Put(path):
            _put(host.at(path), step)
        case Save(path):
            os.replace(host.at(path), host.at(f"{path}.saved"))
        case Delete(path):
            return _found(os.unlink, host.at(path))
        case DeleteTree(path):
            return _found(shutil.rmtree, host.at(path))
        case DeleteFolder(path):
            with contextlib.suppress(OSError):  # not empty: somebody else's
                return _found(os.rmdir, host.at(path))
            return False
        case DeleteStore(path):
            return _delete_store(host.at(path))
        case Leave(_, paths):
            return any(os.path.lexists(host.at(path)) for path in paths)
        case Run():
            return _run(step)
        case EndJobs(ids):
            end_jobs(ids)
        case Tell():
            pass
    return True


def _found(remove: Callable[[str], object], path: str) -> bool:
    try:
        remove(path)
    except FileNotFoundError:
        return False
    return True


_OF_EARLIER: Final = "id"
"""A file that earlier releases made in a store."""


def _delete_store(path: str) -> bool:
    """True when it was there, and no job had anything in it."""
    if os.path.islink(path) or not os.path.isdir(path) or {*os.listdir(path)} - {_OF_EARLIER}:
        return False
    _found(os.unlink, os.path.join(path, _OF_EARLIER))
    return _found(os.rmdir, path)


def _put(path: str, step: Put) -> None:
    """By rename: who reads it meanwhile finds the old or the new one."""
    os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
    new = f"{path}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(new)
    if step.item.kind == "link":
        os.symlink(step.item.text, new)
    else:
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        with open(fd, "w", encoding="utf-8") as file:
            file.write(step.item.text)
            file.flush()
            os.fchmod(fd, 0o644)
            os.fsync(fd)
    os.replace(new, path)


def _run(step: Run) -> bool:
    """True when it did its work.

    Raises:
        RequestError: it did not, and must.
    """
    shown = shlex.join(step.words)
    try:
        ended = subprocess.run(
            step.words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=_PATIENCE_S,
        )
    except FileNotFoundError as error:
        raise RequestError(f"{step.words[0]}: not found; '{shown}' is needed") from error
    except subprocess.TimeoutExpired as error:
        raise RequestError(f"'{shown}' did not end within {_PATIENCE_S:g} s") from error
    if ended.returncode != 0 and not step.may_fail:
        said = " ".join((ended.stderr or ended.stdout).split()) or f"exit code {ended.returncode}"
        raise RequestError(f"'{shown}' failed: {said}")
    return ended.returncode == 0
