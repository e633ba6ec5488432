"""What one user's flood of requests costs another user: ``python tests/bench/bench_flood.py``.

As root. A server over a simulated node runs in this process; user ``nobody`` floods it by 250
connections, in two ways, and user ``games`` asks for one job list a time on new connections.
Prints median and 99th percentile of the second user's requests, and the flood's requests per s.
"""

from __future__ import annotations

import os
import pwd
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from iodaemon.daemon.http.access import Rights

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "daemon")]
from served import Served  # noqa: E402 - a module of the tests

CONNECTIONS = 250
SECONDS = 8
PYTHON = shutil.which("python3", path="/usr/bin:/bin") or sys.executable
FLOOD = """
import selectors, socket, sys
path, target, count, keep = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "kept"
ask = (f"GET {target} HTTP/1.1\\r\\nHost: x\\r\\n" + ("" if keep else "Connection: close\\r\\n")
       + "\\r\\n").encode()
if target == "malformed":
    ask = b"GET / HTTP/1.1\\r\\nContent-Length: 5\\r\\nContent-Length: 6\\r\\n\\r\\n"
waiting = selectors.DefaultSelector()
def begin():
    one = socket.socket(socket.AF_UNIX)
    one.connect(path)
    one.sendall(ask)
    one.setblocking(False)
    waiting.register(one, selectors.EVENT_READ, [b""])
for _ in range(count):
    begin()
print("ready", flush=True)
served = 0
import signal, os
def end(*_):
    print(served, flush=True)
    os._exit(0)
signal.signal(signal.SIGTERM, end)
while True:
    for key, _ in waiting.select():
        one, seen = key.fileobj, key.data
        try:
            piece = one.recv(1 << 18)
        except ConnectionError:
            piece = b""
        if not piece:
            waiting.unregister(one); one.close(); served += 1; begin()
            continue
        seen[0] += piece
        head, sep, body = seen[0].partition(b"\\r\\n\\r\\n")
        if keep and sep:
            length = int(head.lower().partition(b"content-length:")[2].split(b"\\r\\n")[0])
            if len(body) >= length:
                seen[0] = b""; served += 1; one.sendall(ask)
"""
PROBE = """
import socket, sys, time
path, seconds = sys.argv[1], float(sys.argv[2])
until = time.monotonic() + seconds
while time.monotonic() < until:
    begun = time.perf_counter()
    one = socket.socket(socket.AF_UNIX)
    one.connect(path)
    one.sendall(b"GET /v1/jobs HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n")
    while one.recv(1 << 16):
        pass
    one.close()
    print(time.perf_counter() - begun)
    time.sleep(0.01)
"""


def started(script: str, user: str, *words: str) -> subprocess.Popen[str]:
    command = [PYTHON, "-I", "-S", "-c", script, *words]
    uid = pwd.getpwnam(user).pw_uid
    return subprocess.Popen(command, user=uid, cwd="/", stdout=subprocess.PIPE, text=True)


def measure(served: Served, target: str, how: str) -> None:
    flood = None
    if target:
        words = (served.socket_path, target, str(CONNECTIONS), how)
        flood = started(FLOOD, "nobody", *words)
        assert flood.stdout is not None
        assert flood.stdout.readline()
        time.sleep(1.0)
    told, _ = started(PROBE, "games", served.socket_path, str(SECONDS)).communicate()
    times_ms = sorted(float(line) * 1e3 for line in told.split())
    rate = ""
    if flood is not None:
        flood.terminate()
        count = flood.communicate()[0].strip()
        rate = f", flood {int(count or 0) / (SECONDS + 1):.0f}/s"
    worst = times_ms[int(len(times_ms) * 0.99)]
    median = statistics.median(times_ms)
    print(
        f"{target or 'alone':>12} {how:<6} median {median:8.1f} ms, p99 {worst:8.1f} ms"
        f" of {len(times_ms)}{rate}",
        flush=True,
    )


def main() -> None:
    path = Path(tempfile.mkdtemp(prefix="iod-"))
    path.chmod(0o755)
    served = Served(path, rights=Rights(owner_uid=4321, is_shared=True))
    os.chmod(served.socket_path, 0o666)
    try:
        served.client.submit([{"command": ["job", "compute=1000s"]} for _ in range(20)], {})
        measure(served, "", "")
        for target in ("/v1/node", "/metrics", "/v1/jobs"):
            for how in ("kept", "new"):
                measure(served, target, how)
        measure(served, "malformed", "new")
    finally:
        served.close()
        shutil.rmtree(path)


if __name__ == "__main__":
    main()
