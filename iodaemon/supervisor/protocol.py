"""The line between daemon and supervisor: one JSON object a line, in both directions.

What the daemon sends is a wish, ``{"wish": NAME, ...}``. Wishes are states: each may be sent again
at any time, and none has an id.

========  ==============================  ====================================================
wish      fields                          means
========  ==============================  ====================================================
hello     protocol, state                 who is there? Answered; first on each line. ``state`` is
                                          the daemon's own directory: whose jobs these are
prepare   key, launch                     make the job's process; it waits for ``run``, and ends
                                          with the line if that does not come
run       key                             let it execute its command (before or after it is ready)
freeze    key                             stand still
thaw      key                             go on, also what stopped itself or was stopped by hand,
                                          and without caps
cap       key, io: {"8:0": "rbps=1000     move no more than this on these whole disks: all caps that
          wbps=max"}                      hold from now on; {} ends them
signal    key, number                     send a signal to each process; 18 also to the stopped
kill      key                             SIGKILL to all; a prepared one never runs
forget    key                             drop all that is known of an attempt that has ended
sync      keys: [[key, "run"|"freeze"]]   all that the daemon counts on, but for caps: what runs has
                                          none then; a report for each
beat      n                               the daemon is there; answered with what was used
sampler   address                         start the process that reads counters, in place of the one
                                          before: it connects to this abstract address, in
                                          hexadecimal (``iodaemon.node.sampler``)
scratch   id, do: look, disk              look at the directory of a tier's disk
scratch   id, do: make, disk, name,       make a directory of this user's on a disk
          uid, gid, filesystem            (``scratch``); without gid its group stays root's
scratch   id, do: measure, disk, name     how much of the disk is in it
scratch   id, do: remove, disk, name,     remove it; ``filesystem`` is what the answer to ``make``
          filesystem                      said, in the same boot
scratch   id, do: discard, key            remove the output file of a job that named none, and its
                                          report
leave                                     the daemon ends: all run on. Answered with ``left``, how
                                          many do; without any, the root side ends as well
reexec                                    execute the installed program in place; this line ends
========  ==============================  ====================================================

A launch is read by ``launch.parse_launch``; its ``limits`` by ``parse_limits``. A line
above ``LONGEST_LINE`` ends the connection.

As long as there is an attempt that was not forgotten, a ``hello`` with the ``state`` of another
daemon is refused, and so are its other wishes: the keys are not its own. Without ``state`` nothing
is compared.

Who lets a job go because nobody is there who would (dead man's switch, end of the root side) ends
its caps as well.

The answer to ``hello`` has ``protocol``, ``pid``, ``ledger`` and ``boot`` (identities),
``protected`` (there is an anchor), ``min_uid``, ``grace_s``, and of the means by which jobs are
held ``means`` ("cgroup" or "processes"), ``detail`` (a sentence), ``controls`` (of cpuset, io,
pids, memory, pressure and cap those that jobs have), ``base`` (the cgroup of a job is
``BASE/jobs/KEY``; null: there is none), ``unit`` (of systemd, that the cgroup is in; or null) and
``lack`` (empty, or why it is worse than it could be: "configured", "no_hierarchy", "unusable",
"undelegated").

What the supervisor sends is an answer (``hello``, ``beat``, ``scratch``; of the last one see
``Desk.ask``), a refusal (``error``, and ``wish`` and ``key`` where known), or a report:
``{"key": KEY, "state": STATE, ...}``.

========  ================================================================================
state     means
========  ================================================================================
absent    not known here: it never ran under this ledger
prepared  waits for ``run``; told of only in answer to ``sync``
failed    never ran: ``code``, ``problem`` in words, ``is_lasting`` if another try is pointless
running   ``pid``, ``start_ticks``, ``started_us`` (0, 0 and null: it was found running, and how
          it ends will be ``lost``), ``frozen``, ``holder`` (the pid of what holds it; null with
          cgroups, and where that was killed: then it cannot be frozen)
ended     ``exit`` {code, signal}, ``use`` {read_bytes, written_bytes, calls, cpu_us,
          logical_bytes, cancelled_bytes} (``ledger.Use``), ``whole`` (False: it used at least so
          much), ``started_us``, ``ended_us``, ``memory`` (null, or of what the kernel killed for
          want of it: killed, at_limit, limit_bytes, nodes; ``Cgroups.find_memory_end``),
          ``from_outside`` (it died because the unit of all jobs was stopped); perhaps ``problem``
lost      it ran and is gone; nobody knows how it ended. ``use`` is at least so much
========  ================================================================================

Times (``_us``) are microseconds of CLOCK_MONOTONIC.

Only ``hello`` and ``reexec`` must never change.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

VERSION: Final = 1
LONGEST_LINE: Final = 8 << 20
"""Bytes of a wish; a launch contains the job's environment."""
MOST_UNSENT: Final = 8 << 20
"""Bytes of reports that a daemon may leave unread. Beyond that the line is closed."""
_SHOWN: Final = 80
_ENCODE: Final = json.JSONEncoder(separators=(",", ":")).encode
_DECODE: Final = json.JSONDecoder().decode
_DISK: Final = re.compile(r"[0-9]{1,10}:[0-9]{1,10}")
_CAP: Final = re.compile(r"(rbps|wbps|riops|wiops)=(max|[1-9][0-9]{0,18})")
Message = dict[str, Any]


