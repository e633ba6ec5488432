"""Why a job's first process did not become its command, as it tells its shim: one line in a pipe.

Standard library only.
"""

from __future__ import annotations

import os
from typing import Final

from iodaemon.backend.linux.protocol import Message

NOT_NOW: Final = "-"
"""In place of the exit code of a command that was not run: another time it may be."""
NOBODY: Final = "nobody"
"""Likewise: whom it is to be run as does not exist now."""


def tell_trouble(pipe: int, exit_code: str, text: str) -> None:
    """Tell the shim. A path need not be text, and what is wrong with it is said all the same."""
    os.write(pipe, f"{exit_code} {text}\n".encode(errors="backslashreplace"))


def parse_trouble(text: str) -> Message:
    """The status that such a line means."""
    code, _, problem = text.partition(" ")
    never_ran: Message = {"never_ran": problem, "exit_code": None}
    if code == NOBODY:
        return {**never_ran, "of_user": True, "holds": True}
    return never_ran if code == NOT_NOW else {**never_ran, "exit_code": int(code)}
