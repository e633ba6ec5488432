"""``iod backup`` and ``iod restore``: nothing is lost, nothing runs twice, root is led nowhere."""

import contextlib
import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import builders
import pytest
from builders import job
from exploring import tries
from harness import until
from hypothesis import given, settings
from hypothesis import strategies as st
from journals import write

from iodaemon.cli import main
from iodaemon.config import load_config
from iodaemon.core.decision import Transition
from iodaemon.core.job import JobState
from iodaemon.core.platform import Partition, Platform, Slot
from iodaemon.core.state import State
from iodaemon.daemon.journal.backup import back_up
from iodaemon.daemon.journal.record import Batch
from iodaemon.daemon.journal.restore import merge, restore
from iodaemon.daemon.journal.writer import Journal
from iodaemon.daemon.place import noted_boot
from iodaemon.errors import IodaemonError

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be somebody else")


def rows(path, query):
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        return db.execute(query).fetchall()


# -- with a daemon and its jobs --------------------------------------------------------------------


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


def running(server, *names):
    """Gated jobs that run."""
    jobs = [server.gated(name) for name in names]
    for each in jobs:
        server.await_state(each, "RUNNING")
    return jobs


def once(server, *names):
    """Each of them began once and was done once."""
    assert sorted([f"start {n}" for n in names] + [f"done {n}" for n in names]) == server.lines()


@pytest.fixture
def copied(server, tmp_path):
    """Of jobs a and b that ran and c that was held; b ended since, c and d run; no daemon does."""
    file = server.file = tmp_path / "copy" / "copy.db"
    file.parent.mkdir()
    a, b = running(server, "a", "b")
    c = server.gated("c", hold=True)
    server.await_durable(b, "RUNNING")
    server.said = done(server, "backup", str(file))
    server.refusal = iod(server, "restore", str(file))
    server.open_gate("b")
    server.end_of(b)
    server.client.resume(c)
    server.await_state(c, "RUNNING")
    [d] = running(server, "d")
    server.jobs, server.pid_of_d = (a, b, c, d), server.main_pid(d)
    server.stop()
    return server


@pytest.mark.node
def test_jobs_before_and_after_a_copy_all_run_once_when_it_is_restored(copied):
    server, file = copied, copied.file
    a, b, c, d = copied.jobs

    assert server.said.stdout.startswith("copied 3 jobs (")
    assert f"the configuration ({server.config})" in server.said.stderr
    assert 0o600 == stat.S_IMODE(file.stat().st_mode)
    assert [("ok",)] == rows(file, "PRAGMA integrity_check")
    assert [(a,), (b,), (c,)] == rows(file, "SELECT id FROM job ORDER BY id")
    assert [file.name] == os.listdir(file.parent)
    [line] = server.refusal.stderr.splitlines()
    assert 1 == server.refusal.returncode
    assert line.startswith(f"iod: a daemon runs on {server.state} (pid {server.process.pid}, ")
    assert line.endswith("('iod stop', jobs run on), then restore")

    ended = done(server, "restore", str(file))
    server.start()
    new = server.script("true")

    assert f"restored 4 jobs (3 not ended) from {file}" in ended.stdout
    assert f"taken over because they hold CPUs: {a},{c}-{d}" in ended.stderr
    assert f"had gone on since: {b}" in ended.stderr
    assert d + 1 == new
    server.open_gate("a", "c", "d")
    assert [("COMPLETED", 0)] * 5 == server.outcome(a, b, c, d, new)
    once(server, "a", "b", "c", "d")
    told = server.client.events(since_s=0.0, follow=False)
    [event] = [each for each in told if each["kind"] == "restored"]
    assert f"from {file}, of " in event["text"]


@pytest.mark.slow
@pytest.mark.node
def test_after_a_damaged_journal_what_runs_is_taken_over_and_what_has_ended_is_lost(copied):
    server, (a, b, c, d) = copied, copied.jobs
    (server.state / "journal.db").write_bytes(bytes(8192))
    ended = done(server, "restore", str(server.file))

    assert "nothing was taken over from the replaced journal: " in ended.stderr
    main = server.pid_of_d
    assert f"attempt {d}.1 runs (pid {main}) and no journal knows it" in ended.stderr
    [replaced] = server.state.glob("journal.db.replaced-*")
    assert bytes(8192) == replaced.read_bytes()

    server.start()
    stranger = f"event=stranger attempt={d}.1 pid={main}"
    until(lambda: stranger in server.log.read_text(), "a line about the stranger")
    server.client.resume(c)  # it was held when the copy was made, and runs already
    server.await_state(c, "RUNNING")
    new = server.script("true")
    assert d + 1 == new
    server.open_gate("a", "c", "d")
    assert [("COMPLETED", 0)] * 3 == server.outcome(a, c, new)
    # It ended, the damaged journal had its end, and so the supervisor has forgotten it.
    assert [("LOST", None)] == server.outcome(b)
    until(lambda: "done d" in server.lines(), "the end of the stranger")
    once(server, "a", "b", "c", "d")


