"""Real daemons for the tests of this directory."""

from harness import _lasting_server, make_server, means, server, shared

__all__ = ["_lasting_server", "make_server", "means", "server", "shared"]
