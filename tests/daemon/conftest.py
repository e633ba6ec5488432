"""Real daemons and journals for the tests of this directory, and servers in this process."""

import contextlib
import os
import tempfile
from pathlib import Path

import pytest
from harness import _lasting_server, make_server, means, server, shared
from journals import journal
from served import SHARED, Served

__all__ = [
    "_lasting_server",
    "for_all",
    "journal",
    "make_server",
    "means",
    "serve",
    "served",
    "server",
    "shared",
]


@pytest.fixture
def served(tmp_path):
    with contextlib.closing(Served(tmp_path)) as served:
        yield served


@pytest.fixture
def serve(tmp_path):
    """Makes daemons on one journal, one after the other."""
    made = []

    def serve(**options):
        while made:
            made.pop().close()
        made.append(Served(tmp_path, **options))
        return made[-1]

    yield serve
    while made:
        made.pop().close()


@pytest.fixture
def for_all():
    """Makes daemons that all users of the machine reach."""
    with contextlib.ExitStack() as stack:

        def make(rights=SHARED, **options):
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="iod-")))
            place.chmod(0o755)
            served = stack.enter_context(
                contextlib.closing(Served(place, rights=rights, **options))
            )
            os.chmod(served.socket_path, 0o666)
            return served

        yield make
