"""The least that a job with a shim can cost in Python: fork, fork, exec, wait, wait; two at a time.

Run as a program of its own, small and without site packages, as a keeper is: COUNT -> jobs/s.
"""

import os
import sys
import time


def start() -> None:
    """One shim with one job; nothing is written down."""
    if os.fork() == 0:
        os.setsid()
        pid = os.fork()
        if pid == 0:
            os.execv("/bin/true", ["true"])
        os.waitpid(pid, 0)
        os._exit(0)


def main(count: int) -> float:
    """Jobs per second."""
    began_s = time.monotonic()
    for number in range(count):
        if number >= 2:
            os.wait()
        start()
    for _ in range(min(count, 2)):
        os.wait()
    return count / (time.monotonic() - began_s)


if __name__ == "__main__":
    print(main(int(sys.argv[1])))
