"""``iod`` as a user who may not read this Python: everything is imported before it becomes them."""

import subprocess
import sys

_PROGRAM = """
import contextlib, importlib, io, os, pkgutil, sys
import iodaemon.cli
for module in pkgutil.iter_modules(iodaemon.cli.__path__, "iodaemon.cli."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
uid, gid, api, *words = sys.argv[1:]
with contextlib.redirect_stderr(io.StringIO()):
    iodaemon.cli.main(["--api", "/nowhere/iod.sock", *words])
os.setgroups([])
os.setgid(int(gid))
os.setuid(int(uid))
sys.exit(iodaemon.cli.main(["--api", api, *words]))
"""


def call_as(uid, gid, socket_path, *words, env, cwd="/"):
    """What it says to this user; it has been called once before, with no daemon there."""
    return subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(uid), str(gid), socket_path, *words],
        env=env,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
