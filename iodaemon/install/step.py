"""What can be done to a machine, one step at a time; each tells itself in a line."""

from __future__ import annotations

import shlex
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, TypeAlias


class Item(NamedTuple):
    """What lies, or is to lie, at one path.

    Attributes:
        kind: ``other`` is what install never makes, a directory for example.
        text: of a file; of a link, where it points.
    """

    kind: Literal["nothing", "file", "link", "other"]
    text: str = ""


NOTHING: Final = Item("nothing")
_MOST_NAMED: Final = 8
_DONE: Final = MappingProxyType(
    {
        "write": "wrote",
        "link": "linked",
        "keep": "kept",
        "remove": "removed",
        "run": "ran",
        "cancel": "cancelled",
        "leave": "left",
    }
)


class Put(NamedTuple):
    """Have this at the path, and the folders above it; whole or not at all."""

    path: str
    item: Item
    why: str = ""


class Save(NamedTuple):
    """Keep what lies there beside it, as ``PATH.saved``."""

    path: str


class Delete(NamedTuple):
    """Remove a file or a link, if it is there."""

    path: str


class DeleteTree(NamedTuple):
    """Remove a directory with all that is in it, if it is there."""

    path: str


class DeleteFolder(NamedTuple):
    """Remove a directory, if nothing is in it."""

    path: str


class DeleteStore(NamedTuple):
    """Remove a directory of jobs' directories, if nothing of a job is in it."""

    path: str


class Leave(NamedTuple):
    """Nothing is done; told is what a job still has on storage tiers."""

    job: int
    paths: tuple[str, ...]


class Run(NamedTuple):
    """Run a program and wait for its end.

    Attributes:
        words: the program and its arguments.
        may_fail: it is no failure of the whole when this one fails.
    """

    words: tuple[str, ...]
    may_fail: bool = False


class EndJobs(NamedTuple):
    """Cancel these jobs and wait until they are gone; those that do not listen die with the rest.

    Attributes:
        ids: ascending.
    """

    ids: tuple[int, ...]


class Tell(NamedTuple):
    """Nothing is done; somebody should know."""

    text: str


Step: TypeAlias = (
    Put | Save | Delete | DeleteTree | DeleteFolder | DeleteStore | Leave | Run | EndJobs | Tell
)


def line_of(step: Step) -> str:
    """What the step does, in the imperative, without the full stop."""
    match step:
        case Put(path, item, why):
            text = f"link {path} to {item.text}" if item.kind == "link" else f"write {path}"
            return f"{text} ({why})" if why else text
        case Save(path):
            return f"keep the changed {path} as {path}.saved"
        case Delete(path):
            return f"remove {path}"
        case DeleteTree(path):
            return f"remove {path} with all that is in it"
        case DeleteFolder(path) | DeleteStore(path):
            return f"remove {path} if it is empty"
        case Leave(job, paths):
            return f"leave what job {job} has there: {', '.join(paths)}"
        case Run(words):
            return f"run {shlex.join(words)}"
        case EndJobs(ids):
            return f"cancel {name_jobs(ids)}"
        case Tell(text):
            return text


def done_line_of(step: Step) -> str:
    """The same once it is done."""
    word, _, rest = line_of(step).partition(" ")
    return f"{_DONE.get(word, word)} {rest}".removesuffix(" if it is empty")


def name_jobs(ids: tuple[int, ...]) -> str:
    """``job 4``, ``jobs 4, 5 and 9``; of many the first ones."""
    shown = [str(number) for number in ids[:_MOST_NAMED]]
    if len(ids) > _MOST_NAMED:
        return f"{len(ids)} jobs ({', '.join(shown)} ...)"
    *front, last = shown
    return f"jobs {', '.join(front)} and {last}" if front else f"job {last}"
