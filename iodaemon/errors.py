"""Every error a caller may catch; each leaf is there because somebody reacts to it differently."""

from iodaemon.core.error import InvariantError, IodaemonError, TransitionError

__all__ = [
    "BackendError",
    "ConfigError",
    "Conflict",
    "Gone",
    "HopelessError",
    "InvariantError",
    "IodaemonError",
    "JournalError",
    "NoDaemon",
    "NoData",
    "NoDrawing",
    "NotFound",
    "NotPermitted",
    "RequestError",
    "TransitionError",
    "Unanswered",
]


class ConfigError(IodaemonError):
    """A configuration or policy file, or an option, is wrong: names file, key and what to write."""


class HopelessError(ConfigError):
    """It cannot start, and will not before somebody mends that: systemd must not try again."""


class RequestError(IodaemonError):
    """A client asked for something that is refused; it goes to the client, the daemon goes on.

    Attributes:
        at: of a value in a body, the path to it: ``("jobs", 2, "walltime_s")``; the first job is 0.
        problem: what is wrong with it. Where the path ends in a key, that is the subject which it
            lacks: ``must be above 0``.
    """

    at: tuple[str | int, ...] = ()
    problem: str = ""


class NoDrawing(RequestError):
    """What draws figures is not installed: whoever can, shows something else instead."""


class Conflict(RequestError):
    """The job's present state does not allow it: it has ended, or waits already (HTTP 409)."""


class Gone(RequestError):
    """The events after the one that is named are not all in the journal (HTTP 410)."""


class NotFound(RequestError):
    """The request names a job, policy or file that does not exist (exit code 3)."""


class NotPermitted(RequestError):
    """The caller may not do this (exit code 4)."""


class NoDaemon(IodaemonError):
    """No daemon answers on the socket (exit code 7)."""


class Unanswered(NoDaemon):
    """A request to change something was sent and its answer was lost (exit code 8)."""


class BackendError(IodaemonError):
    """The platform could not do what was decided; becomes an event such as StartFailed."""


class JournalError(IodaemonError):
    """The journal cannot be written now (full or read-only disk); what was acknowledged is safe."""


class NoData(IodaemonError):
    """The source has nothing to say here (vanished process, missing file): an ordinary answer."""
