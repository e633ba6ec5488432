"""``iod backup`` and ``iod restore`` with real daemons and real jobs; nothing runs twice."""

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from harness import until

from iodaemon.daemon.journal.writer import Journal

DATA = Path(__file__).parent.parent / "data"
pytestmark = pytest.mark.node
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be somebody else")


def iod(server, *words):
    return subprocess.run(
        [sys.executable, "-m", "iodaemon.cli", "--config", str(server.config), *words],
        env=server.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def done(server, *words):
    ended = iod(server, *words)
    assert 0 == ended.returncode, ended.stderr
    return ended


def refused(server, *words):
    """Exit code and the one line."""
    ended = iod(server, *words)
    assert "" == ended.stdout
    [line] = ended.stderr.splitlines()
    return ended.returncode, line.removeprefix("iod: ")


def rows(path, query):
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        return db.execute(query).fetchall()


def running(server, *names):
    """Gated jobs that run."""
    jobs = [server.gated(name) for name in names]
    for job in jobs:
        server.await_state(job, "RUNNING")
    return jobs


def once(server, *names):
    """Each of them began once and was done once."""
    assert sorted([f"start {n}" for n in names] + [f"done {n}" for n in names]) == server.lines()


# -- backup -------------------------------------------------------------------------------------


def test_a_copy_is_made_while_jobs_run_and_is_whole_and_private(server, tmp_path):
    [job] = running(server, "a")
    server.script("exit 3")
    held = server.script("true", hold=True)
    server.await_durable(job, "RUNNING")
    file = tmp_path / "copy.db"

    ended = done(server, "backup", str(file))

    assert ended.stdout.startswith("copied 3 jobs (")
    assert f"the configuration ({server.config})" in ended.stderr
    assert 0o600 == stat.S_IMODE(file.stat().st_mode)
    assert [("ok",)] == rows(file, "PRAGMA integrity_check")
    assert [(job,), (job + 1,), (held,)] == rows(file, "SELECT id FROM job ORDER BY id")
    assert [file.name] == os.listdir(tmp_path)
    server.open_gate("a")
    assert [("COMPLETED", 0)] == server.outcome(job)


@pytest.mark.slow
def test_a_copy_is_made_without_a_daemon_too(server, tmp_path):
    [job] = running(server, "a")
    server.stop()
    owner = (server.state / "journal.db").stat()

    done(server, "backup", str(tmp_path / "copy.db"))

    assert [(job,)] == rows(tmp_path / "copy.db", "SELECT id FROM job")
    after = (server.state / "journal.db").stat()
    assert (owner.st_uid, owner.st_mode) == (after.st_uid, after.st_mode)
    server.start()
    server.open_gate("a")
    assert [("COMPLETED", 0)] == server.outcome(job)


@pytest.mark.slow
def test_a_file_that_is_there_is_replaced_by_force_alone(server, tmp_path):
    file = tmp_path / "copy.db"
    file.write_text("precious")

    assert (1, f"{file} is there already: name another, or use --force") == refused(
        server, "backup", str(file)
    )
    assert "precious" == file.read_text()
    done(server, "backup", "--force", str(file))
    assert [("ok",)] == rows(file, "PRAGMA integrity_check")


@pytest.mark.slow
def test_what_cannot_be_copied_is_told_in_a_line(server, tmp_path):
    journal = server.state / "journal.db"
    assert (1, f"{journal} is the journal itself; name another file") == refused(
        server, "backup", "--force", str(journal)
    )
    assert (3, f"there is no folder {tmp_path}/no to copy to; make it, or name another") == refused(
        server, "backup", f"{tmp_path}/no/copy.db"
    )
    code, line = refused(server, "backup", f"{tmp_path}/c", "--state-dir", str(tmp_path))
    assert (3, True) == (code, line.startswith(f"there is no {tmp_path}/journal.db"))
    assert 2 == refused(server, "backup")[0]
    assert [] == os.listdir(tmp_path)


@pytest.fixture
def services(tmp_path):
    """Another user's state directory, which that one can reach, and a command about it."""
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        state = Path(place) / "state"
        state.mkdir(mode=0o700)
        Journal.open(state / "journal.db").close()
        for path in (state, state / "journal.db"):
            os.chown(path, 4242, 4242)
        config = tmp_path / "config.toml"
        config.write_text(f'state_dir = "{state}"\nsupervisor_dir = "{tmp_path}/supervisor"\n')
        yield state, [sys.executable, "-m", "iodaemon.cli", "--config", str(config)]


@as_root
@pytest.mark.parametrize("name", ["daemon.lock", "boot_id.new"])
def test_root_is_led_nowhere_by_links_in_the_services_directory(services, tmp_path, name):
    state, words = services
    precious = tmp_path / "precious"
    precious.write_text("root's")
    subprocess.run([*words, "backup", str(tmp_path / "copy.db")], check=True)
    (state / name).symlink_to(precious)

    subprocess.run([*words, "restore", str(tmp_path / "copy.db")], check=False)
    subprocess.run([*words, "doctor"], check=False, stdout=subprocess.DEVNULL)

    assert "root's" == precious.read_text()
    assert 0 == precious.stat().st_uid


@as_root
def test_root_leaves_what_is_the_services_to_the_service(services, tmp_path):
    """The journal's side files get its owner, or the daemon could not open it any more."""
    state, words = services
    copy = tmp_path / "copy.db"

    with contextlib.closing(sqlite3.connect(state / "journal.db")) as db:  # a log is there
        db.execute("SELECT * FROM meta").fetchall()
        subprocess.run([*words, "backup", str(copy)], check=True)
        assert {4242} == {path.stat().st_uid for path in state.iterdir()}
    subprocess.run([*words, "restore", str(copy)], check=True)

    assert {4242} == {path.stat().st_uid for path in state.iterdir()}
    assert {0o600} == {stat.S_IMODE(path.stat().st_mode) for path in state.iterdir()}
    assert 0 == copy.stat().st_uid


# -- restore ------------------------------------------------------------------------------------


def test_jobs_before_and_after_a_copy_all_run_once_when_it_is_restored(server, tmp_path):
    file = str(tmp_path / "copy.db")
    a, b = running(server, "a", "b")
    c = server.gated("c", hold=True)
    server.await_durable(b, "RUNNING")
    done(server, "backup", file)
    server.open_gate("b")
    server.end_of(b)
    server.client.resume(c)
    server.await_state(c, "RUNNING")
    [d] = running(server, "d")
    e = server.script("true")
    server.end_of(e)
    server.stop()

    ended = done(server, "restore", file)
    server.start()

    assert f"restored 4 jobs (3 not ended) from {file}" in ended.stdout
    assert f"taken over because they hold CPUs: {a},{c},{d}".replace(" ", "") in (
        ended.stderr.replace(" ", "").replace(f"{c}-{d}", f"{c},{d}")
    )
    assert f"had gone on since: {b}" in ended.stderr
    assert "1 later job is only in it" in ended.stderr
    new = server.script("true")
    assert e + 1 == new
    server.open_gate("a", "c", "d")
    assert [("COMPLETED", 0)] * 5 == server.outcome(a, b, c, d, new)
    once(server, "a", "b", "c", "d")
    [event] = [
        x for x in server.client.events(since_s=0.0, follow=False) if x["kind"] == "restored"
    ]
    assert f"from {file}, of " in event["text"]


@pytest.fixture
def damaged(server, tmp_path):
    """A copy with a waiting and a running job; since then all went on, and a damaged journal."""
    file = tmp_path / "copy.db"
    server.jobs = dict(zip("ab", running(server, "a", "b"), strict=True))
    server.jobs["c"] = server.gated("c", hold=True)
    server.await_durable(server.jobs["b"], "RUNNING")
    done(server, "backup", str(file))
    server.open_gate("b")
    server.end_of(server.jobs["b"])
    server.client.resume(server.jobs["c"])
    server.await_state(server.jobs["c"], "RUNNING")
    [server.jobs["d"]] = running(server, "d")
    server.pid_of_d = server.main_pid(server.jobs["d"])
    server.stop()
    (server.state / "journal.db").write_bytes(b"\0" * 8192)
    server.file = str(file)
    return server


@pytest.mark.slow
def test_after_a_damaged_journal_what_runs_is_taken_over_and_what_has_ended_is_lost(damaged):
    ended = done(damaged, "restore", damaged.file)
    jobs = damaged.jobs

    assert "nothing was taken over from the replaced journal: " in ended.stderr
    main = damaged.pid_of_d
    assert f"attempt {jobs['d']}.1 runs (pid {main}) and no journal knows it" in ended.stderr
    [replaced] = damaged.state.glob("journal.db.replaced-*")
    assert b"\0" * 8192 == replaced.read_bytes()

    damaged.start()
    stranger = f"event=stranger attempt={jobs['d']}.1 pid={main}"
    until(lambda: stranger in damaged.log.read_text(), "a line about the stranger")
    damaged.client.resume(jobs["c"])  # it was held when the copy was made, and runs already
    damaged.await_state(jobs["c"], "RUNNING")
    new = damaged.script("true")
    assert jobs["d"] + 1 == new
    damaged.open_gate("a", "c", "d")
    assert [("COMPLETED", 0)] * 3 == damaged.outcome(jobs["a"], jobs["c"], new)
    # It ended, the damaged journal had its end, and so the supervisor has forgotten it.
    assert [("LOST", None)] == damaged.outcome(jobs["b"])
    until(lambda: "done d" in damaged.lines(), "the end of the stranger")
    once(damaged, "a", "b", "c", "d")


@pytest.mark.slow
def test_a_restored_frozen_job_runs_again(server, tmp_path):
    [job] = running(server, "a")
    server.suspend(job)
    server.await_durable(job, "SUSPENDED_USER")
    done(server, "backup", str(tmp_path / "copy.db"))
    server.client.resume(job)
    server.stop()

    done(server, "restore", str(tmp_path / "copy.db"))
    server.start()

    assert "RUNNING" == server.await_state(job, "RUNNING")["state"]
    assert [] == server.frozen()
    server.open_gate("a")
    assert [("COMPLETED", 0)] == server.outcome(job)


@pytest.mark.slow
def test_while_a_daemon_runs_nothing_is_restored(server, tmp_path):
    done(server, "backup", str(tmp_path / "copy.db"))

    code, line = refused(server, "restore", str(tmp_path / "copy.db"))

    assert 1 == code
    assert line.startswith(f"a daemon runs on {server.state} (pid {server.process.pid}, ")
    assert line.endswith("('iod stop', jobs run on), then restore")


@pytest.mark.slow
def test_a_copy_that_is_none_is_refused_and_nothing_is_changed(server, tmp_path):
    done(server, "backup", str(tmp_path / "good.db"))
    server.stop()
    before = sorted(os.listdir(server.state))
    damaged, newer, other = (tmp_path / name for name in ("damaged.db", "newer.db", "other.db"))
    shutil.copy(tmp_path / "good.db", damaged)
    with damaged.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 4096)
    shutil.copy(tmp_path / "good.db", newer)
    with contextlib.closing(sqlite3.connect(newer)) as db, db:
        db.execute("UPDATE meta SET value = 99 WHERE key = 'schema'")
    with contextlib.closing(sqlite3.connect(other)) as db, db:
        db.execute("CREATE TABLE songs (title)")

    told = [refused(server, "restore", str(path)) for path in (damaged, newer, other)]
    told += [refused(server, "restore", str(tmp_path / "none.db"))]
    told += [refused(server, "restore", str(server.state / "journal.db"))]

    assert [1, 1, 1, 3, 1] == [code for code, _ in told]
    assert "damaged" in told[0][1] or "malformed" in told[0][1]
    assert "has schema 99, newer than" in told[1][1]
    assert "no journal of iodaemon" in told[2][1]
    assert told[3][1].startswith(f"there is no {tmp_path}/none.db")
    assert "is the journal itself" in told[4][1]
    assert before == sorted(os.listdir(server.state))
    server.start()


