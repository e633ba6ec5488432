"""Bytes, CPU time, and how sure they are."""

from __future__ import annotations

import sys

import pytest
from harness import until
from root_side import Daemon, RootSide, by_either_means

pytestmark = pytest.mark.node
MIB = 1 << 20
WRITE = """
import os, signal, sys, ctypes, time
MIB = 1 << 20
def write(name, count):
    with open(os.path.join(sys.argv[1], name), "wb", buffering=0) as file:
        for _ in range(count):
            file.write(bytes(MIB))
def child(name, count, grandchild=False):
    pid = os.fork()
    if pid == 0:
        if grandchild:
            os.setsid()
            if os.fork():
                os._exit(0)
        write(name, count)
        os._exit(0)
    return pid
"""


@pytest.fixture
def disk(tmp_path_factory):
    """A directory where what is written counts: not on tmpfs."""
    return str(tmp_path_factory.mktemp("disk"))


def run(root: RootSide, disk: str, text: str) -> dict[str, object]:
    daemon = root.connect()
    daemon.start("1.1", sys.executable, "-S", "-c", WRITE + text, disk, stderr=str(root.log))
    return daemon.await_state("1.1", "ended")


def await_written(daemon: Daemon, bytes_: int) -> None:
    """Wait until so much is told with a beat of what was waited for."""

    def is_told() -> bool:
        return daemon.beat()["use"].get("1.1", {"written_bytes": 0})["written_bytes"] >= bytes_

    until(is_told, "a beat with all that orphans wrote")


@by_either_means
def test_short_lived_and_double_forked_children_are_counted_whole(shared, disk):
    text = """
for number in range(10):
    os.waitpid(child(f"short-{number}", 1), 0)
for number in range(10):
    os.waitpid(child(f"orphan-{number}", 1, grandchild=True), 0)
write("own", 5)
"""
    ended = run(shared, disk, text)
    use = ended["use"]

    assert (0, True) == (ended["exit"]["code"], ended["whole"])
    assert 25 * MIB <= use["written_bytes"] <= 25 * MIB + MIB
    assert use["calls"] >= 25
    assert use["cpu_us"] > 0


@by_either_means
def test_what_is_deleted_before_it_reaches_the_disk_is_told_beside_what_was_written(shared, disk):
    """An orphan writes, the first process deletes: each is taken in by itself."""
    text = """
read, write_end = os.pipe()
os.waitpid(child("big", 64, grandchild=True), 0)
os.close(write_end)
os.read(read, 1)
os.unlink(os.path.join(sys.argv[1], "big"))
"""
    ended = run(shared, disk, text)
    use = ended["use"]

    assert (0, True) == (ended["exit"]["code"], ended["whole"])
    assert 64 * MIB <= use["written_bytes"] <= 65 * MIB
    assert 32 * MIB <= use["cancelled_bytes"] <= 65 * MIB  # the disk may have had a part


def test_what_moves_without_a_disk_is_counted_to_the_byte(shared):
    """Two jobs of one length that differ in what they write, and read again from the cache."""
    daemon = shared.connect()
    moved = []
    for mib in (0, 3):
        path, key = f"{shared.directory}/file-{mib}", f"{mib}.1"
        text = f"open({path!r}, 'wb', 0).write(bytes({mib} << 20)); open({path!r}, 'rb', 0).read()"
        daemon.start(key, sys.executable, "-I", "-S", "-c", text)
        use = daemon.await_state(key, "ended")["use"]
        moved.append(use["logical_bytes"])
        assert use["written_bytes"] < MIB

    assert 6 * MIB == moved[1] - moved[0]


IGNORED = "signal.signal(signal.SIGCHLD, signal.SIG_IGN)"
NOT_WAITED_FOR = """
class Action(ctypes.Structure):
    _fields_ = [("handler", ctypes.c_void_p), ("mask", ctypes.c_ulong * 16),
                ("flags", ctypes.c_int), ("restorer", ctypes.c_void_p)]
action = Action()
action.flags = 2
ctypes.CDLL(None).sigaction(int(signal.SIGCHLD), ctypes.byref(action), None)
"""
"""SA_NOCLDWAIT cannot be seen; CPU time that nobody accounts for can."""
REAPED = """
write("own", 1)
for number in range(4):
    child(f"ignored-{number}", 2)
while True:
    try:
        os.wait()
    except ChildProcessError:
        break
"""


@pytest.mark.parametrize(
    ("means", "text"),
    [("cgroup", IGNORED), ("processes", IGNORED), ("cgroup", NOT_WAITED_FOR)],
    ids=["cgroup", "processes", "no signal ignored"],
)
def test_children_that_the_kernel_reaps_make_a_total_at_least(shared, disk, text):
    ended = run(shared, disk, f"{text}\n{REAPED}")

    assert (0, False) == (ended["exit"]["code"], ended["whole"])
    assert MIB <= ended["use"]["written_bytes"] <= 9 * MIB + MIB


@by_either_means
def test_a_flood_of_orphans_fills_no_ledger_and_is_counted_whole(root, disk):
    """Under two supervisors, so by two or three writers."""
    daemon = root.connect()
    go = root.directory / "go"
    text = (
        WRITE.replace("MIB = 1 << 20", "MIB = 4096")
        + f"""
def flood(name):
    for number in range(500):
        os.waitpid(child(f"{{name}}-{{number}}", 1, grandchild=True), 0)
flood("a")
while not os.path.exists({str(go)!r}):
    time.sleep(0.01)
flood("b")
"""
    )
    daemon.start("1.1", sys.executable, "-S", "-c", text, disk)
    await_written(daemon, 500 * 4096)
    root.kill("iod-supervisor")
    go.touch()
    ended = root.outcome("1.1")
    found = (root.runtime / "ledger").stat()

    assert ended["whole"] is True
    assert 1000 * 4096 <= ended["use"]["written_bytes"] <= 1000 * 4096 + 2 * MIB
    assert found.st_size > 64_000 > 2 * 512 * found.st_blocks - 10_000


@by_either_means
def test_bytes_of_orphans_are_told_with_the_beat_and_survive_the_supervisor(root, disk):
    daemon = root.connect()
    go = root.directory / "go"
    text = (
        WRITE
        + f"""
os.waitpid(child('a', 3, grandchild=True), 0)
while not os.path.exists({str(go)!r}):
    time.sleep(0.01)
os.waitpid(child('b', 2, grandchild=True), 0)
write("c", 1)
"""
    )
    daemon.start("1.1", sys.executable, "-S", "-c", text, disk)
    await_written(daemon, 3 * MIB)
    root.kill("iod-supervisor")
    go.touch()
    ended = root.outcome("1.1")

    assert ended["whole"] is True
    assert 6 * MIB <= ended["use"]["written_bytes"] <= 7 * MIB
