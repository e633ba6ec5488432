"""Where calibrations are kept: one file in the state directory of the daemon that uses them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from iodaemon.calibration.putting import put, read
from iodaemon.calibration.record import Calibration, Kept, decode, encode
from iodaemon.errors import ConfigError

AGAIN: Final = "'iod calibrate PATH' measures it again"
FILE: Final = "calibration.json"
MOST_BYTES: Final = 16 << 20
"""Of a file that is read; one of this size is none of ours."""


def kept_file(state_dir: Path) -> Path:
    """The file of this state directory."""
    return state_dir / FILE


def load(state_dir: Path) -> Kept:
    """What is kept there; nothing where there is no file.

    Raises:
        ConfigError: the file is none; one line with what to do.
        OSError: it cannot be read.
    """
    file = kept_file(state_dir)
    try:
        text = read(file, MOST_BYTES)
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
    """What is kept of the same disks; None: nothing.

    Raises:
        ConfigError: as of ``load``.
        OSError: likewise.
    """
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
    """Who sets a daemon up may make its directory a link; what others lay in it is not followed."""
    return Path(os.path.realpath(state_dir))