def test_killed_anywhere_a_restore_leaves_the_old_journal_or_the_new_one(server, tmp_path):
    job = server.script("exit 3")
    server.end_of(job)
    done(server, "backup", str(tmp_path / "copy.db"))
    later = server.script("exit 4")
    server.end_of(later)
    server.stop()
    kill = (
        "import os, sys, signal\n"
        "left = int(sys.argv.pop(1))\n"
        "def hook(event, args):\n"
        "    global left\n"
        "    if event in ('os.rename', 'os.link', 'os.remove', 'sqlite3.connect', 'os.chown'):\n"
        "        left -= 1\n"
        "        if left == 0: os.kill(os.getpid(), 9)\n"
        "sys.addaudithook(hook)\n"
        "from iodaemon.cli import main\n"
        "sys.exit(main())\n"
    )
    seen = set()
    for point in range(1, 60):
        place = tmp_path / f"state{point}"
        shutil.copytree(server.state, place)
        words = ["--config", str(server.config), "restore", "--state-dir", str(place)]
        ended = subprocess.run(
            [sys.executable, "-c", kill, str(point), *words, str(tmp_path / "copy.db")],
            env=server.environment,
            capture_output=True,
            check=False,
        )
        found = [number for (number,) in rows(place / "journal.db", "SELECT id FROM job")]
        assert found in ([job], [job, later])
        seen.add(tuple(found))
        if ended.returncode != -signal.SIGKILL:
            assert 0 == ended.returncode
            break

    assert {(job,), (job, later)} == seen
    server.start()


@pytest.mark.slow
def test_what_ran_before_a_reboot_is_lost_by_reboot(server, tmp_path):
    again = server.script("exit 0", requeue=True, hold=True)
    server.stop()
    with contextlib.closing(sqlite3.connect(server.state / "journal.db")) as db, db:
        [record] = db.execute("SELECT record FROM life").fetchone()
        job = json.loads(record)
        job |= {"state": "RUNNING", "attempt": 1, "partition": 0, "slots": [0], "started_s": 1.0}
        job["user_hold"] = False
        db.execute("UPDATE life SET state = 'RUNNING', record = ?", (json.dumps(job),))
    (server.state / "boot_id").write_text("another boot\n")
    done(server, "backup", str(tmp_path / "copy.db"))
    shutil.rmtree(server.state / "output")
    (server.state / "journal.db").unlink()
    (server.state / "boot_id").unlink()

    done(server, "restore", str(tmp_path / "copy.db"))
    server.start()

    assert [("COMPLETED", 0)] == server.outcome(again)
    assert 2 == server.job(again)["attempt"]
