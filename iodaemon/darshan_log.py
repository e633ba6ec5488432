"""What a Darshan log tells of one run: read with Darshan's own library, in a process for that.

``python -m iodaemon.darshan_log SECONDS`` reads paths from standard input, one a line as JSON
strings, and answers each with one line: an object with what the run moved, or with ``problem``.
The library is C. A damaged log may crash it, and a log that it merely complained of was seen to
make it refuse the next one, which was whole: so each log is read in a fork of its own, which has
so many seconds.

What counts (Darshan 3.x, ``darshan-*-log-format.h``), summed over all records of a log:

1. Bytes and requests of the lowest layers: POSIX, STDIO, and DFS or else DAOS. Each byte is once in
   them: MPI-IO, HDF5 and PnetCDF go through one of these. Without any, MPI-IO counts.
2. Time in reading, writing and opening of the same layers. It is cumulated over the processes,
   also in records that all share: their mean is it over ``nprocs``. Of times below 0, which runs
   under Darshan 3.1 have, nothing is taken.
3. STDIO's requests are those of its buffers, of 4 KiB (glibc), where the program made more calls.

Bytes are those the program read and wrote, from the page cache or not.
"""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

MODULES: Final = ("POSIX", "STDIO", "DFS", "DAOS", "MPI-IO")
_STDIO_BUFFER_BYTES: Final = 4096
_MOST_BYTES: Final = 2**63 - 1
_LONGEST_S: Final = 10 * 365 * 86400.0
_MOST_MEMORY_BYTES: Final = 8 * 2**30
"""A damaged log may ask for any size; the library maps 1 GiB to begin with."""
_LONGEST_LINE: Final = 300
_MPI_OPERATIONS: Final = ("INDEP", "COLL", "SPLIT", "NB")


class Unreadable(Exception):
    """The log cannot be used; says why in one line."""


def read_log(path: str) -> dict[str, Any]:
    """What the run moved, as the API takes it; ``uid`` is the one in the log.

    Raises:
        Unreadable: it is no log, damaged, or tells nothing that can be.
    """
    report = _open(path)
    try:
        totals = _totals(report)
        job = report.metadata["job"]
        words = str(report.metadata["exe"]).split()
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise Unreadable(f"damaged: {error}") from error
    if not totals:
        raise Unreadable(f"no module in it tells of I/O ({', '.join(MODULES)})")
    run_s, processes = float(job["run_time"]), int(job["nprocs"])
    ended_s = float(job["end_time_sec"])
    if not 0.0 < run_s <= _LONGEST_S or processes < 1 or ended_s < 0.0:
        raise Unreadable(f"damaged: {processes} processes ran for {run_s:g} s")
    counted = _counted(totals)
    if not all(0 <= value <= _MOST_BYTES for value in counted.values()):
        raise Unreadable("damaged: it moved less than nothing, or more than there is")
    return {
        "command": words,
        "ended_s": ended_s,
        "run_s": run_s,
        "processes": processes,
        **counted,
        "io_s": min(_io_s(totals) / processes, _LONGEST_S),
        "uid": int(job["uid"]),
        "job": str(job["jobid"]),
        "is_partial": any(report.modules[name]["partial_flag"] for name in totals),
    }


def _open(path: str) -> Any:
    """The log, without its records."""
    import darshan

    try:
        return darshan.DarshanReport(path, read_all=False)
    except (RuntimeError, ValueError, OSError, OverflowError) as error:
        raise Unreadable(f"no Darshan log, or damaged ({error})") from error


def _totals(report: Any) -> dict[str, dict[str, float]]:
    """Each counter of the layers that count, summed over their records."""
    there = [name for name in MODULES if name in report.modules]
    lowest = [name for name in there if name != "MPI-IO"] or there
    if "DFS" in lowest and "DAOS" in lowest:
        lowest.remove("DAOS")
    return {name: _sums(report, name) for name in lowest}


