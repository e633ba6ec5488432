"""The least that a job can cost in Python: fork, exec, wait; two at a time.

Run as a program of its own, small and without site packages, as a launcher is: COUNT -> jobs/s.
"""

import os
import sys
import time


def start() -> None:
    """One job; nothing is written down."""
    if os.fork() == 0:
        os.execv("/bin/true", ["true"])


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
