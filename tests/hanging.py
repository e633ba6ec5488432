"""Account databases of a test's own that say nothing while a file is there: real nsswitch."""

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from mounting import lacks_root

SOURCE = Path(__file__).parent / "node" / "nss" / "hang.c"


class Databases:
    """``files hang`` for whoever is started by ``command``, in a mount namespace of its own."""

    def __init__(self, place):
        self.place = place
        self.gate = place / "gate"
        self.library = place / "libnss_hang.so.2"
        self.nsswitch = place / "nsswitch.conf"
        self.nsswitch.write_text("passwd: files hang\ngroup: files hang\n")
        build(self.library, self.gate)
        tried = subprocess.run(self.command("true"), capture_output=True, text=True, check=False)
        if tried.returncode:
            lacks_root(f"may not make a mount namespace here: {tried.stderr.strip()}")

    def command(self, *words):
        script = (
            f"mount --bind {shlex.quote(str(self.nsswitch))} /etc/nsswitch.conf && "
            f'LD_LIBRARY_PATH={shlex.quote(str(self.place))} exec "$@"'
        )
        return ["unshare", "--mount", "sh", "-c", script, "sh", *map(str, words)]

    def fall_silent(self):
        self.gate.touch()

    def answer(self):
        self.gate.unlink(missing_ok=True)


def build(library, gate):
    """The name service, whose silence this file is."""
    if shutil.which("gcc") is None and "gcc" not in os.environ.get("IOD_REQUIRE", ""):
        pytest.skip("no gcc here")
    words = ["gcc", "-shared", "-fPIC", "-O", f'-DGATE="{gate}"', "-o", library, SOURCE]
    subprocess.run(list(map(str, words)), check=True)


def databases_of(place):
    """In this directory, which everybody may enter; answering."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount")
    return Databases(place)
