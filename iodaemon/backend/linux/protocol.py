"""The language of daemon and keeper, and the files of a job's directory.

One JSON object a line over a unix stream socket, versioned. Requests carry ``id`` and ``verb``;
each is answered, not necessarily in order, by an object with the same ``id`` and either
``ok`` or ``error``. Standard library only.

A keeper outlives an upgrade, so both sides speak a range of versions: hello names the daemon's
oldest (``version``) and ``newest``, and the keeper answers with the newest that both speak. A
keeper of version 1 knows no range and takes ``version`` for the one. A verb or a field that a side
does not know is no reason to change the version: a verb is refused, a field left as it is.
    1: the first.
    2: an answer with ``error`` may have a ``code``: ``no_verb``.

Verbs:
    hello {version, newest, state}       -> {version, pid, freezer, detail, controls}; state
                                            is the directory the daemon means, by its real path
    start {job, attempt, launch}         -> {shim: {...}, alive} or {status: {...}} or
                                            {never_ran}; asked again: what is there
    freeze {job, attempt}                -> {frozen: true} once every process stands still
    thaw {job, attempt}                  -> {frozen: false}
    cap {job, attempt, caps}             -> {capped}; at most so many bytes/s, by disk (M:m):
                                            [read, written], null: any. No others hold any more;
                                            {} and ``thaw`` end them all
    kill {job, attempt, signal}          -> {signalled: N}; SIGKILL takes all at once; of a job
                                            that is being started it waits until it runs
    list {jobs: [[job, attempt], ...]}   -> {jobs: [{job, attempt, frozen, ...as start}]}
    tidy {job, attempt}                  -> {}; the cgroup of an ended job is removed
    retire {before_s, most}              -> {removed: N}; directories of jobs that ended before
    scratch {job, attempt, measure,      -> {state, because, is_result, used_bytes, is_over,
             free}                          is_all} of its directories on tier disks: they are
                                            removed, with ``free`` also if they contain a result;
                                            with ``measure`` they are only looked at. States:
                                            removed, kept, unfinished, used (a process of the job
                                            is left), silent (the disk), lost (what removed
                                            them was killed), held (measured)
    leave {}                             -> {jobs: N}; the keeper ends once no shim is alive
"""

from __future__ import annotations

import json
import os
import signal
from typing import Any, Final

from iodaemon.fault import reach

VERSION: Final = 2
OLDEST_VERSION: Final = 1
"""What a daemon or keeper of this package can still speak: at least the version before."""
NO_VERB: Final = "no_verb"
"""The code of a request whose verb the keeper does not know."""
SHIM_FILE: Final = "shim.json"
SHIM_LOCK_FILE: Final = "shim.lock"
"""Locked by the shim for as long as it serves the attempt, so that the kernel knows which process
it is even if ``shim.json`` cannot be read."""
STATUS_FILE: Final = "status.json"
OUTPUT_FILE: Final = "output"
SCRATCH_FILE: Final = "scratch.json"
"""The directories on tier disks that were made for the attempt; gone once they are."""
STAGE_FILE: Final = "stage.json"
"""Which step of the job is under way: ``in`` (prolog), ``run`` or ``out`` (epilog)."""
TOLD_FILE: Final = "told"
"""The keeper has told the job to end; what else tells it so comes from outside."""
STOPPED_FILE: Final = "stopped.json"
"""The processes outside of the job's session that signals hold; without its shim only this file
says that they are the job's."""
KEEPER_FILE: Final = "keeper.json"
LOCK_FILE: Final = "keeper.lock"
"""Held by the keeper (exclusively) and by a shim while it thaws without one (shared)."""
_CHUNK_BYTES: Final = 65536
_LARGEST_NUMBER: Final = 2**63 - 1
"""Of jobs, in the journal; a name of such numbers is no path and fits a directory."""
LARGEST_LINE_BYTES: Final = 8 * 1024 * 1024
"""A request above this is refused: the largest environment Linux can exec is 6 MiB."""

Message = dict[str, Any]
_OF_A_JOB: Final = ("start", "freeze", "thaw", "cap", "kill", "tidy", "scratch")
"""Verbs that are about one attempt."""
_to_text: Final = json.JSONEncoder(separators=(",", ":")).encode


def encode(message: Message) -> bytes:
    """One line."""
    return _to_text(message).encode() + b"\n"


