"""A file system that never answers FLUSH, and programs that get stuck in execve(2) on it.

A process that executes closes its close-on-exec descriptors inside ``exec_update_lock``
(fs/exec.c, begin_new_exec). Where that close waits for a server, so does whoever reads a file of
/proc/PID that takes the lock. A dead NFS server is the everyday case; here it is FUSE
(include/uapi/linux/fuse.h), served over ``/dev/fuse`` without a library.
"""

import collections
import ctypes
import errno
import math
import os
import stat
import struct
import subprocess
import sys
import threading
import time

import pytest
from mounting import lacks_root

NAME = "file"
"""Of the only file."""
_LOOKUP, _FORGET, _GETATTR, _SETATTR, OPEN, _READ, _STATFS, _RELEASE = 1, 2, 3, 4, 14, 15, 17, 18
_FLUSH, _INIT, _OPENDIR, _READDIR, _RELEASEDIR, _ACCESS = 25, 26, 27, 28, 29, 34
_INTERRUPT, _BATCH_FORGET = 36, 42
_ASK = struct.Struct("<IIQQIIIHH")
_ANSWER = struct.Struct("<IiQ")
_LEAST_READ_BYTES = 65536 + 4096
_ROOT, _FILE = 1, 2
_LONG_S = 3600
_MOUNT_FLAGS = 2 | 4  # MS_NOSUID, MS_NODEV
_MNT_FORCE, _MNT_DETACH = 1, 2
_LIBC = ctypes.CDLL(None, use_errno=True)

PROGRAM = """
import os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
os.execvp(sys.argv[2], sys.argv[2:])
"""
"""Opens the file of its first argument close-on-exec, and executes the others."""


def stuck_command(path, *command):
    """The words of a program that gets stuck in its execve of ``command`` (``true``)."""
    return [sys.executable, "-ISc", PROGRAM, str(path), *(command or ("true",))]


class SilentFileSystem:
    """Mounted at ``point``; it has one file, the last close of which nobody answers.

    Args:
        point: an empty directory.
        content: of the file.
        valid_s: how long the kernel knows names and sizes; with 0 it asks each time.

    Attributes:
        stuck: the processes that wait in a close.
        is_mute: nothing else is answered either; ``speak`` answers it all.
        mute_after: requests that are answered before it becomes so by itself.
        asked: how often each kind of request was made.
    """

    def __init__(self, point, content=b"", *, valid_s=_LONG_S):
        self.point = os.fspath(point)
        self.content = content
        self.valid_s = valid_s
        self.mute_after = math.inf
        self.asked = collections.Counter()
        self.path = os.path.join(self.point, NAME)
        self.stuck = []
        self.is_mute = False
        self._unanswered = []
        self._answering = threading.Lock()
        self._fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self._fd},rootmode=40000,user_id=0,group_id=0,allow_other"
        words = (b"silent", os.fsencode(self.point), b"fuse", _MOUNT_FLAGS, options.encode())
        if _LIBC.mount(*words) != 0:
            number = ctypes.get_errno()
            os.close(self._fd)
            raise OSError(number, os.strerror(number), self.point)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def wait_for(self, count, within_s=60):
        """Return the processes that wait in a close, once there are so many."""
        until_s = time.monotonic() + within_s
        while len(self.stuck) < count:
            assert time.monotonic() < until_s, f"{self.stuck} got stuck, of {count}"
            time.sleep(0.01)
        return list(self.stuck)

    @property
    def is_waited_for(self):
        """Whether somebody waits for it."""
        return bool(self._unanswered or self.stuck)

    def let_go(self):
        """Unmount it; whoever waits goes on (ECONNABORTED)."""
        _LIBC.umount2(os.fsencode(self.point), _MNT_FORCE)
        _LIBC.umount2(os.fsencode(self.point), _MNT_DETACH)
        self._thread.join(30)

    def _serve(self):
        while True:
            try:
                request = os.read(self._fd, _LEAST_READ_BYTES)
            except OSError as error:
                if error.errno in (errno.EINTR, errno.EAGAIN, errno.ENOENT):
                    continue
                os.close(self._fd)  # ENODEV: unmounted
                return
            _, code, number, node, _, _, pid, _, _ = _ASK.unpack_from(request)
            self.asked[code] += 1
            if code == _FLUSH:
                self.stuck.append(pid)
            elif code not in (_FORGET, _BATCH_FORGET, _INTERRUPT):
                self._unanswered.append((number, code, node, request[_ASK.size :]))
                self._answer_all()

    def speak(self):
        """Answer again."""
        self.is_mute, self.mute_after = False, math.inf
        self._answer_all()

    def _answer_all(self):
        with self._answering:
            while self._unanswered and not self.is_mute:
                if self.mute_after <= 0:
                    self.is_mute = True
                    return
                self.mute_after -= 1
                number, *question = self._unanswered.pop(0)
                self._answer(number, *self._answer_to(*question))

    def _answer(self, number, error, payload):
        head = _ANSWER.pack(_ANSWER.size + len(payload), -error, number)
        try:
            os.write(self._fd, head + payload)
        except OSError as problem:
            if problem.errno != errno.ENOENT:  # who asked is gone
                raise

    def _answer_to(self, code, node, argument):
        """The error (0: none) and the answer."""
        if code == _INIT:
            _, minor, ahead = struct.unpack_from("<III", argument)
            told = (7, min(minor, 31), ahead, 0, 0, 0, 4096, 1, 0, 0, 0)
            return 0, struct.pack("<IIIIHHIIHHI28x", *told)
        if code == _LOOKUP:
            if argument.rstrip(b"\0") != NAME.encode():
                return errno.ENOENT, b""
            times = (self.valid_s, self.valid_s, 0, 0)
            return 0, struct.pack("<QQQQII", _FILE, 0, *times) + self._attributes(_FILE)
        if code in (_GETATTR, _SETATTR):
            return 0, struct.pack("<QII", self.valid_s, 0, 0) + self._attributes(node)
        if code == _READ:
            _, begin, size = struct.unpack_from("<QQI", argument)
            return 0, self.content[begin : begin + size]
        if code in (OPEN, _OPENDIR):
            return 0, struct.pack("<QII", 0, 0, 0)
        if code == _STATFS:
            return 0, struct.pack("<5Q4I24x", 4096, 4000, 4000, 4096, 4000, 4096, 255, 4096, 0)
        if code in (_READDIR, _RELEASE, _RELEASEDIR, _ACCESS):
            return 0, b""
        return errno.ENOSYS, b""

    def _attributes(self, node):
        mode = stat.S_IFDIR | 0o755 if node == _ROOT else stat.S_IFREG | 0o644
        size = len(self.content) if node == _FILE else 0
        numbers = (0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)
        return struct.pack("<6Q10I", node, size, 0, 0, 0, 0, *numbers)


def silent_file_system(point, content=b"", **options):
    """One, as ``SilentFileSystem``; the test is skipped where none can be had."""
    if not os.path.exists("/dev/fuse"):
        pytest.skip("no /dev/fuse here")
    try:
        return SilentFileSystem(point, content, **options)
    except OSError as error:
        lacks_root(f"may not mount a FUSE file system here: {error}")


def start_stuck(files, *command, session=False):
    """A child that is stuck in its execve by now."""
    before = len(files.stuck)
    child = subprocess.Popen(stuck_command(files.path, *command), start_new_session=session)
    assert child.pid in files.wait_for(before + 1)
    return child
