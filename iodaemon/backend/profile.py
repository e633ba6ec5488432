"""What a simulated job really does: a sequence of steps. No policy ever sees it."""

from __future__ import annotations

from collections.abc import Sequence
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
    """Read from the device, past the page cache.

    Attributes:
        size_bytes: how much.
        cap_bytes_per_s: the job never reads faster. None: as fast as the device's share.
    """

    size_bytes: int
    cap_bytes_per_s: float | None = None


class Write(msgspec.Struct, frozen=True, tag=True):
    """Write into the page cache, or straight to the device.

    Attributes:
        size_bytes: how much.
        cap_bytes_per_s: the job never writes faster. None: memory speed, or the device's share.
        direct: past the page cache (O_DIRECT).
    """

    size_bytes: int
    cap_bytes_per_s: float | None = None
    direct: bool = False


Step = Compute | Read | Write


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """What a job does from its start to its end.

    Attributes:
        steps: one after the other.
        exit_code: how it ends when nobody stops it.
        ignores_term: SIGTERM does not end it; SIGKILL does.
        resident_bytes: memory it holds while it lives.
        hides_io: its I/O counters cannot be read, as another user's without privileges.
    """

    steps: tuple[Step, ...]
    exit_code: int = 0
    ignores_term: bool = False
    resident_bytes: int = 0
    hides_io: bool = False


DEFAULT_PROFILE: Final = Profile(steps=(Compute(10.0),))
"""What a command that says nothing of itself does in the simulated mode."""


def parse_profile(command: Sequence[str]) -> Profile:
    """The profile that a command line describes, for a daemon with simulated jobs.

    The words ``compute=5s``, ``read=1GiB``, ``write=200MB`` are steps, in their order;
    ``exit=3`` is the exit code. Other words mean nothing. Without any such word it is
    ``compute=10s``.

    Raises:
        ConfigError: a quantity cannot be read.
    """
    steps: list[Step] = []
    exit_code: int | None = None
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
            case "exit":
                exit_code = _parse_exit_code(quantity)
            case _:
                pass
    if exit_code is None:
        return Profile(steps=tuple(steps)) if steps else DEFAULT_PROFILE
    return Profile(steps=tuple(steps), exit_code=exit_code)


def _parse_exit_code(text: str) -> int:
    if not text.isdecimal() or int(text) > 255:
        raise ConfigError(f"exit={text}: an exit code is a number from 0 to 255")
    return int(text)
