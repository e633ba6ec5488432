"""Files of requests for storage: StorAlloc's own YAML, its two CSV files of Theta, and ours.

- YAML, a list ``jobs`` of ``id``, ``startTime``, ``endTime``, ``writtenBytes``, ``readBytes``; or
  CSV with these columns: wanted is the larger of both, from the start to the end.
- CSV of Darshan beside CSV of the scheduler (``DARSHAN``, ``SCHEDULER``), joined by job: the filter
  of the published extraction, which is ``or`` where the paper says ``and``.
- Ours (``COLUMNS``): sizes in bytes, times in seconds.

All may be ``.gz``. A request without bytes is left out, as StorAlloc leaves it out; what makes no
sense is told in a line each.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from iodaemon.core.storage import StorageRequest
from iodaemon.errors import NotFound, RequestError

COLUMNS: Final = ("id", "size_bytes", "start_s", "end_s")
FIELDS: Final = ("id", "startTime", "endTime", "writtenBytes", "readBytes")
"""Of StorAlloc."""
DARSHAN: Final = (
    *("COBALT_JOBID", "NPROCS", "RUN_TIME", "TOTAL_MPIIO_BYTES_READ"),
    *("TOTAL_MPIIO_BYTES_WRITTEN", "TOTAL_MPIIO_F_WRITE_TIME"),
)
SCHEDULER: Final = ("COBALT_JOBID", "START_TIMESTAMP", "END_TIMESTAMP")
LEAST_WRITE_PART: Final = 0.1
"""Of a job's run time in MPI-IO writes, mean over its processes: from then on it is one."""
LEAST_BYTES: Final = 10e9
"""Or with so many bytes read, or written."""
_Row = Mapping[str, Any]


class Requests(msgspec.Struct, frozen=True, kw_only=True):
    """What a file holds.

    Attributes:
        requests: at least one, in the order of the file.
        problems: a line for each that was left out.
    """

    requests: tuple[StorageRequest, ...]
    problems: tuple[str, ...] = ()


def read_requests(path: Path, scheduler: Path | None = None) -> Requests:
    """The requests of a file, whichever of the kinds it is.

    Args:
        path: YAML (``.yml``, ``.yaml``) or CSV.
        scheduler: the second file of the pair, if ``path`` is the Darshan one.

    Raises:
        NotFound: there is no such file.
        RequestError: it cannot be read, is none of the kinds, or has no request.
    """
    text = read_text(path)
    name = path.name.removesuffix(".gz")
    if name.endswith((".yml", ".yaml")):
        return _gathered(path, _jobs(_parse_yaml(text, path), path), _of_storalloc)
    rows = csv.DictReader(io.StringIO(text, newline=""))
    names = rows.fieldnames or ()
    if not set(COLUMNS).difference(names):
        return _gathered(path, _numbered(rows), _of_ours)
    if not set(FIELDS).difference(names):
        return _gathered(path, _numbered(rows), _of_storalloc)
    if not set(DARSHAN).difference(names):
        return _gathered(path, _joined(rows, path, scheduler), _of_darshan)
    raise RequestError(
        f"{path}: its columns are of no known kind; write {', '.join(COLUMNS)} or "
        f"{', '.join(FIELDS)}"
    )


