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
_SETPERM: Final = 5
_LOOK: Final = 0x0B000000
"""KEY_POS_VIEW, KEY_POS_READ and KEY_POS_SEARCH of include/linux/key.h: nobody writes to it, links
it or changes this."""
_PR_SET_DUMPABLE: Final = 4  # include/uapi/linux/prctl.h
_NOTHING_TO_LEAVE: Final = frozenset({errno.ENOSYS, errno.EPERM})
"""The kernel has no keys; or a filter (seccomp), which the job will be behind as well, lets nobody
get at them: the kernel itself never answers this call with EPERM."""


def leave_keyring() -> None:
    """Have a session keyring that is new, empty, root's and only to look at, until exec and after.

    For this process, still root, and what it forks or execs. Otherwise all jobs would have the
    keeper's, and each could read and clear what another user's job puts there (keyctl(2),
    KEYCTL_JOIN_SESSION_KEYRING; Linux 2.6.10). What a job links into a keyring is charged to whom
    that belongs, and it stays while anything links to it: so the job may do neither with this one.

    Raises:
        OSError: it would still have the keeper's; nothing may be run then.
    """
    serial, error = _control_keys(_JOIN_SESSION_KEYRING, None)
    if serial > 0:
        answer, error = _control_keys(_SETPERM, serial, _LOOK)
        if answer == 0:
            return
    elif error in _NOTHING_TO_LEAVE:
        return
    raise OSError(error, f"no keyring of its own can be had: {os.strerror(error)}")


def join_keyring() -> None:
    """Have a session keyring of the user's own, charged to them: the job does with it as it likes.

    For this process when it is the user. Who has as many keys as a user may (200, proc(5),
    /proc/sys/kernel/keys/maxkeys), with one for each of their jobs, keeps that of
    ``leave_keyring``: they could add no key to another either.

    Raises:
        OSError: the kernel refuses.
    """
    serial, error = _control_keys(_JOIN_SESSION_KEYRING, None)
    if serial <= 0 and error not in _NOTHING_TO_LEAVE and error != errno.EDQUOT:
        raise OSError(error, f"no keyring of its user's can be had: {os.strerror(error)}")


def _control_keys(*arguments: int | None) -> tuple[int, int]:
    number = _SYS_KEYCTL.get(os.uname().machine)
    if number is None:
        raise OSError(errno.ENOSYS, f"keyctl is not known on {os.uname().machine}")
    return system_call(number, *arguments)


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
