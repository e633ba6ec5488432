"""What one user's job may try by way of what the kernel shares between processes."""

from __future__ import annotations

import errno
import os
import pwd
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from harness import find_state, until
from root_side import over_both_launchers
from service import NOBODY, PATH, Service

from iodaemon.supervisor.launcher import _has_expired

pytestmark = [
    pytest.mark.node,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become others"),
]
GAMES, NEWS, UUCP = (pwd.getpwnam(name).pw_uid for name in ("games", "news", "uucp"))
"""The last two are of one test each: the kernel counts keys by user, and collects them some time
after a job has ended, so that what another test leaves makes room while this one counts."""
KEYS = """
import ctypes, errno, os, sys, time
call = ctypes.CDLL(None, use_errno=True).syscall
keyctl, add_key = {"x86_64": (250, 248), "ppc64le": (271, 269)}.get(os.uname().machine, (219, 217))
SESSION = -3

def add(name, text):
    return call(add_key, b"user", name, text, len(text), SESSION)

def find(name):
    return call(keyctl, 10, SESSION, b"user", name, 0)

def read(key):
    room = ctypes.create_string_buffer(100)
    size = call(keyctl, 11, key, room, len(room))
    return room.raw[:size].decode() if size >= 0 else errno.errorcode[ctypes.get_errno()]

def clear():
    return call(keyctl, 7, SESSION)

def number():
    return call(keyctl, 0, SESSION, 0)

def new_ring(name, ring):
    return call(add_key, b"keyring", name, None, 0, ring)

def link(key, ring):
    return call(keyctl, 8, key, ring)

def open_to_all(key):
    return call(keyctl, 5, key, 0x3f3f3f3f)

def owner():
    room = ctypes.create_string_buffer(100)
    call(keyctl, 6, SESSION, room, len(room))
    return room.value.decode().split(";")[1]
"""


def start(service: Service, code: str, uid: int) -> str:
    """The key of a job that runs this as this user."""
    words = ("python3", "-I", "-S", "-c", KEYS + code)
    return str(service.execute(*words, uid=uid, environment=PATH)["key"])


def wait(service: Service) -> str:
    """The end of a job that shows what it has done so far, and goes on at the gate."""
    gate = str(service.gate.path)
    return f"\nimport fcntl\nsys.stdout.flush()\nfcntl.flock(open({gate!r}), fcntl.LOCK_SH)\n"


# -- memory, and the audit -----------------------------------------------------------------------


def as_nobody(script: str) -> str:
    ended = subprocess.run(
        ["sh", "-c", f"({script}) 2>&1"],
        capture_output=True, text=True, check=False, user=NOBODY, group=NOBODY, extra_groups=[],
        cwd="/",
    )  # fmt: skip
    return ended.stdout


def test_the_memory_of_a_child_before_its_exec_is_not_its_users(service):
    """On a machine that is set to dump what changes its user (fs.suid_dumpable = 1).

    The child has the ledger open for writing.
    """
    setting = Path("/proc/sys/fs/suid_dumpable")
    before = setting.read_text()
    try:
        setting.write_text("1")
    except OSError:
        pytest.skip("this kernel's settings may not be changed")
    try:
        service.root.faults.chmod(0o777)  # the child is the user already
        service.root.arm("child.prepared", signal.SIGSTOP)
        service.daemon.start("1001.1", "true", uid=NOBODY)
        until(lambda: service.root.has_fired("child.prepared"))
        mark = os.fsencode(service.root.faults)
        pids = until(lambda: _find_stopped(mark))
        told = [
            as_nobody(f"cat /proc/{pid}/environ /proc/{pid}/maps; ls /proc/{pid}/fd/0")
            for pid in pids
        ]
        of_root = [Path(f"/proc/{pid}/environ").read_bytes() for pid in pids]
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        ended = service.daemon.await_state("1001.1", "ended")
    finally:
        setting.write_text(before)

    assert [3] == [text.count("Permission denied") for text in told], told
    assert all(of_root)
    assert 0 == ended["exit"]["code"]


