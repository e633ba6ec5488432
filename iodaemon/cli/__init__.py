"""The command line, ``iod``."""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; its exit code.

    Args:
        argv: the words after ``iod``. None: those of this process.
    """
    from iodaemon.cli.program import run

    return run(argv)
