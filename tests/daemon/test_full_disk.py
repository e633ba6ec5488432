"""A disk that is full, for real: nothing that was acknowledged is lost, nothing half is left.

That no daemon starts on one: tests/doctor/test_conditions.py.
"""

import contextlib
import itertools
import os
import shutil
import sqlite3
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from builders import job
from journals import store
from mounting import small_disk
from process import daemon, iod, stop, wait_until

from iodaemon.config import load_config
from iodaemon.core.job import JobState
from iodaemon.daemon.driver import JOURNAL_RETRY_S
from iodaemon.daemon.journal.backup import back_up
from iodaemon.daemon.journal.restore import restore
from iodaemon.daemon.journal.writer import Journal
from iodaemon.errors import JournalError
from iodaemon.node.sampler.proc_files import find_state

pytestmark = pytest.mark.node


DISK_KIB = 4096


class Disk:
    """A small file system of its own, and what fills it."""

    def __init__(self, path):
        self.path = path
        self.state = path / "state"

    def fill(self):
        """Leave nothing."""
        with contextlib.suppress(OSError), (self.path / "ballast").open("ab", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
        assert 0 == os.statvfs(self.path).f_bavail

    def free(self):
        (self.path / "ballast").unlink()


@pytest.fixture
def disk(tmp_path):
    path = tmp_path / "disk"
    path.mkdir()
    with small_disk(path, kib=DISK_KIB):
        yield Disk(path)


@pytest.fixture
def runtime(tmp_path):
    return tmp_path / "run"


def gated(gate, code):
    """A command that ends with this code once the file is there."""
    return ["/bin/sh", "-c", f"while [ ! -e {gate} ]; do sleep 0.05; done; exit {code}"]


def submit_again(client, command):
    """Submit as soon as the daemon has noticed that there is room again."""
    ids = []

    def accepted():
        with contextlib.suppress(Exception):
            ids.extend(client.submit([{"command": command}], {}))
        return bool(ids)

    assert wait_until(accepted, JOURNAL_RETRY_S + 8.0)
    return ids[0]


def test_submissions_are_refused_and_what_happens_to_jobs_is_not_lost(disk, runtime, tmp_path):
    """A cancel kills at once, and is answered when the end is in the journal."""
    gate = tmp_path / "gate"
    with daemon(disk.state, runtime, backend="linux") as (client, _):
        commands = [gated(gate, 7), ["/bin/sleep", "1000"]]
        jobs = client.submit([{"command": each} for each in commands], dict(os.environ))
        pids = [first_pid(client, job) for job in jobs]
        disk.fill()
        told = iod(runtime / "iod.sock", "submit", "--", "/bin/echo", "x" * 100_000)
        queued = [job["id"] for job in client.jobs(all_jobs=True)["jobs"]]
        gate.touch()
        with ThreadPoolExecutor() as others:
            others.submit(client.cancel, jobs[1], grace_s=0.0)
            assert wait_until(lambda: not any(map(find_state, pids)))
            disk.free()
        ended = client.wait(jobs, timeout_s=20.0)["jobs"]
        again = submit_again(client, ["/bin/true"])
        assert "COMPLETED" == client.wait([again])["jobs"][0]["state"]

    assert (1, "", 1) == (told.returncode, told.stdout, told.stderr.count("\n"))
    full = f"no space is left on the file system of {disk.state}; free some space"
    assert told.stderr.startswith("iod: ")
    assert full in told.stderr
    assert jobs == queued
    found = [(job["state"], job["exit_code"], job["signal"]) for job in ended]
    assert [("FAILED", 7, None), ("CANCELLED", None, 15)] == found


def first_pid(client, job):
    assert wait_until(lambda: client.job(job)["pids"])
    return client.job(job)["pids"][0]


def test_the_end_is_found_by_the_next_daemon_where_the_first_could_not_keep_it(
    disk, runtime, tmp_path
):
    gate = tmp_path / "gate"
    with daemon(disk.state, runtime, backend="linux") as (client, process):
        [job_id] = client.submit([{"command": gated(gate, 7)}], dict(os.environ))
        main = first_pid(client, job_id)
        disk.fill()
        stop(process)
    gate.touch()
    assert wait_until(lambda: find_state(main) is None)
    disk.free()
    with daemon(disk.state, runtime, backend="linux") as (client, _):
        [job] = client.wait([job_id], timeout_s=20.0)["jobs"]

    assert ("FAILED", 7) == (job["state"], job["exit_code"])


STATE_KIB = 2048
DISK_FILES = 32
STEP_BYTES = 4096
RUNNING = range(3, 23)


def some_job(number, state):
    return job(number, command=("x" * 3000,), state=state)


def write(path, jobs, *, is_folded=True):
    """A journal of these; with its log beside it, as a daemon leaves it that is killed."""
    with contextlib.closing(Journal.open(path, seed=1, backend="linux")) as journal:
        store(journal, jobs=tuple(jobs))
        files = {} if is_folded else {p: p.read_bytes() for p in (path, Path(f"{path}-wal"))}
    for file, content in files.items():
        file.write_bytes(content)


@pytest.fixture
def copy(tmp_path):
    """On another disk than the state directory; five jobs wait."""
    source = tmp_path / "source"
    source.mkdir(mode=0o700)
    write(source / "journal.db", [some_job(n, JobState.PENDING) for n in range(1, 6)])
    (source / "boot_id").write_text("another\n")
    back_up(source, tmp_path / "copy.db", replace=False)
    return tmp_path / "copy.db"


@pytest.fixture
def state(tmp_path):
    (tmp_path / "disk").mkdir()
    with small_disk(tmp_path / "disk", kib=STATE_KIB, files=DISK_FILES) as disk:
        state = disk / "state"
        state.mkdir(mode=0o700)
        yield state


@contextlib.contextmanager
def filled(ballast, what, left):
    """So many steps of bytes, or so many files, are left of the disk meanwhile."""
    ballast.mkdir()
    if what == "bytes":
        with contextlib.suppress(OSError), open(ballast / "all", "ab", buffering=0) as file:
            while True:
                file.write(bytes(STEP_BYTES))
        os.truncate(ballast / "all", os.path.getsize(ballast / "all") - left * STEP_BYTES)
    else:
        for number in range(os.statvfs(ballast).f_favail - left):
            (ballast / f"{number}").touch()
    try:
        yield
    finally:
        shutil.rmtree(ballast)


def try_to_restore(state, copy):
    """What it said where it failed, and the functions that it failed in; None: it did not."""
    places = {"state_dir": str(state), "runtime_dir": str(state)}
    config = load_config(None, {"HOME": str(state)}, 1000, places)
    try:
        restore(config, copy)
    except JournalError as error:
        said, names, cause = str(error), set(), error
        while cause is not None:
            names |= {frame.name for frame in traceback.extract_tb(cause.__traceback__)}
            cause = cause.__cause__
        return said, names
    return None


def prepare(state, there):
    """A state directory as a daemon left it that was stopped, or killed, or is new (None)."""
    shutil.rmtree(state)
    state.mkdir(mode=0o700)
    (state / "daemon.lock").touch()
    if there:
        runs = [some_job(number, JobState.RUNNING) for number in RUNNING]
        write(state / "journal.db", runs, is_folded=there == "stopped")


def all_of(state):
    """What its journal holds; None: there is none. No file is there that belongs to nothing."""
    files = os.listdir(state)
    assert {*files} <= {"daemon.lock", "journal.db", "journal.db-wal"}
    if "journal.db" not in files:
        return None
    with contextlib.closing(sqlite3.connect(state / "journal.db")) as db:
        return list(db.iterdump())


LACKS = {
    "bytes": ("no space", "free some space there"),
    "files": ("no inode", "remove files there"),
}


@pytest.mark.node
@pytest.mark.parametrize(
    ("what", "there", "where"),
    [
        ("bytes", "killed", {"copied", "_fold"}),
        ("bytes", None, {"copied", "merge", "store_events"}),
        ("files", "stopped", {"copied"}),
    ],
)
def test_wherever_it_fills_up_that_disk_is_named_and_all_is_as_it_was(
    state, copy, what, there, where
):
    fact, cure = LACKS[what]
    sentence = f"{fact} is left on the file system of {state}; {cure}"
    met = set()
    for left in itertools.count():
        prepare(state, there)
        before = copy.with_name(f"before{left}")
        shutil.copytree(state, before)
        with filled(state.with_name("ballast"), what, left):
            said = try_to_restore(state, copy)
        if said is None:
            break
        met |= said[1]
        assert said[0].endswith(f": {sentence}")
        assert all_of(before) == all_of(state)

    assert where <= met
    with contextlib.closing(sqlite3.connect(state / "journal.db")) as db:
        found = db.execute("SELECT count(*) FROM life WHERE state = 'RUNNING'").fetchone()
    assert (len(RUNNING) if there else 0,) == found


@pytest.mark.node
@pytest.mark.parametrize(("call", "there"), [("os.link", "stopped"), ("Path.write_text", None)])
def test_of_a_disk_that_fills_up_at_the_end_it_is_the_same(state, copy, monkeypatch, call, there):
    """Another takes what is left of it just before that call."""
    prepare(state, there)
    shutil.copytree(state, copy.with_name("before"))
    owner, name = (os, "link") if call == "os.link" else (Path, "write_text")
    do, fills = getattr(owner, name), contextlib.ExitStack()

    def late(*args, **options):
        fills.enter_context(filled(state.with_name("ballast"), "files", 0))
        return do(*args, **options)

    with fills, monkeypatch.context() as patch:
        patch.setattr(owner, name, late)
        said, _ = try_to_restore(state, copy)

    assert f"{state}/journal.db: no inode is left on the file system of {state}; remove" in said
    assert all_of(copy.with_name("before")) == all_of(state)


@pytest.mark.slow
def test_a_journal_that_another_process_holds_is_not_taken_for_a_damaged_one(tmp_path, copy):
    """Its jobs would be forgotten; they run."""
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    write(state / "journal.db", [some_job(number, JobState.RUNNING) for number in RUNNING])
    with contextlib.closing(sqlite3.connect(state / "journal.db")) as db:
        db.execute("BEGIN")
        db.execute("SELECT count(*) FROM job").fetchone()
        said, _ = try_to_restore(state, copy)

    assert said.endswith("another process holds it; end that process")