def split_lines(buffer: bytearray) -> list[Message]:
    """Take all complete lines out of the buffer and decode them.

    Raises:
        ValueError: a line is not a JSON object, or is too long.
    """
    messages: list[Message] = []
    while (end := buffer.find(b"\n")) >= 0:
        try:
            message = json.loads(buffer[:end])
        except RecursionError as error:
            raise ValueError("a message is nested too deeply") from error
        del buffer[: end + 1]
        if not isinstance(message, dict):
            raise ValueError("a message is a JSON object")  # noqa: TRY004 - one kind for the caller
        messages.append(message)
    if len(buffer) > LARGEST_LINE_BYTES:
        raise ValueError(f"a message is longer than {LARGEST_LINE_BYTES} bytes")
    return messages


def read_line(pipe: int) -> bytes:
    """What comes through the pipe up to the end of a line or of the pipe; it stays open."""
    data = b""
    while not data.endswith(b"\n") and (chunk := os.read(pipe, _CHUNK_BYTES)):
        data += chunk
    return data


def common_version(hello: Message) -> int | None:
    """The newest version that both the daemon of this request and this keeper speak; None: none."""
    oldest: int = hello["version"]
    newest: int = hello.get("newest", oldest)
    common = min(VERSION, newest)
    return common if common >= max(OLDEST_VERSION, oldest) else None


def find_discord(hello: Message, pid: int, state: str) -> tuple[str, str] | None:
    """Why a keeper cannot serve the daemon that greets it so, for its log and for the daemon.

    Args:
        hello: the request.
        pid: the keeper's.
        state: the keeper's directory.
    """
    theirs, theirs_state, runs = hello["version"], hello.get("state"), f"that runs (pid {pid})"
    if common_version(hello) is None:
        speaks = f"speaks protocol {VERSION}, not {theirs}; it ends by itself when its jobs have"
        return f"that speaks protocol {theirs}, not {VERSION}", f"the keeper {runs} {speaks}"
    if theirs_state != state:
        keeps = f"keeps the jobs of {state}; give this daemon another runtime_dir"
        return f"of {theirs_state}", f"the keeper {runs} {keeps}"
    return None


def job_key(job: int, attempt: int) -> str:
    """The name of a job's directory and cgroup: ``<job>.<attempt>``.

    Raises:
        ValueError: it would be a name that ``parse_job_key`` does not know again.
    """
    if not (0 <= job <= _LARGEST_NUMBER and 0 <= attempt <= _LARGEST_NUMBER):
        raise ValueError(f"no job {job}.{attempt}")
    return f"{job}.{attempt}"


def key_of(request: Message) -> str:
    """The key of the attempt that the request is about; empty where it is about none.

    Raises:
        LookupError, TypeError, ValueError: it names none, or no such one.
    """
    if request["verb"] not in _OF_A_JOB:
        return ""
    return job_key(int(request["job"]), int(request["attempt"]))


def signal_of(request: Message) -> signal.Signals:
    """What is to be sent.

    Raises:
        LookupError, TypeError, ValueError: no such signal.
    """
    return signal.Signals(int(request["signal"]))


def parse_job_key(name: str) -> tuple[int, int] | None:
    """The job and attempt of such a name; None for any other name."""
    job, dot, attempt = name.partition(".")
    if dot and job.isascii() and job.isdigit() and attempt.isascii() and attempt.isdigit():
        return int(job), int(attempt)
    return None


def write_json(path: str, value: Message, *, durable: bool) -> None:
    """Replace the file by atomic rename; with ``durable`` it is on the disk on return.

    It has its name before it is on the disk, so that readers need not wait for the disk. A power
    failure in between may leave a file that cannot be read.
    """
    temporary = f"{path}.{os.getpid()}"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        try:
            _write_all(fd, encode(value))
        except BaseException:
            os.unlink(temporary)
            raise
        reach("file.written", os.path.basename(path))
        os.rename(temporary, path)
        reach("file.named", os.path.basename(path))
        if durable:
            os.fsync(fd)
    finally:
        os.close(fd)
    if durable:
        reach("file.synced", os.path.basename(path))
        sync_directory(os.path.dirname(path))


def _write_all(fd: int, data: bytes) -> None:
    """A disk that is nearly full takes a part, and refuses the rest."""
    while data:
        data = data[os.write(fd, data) :]


def sync_directory(path: str) -> None:
    """Make renames in the directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_file(path: str) -> None:
    """Make what is in the file durable."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def claim(path: str, value: Message) -> bool:
    """Create the file with this content if there is none; False when somebody was first."""
    temporary = f"{path}.claim.{os.getpid()}"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        try:
            _write_all(fd, encode(value))
        finally:
            os.close(fd)
        reach("claim.written")
        os.link(temporary, path)
        reach("claim.linked")
    except FileExistsError:
        return False
    finally:
        os.unlink(temporary)
    return True
