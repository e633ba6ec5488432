"""Work in somebody else's directory with that user's rights, not with root's.

Who owns a directory may put links in it at any moment. Standard library only.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def as_owner_of(directory: Path) -> Iterator[None]:
    """Have the owner's rights inside, and make files of that user; where root works, none else.

    Of the whole process (credentials(7)): not beside other threads.

    Raises:
        OSError: there is no such directory.
    """
    owner = directory.stat()
    if os.geteuid() != 0 or owner.st_uid == 0:
        yield
        return
    groups, gid = os.getgroups(), os.getegid()
    try:
        os.setgroups([owner.st_gid])
        os.setegid(owner.st_gid)
        os.seteuid(owner.st_uid)
        yield
    finally:
        os.seteuid(0)
        os.setegid(gid)
        os.setgroups(groups)


@contextmanager
def as_root_again() -> Iterator[None]:
    """Have root's rights inside ``as_owner_of``, where it took them."""
    uid = os.geteuid()
    if uid == 0 or os.getuid() != 0:
        yield
        return
    os.seteuid(0)
    try:
        yield
    finally:
        os.seteuid(uid)
