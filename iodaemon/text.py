"""Text of users, shown where a control character would be an order: a terminal, a log."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text with what cannot be printed as Python writes it."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def quoted(text: str) -> str:
    """The text as the value of a field in a line of the log: it ends where its quotes do."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{printable(escaped)}"'
