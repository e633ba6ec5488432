"""A journal of its own for a test, and what is written to it."""

import contextlib

import pytest

from iodaemon.daemon.journal.record import Batch
from iodaemon.daemon.journal.writer import Journal


@pytest.fixture
def journal(tmp_path):
    with contextlib.closing(Journal.open(tmp_path / "journal.db", seed=1)) as journal:
        yield journal


def write(journal, **fields):
    """Write one batch; returns its answer."""
    answers = []
    journal.write(Batch(**fields), answers.append)
    journal.flush()
    return answers[0]


def store(journal, **fields):
    """Write one batch, which becomes durable."""
    assert write(journal, **fields) is None
