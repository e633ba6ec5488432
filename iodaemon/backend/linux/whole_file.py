"""Files in an open directory where others may write: whole when they get their names.

A link or a file that is at such a name is replaced and not followed or written to.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from typing import IO, Final

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def whole_file(directory: int, name: str, mode: int) -> Iterator[IO[bytes]]:
    """A new file, which has its name once what is done with it has come to a good end.

    Args:
        directory: a descriptor of the directory itself.
        name: in it. Whatever has it is replaced; where the end is no good one it stays as it is.
        mode: as of open(2), less the umask.

    Raises:
        OSError: the file cannot be made, or not get its name.
    """
    temporary = f".{name}.{secrets.token_hex(8)}"
    descriptor = os.open(temporary, _NEW, mode, dir_fd=directory)
    try:
        with open(descriptor, "wb") as file:
            yield file
        os.replace(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=directory)
        raise