# -- files -----------------------------------------------------------------------------------------


@pytest.fixture
def state(tmp_path):
    """A state directory whose journal has job 1, and of which there is a copy; 2 came later."""
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    (state / "boot_id").write_text("another\n")
    with contextlib.closing(Journal.open(state / "journal.db")) as journal:
        write(journal, jobs=(job(1, state=JobState.RUNNING),))
    back_up(state, tmp_path / "copy.db", replace=False)
    with contextlib.closing(Journal.open(state / "journal.db")) as journal:
        write(journal, jobs=(job(2),))
    return state


def put_back(state, copy):
    places = {"state_dir": str(state), "runtime_dir": str(state / "run")}
    return restore(load_config(None, {"HOME": str(state)}, 1000, places), copy)


def refusal(call, *args, **options):
    with pytest.raises(IodaemonError) as refused:
        call(*args, **options)
    assert "\n" not in str(refused.value)
    return type(refused.value).__name__, str(refused.value)


def test_what_cannot_be_copied_is_told_in_a_line(state, tmp_path):
    file, journal = tmp_path / "there.db", state / "journal.db"
    file.write_text("precious")
    before = sorted(os.listdir(tmp_path))
    for source, target, replace, told in (
        (state, file, False, f"RequestError: {file} is there already: name another, or use"),
        (state, journal, True, f"RequestError: {journal} is the journal itself; name another"),
        (state, tmp_path / "no" / "c", False, f"NotFound: there is no folder {tmp_path}/no to"),
        (tmp_path, tmp_path / "c", False, f"NotFound: there is no {tmp_path}/journal.db"),
    ):
        assert ": ".join(refusal(back_up, source, target, replace=replace)).startswith(told)
    assert "precious" == file.read_text()
    assert before == sorted(os.listdir(tmp_path))
    back_up(state, file, replace=True)
    assert [("ok",)] == rows(file, "PRAGMA integrity_check")


def test_a_copy_that_is_none_is_refused_and_nothing_is_changed(state, tmp_path):
    before = {path.name: path.read_bytes() for path in state.iterdir()}
    damaged, newer, other = (tmp_path / name for name in ("damaged.db", "newer.db", "other.db"))
    shutil.copy(tmp_path / "copy.db", damaged)
    with damaged.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 4096)
    shutil.copy(tmp_path / "copy.db", newer)
    with contextlib.closing(sqlite3.connect(newer)) as db, db:
        db.execute("UPDATE meta SET value = 99 WHERE key = 'schema'")
    with contextlib.closing(sqlite3.connect(other)) as db, db:
        db.execute("CREATE TABLE songs (title)")

    for path, kind, words in (
        (damaged, "JournalError", ("damaged", "malformed")),
        (newer, "JournalError", ("has schema 99, newer than",)),
        (other, "JournalError", ("no journal of iodaemon",)),
        (tmp_path / "none.db", "NotFound", (f"there is no {tmp_path}/none.db",)),
        (state / "journal.db", "RequestError", ("is the journal itself",)),
    ):
        found, told = refusal(put_back, state, path)
        assert (kind, True) == (found, any(word in told for word in words)), told
    (state / "daemon.lock").unlink()
    assert before == {path.name: path.read_bytes() for path in state.iterdir()}


@pytest.mark.parametrize(("is_new", "boot"), [(False, "this boot"), (True, "another")])
def test_a_new_journal_is_of_the_boot_in_which_the_copy_was_made(state, tmp_path, is_new, boot):
    """What ran then is lost in another one. Beside an old journal its own boot counts."""
    if is_new:
        shutil.rmtree(state)
        state.mkdir(mode=0o700)
    else:
        (state / "boot_id").write_text("this boot\n")
    put_back(state, tmp_path / "copy.db")

    assert boot == noted_boot(state)


CHANGES = ("os.rename", "os.link", "os.remove", "sqlite3.connect", "os.chown")


