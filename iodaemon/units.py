"""Quantities as people write them, and back: bytes, bytes/s, durations.

Sizes: ``KiB MiB GiB TiB PiB`` are powers of 1024, ``kB MB GB TB PB`` powers of 1000, and a bare
``K M G T P`` is a power of 1024, as in Slurm's and systemd's ``2G``. Case does not matter. A plain
number is in base units.

Rates: the same units, but a bare ``K M G T P`` is a power of 1000: rates are shown in MB/s, and
disks are sold by it. A rate such as ``40 Mb/s`` (usually megabits) is refused.

Durations: ``500 ms``, ``90 s``, ``15m``, ``1h30m``, ``2d``, and Slurm's ``MM:SS``, ``HH:MM:SS``,
``D-HH``, ``D-HH:MM``, ``D-HH:MM:SS`` (sbatch(1), --time).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from iodaemon.errors import ConfigError

_PREFIXES: Final = "kmgtp"
LARGEST_BYTES: Final = 2**63 - 1
"""The largest integer of SQLite and of the kernel's interfaces (off_t)."""

_NUMBER: Final = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?"
_SIZE: Final = re.compile(rf"\s*({_NUMBER})\s*([a-zA-Z]*)\s*")
_RATE: Final = re.compile(rf"\s*({_NUMBER})\s*([a-zA-Z]*?)\s*(?:/\s*s(?:ec)?)?\s*")
_MEGABITS: Final = re.compile(r"[KMGTP]b")
_BARE: Final = re.compile(rf"\s*({_NUMBER})\s*")
_PART: Final = re.compile(rf"\s*({_NUMBER})\s*([a-zA-Z]+)")
_CLOCK: Final = re.compile(
    r"\s*(?:(\d{1,6})-)?(\d{1,9})(?::(\d{1,2}))?(?::(\d{1,2}))?\s*", re.ASCII
)

_SECONDS: Final = MappingProxyType(
    {
        **dict.fromkeys(("ms", "msec", "millisecond", "milliseconds"), 0.001),
        **dict.fromkeys(("s", "sec", "second", "seconds"), 1.0),
        **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
        **dict.fromkeys(("h", "hr", "hour", "hours"), 3600.0),
        **dict.fromkeys(("d", "day", "days"), 86400.0),
        **dict.fromkeys(("w", "week", "weeks"), 604800.0),
    }
)

_SIZE_HINT: Final = "write for example 16 GiB, 2G or 500 MB"
_RATE_HINT: Final = "write for example 40 MB/s, 1.5 GiB/s or 40M"
_TIME_HINT: Final = "write for example 90s, 1h30m, 2d or 01:30:00"


def is_bare(text: str) -> bool:
    """True for a number without a unit."""
    return _BARE.fullmatch(text) is not None


def parse_bytes(text: str | float) -> int:
    """The size in bytes, rounded to a whole byte.

    Args:
        text: ``"16 GiB"``, ``"2G"``, ``"500 MB"``; a number or a bare ``"4096"`` is bytes.

    Raises:
        ConfigError: it is no size, negative, not finite, or above 2^63 - 1.
    """
    value = _scaled(text, _SIZE, what="size", hint=_SIZE_HINT)
    return int(value.to_integral_value())


def parse_rate_bytes_per_s(text: str | float) -> float:
    """The rate in bytes/s.

    Args:
        text: ``"40 MB/s"``, ``"40M"`` (MB/s); a number or a bare ``"40000000"`` is bytes/s.

    Raises:
        ConfigError: it is no rate, negative, not finite, or given in bits.
    """
    return float(_scaled(text, _RATE, what="rate", hint=_RATE_HINT))


def parse_duration_s(text: str | float, *, bare_unit_s: float = 1.0) -> float:
    """The duration in seconds.

    Args:
        text: ``"1 s"``, ``"1h30m"``, ``"500 ms"``, ``"2d"``, ``"HH:MM:SS"``.
        bare_unit_s: what a number without unit counts: 1 in files, 60 for ``--time`` (minutes,
            as in Slurm).

    Raises:
        ConfigError: it is no duration, negative or not finite.
    """
    if not isinstance(text, str):
        value = float(_number(text, what="duration", hint=_TIME_HINT)) * bare_unit_s
    elif is_bare(text):
        value = float(text) * bare_unit_s
    elif clock := _CLOCK.fullmatch(text):
        value = _clock_s(clock, text)
    else:
        value = _parts_s(text)
    if not math.isfinite(value):
        raise _bad("duration", text, _TIME_HINT)
    return value


def format_bytes(size_bytes: float) -> str:
    """The size for people, in powers of 1024: ``1.5 GiB``; one decimal."""
    return _shown(size_bytes, step=1024.0, units=("B", "KiB", "MiB", "GiB", "TiB", "PiB"))


def format_rate(rate_bytes_per_s: float) -> str:
    """The rate for people, in powers of 1000: ``61.2 MB/s``; one decimal."""
    units = ("B/s", "kB/s", "MB/s", "GB/s", "TB/s", "PB/s")
    return _shown(rate_bytes_per_s, step=1000.0, units=units)


