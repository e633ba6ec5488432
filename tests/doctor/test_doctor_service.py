"""What the examination finds of a service: whose its places are, who holds them, who is who."""

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from harness import until

from iodaemon.doctor.checks import CHECKS, Subject, examine
from iodaemon.doctor.report import Verdict
from iodaemon.doctor.service import (
    Running,
    check_groups,
    check_lock,
    check_lookup,
    check_place,
    groups_of_process,
    judge_lookup,
    judge_members,
    judge_python,
    judge_users,
)
from iodaemon.install.program import find_flaw
from iodaemon.node.condition import NO_ANSWER
from iodaemon.node.name_service import Answer
from iodaemon.node.root_side import NO_HIERARCHY, UNDELEGATED, UNUSABLE, find_lack
from iodaemon.node.sampler.proc_files import find_state
from iodaemon.socket_path import find_holder
from iodaemon.supervisor.systemd import SCOPE

BROKEN, LACKING, OK = Verdict.BROKEN, Verdict.LACKING, Verdict.OK
NOBODY = 65534
OF_A_SERVICE = ("places", "locks", "users")
OF_THIS_MACHINE = ("group of admins", "Python for users")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def examined(path, *, owner_uid=None, files=("journal.db",)):
    uid = os.geteuid() if owner_uid is None else owner_uid
    return check_place("state directory", path, uid, files)


@contextlib.contextmanager
def as_nobody():
    """What this process looks at, it looks at as somebody else."""
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


# -- places ----------------------------------------------------------------------------------------


def test_a_directory_of_its_owners_is_ok_and_one_that_is_not_there_too(tmp_path):
    tmp_path.chmod(0o700)
    (tmp_path / "journal.db").touch()

    assert [OK, OK] == [examined(path).verdict for path in (tmp_path, tmp_path / "none")]


@as_root
def test_who_may_not_look_is_told_so_and_nothing_is_taken_for_broken(tmp_path):
    (tmp_path / "state").mkdir(mode=0o700)
    tmp_path.chmod(0o700)
    (tmp_path / "state" / "daemon.lock").touch()
    with as_nobody():
        place = examined(tmp_path / "state", owner_uid=0)
        lock = check_lock("daemon", tmp_path / "state" / "daemon.lock", answers=True)

    assert [LACKING, LACKING] == [place.verdict, lock.verdict]
    assert all(each.measured.startswith("not looked at: ") for each in (place, lock))
    assert {"run 'iod doctor' as root"} == {place.remedy, lock.remedy}


@as_root
def test_a_directory_that_its_user_may_not_use_is_broken_whoever_looks(tmp_path):
    (tmp_path / "state").mkdir(mode=0o700)
    tmp_path.chmod(0o700)
    with as_nobody():
        found = examined(tmp_path / "state", owner_uid=NOBODY)

    assert BROKEN == found.verdict
    assert f"{tmp_path}/state cannot be used (Permission denied)" == found.measured


@as_root
def test_what_is_in_a_directory_that_may_be_seen_need_not_be():
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "journal.db").touch()
        with as_nobody():
            found = examined(Path(place), owner_uid=0)

    assert (OK, True) == (found.verdict, "may not be looked at" in found.measured)


# -- locks -----------------------------------------------------------------------------------------

