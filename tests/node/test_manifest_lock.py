"""Who may go on with a step: one, and the next a moment after that one was killed."""

import fcntl
import os
import threading

from iodaemon.backend.linux.manifest import try_lock


def test_a_lock_that_is_let_go_of_meanwhile_is_had_with_patience_and_not_without(tmp_path):
    first, second = (os.open(tmp_path / "out", os.O_RDWR | os.O_CREAT) for _ in "ab")
    assert try_lock(first)
    assert not try_lock(second)
    assert not try_lock(second, 0.05)

    ending = threading.Timer(0.2, fcntl.flock, (first, fcntl.LOCK_UN))
    ending.start()
    had = try_lock(second, 30.0)
    ending.join()

    assert had
    os.close(first)
    os.close(second)
