"""Sizes in words."""

from __future__ import annotations

from typing import Final

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_STEP: Final = 1024.0


def told_bytes(size_bytes: float) -> str:
    """A size in powers of 1024, with at most one decimal: ``200 GiB``."""
    size, unit = float(size_bytes), 0
    while size >= _STEP and unit < len(_UNITS) - 1:
        size, unit = size / _STEP, unit + 1
    return f"{size:.1f}".removesuffix(".0") + f" {_UNITS[unit]}"