HOLD = """
import fcntl, os, sys
lock = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
getattr(fcntl, sys.argv[2])(lock, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def held(path, how):
    words = [sys.executable, "-c", HOLD, str(path), how]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert b"held\n" == process.stdout.readline()
        yield process.pid
        process.stdin.close()


@pytest.mark.parametrize("how", ["flock", "lockf"])
def test_who_holds_a_lock_is_found_without_taking_it(tmp_path, how):
    path = tmp_path / "daemon.lock"
    with held(path, how) as pid:
        found = find_holder(str(path))
        answering = check_lock("daemon", path, answers=True)
        silent = check_lock("daemon", path, answers=False)

    assert pid == found
    assert (OK, pid) == (answering.verdict, answering.values["pid"])
    assert LACKING == silent.verdict
    assert f"pid {pid} (python" in silent.measured
    assert find_holder(str(path)) is None


def test_an_anchor_that_is_stopped_is_broken(tmp_path):
    path = tmp_path / "lock"
    with held(path, "flock") as pid:
        os.kill(pid, signal.SIGSTOP)
        try:
            until(lambda: find_state(pid) == "T", "a standstill")
            found = check_lock("anchor", path, answers=True)
        finally:
            os.kill(pid, signal.SIGCONT)

    assert (BROKEN, f"the anchor (pid {pid}) is stopped") == (found.verdict, found.measured)
    assert f"'kill -CONT {pid}' lets it go on" == found.remedy


def test_who_waits_for_a_lock_or_only_reads_holds_none(tmp_path):
    path = tmp_path / "daemon.lock"
    with path.open("w+") as file:
        fcntl.flock(file, fcntl.LOCK_SH)

        assert find_holder(str(path)) is None


def test_a_lock_that_nobody_holds_is_ok(tmp_path):
    (tmp_path / "daemon.lock").touch()

    found = [
        check_lock("daemon", tmp_path / name, answers=False) for name in ("daemon.lock", "none")
    ]

    assert [OK, OK] == [each.verdict for each in found]


# -- accounts --------------------------------------------------------------------------------------


def test_databases_that_say_nothing_are_broken_after_the_time_that_is_told():
    silence = threading.Event()

    found = check_lookup(7, lambda _: silence.wait(), within_s=0.1)
    silence.set()

    assert (BROKEN, f"{NO_ANSWER.fact} for uid 7 within 0.1 s") == (found.verdict, found.measured)
    assert "getent passwd" in found.remedy


@pytest.mark.parametrize(("took_s", "verdict"), [(0.001, OK), (2.0, LACKING)])
def test_databases_that_answer_are_judged_by_how_soon(took_s, verdict):
    assert verdict == judge_lookup(7, took_s).verdict


def test_users_without_an_account_are_named_by_number():
    found = judge_users(["ann", "1003", "1003", "bob", "997"])

    told = "uid 997, 1003 have no account on this machine (any more)"
    assert (LACKING, told) == (found.verdict, found.measured)
    assert OK == judge_users(["ann", "ann"]).verdict
    assert OK == judge_users([]).verdict


def test_jobs_that_run_with_groups_of_another_time_are_named():
    mine = Running(job_id=3, uid=os.geteuid(), pid=os.getpid())
    stranger = Running(job_id=4, uid=NOBODY, pid=os.getpid())
    gone = Running(job_id=5, uid=NOBODY, pid=2**22 + 1)
    none = check_groups([])

    assert groups_of_process(os.getpid()) == {os.getegid(), *os.getgroups()}
    assert (OK, {"jobs": 0, "with_other_groups": 0}) == (none.verdict, dict(none.values))
    if os.getegid() != NOBODY:
        found = check_groups([stranger, gone])
        assert (LACKING, "other groups than their users have now: job 4") == (
            found.verdict,
            found.measured,
        )
    assert 1 == check_groups([mine]).values["jobs"]


def test_the_administrators_are_named():
    found, nobody, none = (
        judge_members("iodaemon", Answer(members, 0.0)) for members in (("ann", "bob"), (), None)
    )
    silent = judge_members("iodaemon", None)

    assert "iodaemon: ann, bob, and root" == found.measured
    assert [OK, OK, LACKING, BROKEN] == [x.verdict for x in (found, nobody, none, silent)]


# -- delegation ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "unit", "cost", "remedy"),
    [
        (UNUSABLE, None, "SIGSTOP", "Delegate=yes"),
        (NO_HIERARCHY, None, "SIGSTOP", "unified_cgroup_hierarchy=1"),
        (UNDELEGATED, "iodaemon.service", "systemd holds", "Delegate=yes"),
        (UNDELEGATED, SCOPE, "systemd holds", f"'systemctl stop {SCOPE}' when no job runs"),
    ],
)
def test_what_it_costs_and_what_to_write_is_said(code, unit, cost, remedy):
    lack = find_lack({"lack": code, "unit": unit})

    assert cost in lack.cost
    assert remedy in lack.remedy


# -- the Python that jobs of users begin with -----------------------------------------------------


def test_a_python_that_users_may_not_run_is_told_with_the_cure(tmp_path):
    program = tmp_path / "venv" / "python"
    program.parent.mkdir(mode=0o755)
    program.touch(0o755)
    program.chmod(0o755)

    def judged(has_tiers=True):
        flaw = find_flaw(["/venv/python"], tmp_path, owner_uid=os.geteuid())
        return judge_python(flaw, has_tiers=has_tiers)

    assert OK == judged().verdict

    program.parent.chmod(0o700)
    found = judged()

    assert (BROKEN, LACKING) == (found.verdict, judged(has_tiers=False).verdict)
    assert found.measured.startswith("/venv is not open to all users (mode 0700)")
    assert found.remedy.startswith("'chmod -R go+rX /venv', or ")

    program.parent.chmod(0o755)
    program.unlink()

    assert "/venv/python cannot be looked at (No such file or directory)" == judged().measured


# -- the service as a whole ------------------------------------------------------------------------


@as_root
def test_a_service_is_examined_with_all_its_places(tmp_path):
    names = ("state", "supervisor", "run")
    state, supervisor, run = (tmp_path / name for name in names)
    for path in (state, supervisor, run):
        path.mkdir(mode=0o700)
    os.chown(state, NOBODY, NOBODY)
    os.chown(supervisor, NOBODY, NOBODY)
    subject = Subject(
        state_dir=state,
        runtime_dir=run,
        directory=Path("/"),
        service_uid=NOBODY,
        supervisor_dir=supervisor,
        users=["root", "1003"],
    )

    checks = [each for each in CHECKS if each.what in OF_A_SERVICE]
    found = {each.what: each.verdict for each in examine(subject, checks)}

    assert {
        "state directory": OK,
        "supervisor's directory": BROKEN,
        "sockets' directory": OK,
        "disk of the output": LACKING,
        "daemon's lock": OK,
        "anchor's lock": OK,
        "account lookup": OK,
        "groups of jobs": OK,
        "users of jobs": LACKING,
    } == {what: verdict for what, verdict in found.items() if what not in OF_THIS_MACHINE}
