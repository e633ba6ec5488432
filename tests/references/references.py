"""Check the stored references, or write them anew: ``make references``.

References say what the product did when they were written: the rows of all experiments, the plans
of three recorded hours, the answers of every route, and the reason codes of ``iod why``. They hold
while the code below is rewritten. Where a difference is wanted, write them anew and list it in the
commit.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import routes
import rows
import traces
import whys
from reference import told

from iodaemon.simulator.pool import Pool


def check_routes(*, writes: bool) -> Sequence[str]:
    """The answers of every route of ``/v1``."""
    with tempfile.TemporaryDirectory() as directory:
        cases, _, _ = routes.record(Path(directory))
    if writes:
        routes.write(cases)
    return routes.compare(cases)


def check_rows(*, writes: bool) -> Sequence[str]:
    """The rows of all experiments, on all usable cores."""
    with Pool(len(os.sched_getaffinity(0))) as pool:
        tables = {name: rows.compute(name, pool) for name in rows.names()}
    if writes:
        rows.write(tables)
    return [line for name, table in tables.items() for line in rows.compare(name, table)]


def check_traces(*, writes: bool) -> Sequence[str]:
    """The plans for the events of recorded hours."""
    if writes:
        for name in traces.names():
            traces.plan_anew(name)
    return [line for name in traces.names() for line in traces.replay(name)]


def record_traces() -> None:
    """Record other events: only where those that are stored say too little."""
    import trace_script

    for name, record in trace_script.TRACES.items():
        traces.write(name, record())


def check_whys(*, writes: bool) -> Sequence[str]:
    """What each reason code rests on."""
    found = whys.collect()
    if writes:
        whys.write(found)
    return whys.compare(found)


KINDS: dict[str, Callable[..., Sequence[str]]] = {
    "rows": check_rows,
    "routes": check_routes,
    "traces": check_traces,
    "whys": check_whys,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)}; else all")
    parser.add_argument("--write", action="store_true", help="write them anew")
    parser.add_argument("--record", action="store_true", help="record the traces' events anew")
    asked = parser.parse_args()
    if unknown := set(asked.kinds).difference(KINDS):
        parser.error(f"no kind {', '.join(sorted(unknown))}; there are {', '.join(KINDS)}")
    if asked.record:
        record_traces()
    failed = 0
    for kind in asked.kinds or KINDS:
        begun_s = time.monotonic()
        found = KINDS[kind](writes=asked.write)
        print(f"{kind}: {len(found)} differences, {time.monotonic() - begun_s:.1f} s")
        if found:
            print(told(found, most=100))
        failed |= bool(found)
    return failed


if __name__ == "__main__":
    sys.exit(main())