def die_at(number, call):
    """Run it in a child that kills itself at this change of a file; whether it came so far."""
    child = os.fork()
    if not child:
        left = [number]

        def count(event, _):
            if event not in CHANGES:
                return
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)

        code = 1
        try:
            sys.addaudithook(count)
            call()
            code = 0
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL)
    return code != 0


def test_killed_anywhere_a_restore_leaves_the_old_journal_or_the_new_one(state, tmp_path):
    seen, died = [], True
    while died:
        place = tmp_path / f"state{len(seen)}"
        shutil.copytree(state, place)
        died = die_at(len(seen) + 1, lambda place=place: put_back(place, tmp_path / "copy.db"))
        seen.append(rows(place / "journal.db", "SELECT id FROM job ORDER BY id"))

    assert 5 < len(seen) < 60
    assert [[(1,), (2,)], [(1,)]] == [ids for i, ids in enumerate(seen) if ids not in seen[:i]]


# -- as root ---------------------------------------------------------------------------------------


@pytest.fixture
def service(tmp_path):
    """The configuration of a service that is another user's, as far as its state goes."""
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        state = Path(place) / "state"
        state.mkdir(mode=0o700)
        Journal.open(state / "journal.db").close()
        (state / "boot_id").write_text("another\n")
        for path in (state, *state.iterdir()):
            os.chown(path, 4242, 4242)
        file = tmp_path / "config.toml"
        file.write_text(f'state_dir = "{state}"\nsupervisor_dir = "{tmp_path}/supervisor"\n')
        yield load_config(file, {"HOME": str(tmp_path)}, 0, {})


@as_root
@pytest.mark.node
@pytest.mark.parametrize("name", ["daemon.lock", "boot_id.new"])
def test_root_is_led_nowhere_by_links_in_the_services_directory(service, tmp_path, name):
    state, precious = Path(service.state_dir), tmp_path / "precious"
    precious.write_text("root's")
    back_up(state, tmp_path / "copy.db", replace=False)
    for path in state.iterdir():
        path.unlink()
    (state / name).symlink_to(precious)
    with pytest.raises(IodaemonError):  # its owner may not follow it
        restore(service, tmp_path / "copy.db")
    main(["--config", str(service.file), "doctor"])

    assert ("root's", 0) == (precious.read_text(), precious.stat().st_uid)


@as_root
@pytest.mark.node
def test_root_leaves_what_is_the_services_to_the_service(service, tmp_path):
    """The journal's side files get its owner, or the daemon could not open it any more."""
    state, copy = Path(service.state_dir), tmp_path / "copy.db"
    with contextlib.closing(sqlite3.connect(state / "journal.db")) as db:  # a log is there
        db.execute("SELECT * FROM meta").fetchall()
        back_up(state, copy, replace=False)
        assert {4242} == {path.stat().st_uid for path in state.iterdir()}
    (state / "boot_id").unlink()
    restore(service, copy)

    assert {4242} == {path.stat().st_uid for path in state.iterdir()}
    assert {0o600} == {stat.S_IMODE(path.stat().st_mode) for path in state.iterdir()}
    assert 0 == copy.stat().st_uid


S = JobState


def some_job(job_id, state, *, slot=None):
    live = state in (S.STARTING, S.RUNNING)
    fields = {"slots": (job_id if slot is None else slot,)} if live else {}
    attempt = 1 if live or state in (S.COMPLETED, S.FAILED) else 0
    return builders.job(
        job_id, state=state, at_s=2.0, environment_id=f"env{job_id}", attempt=attempt, **fields
    )


def written(path, *batches, prune=()):
    journal = Journal.open(path, seed=1)
    answers = []
    for jobs in batches:
        steps = tuple(Transition(job_id=j.id, at_s=1.0, before=None, after=j.state) for j in jobs)
        environments = {j.spec.environment_id: {"J": str(j.id)} for j in jobs}
        batch = Batch(jobs=tuple(jobs), transitions=steps, environments=environments)
        journal.write(batch, answers.append)
    journal.flush()
    journal.write(Batch(removed=tuple(prune)), answers.append)
    journal.flush()
    journal.close()
    assert set(answers) == {None}
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode=DELETE")


