"""What a simulated job really does: a sequence of steps. No policy ever sees it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Final

import msgspec

from iodaemon.errors import ConfigError
from iodaemon.units import parse_bytes, parse_duration_s


class Compute(msgspec.Struct, frozen=True, tag=True):
    """Use the job's slots, no I/O.

    Attributes:
        seconds: run time, s.
    """

    seconds: float


class Read(msgspec.Struct, frozen=True, tag=True):
    """Read from the node's disk, past the page cache.

    Attributes:
        size_bytes: how much.
        cap_bytes_per_s: the job never reads faster. None: as fast as the device's share.
        streams: so many threads read a part of it each.
    """

    size_bytes: int
    cap_bytes_per_s: float | None = None
    streams: int = 1


class Write(msgspec.Struct, frozen=True, tag=True):
    """Write into the page cache, or straight to the node's disk.

    Attributes:
        size_bytes: how much.
        cap_bytes_per_s: the job never writes faster. None: memory speed, or the device's share.
        direct: past the page cache (O_DIRECT).
        streams: so many threads write a part of it each.
    """

    size_bytes: int
    cap_bytes_per_s: float | None = None
    direct: bool = False
    streams: int = 1


class Touch(msgspec.Struct, frozen=True, tag=True):
    """Go over so many bytes of the job's memory, anywhere in it; what is not there is paged in.

    Page-ins are reads of the node's disk, counted as bytes the job read. On a platform whose
    memory is not modelled everything is there.
    """

    size_bytes: int


class Transfer(msgspec.Struct, frozen=True, tag=True):
    """Move bytes over a link; counted as bytes the job wrote.

    Attributes:
        size_bytes: how much.
        link: the id of the link; of a link per partition it is that of the job's partition.
        cap_bytes_per_s: the job never moves it faster. None: as fast as the link's share.
        weight: share of a fair link; a job that moves k equal flows at once has weight k.
    """

    size_bytes: float
    link: str
    cap_bytes_per_s: float | None = None
    weight: float = 1.0


class Stage(msgspec.Struct, frozen=True, tag=True):
    """Let the storage move bytes between two tiers over a link, and wait for it.

    Like a transfer, but none of the job's own I/O: it is counted nowhere.
    """

    size_bytes: float
    link: str
    cap_bytes_per_s: float | None = None
    weight: float = 1.0


Step = Compute | Read | Write | Touch | Transfer | Stage


class Hold(msgspec.Struct, frozen=True):
    """Room in a store, held from the job's start to its end."""

    store: str
    size_bytes: int


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """What a job does from its start to its end.

    Attributes:
        steps: one after the other.
        repeat: the whole sequence is done so many times.
        holds: room that it occupies in stores while it lives.
        exit_code: how it ends when nobody stops it.
        ignores_term: SIGTERM does not end it; SIGKILL does.
        resident_bytes: memory it holds while it lives.
        hides_io: its I/O counters cannot be read, as another user's without privileges.
        speaks: it tells of each read, write and transfer, and waits for its turn before it.
    """

    steps: tuple[Step, ...]
    repeat: int = 1
    holds: tuple[Hold, ...] = ()
    exit_code: int = 0
    ignores_term: bool = False
    resident_bytes: int = 0
    hides_io: bool = False
    speaks: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be done."""
        if self.repeat < 1:
            raise ValueError(f"repeat is {self.repeat}; it must be at least 1")
        for step in self.steps:
            _check(step)
        names = [hold.store for hold in self.holds]
        if len(set(names)) < len(names) or any(hold.size_bytes < 0 for hold in self.holds):
            raise ValueError(f"{self.holds}: one hold a store, of 0 bytes or more")


def step_size(step: Step) -> float:
    """Seconds of computing, or bytes."""
    return step.seconds if isinstance(step, Compute) else step.size_bytes


def _check(step: Step) -> None:
    if not 0.0 <= step_size(step) < math.inf:
        raise ValueError(f"{step}: a step is of 0 or more, and finite")
    if isinstance(step, Compute | Touch):
        return
    weight = step.weight if isinstance(step, Transfer | Stage) else float(step.streams)
    cap = step.cap_bytes_per_s
    if not 0.0 < weight < math.inf or not (cap is None or cap > 0.0):
        raise ValueError(f"{step}: a cap, a weight and streams are above 0")


DEFAULT_PROFILE: Final = Profile(steps=(Compute(10.0),))
"""What a command that says nothing of itself does in the simulated mode."""
DEFAULT_LINK: Final = "pfs"
"""The link of ``transfer=`` and ``stage=``: a parallel file system that all jobs share."""

_WORDS: Final = ("compute", "read", "write", "transfer", "stage", "repeat", "exit", "speaks")
_LIKENESS: Final = 0.75
"""From here on (0 to 1) a word is taken for a slip: "compte", but not "count"."""


def parse_profile(command: Sequence[str]) -> Profile:
    """The profile that a command line describes, for a daemon with simulated jobs.

    The words ``compute=5s``, ``read=1GiB``, ``write=200MB``, ``transfer=1GiB`` and ``stage=1GiB``
    (both over the link ``pfs``) are steps, in their order; all of them are done ``repeat=10``
    times; ``exit=3`` is the exit code; with ``speaks=yes`` the job tells of its I/O and waits for
    its turn. Other words mean nothing. Without any step or exit code it is ``compute=10s``.

    Raises:
        ConfigError: a quantity cannot be read, or a word is nearly one of these.
    """
    steps: list[Step] = []
    repeat = 1
    exit_code: int | None = None
    speaks = False
    for word in command:
        kind, found, quantity = word.partition("=")
        if not found:
            continue
        match kind:
            case "compute":
                steps.append(Compute(parse_duration_s(quantity)))
            case "read":
                steps.append(Read(parse_bytes(quantity)))
            case "write":
                steps.append(Write(parse_bytes(quantity)))
            case "transfer":
                steps.append(Transfer(parse_bytes(quantity), DEFAULT_LINK))
            case "stage":
                steps.append(Stage(parse_bytes(quantity), DEFAULT_LINK))
            case "repeat":
                repeat = _parse_number(word, "a number from 1 on", 1, None)
            case "exit":
                exit_code = _parse_number(word, "a number from 0 to 255", 0, 255)
            case "speaks":
                speaks = _parse_yes(word)
            case _:
                _refuse_slip(kind, quantity)
    if not steps and exit_code is None:
        steps += DEFAULT_PROFILE.steps
    return Profile(steps=tuple(steps), repeat=repeat, exit_code=exit_code or 0, speaks=speaks)


def _parse_yes(word: str) -> bool:
    kind, _, text = word.partition("=")
    if text not in ("yes", "no"):
        raise ConfigError(f"{word}: {kind} is yes or no")
    return text == "yes"


def _parse_number(word: str, what: str, least: int, most: int | None) -> int:
    kind, _, text = word.partition("=")
    if not text.isdecimal() or int(text) < least or (most is not None and int(text) > most):
        raise ConfigError(f"{word}: {kind} is {what}")
    return int(text)


def _refuse_slip(kind: str, quantity: str) -> None:
    """Plain commands have words like ``if=/dev/zero``; ``compte=5s`` is a slip."""
    near = get_close_matches(kind, _WORDS, n=1, cutoff=_LIKENESS)
    if near and (quantity[:1].isdigit() or (near[0] == "speaks" and quantity in ("yes", "no"))):
        raise ConfigError(f"{kind}={quantity}: no such step; did you mean {near[0]}={quantity}?")
