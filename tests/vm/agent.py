"""In the virtual server: runs the commands that come in by a virtio port, one after the other.

A line of JSON each way. In: ``{"argv", "user", "input", "limit_s"}``, the input in base64.
Out: at first ``{"boot_id", "up_s"}``, then for each command ``{"code", "out", "err"}``. Standard
library only.
"""

import base64
import json
import os
import pwd
import subprocess
import time
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


def serve(orders, answers):
    """Answer until the other end is gone."""
    hello = {
        "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "up_s": float(Path("/proc/uptime").read_text().split()[0]),
    }
    say(answers, hello)
    for line in orders:
        code, out, err = run(json.loads(line))
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