def read_text(path: Path) -> str:
    """The text of a file, unpacked where its name ends in ``.gz``.

    Raises:
        NotFound: there is none.
        RequestError: it cannot be read.
    """
    try:
        content = path.read_bytes()
        return (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
    except FileNotFoundError as error:
        raise NotFound(f"{path} does not exist") from error
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise RequestError(f"{path} cannot be read: {error}") from error


def csv_lines(requests: Iterable[StorageRequest]) -> Iterable[str]:
    """The requests in our own CSV, line by line."""
    yield ",".join(COLUMNS)
    for request in requests:
        times = f"{request.start_s!r},{request.end_s!r}"
        yield f"{request.id},{request.size_bytes},{times}"


def _numbered(rows: csv.DictReader[str]) -> Iterable[tuple[str, _Row]]:
    for row in rows:
        yield str(rows.line_num), row


def _parse_yaml(text: str, path: Path) -> Any:
    """The document; every scalar is text, times and numbers too."""
    try:
        import yaml
    except ImportError as error:
        raise RequestError(f"{path} is read by PyYAML: pip install 'iodaemon[sim]'") from error
    loader: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # five times as fast in C
    try:
        return yaml.load(text, loader)  # noqa: S506 - makes nothing but text, lists and tables
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or error
        raise RequestError(f"{path}{line}: {' '.join(str(problem).split())}") from error


def _jobs(document: Any, path: Path) -> Iterable[tuple[str, _Row]]:
    jobs = document.get("jobs") if isinstance(document, dict) else None
    if not isinstance(jobs, list):
        raise RequestError(f"{path}: there is no list 'jobs' in it")
    for number, job in enumerate(jobs, start=1):
        row = job if isinstance(job, dict) else {}
        yield f" entry {number}" + (f" (id {row['id']})" if "id" in row else ""), row


def _joined(
    rows: csv.DictReader[str], path: Path, scheduler: Path | None
) -> Iterable[tuple[str, _Row]]:
    """Each row of Darshan with the times that the scheduler has of its job."""
    if scheduler is None:
        raise RequestError(
            f"{path} has what Darshan counted; name the scheduler's CSV of the same jobs as well "
            f"(columns {', '.join(SCHEDULER)})"
        )
    others = csv.DictReader(io.StringIO(read_text(scheduler), newline=""))
    lacking = [name for name in SCHEDULER if name not in (others.fieldnames or ())]
    if lacking:
        raise RequestError(f"{scheduler}: no column {', '.join(lacking)}")
    times = {row["COBALT_JOBID"].partition(".")[0]: row for row in others}
    for row in rows:
        job = row["COBALT_JOBID"].partition(".")[0]
        yield str(rows.line_num), {**row, **times.get(job, {}), "COBALT_JOBID": job}


def _gathered(
    path: Path,
    rows: Iterable[tuple[str, _Row]],
    read: Callable[[_Row], StorageRequest | None],
) -> Requests:
    requests: list[StorageRequest] = []
    problems: list[str] = []
    try:
        for number, row in rows:
            try:
                request = read(row)
            except (ValueError, KeyError, OverflowError) as error:
                problems.append(f"{path}:{number}: left out: {_said(error)}")
                continue
            if request is not None:
                requests.append(request)
    except csv.Error as error:
        raise RequestError(f"{path} cannot be read: {error}") from error
    if not requests:
        raise RequestError("; ".join((f"{path} has no request", *problems[:1])))
    return Requests(requests=tuple(requests), problems=tuple(problems))


def _said(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"it has no {error.args[0]}"
    return " ".join(str(error).split())


def _request(name: str, size_bytes: float, start_s: float, end_s: float) -> StorageRequest | None:
    """The request; None where it wants nothing."""
    if not (math.isfinite(start_s) and start_s < end_s):
        raise ValueError("its end is not after its start")
    if not 0.0 <= size_bytes < math.inf:
        raise ValueError(f"{size_bytes:g} bytes are no size")
    if size_bytes < 1:
        return None
    return StorageRequest(id=name, size_bytes=int(size_bytes), start_s=start_s, end_s=end_s)


def _of_ours(row: _Row) -> StorageRequest | None:
    size, start, end = (_number(row, name) for name in COLUMNS[1:])
    return _request(str(row["id"]), size, start, end)


def _of_storalloc(row: _Row) -> StorageRequest | None:
    size = max(_number(row, "writtenBytes"), _number(row, "readBytes"))
    return _request(str(row["id"]), size, _moment_s(row, "startTime"), _moment_s(row, "endTime"))


def _of_darshan(row: _Row) -> StorageRequest | None:
    """The request of a job that the published extraction takes; None of any other."""
    read = _number(row, "TOTAL_MPIIO_BYTES_READ")
    written = _number(row, "TOTAL_MPIIO_BYTES_WRITTEN")
    run_s, ranks = _number(row, "RUN_TIME"), _number(row, "NPROCS")
    if not (run_s > 0.0 and ranks > 0.0):
        raise ValueError("RUN_TIME and NPROCS must be above 0")
    part = _number(row, "TOTAL_MPIIO_F_WRITE_TIME") / ranks / run_s
    if part < LEAST_WRITE_PART and max(read, written) < LEAST_BYTES:
        return None
    start_s, end_s = _moment_s(row, "START_TIMESTAMP"), _moment_s(row, "END_TIMESTAMP")
    return _request(str(row["COBALT_JOBID"]), max(read, written), start_s, end_s)


def _number(row: _Row, name: str) -> float:
    value = row[name]
    if isinstance(value, int):
        return value
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name} is {value!r}, no number") from None


def _moment_s(row: _Row, name: str) -> float:
    value = row[name]
    try:
        moment = datetime.fromisoformat(str(value))
    except ValueError:
        raise ValueError(f"{name} is {value!r}, no time") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return moment.timestamp()
