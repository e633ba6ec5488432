"""Space of tiers where many users have jobs: each one's own, also while data is copied."""

import os
import stat
from pathlib import Path

import pytest
from harness import until
from scratching import both_disks, disks, left, needs_root
from sharing import GAMES, MAIL, Shared
from tiering import tables

__all__ = ["both_disks", "disks"]

pytestmark = [pytest.mark.node, needs_root]

HELD = (
    'echo {name} > "$IOD_SCRATCH/of"; echo "$IOD_SCRATCH" > at;'
    " until [ -e gate ]; do sleep 0.02; done"
)


@pytest.fixture(scope="module")
def _lasting(both_disks):
    with Shared(both_disks, tables(both_disks)) as service:
        yield service.start()


@pytest.fixture
def service(_lasting, disks):
    """A service that runs; each test leaves it without jobs, and the users' homes empty."""
    yield _lasting
    _lasting.end_all()
    _lasting.await_nothing()
    for user in (MAIL, GAMES):
        for path in sorted(_lasting.home(user).rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()


def place_of(service, user):
    """Where the space of this user's job is, once it has begun."""
    at = service.home(user) / "at"
    until(lambda: at.exists() and at.read_text().endswith("\n"), f"the start of {user.pw_name}'s")
    return Path(at.read_text().strip())


def owned(user, path, content=None):
    """A file or directory of this user's."""
    path.mkdir() if content is None else path.write_bytes(content)
    os.chown(path, user.pw_uid, user.pw_gid)
    return path


def test_each_has_a_directory_of_their_own_that_is_closed_to_others(service):
    first = service.sent_by(MAIL, "--scratch", "2M", text=HELD.format(name="mail"))
    place = place_of(service, MAIL)
    spy = f"ls {place}; cat {place}/of; rm -rf {place}; echo mine > {place}/of; ls {place.parent}"
    second = service.sent_by(
        GAMES, "--scratch", "2M", text=f"({HELD.format(name='games')}) & {spy}; echo > spied"
    )
    places = {MAIL: place, GAMES: place_of(service, GAMES)}

    for user, path in places.items():
        found = path.stat()
        assert (user.pw_uid, 0o700) == (found.st_uid, stat.S_IMODE(found.st_mode))
        assert f"{user.pw_name}\n" == (path / "of").read_text()
        assert user.pw_uid == (path / "of").stat().st_uid
    until((service.home(GAMES) / "spied").exists, "what is refused")
    for user in places:
        (service.home(user) / "gate").touch()
    assert [("COMPLETED", 0)] == service.outcome(first)
    service.end_of(second)
    assert 5 == service.output(second).count("ermission denied")


def test_data_is_copied_in_and_out_as_the_user_whose_job_it_is(service):
    home = service.home(GAMES)
    source = owned(GAMES, home / "in")
    owned(GAMES, source / "a", b"a" * 100_000)
    closed = owned(GAMES, source / "closed")
    for name in "de":
        owned(GAMES, closed / name, b"")
    closed.chmod(0o555)
    words = ("--fast", "1M", "--input", "in", "--output", "out")
    text = 'cd "$IOD_SCRATCH"; cat a a > b; echo new > closed/d; echo new > closed/e'
    job = service.sent_by(GAMES, *words, text=text)

    assert [("COMPLETED", 0)] == service.outcome(job)
    assert {home / "out" / "b", home / "out" / "closed"} == set((home / "out").iterdir())
    assert ["d", "e"] == sorted(path.name for path in (home / "out" / "closed").iterdir())
    assert 0o555 == (home / "out" / "closed").stat().st_mode & 0o777
    assert b"a" * 200_000 == (home / "out" / "b").read_bytes()
    for path in (home / "out", home / "out" / "b"):
        assert (GAMES.pw_uid, GAMES.pw_gid) == (path.stat().st_uid, path.stat().st_gid)


def test_an_input_that_the_user_may_not_read_is_refused_when_it_is_submitted(service):
    secret = owned(MAIL, service.home(MAIL) / "in")
    words = ("--fast", "1M", "--input", str(secret), "--output", "out", "--", "true")
    code, told = service.as_user(GAMES, "submit", *words)

    assert (1, 1) == (code, told.count("\n"))
    assert f"--input: {secret}: Permission denied" in told


def test_what_is_kept_is_removed_by_its_owner_and_nobody_else(service):
    out = owned(MAIL, service.home(MAIL) / "out")
    words = ("--scratch", "2M", "--output", f"{out}/")
    job = service.sent_by(MAIL, *words, text='echo x > "$IOD_SCRATCH/x"; chmod 500 out')
    until(lambda: service.job(job)["scratch"]["kept"], "the word that it is kept")
    code, told = service.as_user(GAMES, "scratch", "remove", str(job))
    remained = left(service.disks)
    own = service.as_user(MAIL, "scratch", "remove", str(job))

    assert (4, 1) == (code, told.count("\n"))
    assert f"uid {GAMES.pw_uid} may not cancel job {job}" in told
    assert 1 == len(remained)
    assert (0, f"job {job} removed\n") == own


def test_a_daemon_without_rights_has_the_output_of_a_job_for_its_submitter(service):
    job = service.sent_by(MAIL, text="echo word; echo again >&2")
    service.end_of(job)

    assert (0, "word\nagain\n") == service.as_user(MAIL, "logs", str(job))
    code, told = service.as_user(GAMES, "logs", str(job))
    assert (code != 0, "word" in told) == (True, False)
    (service.state / "output" / f"{job}.1").chmod(0o600)
    code, told = service.as_user(MAIL, "logs", str(job))
    assert (1, True) == (code, told.strip().endswith("Permission denied"))
