"""Jobs that compute, and a bed of nothing but a compiler's work."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from beds.bed import Bed, Maker, Size, job, lacking, nothing, shell, together

from iodaemon.api.model import JobSpec

SPIN = "import sys\nx = 0\nfor n in range(int(sys.argv[1])): x += n * n & 7\n"
FUNCTION = """
double f{0}(double *a, int n) {{
  double s = {0};
  for (int i = 0; i < n; i++)
    for (int j = 0; j < n; j++)
      if ((i ^ j) & {0}) s += a[i] * a[j] + {0}; else a[i] -= s / (j + 1.{0});
  return s;
}}
"""


def spin(millions: int) -> JobSpec:
    """A job of so many million steps of Python, about 0.08 s of one core each."""
    return job("spin", sys.executable, "-IS", "-c", SPIN, str(millions * 1_000_000))


@contextlib.contextmanager
def compiler(base: Path, size: Size) -> Iterator[Bed]:
    """Processes that need only a core: nothing to gain."""
    functions = {"small": 250, "normal": 1000, "long": 4500}[size]
    sources = [base / f"source{number}.c" for number in range(8)]
    for source in sources:
        source.write_text("".join(map(FUNCTION.format, range(1, functions + 1))))
    specs = [shell("gcc", 'exec gcc -O2 -c "$1" -o /dev/null', source) for source in sources]
    about = f"{len(specs)} gcc -O2 of {functions} functions each"
    yield Bed(about, together(specs), nothing)


BEDS = {"compiler": Maker(compiler, lambda: lacking("gcc"))}