def _find_stopped(mark: bytes) -> list[int]:
    """The processes of this root side that stand still."""
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return [pid for pid in pids if _is_stopped(pid, mark)]


def _is_stopped(pid: int, mark: bytes) -> bool:
    try:
        return mark in Path(f"/proc/{pid}/environ").read_bytes() and find_state(pid) == "T"
    except (OSError, ValueError):
        return False


def test_a_job_may_trace_and_dump_itself_and_the_audit_knows_whose_it_is(service):
    code = "print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))\n"
    code += "path = '/proc/self/loginuid'\nprint(os.path.exists(path) and open(path).read())"
    dumpable, login = service.output(start(service, code, NOBODY)).split()

    assert ("1", True) == (dumpable, login in (str(NOBODY), "False"))


# -- keys ----------------------------------------------------------------------------------------

HIDE = "print(add(b'ticket', b'secret'))"
SEEK = "key = find(b'ticket'); print(key, read(key)); print(clear())"
LOOK = "print(read(find(b'ticket')))"


@pytest.fixture
def keyed(service):
    if not os.path.exists("/proc/keys"):
        pytest.skip("this kernel has no keys")
    return service


def test_a_key_of_one_job_is_neither_found_nor_read_nor_cleared_by_another(keyed):
    hides = start(keyed, HIDE + wait(keyed) + LOOK, NOBODY)
    number = keyed.first_word(hides)
    same = keyed.output(start(keyed, SEEK, NOBODY)).split()
    other = keyed.output(start(keyed, SEEK + f"; print(read({number}))", GAMES)).split()
    keyed.gate.open()

    assert ("-1", "-1", "EACCES") == (same[0], other[0], other[-1])
    assert "secret" not in same + other
    assert "secret" == keyed.output(hides).split()[1]


def test_each_job_has_a_keyring_of_its_own_which_keeps_what_it_is_given(keyed):
    """As kinit and keyctl do."""
    code = "print(number())\nkey, ring = add(b'ticket', b'secret'), new_ring(b'ring', SESSION)\n"
    code += "print(read(find(b'ticket')), link(key, ring), link(ring, -4), owner())"
    users = [NOBODY, NOBODY, GAMES]
    printed = [keyed.output(key).split() for key in [start(keyed, code, uid) for uid in users]]

    assert 3 == len({words[0] for words in printed})
    assert [["secret", "0", "0", str(uid)] for uid in users] == [words[1:] for words in printed]


LINKS = """
def charged():
    for row in open("/proc/key-users"):
        uid, numbers = row.split(":")
        if int(uid) == os.getuid():
            return int(numbers.split()[-1].split("/")[0])
    return 0

before = charged()
numbers = [new_ring(b'%d' % count, SESSION) for count in range(100)]
print(sum(number > 0 for number in numbers), charged() - before)
"""
"""Bytes of the user's keys: proc(5)."""


def test_what_jobs_link_is_charged_to_their_user_and_not_to_root(keyed):
    made, charged = keyed.output(start(keyed, LINKS, UUCP)).split()
    names = sum(len(f"{count}\0") for count in range(100))

    assert "100" == made
    assert int(charged) >= names + 100 * 4  # each link


MEDDLE = """
user_keyring = -4
print(link(number(), user_keyring), link(user_keyring, number()), open_to_all(number()), clear())
print(add(b'one more', b'x'), owner())
"""


def test_a_user_with_as_many_keys_as_one_may_have_still_has_jobs(keyed):
    """Their keyring is then root's, empty, and cannot be written to, kept or charged."""
    fill = "count = 0\nwhile add(b'%d' % count, b'x') > 0: count += 1\nprint(count)"
    fills = start(keyed, fill + wait(keyed), NEWS)
    count = keyed.first_word(fills)
    meddled = keyed.output(start(keyed, MEDDLE, NEWS)).split()
    others = keyed.output(start(keyed, "print(add(b'ticket', b'secret') > 0)", GAMES)).split()
    keyed.gate.open()

    assert [*["-1"] * 5, "0"] == meddled
    assert ["True"] == others
    assert int(count) > 0
    keyed.output(fills)