def format_duration(duration_s: float) -> str:
    """The duration for people: ``250 ms``, ``12.5 s``, ``1m30s``, ``2d3h``; from 1 min whole s."""
    if duration_s < 0:
        return f"-{format_duration(-duration_s)}"
    if 0 < duration_s < 0.9995:
        return f"{duration_s * 1000:.3g} ms"
    if duration_s < 59.95:
        return f"{duration_s:.1f}".removesuffix(".0") + " s"
    rest_s = round(duration_s)
    text = ""
    for unit, unit_s in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, rest_s = divmod(rest_s, unit_s)
        text += f"{count}{unit}" if count else ""
    return text


def _bad(what: str, text: object, hint: str) -> ConfigError:
    shown = repr(text)
    if len(shown) > 60:
        shown = shown[:57] + "..."
    return ConfigError(f"{shown} is not a {what}; {hint}")


def _number(value: float, *, what: str, hint: str) -> Decimal:
    """A plain number as it stands in a TOML or JSON file."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value < 0:
        raise _bad(what, value, hint)
    return Decimal(value)


def _scaled(text: str | float, pattern: re.Pattern[str], *, what: str, hint: str) -> Decimal:
    """The number times what its unit stands for; exact, so that no byte is lost on the way."""
    if isinstance(text, str):
        match = pattern.fullmatch(text)
        factor = _factor(match[2], is_rate=pattern is _RATE) if match else None
        if match is None or factor is None:
            raise _bad(what, text, hint)
        value = Decimal(match[1]) * factor
    else:
        value = _number(text, what=what, hint=hint)
    if value > LARGEST_BYTES:
        raise _bad(what, text, f"{hint}, below 8 EiB")
    return value


def _factor(unit: str, *, is_rate: bool) -> int | None:
    """Bytes in one of the unit; None: no such unit."""
    if is_rate and _MEGABITS.fullmatch(unit):
        return None
    unit = unit.lower()
    if unit in ("", "b"):
        return 1
    power = _PREFIXES.find(unit[0]) + 1
    if power == 0 or unit[1:] not in ("", "b", "ib"):
        return None
    base = 1000 if unit[1:] == "b" or (is_rate and len(unit) == 1) else 1024
    return int(base**power)


def _clock_s(match: re.Match[str], text: str) -> float:
    """Slurm's forms: two fields are MM:SS, after days HH:MM."""
    days, *fields = (None if group is None else int(group) for group in match.groups())
    given = [field for field in fields if field is not None]
    if any(field > 59 for field in given[1:]) or (days is not None and given[0] > 23):
        raise _bad("duration", text, _TIME_HINT)
    units_s = (3600, 60, 1) if days is not None or len(given) == 3 else (60, 1)
    clock_s = sum(field * unit_s for field, unit_s in zip(given, units_s, strict=False))
    return float((days or 0) * 86400 + clock_s)


def _parts_s(text: str) -> float:
    """Numbers with units in a row: ``1h30m``, ``1 h 30 min``, ``500 ms``."""
    total_s = 0.0
    at = 0
    rest = text.rstrip()
    while at < len(rest) or not rest:
        part = _PART.match(rest, at)
        unit_s = _SECONDS.get(part[2].lower()) if part else None
        if part is None or unit_s is None:
            raise _bad("duration", text, _TIME_HINT)
        total_s += float(part[1]) * unit_s
        at = part.end()
    return total_s


def _shown(value: float, *, step: float, units: tuple[str, ...]) -> str:
    """One decimal in the first unit in which the value stays below a step."""
    sign = "-" if value < 0 else ""
    value = abs(value)
    power = 0
    while value >= step - 0.05 and power < len(units) - 1:
        value /= step
        power += 1
    return f"{sign}{value:.1f}".removesuffix(".0") + f" {units[power]}"


class Quantity(NamedTuple):
    """What the suffix of a field's name says of its value, and how people write that.

    Attributes:
        suffix: of the field's name; the key in a file is without it.
        kind: ``rate``, ``size`` or ``duration``.
        parse: reads what people write, or a plain number in the base unit.
        format: writes it for people.
    """

    suffix: str
    kind: str
    parse: Callable[[Any], float]
    format: Callable[[float], str]


_QUANTITIES: Final = (  # the longest suffix first
    Quantity("_bytes_per_s", "rate", parse_rate_bytes_per_s, format_rate),
    Quantity("_bytes", "size", parse_bytes, format_bytes),
    Quantity("_s", "duration", parse_duration_s, format_duration),
)


def quantity_of(field: str) -> Quantity | None:
    """What a field of this name holds, by its suffix; None: a plain value."""
    return next((each for each in _QUANTITIES if field.endswith(each.suffix)), None)


def key_of(field: str) -> str:
    """The key of this field in a file: its name without the unit."""
    quantity = quantity_of(field)
    return field if quantity is None else field.removesuffix(quantity.suffix)
