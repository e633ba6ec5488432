"""How a keeper is begun, by a daemon or by systemd."""

from __future__ import annotations

import sys
from pathlib import Path


def keeper_command(
    state: Path, socket: Path, grace_s: float, means: str, *identity: int
) -> list[str]:
    """How a keeper is started: no site packages, nothing on the path but this package.

    Args:
        state: where it keeps its jobs' directories.
        socket: where it listens.
        grace_s: how long it waits for a daemon before it thaws everything.
        means: ``auto``, or ``signals`` to do without cgroups.
        identity: as a service: uid and gid of the daemon, and the least uid that jobs may have.
    """
    root = Path(__file__).resolve().parents[3]
    code = (
        f"import sys; sys.path.insert(0, {str(root)!r}); "
        "from iodaemon.backend.linux.keeper_main import main; sys.exit(main())"
    )
    return [
        sys.executable,
        "-I",
        "-S",
        "-c",
        code,
        str(state),
        str(socket),
        str(grace_s),
        means,
        *map(str, identity),
    ]
