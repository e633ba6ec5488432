"""What makes a keeper a service of the system: whom it obeys, and whose jobs it runs.

Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from iodaemon.backend.linux.fence import confine
from iodaemon.backend.linux.freezer import CgroupFreezer, Freezer
from iodaemon.backend.linux.protocol import Message
from iodaemon.systemd import is_journal_stream

_NOTICE: Final = 5
"""A priority of syslog(3): the keeper speaks seldom, and somebody should hear it."""


class Service(NamedTuple):
    """What a keeper of its own unit knows: it runs as root, and jobs as their submitters.

    Attributes:
        daemon_uid: the one user, besides its own, whom it obeys.
        min_uid: it runs nothing as users below this one, whatever the daemon says.
        reopen: brings back the place of the jobs' cgroups once that is gone.
    """

    daemon_uid: int
    min_uid: int
    reopen: Callable[[], object]


def make_cgroup(service: Service | None, freezer: Freezer, key: str, launch: Message) -> None:
    """Prepare for a job; who stops the jobs' scope stops the jobs, not the service.

    Where its fence or its limit cannot be set it runs without.
    """
    try:
        freezer.make(key)
    except FileNotFoundError:
        if service is None:
            raise
        service.reopen()
        freezer.make(key)
    if isinstance(freezer, CgroupFreezer):
        for problem in confine(freezer.path(key), freezer.controls, launch):
            say(f"job {key}: {problem}")


def grant(service: Service | None, launch: Message) -> Message:
    """The launch with the least uid it may have; without a service, as the keeper's own user."""
    return {**launch, "min_uid": None if service is None else service.min_uid}


def say(text: str) -> None:
    """One line into keeper.log, or the unit's journal, which has time and process already."""
    moment = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    line = f"{moment} keeper[{os.getpid()}]: {text}"
    if is_journal_stream(sys.stderr, os.environ):
        line = f"<{_NOTICE}>{text}"
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)
