"""How fast the scheduler itself is, beside its peers: ``make bench``.

Everything that is compared is measured in turns in one run, with private daemons in temporary
directories; nothing is left of them. Prints a Markdown page; ``--write`` puts it in docs/bench.md.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import platform
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench_bulk import measure_bulk, measure_depth
from bench_carretero import measure_pack, measure_study
from bench_cli import measure_cli
from bench_cost import measure_cpu, measure_memory
from bench_daemon import ROOT
from bench_degradation import measure_degradation
from bench_figure import Section, section_lines
from bench_model import measure_links, measure_simulator
from bench_peer import missing
from bench_plan import Plan
from bench_sampling import measure_sampling
from bench_start import measure_latency, measure_rate
from bench_step import measure_step

PAGE = ROOT / "docs/bench.md"
REMARKS = "## Remarks"
"""What people write below this line stays when the page is written anew."""
NICE = -10
"""Above the machine's other work, where that is permitted; peers and ours alike."""
MEASURES: dict[str, tuple[Callable[[Plan], Section], ...]] = {
    "D1": (measure_latency,),
    "D2": (measure_rate,),
    "D3": (measure_bulk, measure_depth),
    "D4": (measure_cli,),
    "D5": (measure_memory,),
    "R2": (measure_cpu, measure_sampling),
    "R3": (measure_step,),
    "F1": (measure_degradation,),
    "S2": (measure_pack, measure_study),
    "S4": (measure_links,),
    "S5": (measure_simulator,),
}


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="less of everything, under a minute")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    parser.add_argument("--rounds", type=int, default=5, help="of everything that alternates [5]")
    parser.add_argument(
        "--only", default=",".join(MEASURES), metavar="D1,R3", help="these targets alone"
    )
    parser.add_argument(
        "--beside", type=Path, metavar="DIR", help="another checkout, measured in the same run"
    )
    asked = parser.parse_args(words)
    asked.only = [name for name in asked.only.split(",") if name]
    if unknown := [name for name in asked.only if name not in MEASURES]:
        parser.error(f"no target {unknown[0]!r}; there are {', '.join(MEASURES)}")
    return asked


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    asked = parse(words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with contextlib.suppress(PermissionError):
        os.nice(NICE - os.nice(0))
    checkouts = {"iodaemon": ROOT}
    if asked.beside is not None:
        checkouts["iodaemon, the other checkout"] = asked.beside.resolve()
    base = Path(tempfile.mkdtemp(prefix="iod-bench-plan-"))
    before, began_s = os.getloadavg()[0], time.monotonic()
    try:
        rounds = 2 if asked.quick else asked.rounds
        plan = Plan(base=base, checkouts=checkouts, rounds=rounds, is_quick=asked.quick)
        sections = [measure(plan) for name in asked.only for measure in MEASURES[name]]
    except KeyboardInterrupt:
        print("interrupted; nothing is left running", file=sys.stderr)
        return 130
    finally:
        shutil.rmtree(base, ignore_errors=True)
    lines = page(sections, before, time.monotonic() - began_s)
    print("\n".join(lines))
    if asked.write:
        PAGE.write_text("\n".join(lines) + "\n" + remarks())
    return 0


def page(sections: Sequence[Section], load_before: float, took_s: float) -> list[str]:
    """The whole page."""
    now = datetime.datetime.now().astimezone()
    absent = missing()
    return [
        "# How fast the scheduler is",
        "",
        (
            f"Measured by `make bench` on {now:%Y-%m-%d} in {took_s:.0f} s: {machine()}. The load "
            f"average was {load_before:.1f} before and {os.getloadavg()[0]:.1f} after."
        ),
        "",
        (
            "Everything in one table was measured in turns in one run. On a machine that others "
            "use, absolute figures move by a factor of two and more: compare ratios. What the "
            "daemons do is durable on this machine's disk."
        ),
        "",
        *([f"Not installed, so not measured: {', '.join(absent)}.", ""] if absent else []),
        *(line for section in sections for line in section_lines(section)),
    ]


def remarks() -> str:
    """What is said of an earlier page's figures by hand."""
    text = PAGE.read_text() if PAGE.exists() else ""
    _, mark, rest = text.partition(REMARKS)
    return mark + rest


def machine() -> str:
    """What it was measured on."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    cpus = len(os.sched_getaffinity(0))
    return (
        f"{cpus} CPUs, {pages / 2**30:.0f} GiB, Linux {platform.release()}, "
        f"Python {platform.python_version()}, {_processor()}"
    )


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


if __name__ == "__main__":
    sys.exit(main())
