"""The errors that the core itself raises; ``iodaemon.errors`` holds the whole family."""


class IodaemonError(Exception):
    """Base of every error of this project: one line that says what to do."""


class TransitionError(IodaemonError):
    """A job was asked to make a step that its life does not allow: a bug, never a user's fault."""


class InvariantError(IodaemonError):
    """The state contradicts itself: a bug, never a user's fault."""
