"""How many examples of a property are tried."""

from hypothesis import settings


def tries(number: int) -> int:
    """All of them under ``make explore``, a fifth in the gate, whose examples never change."""
    return max(3, number // 5) if settings.default.derandomize else number
