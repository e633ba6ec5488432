"""What a disk is known by, whatever the kernel calls it at this boot.

/sys/block/NAME/{wwid,serial,uuid}, device/{wwid,serial,cid} (nvme, virtio, scsi, mmc; Linux 4.20;
Documentation/ABI/stable/sysfs-block and the drivers' own), and size in sectors of 512 bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from iodaemon.backend.linux import block
from iodaemon.core.platform import DeviceId

_NAMES: Final = ("wwid", "device/wwid", "uuid", "serial", "device/serial", "device/cid")
"""The first that says anything, the most distinct first."""


def find_identity(name: DeviceId, root: Path = Path("/")) -> str:
    """The disk's own word with its size; of one without a word the kernel's name stands for it.

    A loop device is known by its file. Empty: there is no such disk.
    """
    directory = block.find_named_directory(root, name)
    if directory is None:
        return ""
    size = f"{_read(directory / 'size')} sectors"
    file = block.find_backing_file(directory)
    if file is not None:
        return f"file {file}, {size}"
    for source in _NAMES:
        if word := _read(directory / source):
            return f"{Path(source).name} {' '.join(word.split())}, {size}"
    return f"name {name}, {size}"


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
