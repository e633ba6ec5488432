"""What belongs where: as a service for all users of a machine, and as a user's own."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from iodaemon.errors import RequestError
from iodaemon.supervisor import systemd
from iodaemon.supervisor.scratch import STORE

SHIPPED_PROGRAM: Final = "/opt/iodaemon/bin/iod"
"""What the shipped units call."""
SUPERVISOR: Final = "iodaemon-supervisor.service"
UNITS: Final = ("iodaemon.socket", SUPERVISOR, "iodaemon.service")
SCOPE: Final = (systemd.SCOPE, systemd.SLICE)
"""Where the jobs are; the supervisor makes them."""
KEEPER: Final = "iodaemon-keeper.service"
"""Of releases without a supervisor; this one does not know the jobs that it keeps."""
KEEPER_DATA: Final = "/var/lib/iodaemon-keeper"
"""Output of their jobs."""
SYSUSERS: Final = "/etc/sysusers.d/iodaemon.conf"
"""The daemon's user."""
TMPFILES: Final = "/etc/tmpfiles.d/iodaemon.conf"
"""The service's directories."""
_PLAIN: Final = re.compile(r"[A-Za-z0-9_./+@:=,~-]+")
"""Paths that mean themselves in a unit."""


class Item(NamedTuple):
    """The content of one path, as it is or should be.

    Attributes:
        kind: ``other``: something that install never makes, such as a directory.
        text: of a file; of a link, where it points.
    """

    kind: Literal["nothing", "file", "link", "other"]
    text: str = ""


NOTHING: Final = Item("nothing")


class Layout(NamedTuple):
    """One way to be installed. All paths are absolute.

    Attributes:
        is_system: for all users of the machine.
        program: the ``iod`` that the units call.
        systemctl: the command that controls the units.
        units: those to enable and start, the first one first.
        items: the units and the files that they need; install restores all of them.
        link: a link to the program in a directory on every user's PATH. None: not needed.
        config: a first configuration; written only if there is none.
        record: path of the file that records what install made.
        runtime: directories to remove once nothing runs.
        data: directories that only ``--purge`` removes.
        elsewhere: data directories that the configuration names; never removed.
        stores: directories on the disks of storage tiers that contain jobs' directories.
    """

    is_system: bool
    program: str
    systemctl: tuple[str, ...]
    units: tuple[str, ...]
    items: Mapping[str, Item]
    link: tuple[str, Item] | None
    config: tuple[str, Item | None]
    record: str
    runtime: tuple[str, ...]
    data: tuple[str, ...]
    elsewhere: tuple[str, ...] = ()
    stores: tuple[str, ...] = ()

    @property
    def managed(self) -> dict[str, Item]:
        """Units, what they need, and the link."""
        return {**self.items, **({} if self.link is None else dict([self.link]))}


def system_layout(
    program: str, shipped: Path, config: str, texts: Mapping[str, str] = MappingProxyType({})
) -> Layout:
    """As a service for all users.

    Args:
        shipped: the folder ``systemd``.
        config: the text of a first configuration.
        texts: further files, by path.

    Raises:
        RequestError: a unit cannot contain the program's path.
    """
    items = {
        **{path: Item("file", text) for path, text in texts.items()},
        SYSUSERS: Item("file", (shipped / "sysusers.conf").read_text()),
        TMPFILES: Item("file", (shipped / "tmpfiles.conf").read_text()),
    }
    for path in sorted((shipped / "system").iterdir()):
        items[f"/etc/systemd/system/{path.name}"] = _unit(path, program)
    link = "/usr/local/bin/iod"
    return Layout(
        is_system=True,
        program=program,
        systemctl=("systemctl",),
        units=UNITS,
        items=items,
        link=None if program == link else (link, Item("link", program)),
        config=("/etc/iodaemon/config.toml", Item("file", config)),
        record="/etc/iodaemon/installed.json",
        runtime=("/run/iodaemon",),
        data=("/var/lib/iodaemon", "/var/lib/iodaemon-supervisor"),
    )


def user_layout(
    program: str, shipped: Path, *, config_file: str, runtime_dir: str, state_dir: str
) -> Layout:
    """As a user's own service, whose configuration is the user's to write.

    Raises:
        RequestError: a unit cannot contain the program's path.
    """
    folder = os.path.dirname(config_file)
    name = "iodaemon.service"
    unit = f"{os.path.dirname(folder)}/systemd/user/{name}"
    return Layout(
        is_system=False,
        program=program,
        systemctl=("systemctl", "--user"),
        units=(name,),
        items={unit: _unit(shipped / "user" / name, program)},
        link=None,
        config=(config_file, None),
        record=f"{folder}/installed.json",
        runtime=(runtime_dir,),
        data=(state_dir,),
    )


def with_places(
    layout: Layout, configured: Iterable[str | None], disks: Iterable[str] = ()
) -> Layout:
    """The same, with directories that the configuration names, and disks of storage tiers."""
    elsewhere = tuple(path for path in configured if path and path not in layout.data)
    stores = tuple(os.path.join(os.path.normpath(disk), STORE) for disk in disks)
    return layout._replace(elsewhere=elsewhere, stores=stores)


def _unit(path: Path, program: str) -> Item:
    if not _PLAIN.fullmatch(program):
        raise RequestError(
            f"{program} cannot be called from a unit: install iodaemon at a path of letters, "
            "digits and ._-+, such as /opt/iodaemon"
        )
    return Item("file", path.read_text().replace(SHIPPED_PROGRAM, program))
