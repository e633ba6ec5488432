"""What one user's job may try by way of what the kernel shares between processes."""

import json
import os
import pwd
import signal
import subprocess
from pathlib import Path

import pytest
from harness import until
from keeping import NOBODY, ServiceKeeper

from iodaemon.backend.linux import privacy
from iodaemon.backend.linux.process import find_state

GAMES = pwd.getpwnam("games")
"""Another user than nobody."""

NEWS, UUCP = pwd.getpwnam("news"), pwd.getpwnam("uucp")
"""Users of one test each: the kernel counts keys by user, and collects them some time after a job
has ended, so that what another test leaves makes room while this one counts."""

pytestmark = [
    pytest.mark.node,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become others"),
]

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


class Keeper(ServiceKeeper):
    """One that runs jobs of any user but root, so that there are two."""

    min_uid = 1


@pytest.fixture
def keeper():
    with Keeper("signals") as keeper:
        yield keeper


def start(keeper, job, code, *, uid):
    """Start this job; it runs Python."""
    line = keeper.lines_open[-1] if keeper.lines_open else keeper.begin()
    launch = keeper.launch("", uid=uid)
    launch["command"] = ["python3", "-I", "-S", "-c", KEYS + code]
    answer = line.ask("start", job=job, attempt=1, launch=launch)
    assert "shim" in answer or "status" in answer, answer


def printed_by(keeper, job):
    """What the job printed, once it has ended."""
    status = keeper.status(job)
    text = (keeper.directory(job) / "output").read_text()
    assert 0 == status["exit"]["code"], (status, text)
    return text.split()


def say_and_wait(keeper, name):
    """The end of a job that shows what it has done so far, and goes on once there is such a file"""
    return (
        f"\nsys.stdout.flush()\nuntil_s = time.monotonic() + 30\n"
        f"while not os.path.exists({str(keeper.root / name)!r}) and time.monotonic() < until_s:\n"
        "    time.sleep(0.01)\n"
    )


# -- memory, and the audit ---------------------------------------------------------------------


def test_the_memory_of_keeper_and_shim_is_not_the_users_before_exec():
    """On a machine that is set to dump what changes its user (fs.suid_dumpable = 1)."""
    setting = Path("/proc/sys/fs/suid_dumpable")
    before = setting.read_text()
    try:
        setting.write_text("1")
    except OSError:
        pytest.skip("this kernel's settings may not be changed")
    try:
        with Keeper("signals", has_faults=True) as keeper:
            line = keeper.begin()
            keeper.faults.chmod(0o777)  # the child is the user already
            keeper.arm("job.ready", number=signal.SIGSTOP)
            launch = keeper.launch("true")
            line.say(("start", {"job": 1, "attempt": 1, "launch": launch}))
            until(lambda: not keeper.armed(), "a job before its exec")
            record = keeper.directory(1) / "shim.json"
            pid = json.loads(record.read_text())["main_pid"]
            until(lambda: find_state(pid) == "T", "its stop")
            told = as_user(NOBODY, f"cat /proc/{pid}/environ /proc/{pid}/maps")
            of_root = Path(f"/proc/{pid}/environ").read_bytes()
            os.kill(pid, signal.SIGCONT)
            status = keeper.status()
    finally:
        setting.write_text(before)

    assert 2 == told.count("Permission denied"), told
    assert of_root
    assert 0 == status["exit"]["code"]


def as_user(account, script):
    """What the script says, as this user."""
    ended = subprocess.run(
        ["sh", "-c", f"({script}) 2>&1"],
        capture_output=True,
        text=True,
        check=False,
        user=account.pw_uid,
        group=account.pw_gid,
        extra_groups=[],
        cwd="/",
    )
    return ended.stdout


def test_a_job_may_trace_and_dump_itself_again(keeper):
    code = "import ctypes; print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))"

    printed, _ = keeper.run(f'exec python3 -I -S -c "{code}"')

    assert "1\n" == printed


def test_the_audit_knows_whose_job_it_is(keeper):
    if not os.path.exists("/proc/self/loginuid"):
        pytest.skip("this kernel has no audit")

    printed, _ = keeper.run("cat /proc/self/loginuid")

    assert str(NOBODY.pw_uid) == printed


# -- keys ----------------------------------------------------------------------------------------

HIDE = "print(add(b'ticket', b'secret'))"
SEEK = "key = find(b'ticket'); print(key, read(key)); print(clear())"
LOOK = "print(read(find(b'ticket')))"


@pytest.fixture
def _has_keys():
    """The keeper has a session keyring, as a unit of systemd's does (KeyringMode=private)."""
    if not os.path.exists("/proc/keys"):
        pytest.skip("this kernel has no keys")
    privacy.join_keyring()