def merged(folder, then, now, *, prune=()):
    """The copy had ``then``; the journal went on to ``now``. What a daemon finds, and is told."""
    old = folder / "old.db"
    old.unlink(missing_ok=True)
    new = folder / "new.db"
    written(old, then)
    shutil.copy(old, new)
    written(old, now, prune=prune)
    with contextlib.closing(sqlite3.connect(new, isolation_level=None)) as db:
        told = merge(db, old)
    journal = Journal.open(new)
    try:
        return journal.restore(), told, {j.id: journal.steps(j.id) for j in now}
    finally:
        journal.close()


def test_what_had_not_ended_is_as_it_is_now_and_what_came_later_is_left(tmp_path):
    then = [
        some_job(1, S.COMPLETED),
        some_job(2, S.PENDING),
        some_job(3, S.RUNNING),
        some_job(4, S.PENDING),
    ]
    now = [
        some_job(2, S.RUNNING),
        some_job(3, S.FAILED),
        some_job(5, S.RUNNING),
        some_job(6, S.PENDING),
    ]

    found, told, steps = merged(tmp_path, then, now)

    states = {each.id: each.state for each in found.jobs}
    assert {
        1: S.COMPLETED,
        2: S.RUNNING,
        3: S.FAILED,
        4: S.PENDING,
        5: S.RUNNING,
    } == states
    assert ([(2, 5), (3,)], 1) == ([ids for _, ids in told.told], told.left)
    assert 7 == found.next_id
    assert {"J": "5"} == found.environments["env5"]
    assert [S.PENDING, S.RUNNING] == [step.after for _, step in steps[2]]


@pytest.mark.parametrize(
    ("state", "end"), [(S.PENDING, S.CANCELLED), (S.RUNNING, S.LOST), (S.STARTING, S.LOST)]
)
def test_what_is_known_no_longer_is_given_up_and_does_not_run_again(tmp_path, state, end):
    found, told, _ = merged(
        tmp_path,
        [some_job(1, state)],
        [some_job(1, S.COMPLETED), some_job(2, S.PENDING)],
        prune=[1],
    )

    [gone] = found.jobs
    assert (end, "Restored") == (gone.state, gone.reason.code)
    assert (("ended since, how is not known", (1,)),) == told.told


STATES = st.sampled_from([S.PENDING, S.STARTING, S.RUNNING, S.COMPLETED, S.FAILED, S.CANCELLED])


@settings(max_examples=tries(40), deadline=None)
@given(st.lists(st.tuples(STATES, STATES, st.booleans(), st.booleans()), min_size=1, max_size=7))
def test_whatever_happened_slots_are_held_once_and_nothing_runs_twice(tmp_path_factory, lives):
    """Of every job: its state in the copy, its state now, whether it is of later, or forgotten."""
    folder = tmp_path_factory.mktemp("merge")
    lives = [
        (then, now if not then.is_final else then, later, forgotten and now.is_final)
        for then, now, later, forgotten in lives
    ]
    ids = range(1, len(lives) + 1)
    slots = dict(zip(ids, reversed(ids), strict=True))
    then = [some_job(i, life[0]) for i, life in zip(ids, lives, strict=True) if not life[2]]
    now = [some_job(i, life[1], slot=slots[i]) for i, life in zip(ids, lives, strict=True)]
    prune = [i for i, life in zip(ids, lives, strict=True) if life[3]]

    found, _, _ = merged(folder, then, now, prune=prune)

    state = State(
        Platform(partitions=(Partition(id=0, slots=tuple(Slot(id=i, cpus=(i,)) for i in ids)),))
    )
    state.restore(found.jobs, found.next_id)
    state.check()
    live = {j.id for j in now if j.is_live}
    assert live == {j.id for j in found.jobs if j.is_live}
    ended = {j.id for j in now if j.state.is_final}
    assert not ended & {j.id for j in found.jobs if not j.state.is_final}
    assert found.next_id > len(lives)


def test_a_copy_knows_of_itself_and_a_restored_one_does_not(tmp_path):
    (tmp_path / "boot_id").write_text("a boot\n")
    written(tmp_path / "journal.db", [some_job(1, S.PENDING)])

    copied = back_up(tmp_path, tmp_path / "copy.db", replace=False)

    assert (1, 1) == (copied.jobs, copied.unfinished)
    with contextlib.closing(sqlite3.connect(tmp_path / "copy.db")) as db:
        assert "a boot" in dict(db.execute("SELECT * FROM meta"))["copy"]
    with contextlib.closing(sqlite3.connect(tmp_path / "journal.db")) as db:
        assert "copy" not in dict(db.execute("SELECT * FROM meta"))