WITHOUT_KEYS = """
import ctypes, os, struct, sys
steps = [(0x20, 0, 0, 0), (0x15, 0, 1, 250)]
steps += [(6, 0, 0, 0x50000 | int(sys.argv[1])), (6, 0, 0, 0x7fff0000)]
text = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
libc = ctypes.CDLL(None)
libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
assert libc.prctl(22, 2, struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(text))) == 0
os.execvp(sys.argv[2], sys.argv[2:])
"""
"""A filter (seccomp(2)) by which keyctl(2) has this error."""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the number of a system call")
@over_both_launchers
@pytest.mark.parametrize(
    ("number", "state"),
    [
        (errno.ENOSYS, "ended"),
        (errno.EPERM, "ended"),
        (errno.EDQUOT, "failed"),
        (errno.ENOMEM, "failed"),
    ],
)
def test_a_job_that_would_keep_the_supervisors_keyring_is_not_run(number, state, make_root):
    """No such call, and a filter, leave none to keep."""
    words = [sys.executable, "-ISc", WITHOUT_KEYS, str(number)]
    daemon = make_root("processes", *words, min_uid=1).connect()
    daemon.start("1.1", "true", uid=NOBODY)

    assert state == daemon.await_state("1.1", "ended", "failed")["state"]


# -- accounts that have expired ------------------------------------------------------------------

TODAY = 20_000


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (f"ann:*:1:0:99999:7::{TODAY}:", True),
        (f"ann:!:1:0:99999:7::{TODAY - 1}:", True),
        (f"ann:x:1:0:99999:7::{TODAY + 1}:", False),
        ("ann:x:1:0:99999:7:::", False),
        ("ann:!:1:0:1:7:1::", False),  # a password that has expired, and a locked one
        (f"anna:x:1:0:99999:7::{TODAY - 1}:", False),
        (f"an:x:1:0:99999:7::{TODAY - 1}:", False),
        ("ann:x:1:0:99999:7::soon:", False),
        ("ann:x:1:0:99999:7::-1:", False),
        ("ann:x", False),
        ("", False),
        (f"\xff:x\n\nann:x:1:0:99999:7::{TODAY}:", True),
    ],
)
def test_an_account_has_expired_by_its_date_alone(line, expected, monkeypatch, tmp_path):
    """Where Python reads it: the C library does so for the compiled launcher."""
    shadow = tmp_path / "shadow"
    shadow.write_bytes(line.encode("latin-1") + b"\n")

    def open_shadow(path, mode):
        assert path == "/etc/shadow"
        return shadow.open(mode)

    monkeypatch.setattr("iodaemon.supervisor.launcher.open", open_shadow, raising=False)
    monkeypatch.setattr("time.time", lambda: TODAY * 86400.0)

    assert expected == _has_expired("ann")


@over_both_launchers
def test_jobs_of_an_account_that_has_expired_wait_for_a_later_try(make_root, tmp_path):
    """In a mount namespace of its own, with another /etc/shadow."""
    shadow = tmp_path / "shadow"
    shadow.write_text("nobody:*:1:0:99999:7::1:\n")
    hide = f'mount --bind {shadow} /etc/shadow && exec "$@"'
    words = ["unshare", "--mount", "--propagation", "private", "sh", "-c", hide, "sh"]
    root = make_root("cgroup", *words, min_uid=1)
    daemon = root.connect()
    daemon.start("1.1", "true", uid=NOBODY)
    report = daemon.await_state("1.1", "failed")

    assert ("no_account", False) == (report["code"], report["is_lasting"])
    assert f"the account of uid {NOBODY} has expired" == report["problem"]

    shadow.write_text("nobody:*:1:0:99999:7:::\n")
    daemon.run("1.2", "true", uid=NOBODY)

    assert 0 == daemon.await_state("1.2", "ended")["exit"]["code"]
