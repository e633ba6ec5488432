"""In the virtual server: runs the commands that come in by a virtio port, one after the other.

A line of JSON each way. In: ``{"argv", "user", "input", "limit_s"}``, the input in base64; with
``"program"`` the text of a Python program, which is run with these arguments in a fork, so that no
interpreter has to begin. Out: at first ``{"boot_id", "up_s"}``, then for each command
``{"code", "out", "err"}``. Standard library only.
"""

import base64
import json
import os
import pwd
import signal
import socket  # noqa: F401 - the programs' most needed, loaded once
import subprocess
import sys
import time
import traceback
from pathlib import Path

PORT = "/dev/virtio-ports/iod.agent"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def run(order):
    """What became of one command; 124 when it took too long."""
    user = pwd.getpwnam(order["user"])
    environment = {
        "PATH": PATH,
        "HOME": user.pw_dir,
        "USER": user.pw_name,
        "LOGNAME": user.pw_name,
        "LANG": "C.UTF-8",
    }
    runtime = f"/run/user/{user.pw_uid}"
    if os.path.isdir(runtime):
        environment["XDG_RUNTIME_DIR"] = runtime
    identity = {}
    if user.pw_uid != 0:
        groups = os.getgrouplist(user.pw_name, user.pw_gid)
        identity = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": groups}
    try:
        ended = subprocess.run(
            order["argv"],
            input=base64.b64decode(order["input"]),
            capture_output=True,
            timeout=order["limit_s"],
            check=False,
            env=environment,
            cwd=user.pw_dir,
            **identity,
        )
    except subprocess.TimeoutExpired as error:
        return 124, error.stdout or b"", (error.stderr or b"") + b"\ntook too long\n"
    except OSError as error:
        return 127, b"", str(error).encode()
    return ended.returncode, ended.stdout, ended.stderr


def run_program(order):
    """As ``run``, of a program that came as text; -14 when it took too long."""
    files = [os.memfd_create(name) for name in ("in", "out", "err")]
    os.write(files[0], base64.b64decode(order["input"]))
    os.lseek(files[0], 0, os.SEEK_SET)
    child = os.fork()
    if child == 0:
        be_program(order, files)
    _, status = os.waitpid(child, 0)
    said = []
    for file in files:
        os.lseek(file, 0, os.SEEK_SET)
        with open(file, "rb") as content:
            said.append(content.read())
    return os.waitstatus_to_exitcode(status), said[1], said[2]


def be_program(order, files):
    """In the fork; never returns."""
    code = 1
    try:
        signal.alarm(int(order["limit_s"]))
        for fd, file in enumerate(files):
            os.dup2(file, fd)
        user = pwd.getpwnam(order["user"])
        os.chdir(user.pw_dir)
        if user.pw_uid != 0:
            os.setgroups(os.getgrouplist(user.pw_name, user.pw_gid))
            os.setresgid(*[user.pw_gid] * 3)
            os.setresuid(*[user.pw_uid] * 3)
        sys.argv = ["program", *order["argv"]]
        exec(order["program"], {"__name__": "__main__"})
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 0
    except BaseException:  # noqa: BLE001 - it is told, whatever it is
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def serve(orders, answers):
    """Answer until the other end is gone."""
    hello = {
        "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "up_s": float(Path("/proc/uptime").read_text().split()[0]),
    }
    say(answers, hello)
    for line in orders:
        order = json.loads(line)
        code, out, err = run_program(order) if "program" in order else run(order)
        answer = {"code": code}
        answer |= {"out": base64.b64encode(out).decode(), "err": base64.b64encode(err).decode()}
        say(answers, answer)


def say(answers, message):
    answers.write(json.dumps(message).encode() + b"\n")
    answers.flush()


if __name__ == "__main__":
    while not os.path.exists(PORT):
        time.sleep(0.1)
    port = os.open(PORT, os.O_RDWR | os.O_CLOEXEC)  # it can be opened once only
    with open(port, "rb") as orders, open(os.dup(port), "wb") as answers:
        serve(orders, answers)
