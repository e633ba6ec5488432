"""The command line, ``iod``."""

# Nothing else is loaded until Ctrl-C shows no traceback: 'signal' and 'typing' take milliseconds.
import _signal  # type: ignore[import-not-found]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: "Sequence[str] | None" = None) -> int:
    """Run one command line; its exit code.

    Args:
        argv: the words after ``iod``. None: those of this process.
    """
    if argv is None and _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # until modules are loaded
    from iodaemon.cli.program import run

    return run(argv)
