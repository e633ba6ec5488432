"""What is expected of a job's I/O, in a few characters and in words."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from iodaemon.api.model import Expected, Job
from iodaemon.cli import output

LETTERS: Final[Mapping[str, str]] = MappingProxyType(
    {"declared": "d", "learned": "l", "imported": "i", "measured": "m"}
)


def expected_cell(job: Job) -> str:
    """The mean rate over its run and the letter of its source; ``?`` where nothing is known."""
    expected = job.get("expected")
    if expected is None or expected["rate_bytes_per_s"] is None:
        return output.UNKNOWN
    return f"{output.rate(expected['rate_bytes_per_s'])} {LETTERS.get(expected['source'], '')}"


def ratio_cell(job: Job) -> str:
    """What was expected over what it moved, as ``1.3x``."""
    ratio = job.get("expected_ratio")
    return output.NOTHING if ratio is None else factor(ratio)


def factor(value: float) -> str:
    """``1.3x``, ``0.04x``, ``250x``."""
    return f"{value:.2g}x" if value < 100 else f"{value:.0f}x"


def expected_words(job: Job) -> str:
    """All of it, and how right it was."""
    expected = job.get("expected")
    if expected is None or expected["rate_bytes_per_s"] is None:
        return "unknown"
    parts = [f"{output.rate(expected['rate_bytes_per_s'])} on average", *_details(expected)]
    ratio = job.get("expected_ratio")
    right = "" if ratio is None else f"; {factor(ratio)[:-1]} times what it moved"
    return f"{', '.join(parts)} ({source_words(expected)}){right}"


def _details(expected: Expected) -> list[str]:
    parts = []
    rate, share = expected["rate_bytes_per_s"], expected["io_share"]
    if share and rate is not None:
        parts.append(f"{output.rate(rate / share)} in I/O for {percent(share)} of its run time")
    if expected["operations_per_s"] is not None:
        parts.append(f"{expected['operations_per_s']:.3g} requests/s")
    return parts


def percent(share: float) -> str:
    """A part of the whole: ``20%``, ``0.03%``."""
    return f"{100 * share:.2g}%" if share < 0.995 else "100%"


def source_words(expected: Expected) -> str:
    """Whence it is known, and how surely."""
    by = f" by {expected['by']}" if expected["by"] else ""
    runs = expected["runs"]
    count = f", {runs} run{'s' if runs > 1 else ''}" if runs else ""
    return f"{expected['source']}{by}{count}, confidence {expected['confidence']:.2g}"
