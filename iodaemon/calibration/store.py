"""Where calibrations are kept: one file in the state directory of the daemon that uses them.

Others may write in that directory. Each file is made under a name of its own and gets its name
whole, by rename, so that a link of that name is replaced and not followed. It belongs to whom the
directory does.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from iodaemon.calibration.record import Calibration, Kept, decode, encode
from iodaemon.errors import ConfigError, RequestError
from iodaemon.files import whole_file

AGAIN: Final = "'iod calibrate PATH' measures it again"
FILE: Final = "calibration.json"
MOST_BYTES: Final = 16 << 20
"""Of a file that is read; one of this size is none of ours."""
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OLD: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NO_DIRECTORY: Final = frozenset({errno.ELOOP, errno.ENOTDIR})


def kept_file(state_dir: Path) -> Path:
    return state_dir / FILE


def load(state_dir: Path) -> Kept:
    """What is kept there; nothing where there is no file.

    Raises:
        ConfigError: the file is none; one line with what to do.
        OSError: it cannot be read.
    """
    file = kept_file(state_dir)
    try:
        text = read(file)
    except FileNotFoundError:
        return Kept()
    except ConfigError as error:
        raise ConfigError(f"{error}; {AGAIN}") from error
    return decode(text, str(file))


def why_unread(state_dir: Path, error: ConfigError | OSError) -> str:
    """Why ``load`` failed, and what to do; in one line."""
    if isinstance(error, ConfigError):
        return str(error)
    cure = "make it readable for the daemon, then 'iod config reload'"
    return f"{kept_file(state_dir)}: {error.strerror}; {cure}"


def kept_of(state_dir: Path, made: Calibration) -> Calibration | None:
    """What is kept of the same disks; None: nothing. It raises as ``load`` does."""
    same = (c for c in load(state_dir).calibrations if c.identities == made.identities)
    return next(same, None)


def keep(state_dir: Path, made: Calibration) -> Path:
    """Add one, durably and whole; the file. Others may read it, and the directory's owner has it.

    Raises:
        ConfigError: what is there is no such file, and is left as it is.
        OSError: it cannot be written.
    """
    put(resolved(state_dir), {FILE: encode(load(state_dir).with_new(made))})
    return kept_file(state_dir)


def resolved(state_dir: Path) -> Path:
    """Whoever sets a daemon up may make its directory a link; links in it are not followed."""
    return Path(os.path.realpath(state_dir))


def read(file: Path) -> bytes:
    """What it contains, up to ``MOST_BYTES``; neither link nor pipe is followed or waited for.

    Raises:
        FileNotFoundError: there is none.
        ConfigError: it is no ordinary file.
        OSError: it cannot be read.
    """
    try:
        descriptor = os.open(file, _OLD)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ConfigError(f"{file} is a link, and not followed; remove it") from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ConfigError(f"{file} is no ordinary file; remove it")
    with open(descriptor, "rb") as opened:
        return opened.read(MOST_BYTES)


def put(folder: Path, files: Mapping[str, bytes]) -> tuple[Path, ...]:
    """Write the files, durably and each whole; others may read them. The folder is made if missing.

    Raises:
        RequestError: the folder is a link, or no directory.
        OSError: it cannot be written.
    """
    try:
        with contextlib.suppress(FileExistsError):
            folder.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            folder.mkdir(mode=0o755)
            _give_to_owner_of(folder.parent, folder)
        directory = os.open(folder, _DIRECTORY)
    except OSError as error:
        if error.errno not in _NO_DIRECTORY:
            raise
        raise RequestError(
            f"{folder} is a link, or no directory; name a directory itself"
        ) from error
    try:
        for name, text in files.items():
            with whole_file(directory, name, 0o600) as out:
                out.write(text)
                out.flush()
                if os.geteuid() == 0:
                    owner = os.fstat(directory)
                    os.fchown(out.fileno(), owner.st_uid, owner.st_gid)
                os.fchmod(out.fileno(), 0o644)
                os.fsync(out.fileno())
        os.fsync(directory)
    finally:
        os.close(directory)
    return tuple(folder / name for name in files)


def _give_to_owner_of(parent: Path, folder: Path) -> None:
    """The one that was just made; what lies in somebody's directory is theirs.

    Whose directory that is may have put another one there: none of root's with something in it is
    given away.
    """
    if os.geteuid() != 0:
        return
    owner = parent.stat()
    descriptor = os.open(folder, _DIRECTORY)
    try:
        if not os.listdir(descriptor):
            os.fchown(descriptor, owner.st_uid, owner.st_gid)
    finally:
        os.close(descriptor)
