"""The command line, ``iod``."""

from __future__ import annotations

import signal
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; its exit code.

    Args:
        argv: the words after ``iod``. None: those of this process.
    """
    handler = signal.getsignal(signal.SIGINT)
    if argv is None and handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while modules load: no traceback
    from iodaemon.cli.program import run

    return run(argv)