class BadInputError(Exception):
    """What was sent is no wish; one line that says why."""


class Limits(NamedTuple):
    """What the job's cgroup is limited to, where a controller is delegated; None: not at all."""

    memory_bytes: int | None = None
    processes: int | None = None
    cpus: tuple[int, ...] = ()
    memory_nodes: tuple[int, ...] = ()


def field(message: Mapping[str, Any], name: str, kind: type, default: Any = None) -> Any:
    """A field of this very type (else BadInputError); its default where it is missing or null."""
    value = message.get(name)
    if value is None:
        return default
    if type(value) is not kind:
        raise BadInputError(f"{name} is no {kind.__name__}: {str(value)[:_SHOWN]!r}")
    return value


def number(message: Mapping[str, Any], name: str, least: int, most: int) -> int | None:
    """A whole number within bounds; None: it is missing."""
    value = field(message, name, int)
    if value is not None and not least <= value <= most:
        raise BadInputError(f"{name} is not between {least} and {most}")
    return value  # type: ignore[no-any-return]


def numbers(message: Mapping[str, Any], name: str, end: int = 1 << 16) -> tuple[int, ...]:
    """A list of numbers below an end, such as CPUs; empty where it is missing."""
    values = field(message, name, list, [])
    if not all(type(value) is int and 0 <= value < end for value in values):
        raise BadInputError(f"{name} are no numbers: {str(values)[:_SHOWN]}")
    return tuple(values)


def are_words(texts: list[object]) -> bool:
    """Whether the kernel can be given all of them: strings without NUL and lone surrogates."""
    try:
        os.fsencode(joined := "\0".join(texts))  # type: ignore[arg-type]
    except (TypeError, UnicodeEncodeError):
        return False
    return joined.count("\0") == len(texts) - 1


def parse_limits(launch: Mapping[str, Any]) -> Limits:
    """The limits of a launch. Raises BadInputError."""
    limits = field(launch, "limits", dict, {})
    return Limits(
        memory_bytes=number(limits, "memory_bytes", 1, 1 << 60),
        processes=number(limits, "processes", 1, 1 << 22),
        cpus=numbers(limits, "cpus"),
        memory_nodes=numbers(limits, "memory_nodes"),
    )


def parse_caps(wish: Mapping[str, Any]) -> dict[str, str]:
    """Words of io.max by disk, as in ``{"8:0": "rbps=1000 wbps=max"}``. Raises BadInputError."""
    caps = field(wish, "io", dict)
    if caps is None:
        raise BadInputError("io is missing")
    for disk, words in caps.items():
        are_caps = type(words) is str and all(map(_CAP.fullmatch, words.split(" ")))
        if not (_DISK.fullmatch(disk) and are_caps):
            raise BadInputError(f"no cap: {disk[:_SHOWN]!r}: {str(words)[:_SHOWN]!r}")
    return caps  # type: ignore[no-any-return]


def encode(message: Mapping[str, Any]) -> bytes:
    """One line."""
    return _ENCODE(message).encode() + b"\n"


def decode(line: bytes) -> Message:
    """The object in a line. Raises BadInputError, whatever the bytes are."""
    try:
        message = _DECODE(line.decode())
    except (ValueError, RecursionError) as error:
        raise BadInputError(f"no JSON: {str(error)[:_SHOWN]}") from error
    if not isinstance(message, dict):
        raise BadInputError("no object")
    return message


class LineReader:
    """Cuts what is read into lines.

    Attributes:
        unread: the beginning of the next line.
        is_broken: a line was too long; no more of them are told.
    """

    def __init__(self) -> None:
        self.unread = bytearray()
        self.is_broken = False
        self._searched = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The lines that are whole now."""
        self.unread += b"" if self.is_broken else data
        while 0 <= (end := self.unread.find(b"\n", self._searched)) <= LONGEST_LINE:
            line = bytes(self.unread[:end])
            del self.unread[: end + 1]
            self._searched = 0
            yield line
        self._searched = len(self.unread)
        if self._searched > LONGEST_LINE:
            self.is_broken, self._searched = True, 0
            self.unread.clear()


class Silence:
    """A dead man's switch: somebody who must be heard of at least once in the grace time."""

    def __init__(self, grace_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.grace_s = grace_s
        self._clock = clock
        self._heard_s = clock()
        self._is_told = False

    def heard(self) -> None:
        self._heard_s = self._clock()
        self._is_told = False

    def begins(self) -> bool:
        """Whether the grace time is over; True once for each silence."""
        if self._is_told or self.lasts_s() < self.grace_s:
            return False
        self._is_told = True
        return True

    def lasts_s(self) -> float:
        """For how long nothing was heard."""
        return self._clock() - self._heard_s

    def wait_s(self) -> float:
        """How long to wait for the grace time to be over at most; inf: it is."""
        return math.inf if self._is_told else max(0.0, self.grace_s - self.lasts_s())