@pytest.mark.usefixtures("_has_keys")
@pytest.mark.parametrize("uid", [GAMES.pw_uid, NOBODY.pw_uid], ids=["another", "the same"])
def test_a_key_of_one_job_is_neither_found_nor_cleared_by_another(keeper, uid):
    start(keeper, 1, HIDE + say_and_wait(keeper, "go") + LOOK, uid=NOBODY.pw_uid)
    output = keeper.directory(1) / "output"
    _until_printed(output)

    start(keeper, 2, SEEK, uid=uid)
    found = printed_by(keeper, 2)
    (keeper.root / "go").touch()

    assert "-1" == found[0], found
    assert "secret" not in found
    assert "secret" == printed_by(keeper, 1)[1]


@pytest.mark.usefixtures("_has_keys")
def test_the_number_of_anothers_key_does_not_open_it(keeper):
    start(keeper, 1, HIDE + say_and_wait(keeper, "go"), uid=NOBODY.pw_uid)
    number = _until_printed(keeper.directory(1) / "output")

    start(keeper, 2, f"print(read({number}))", uid=GAMES.pw_uid)
    found = printed_by(keeper, 2)
    (keeper.root / "go").touch()

    assert ["EACCES"] == found
    printed_by(keeper, 1)


@pytest.mark.usefixtures("_has_keys")
def test_each_job_has_a_keyring_that_is_not_the_keepers(keeper):
    for job, uid in ((1, NOBODY.pw_uid), (2, NOBODY.pw_uid), (3, GAMES.pw_uid)):
        start(keeper, job, "print(number())", uid=uid)
    numbers = {int(printed_by(keeper, job)[0]) for job in (1, 2, 3)}

    assert 3 == len(numbers)
    assert all(number > 0 for number in numbers)


@pytest.mark.usefixtures("_has_keys")
def test_a_job_puts_keys_and_keyrings_into_its_keyring_and_keeps_them(keeper):
    """As kinit and keyctl do."""
    code = "key, ring = add(b'ticket', b'secret'), new_ring(b'ring', SESSION)\n"
    code += "print(read(find(b'ticket')), link(key, ring), link(ring, -4), owner())"
    start(keeper, 1, code, uid=NOBODY.pw_uid)

    assert ["secret", "0", "0", str(NOBODY.pw_uid)] == printed_by(keeper, 1)


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


@pytest.mark.usefixtures("_has_keys")
def test_what_jobs_link_is_charged_to_their_user_and_not_to_root(keeper):
    start(keeper, 1, LINKS, uid=UUCP.pw_uid)
    made, charged = printed_by(keeper, 1)

    names = sum(len(f"{count}\0") for count in range(100))
    assert "100" == made
    assert int(charged) >= names + 100 * 4  # each link


MEDDLE = """
user_keyring = -4
print(link(number(), user_keyring), link(user_keyring, number()), open_to_all(number()), clear())
print(add(b'one more', b'x'), owner())
"""


@pytest.mark.usefixtures("_has_keys")
def test_a_user_with_as_many_keys_as_one_may_have_still_has_jobs(keeper):
    """Their keyring is then root's, empty, and cannot be written to, kept or charged."""
    fill = "count = 0\nwhile add(b'%d' % count, b'x') > 0: count += 1\nprint(count)"
    start(keeper, 1, fill + say_and_wait(keeper, "go"), uid=NEWS.pw_uid)
    count = _until_printed(keeper.directory(1) / "output")

    start(keeper, 2, MEDDLE, uid=NEWS.pw_uid)
    start(keeper, 3, "print(add(b'ticket', b'secret') > 0)", uid=GAMES.pw_uid)
    meddled, others = printed_by(keeper, 2), printed_by(keeper, 3)
    (keeper.root / "go").touch()

    assert [*["-1"] * 5, "0"] == meddled
    assert ["True"] == others
    assert int(count) > 0
    printed_by(keeper, 1)


def _until_printed(output):
    return until(lambda: output.exists() and output.read_text().split(), "what it prints")[0]


NO_KEYS = [((-1, 38), None), ((-1, 1), None)]
"""No such call; a filter."""


@pytest.mark.parametrize(("answer", "error"), [*NO_KEYS, ((-1, 122), 122), ((0, 0), 0)])
def test_a_job_that_would_keep_the_keepers_keyring_is_not_run(monkeypatch, answer, error):
    assert error == errno_of(privacy.leave_keyring, monkeypatch, answer)


@pytest.mark.parametrize(("answer", "error"), [*NO_KEYS, ((-1, 122), None), ((-1, 12), 12)])
def test_a_job_whose_user_has_too_many_keys_is_run_with_the_keyring_it_has(
    monkeypatch, answer, error
):
    assert error == errno_of(privacy.join_keyring, monkeypatch, answer)


def errno_of(join, monkeypatch, answer):
    """The error's number where the kernel answers so; None: it is none."""
    monkeypatch.setattr(privacy, "system_call", lambda *_: answer)
    try:
        join()
    except OSError as error:
        return error.errno if "no keyring of its" in str(error) else -1
    return None
