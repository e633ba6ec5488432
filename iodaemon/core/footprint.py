"""How much memory a job takes while it is kept: an upper bound of what CPython holds for it.

A text takes 1 to 4 bytes a character, by its widest one, and what is not ASCII is kept in UTF-8 as
well once it has been written somewhere. The bound is a function of the text alone, so that what is
counted when a job comes is what is taken off when it goes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, Protocol

RECORD_BYTES: Final = 2560
"""A job without its texts, in all tables: 100,000 of the smallest, which count 2,960 bytes each,
took 2,690 of resident memory in the first submission, 1,290 and 810 in the next (CPython 3.11)."""
_ASCII_BYTES: Final = 80
"""Header (49 bytes), the pointer to it, and what the allocator rounds up."""
_OTHER_BYTES: Final = 144
"""Two headers, the pointer, and what the allocator rounds up twice."""
_WIDEST_BYTES: Final = 8
"""A character of 4 bytes, and 4 more in UTF-8."""
_ENTRY_BYTES: Final = 104
"""Of a dictionary with room for a third more."""


class Staging(Protocol):
    """What is copied for a job."""

    @property
    def input_path(self) -> str | None:
        """From where into its space."""
        ...

    @property
    def output_path(self) -> str | None:
        """Where to afterwards."""
        ...


class Texts(Protocol):
    """A job's texts, as it is submitted and as it is kept."""

    @property
    def command(self) -> tuple[str, ...]:
        """Its words."""
        ...

    @property
    def cwd(self) -> str:
        """Where it runs."""
        ...

    @property
    def name(self) -> str:
        """For people."""
        ...

    @property
    def stdout(self) -> str | None:
        """Its file, if it chose one."""
        ...

    @property
    def stderr(self) -> str | None:
        """Likewise."""
        ...

    @property
    def scratch(self) -> Staging | None:
        """Space that it wants, if any."""
        ...


def text_bytes(text: str) -> int:
    """At most so much memory is taken by a text that is referred to once."""
    if text.isascii():
        return _ASCII_BYTES + len(text)
    return _OTHER_BYTES + _WIDEST_BYTES * len(text)


def _bytes_of(texts: Collection[str]) -> int:
    """The sum of ``text_bytes``."""
    together = "".join(texts)
    if together.isascii():
        return _ASCII_BYTES * len(texts) + len(together)
    return sum(map(text_bytes, texts))


def job_bytes(job: Texts) -> int:
    """At most so much memory is taken by a job that waits, runs, or has ended."""
    texts = [*job.command, job.cwd, job.name, job.stdout or "", job.stderr or ""]
    if job.scratch is not None:
        texts += [job.scratch.input_path or "", job.scratch.output_path or ""]
    return RECORD_BYTES + _bytes_of(texts)


def environment_bytes(environment: Mapping[str, str]) -> int:
    """At most so much memory is taken by an environment, however many jobs share it."""
    texts = [*environment, *environment.values()]
    return RECORD_BYTES + _ENTRY_BYTES * len(environment) + _bytes_of(texts)
