"""The keeper as a daemon knows it, and how it is begun, by a daemon or by systemd."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec


class KeeperSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Where a keeper is, and what it is begun with.

    Attributes:
        state: its directory.
        socket: where it listens.
        grace_s: how long it waits for a daemon before it thaws everything.
        means: ``auto``, or ``signals`` to do without cgroups.
        is_service: systemd begins it, and no daemon does.
    """

    state: Path
    socket: Path
    grace_s: float
    means: str = "auto"
    is_service: bool = False

    @property
    def jobs(self) -> str:
        """Where the jobs' directories are."""
        return str(self.state / "jobs")


def keeper_command(keeper: KeeperSpec, *identity: int) -> list[str]:
    """The command of a keeper: an isolated Python without site packages.

    The directory of this package, which may be ``site-packages``, comes after the standard
    library: no distribution in it can replace a module that the keeper, as root, imports.

    Args:
        keeper: which.
        identity: as a service: uid and gid of the daemon, and the least uid that jobs may have.
    """
    root = Path(__file__).resolve().parents[3]
    code = (
        f"import sys; sys.path.append({str(root)!r}); "
        "from iodaemon.backend.linux.keeper_main import main; sys.exit(main())"
    )
    return [
        sys.executable,
        "-I",
        "-S",
        "-c",
        code,
        str(keeper.state),
        str(keeper.socket),
        str(keeper.grace_s),
        keeper.means,
        *map(str, identity),
    ]
