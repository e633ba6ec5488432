"""Real daemons and journals for the tests of this directory."""

from harness import _lasting_server, make_server, means, server, shared
from journals import journal

__all__ = ["_lasting_server", "journal", "make_server", "means", "server", "shared"]
