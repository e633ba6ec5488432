"""I/O hints as people give them: read, and judged for sense. Standard library alone.

A hint is never a reason to refuse a job. What makes no sense is told in one line and dropped, all
that was said of the job's I/O together: a true rate with a senseless share would be a wrong mean.
"""

from __future__ import annotations

from typing import Final

from iodaemon.errors import ConfigError
from iodaemon.units import LARGEST_BYTES, is_bare, parse_rate_bytes_per_s

DROPPED: Final = "the hint is ignored"
_MOST_PER_S: Final = float(LARGEST_BYTES)


class SenselessHint(ConfigError):
    """What was said of a job's I/O cannot be; names the option or field and what to write."""


def check_hint(
    *,
    rate: float | None,
    share: float | None,
    operations: float | None,
    names: tuple[str, str, str],
) -> None:
    """Refuse what cannot be; None is what was not said.

    Args:
        rate: bytes/s while in I/O, 0 or more.
        share: of the run time in I/O, above 0 and at most 1.
        operations: requests/s while in I/O, 0 or more.
        names: what the three are called where they were given.

    Raises:
        SenselessHint: one of them means nothing, or nothing by itself.
    """
    for value, name, unit in ((rate, names[0], "bytes/s"), (operations, names[2], "requests/s")):
        if value is not None and not 0.0 <= value <= _MOST_PER_S:  # not a number is neither
            raise SenselessHint(f"{name} {value:g} is no rate; give {unit}, 0 or more")
    if share is not None and not 0.0 < share <= 1.0:
        raise SenselessHint(
            f"{names[1]} {share:g} is no part of the run time; give 0.2 or 20%, at most 1"
        )
    for value, name in ((share, names[1]), (operations, names[2])):
        if value is not None and rate is None:
            raise SenselessHint(f"{name} says nothing without {names[0]}; give both")


def parse_rate(text: str) -> float:
    """Bytes/s; a bare number is MB/s, as with ``M``.

    Raises:
        ConfigError: it is no rate.
    """
    return parse_rate_bytes_per_s(text + " MB/s" if is_bare(text) else text)


def parse_share(text: str) -> float:
    """A part of the whole: ``0.2`` or ``20%``; whether it can be is for ``check_hint``.

    Raises:
        ConfigError: it is no number.
    """
    number, percent = text.strip(), text.strip().endswith("%")
    try:
        value = float(number.removesuffix("%"))
    except ValueError:
        raise ConfigError(f"{text[:40]!r} is no share; write for example 0.2 or 20%") from None
    return value / 100.0 if percent else value


def parse_operations(text: str) -> float:
    """Requests/s: ``500``, ``500/s``, ``2k``.

    Raises:
        ConfigError: it is no rate of requests.
    """
    word = text.strip().lower().removesuffix("/s").strip()
    factor = {"k": 1e3, "m": 1e6}.get(word[-1:], 1.0)
    try:
        return float(word[:-1] if factor > 1.0 else word) * factor
    except ValueError:
        raise ConfigError(
            f"{text[:40]!r} is no number of requests/s; write for example 500 or 2k"
        ) from None
