"""Names of places that killed processes left."""

import subprocess

from iodaemon.files import find_maker, new_name


def dead_pid():
    """The number of a process that is gone."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def name_of(prefix, *, pid=None, is_elsewhere=False):
    """As a process of this number, by default a dead one, named its place here or elsewhere."""
    where = find_maker(new_name(prefix), prefix).where
    if is_elsewhere:
        where = f"{int(where, 16) ^ 1:04x}"
    return f"{prefix}.{pid or dead_pid()}.{where}.0a"
