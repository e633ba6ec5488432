"""What a job would share with its keeper or with other users' jobs, beyond ids and files.

For the process that is about to become a job, between fork and exec, while it is still root.
Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Final

from iodaemon.backend.linux.process import control_process, system_call

_SYS_KEYCTL: Final = {
    "x86_64": 250,
    "aarch64": 219,
    "riscv64": 219,
    "loongarch64": 219,
    "ppc64le": 271,
    "s390x": 280,
    "armv7l": 311,
    "i686": 288,
}
_JOIN_SESSION_KEYRING: Final = 1  # include/uapi/linux/keyctl.h
_PR_SET_DUMPABLE: Final = 4  # include/uapi/linux/prctl.h
_NOTHING_TO_LEAVE: Final = frozenset({errno.ENOSYS, errno.EPERM})
"""The kernel has no keys; or a filter (seccomp), which the job will be behind as well, lets nobody
get at them: the kernel itself never answers this call with EPERM."""


def leave_keyring() -> None:
    """Have a session keyring that is new and empty, for this process and what it forks or execs.

    Otherwise all jobs would have the keeper's, and each could read and clear what another user's
    job puts there (keyctl(2), KEYCTL_JOIN_SESSION_KEYRING; Linux 2.6.10). Done as root: the keyring
    is then none of the few (200) that a user may have. The job may do with it what it likes
    because it is in it; who is not in it may not.

    Raises:
        OSError: it would still have the keeper's; nothing may be run then.
    """
    number = _SYS_KEYCTL.get(os.uname().machine)
    if number is None:
        raise OSError(errno.ENOSYS, f"keyctl is not known on {os.uname().machine}")
    serial, error = system_call(number, _JOIN_SESSION_KEYRING, None)
    if serial <= 0 and error not in _NOTHING_TO_LEAVE:
        raise OSError(error, f"no keyring of its own can be had: {os.strerror(error)}")


def hide_memory() -> None:
    """Let nobody but root trace this process, read its memory or have it dumped, until exec.

    It still holds copies of the keeper's and the shim's. The kernel does so by itself when ids
    change, unless ``fs.suid_dumpable`` is 1 (proc(5)); exec gives the job its own memory, and its
    user the right to it (prctl(2), PR_SET_DUMPABLE).

    Raises:
        OSError: it would be open to the job's user.
    """
    if error := control_process(_PR_SET_DUMPABLE, 0):
        raise OSError(error, f"prctl(PR_SET_DUMPABLE): {os.strerror(error)}")


def sign_in(uid: int) -> None:
    """Have the kernel's audit say of all that the job does, also after su or sudo, whose it is.

    /proc/self/loginuid (Linux 2.6.11, CONFIG_AUDIT), as pam_loginuid(8) does. Harmless where there
    is no audit, or the keeper was started in somebody's session and may not change it.
    """
    with contextlib.suppress(OSError):
        fd = os.open("/proc/self/loginuid", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, str(uid).encode())
        finally:
            os.close(fd)