def _sums(report: Any, module: str) -> dict[str, float]:
    report.mod_read_all_records(module, dtype="numpy", warnings=False)
    names = report.counters[module]
    sums: dict[str, float] = {}
    for record in report.records[module]:
        rows = ((names["counters"], record["counters"]), (names["fcounters"], record["fcounters"]))
        for columns, values in rows:
            for column, value in zip(columns, values, strict=True):
                word = column.partition("_")[2]
                if word in _WANTED:
                    sums[word] = sums.get(word, 0) + _sane(word, value.item())
    return sums


_BYTES: Final = ("BYTES_READ", "BYTES_WRITTEN")
_TIMES: Final = ("F_READ_TIME", "F_WRITE_TIME", "F_META_TIME")
_OPERATIONS: Final = (
    "READS",
    "WRITES",
    *(f"{kind}_{what}" for kind in _MPI_OPERATIONS for what in ("READS", "WRITES")),
)
_WANTED: Final = frozenset((*_BYTES, *_TIMES, *_OPERATIONS))


def _sane(word: str, value: float) -> float:
    if word not in _TIMES:
        return value
    return max(0.0, value) if math.isfinite(value) else 0.0


def _counted(totals: Mapping[str, Mapping[str, float]]) -> dict[str, int]:
    """Bytes and requests of all layers together."""
    read, written = (sum(int(sums.get(word, 0)) for sums in totals.values()) for word in _BYTES)
    operations = 0
    for name, sums in totals.items():
        made = int(_added(sums, _OPERATIONS))
        moved = int(_added(sums, _BYTES))
        operations += min(made, -(-moved // _STDIO_BUFFER_BYTES)) if name == "STDIO" else made
    return {"read_bytes": read, "written_bytes": written, "operations": operations}


def _io_s(totals: Mapping[str, Mapping[str, float]]) -> float:
    return sum(_added(sums, _TIMES) for sums in totals.values())


def _added(sums: Mapping[str, float], words: Iterable[str]) -> float:
    return sum(sums.get(word, 0) for word in words)


# -- the process -----------------------------------------------------------------------------------


def main(patience_s: float) -> int:
    """Answer each path on standard input with one line."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY_BYTES, _MOST_MEMORY_BYTES))
    import darshan  # noqa: F401 - once, for all forks

    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    for line in sys.stdin:
        answers.write(_answer_of_a_fork(json.loads(line), patience_s))
    return 0


def _answer_of_a_fork(path: str, patience_s: float) -> bytes:
    """One line in any case."""
    answer, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        with suppress(BaseException):  # its traceback is nobody's business
            signal.setitimer(signal.ITIMER_REAL, patience_s)  # SIGALRM ends it
            os.write(told, json.dumps(_answer(path)).encode() + b"\n")
        os._exit(1)
    os.close(told)
    with os.fdopen(answer, "rb") as file:
        line = file.read()
    _, status = os.waitpid(pid, 0)
    if line.endswith(b"\n"):
        return line
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM:
        why = f"its reading takes longer than {patience_s:g} s"
    elif os.WIFSIGNALED(status):
        why = f"Darshan's library broke on it (by signal {os.WTERMSIG(status)})"
    else:
        why = "Darshan's library broke on it"
    return json.dumps({"problem": f"damaged: {why}"}).encode() + b"\n"


def _answer(path: str) -> dict[str, Any]:
    complaints = os.memfd_create("complaints")
    os.dup2(complaints, 1)  # the library prints what is wrong, and goes on as if it were not
    os.dup2(complaints, 2)
    try:
        found = read_log(path)
    except Unreadable as error:
        return {"problem": _one_line(str(error))}
    if errors := [line for line in _said(complaints) if line.startswith("Error")]:
        return {"problem": f"damaged: {_one_line(errors[0].removeprefix('Error: '))}"}
    return found


def _said(complaints: int) -> list[str]:
    size = os.fstat(complaints).st_size
    return os.pread(complaints, size, 0).decode(errors="replace").splitlines()


def _one_line(text: str) -> str:
    return " ".join(text.split())[:_LONGEST_LINE].rstrip(".")


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
