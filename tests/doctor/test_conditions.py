"""A condition of the machine is told in one sentence, whichever command or log it is read in."""

import contextlib
import os
import signal
import subprocess
import sys
import threading

import pytest
from harness import until
from mounting import full, small_disk

from iodaemon.calibration.beside import check_counted
from iodaemon.config import load_config
from iodaemon.core.rule_error import RuleFault
from iodaemon.daemon.account import _complain
from iodaemon.daemon.backends import linux_platform
from iodaemon.daemon.http.report import _faults
from iodaemon.daemon.http.submission import SubmittedJob, adjust
from iodaemon.daemon.journal.backup import back_up
from iodaemon.daemon.journal.restore import restore
from iodaemon.daemon.journal.writer import Journal
from iodaemon.daemon.place import prepare_places
from iodaemon.daemon.preflight import startup_warnings
from iodaemon.doctor.checks import CHECKS, Subject, examine
from iodaemon.doctor.control_group import Reading, judge_cgroups
from iodaemon.doctor.disks import check_journal_disk, judge_disks
from iodaemon.doctor.kernel_features import judge_files
from iodaemon.doctor.report import AS_ROOT
from iodaemon.doctor.running_daemon import (
    judge_condition,
    judge_controls,
    judge_rules,
    judge_supervisor,
)
from iodaemon.doctor.service import check_lookup
from iodaemon.errors import ConfigError, JournalError, RequestError
from iodaemon.node import root_side
from iodaemon.node.condition import FEW_FILES, of_error
from iodaemon.node.root_side import UNDELEGATED, find_lack
from iodaemon.node.sampler.proc_files import find_state
from iodaemon.node.supervisor_client import SupervisorClient
from iodaemon.supervisor import anchor


def examined(subject, *names):
    """The findings of these checks."""
    return examine(subject, [check for check in CHECKS if check.what in names])


def client_of(place):
    return SupervisorClient(
        anchor.Config(str(place), daemon_uid=os.geteuid()),
        place / "supervisor.log",
        on_connected=lambda: None,
        on_message=lambda _: None,
        on_used=lambda _: None,
        on_trouble=lambda _: None,
    )


# -- the supervisor --------------------------------------------------------------------------------


def test_a_stopped_supervisor_is_told_by_doctor_as_by_the_daemon(tmp_path):
    with subprocess.Popen(["sleep", "1000"]) as process:
        process.send_signal(signal.SIGSTOP)
        until(lambda: find_state(process.pid) == "T", "a standstill")
        client = client_of(tmp_path)
        client.hello = {"pid": process.pid}
        told = client.why_silent()
        process.kill()
    [found] = judge_supervisor({"supervisor_problem": told, "supervisor_pid": process.pid})

    assert f"the supervisor (pid {process.pid}) is stopped" == found.measured
    assert told == f"{found.measured}; {found.remedy}; {found.cost}"


def test_starts_that_wait_for_the_supervisor_are_one_finding():
    problem = "the supervisor (pid 7) does not answer; kill it; meanwhile no job starts"
    condition = {"starts_blocked": problem}
    node = {"measured": {"supervisor_problem": problem}, "condition": condition}
    found = (*judge_supervisor(node["measured"]), *judge_condition(node))

    assert ["supervisor"] == [finding.what for finding in found]


# -- whose the directories are ---------------------------------------------------------------------

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def told_by_the_daemon(state, runtime):
    places = {"state_dir": str(state), "runtime_dir": str(runtime)}
    config = load_config(None, {"HOME": "/nonexistent"}, 1000, places)
    with pytest.raises(ConfigError) as refused, prepare_places(config):
        pass
    return str(refused.value)


@as_root
@pytest.mark.parametrize(
    "what",
    [
        *("state_dir", "runtime_dir", "journal.db", "a link", "its mode"),
        *("a file", "a link to a file", "a link to nothing"),
    ],
)
def test_a_directory_that_is_not_ours_is_told_in_one_sentence(tmp_path, what):
    state, runtime = tmp_path / "state", tmp_path / "run"
    state.mkdir(mode=0o700)
    (state / "journal.db").touch()
    (tmp_path / "mine").mkdir(mode=0o700)
    runtime.symlink_to(tmp_path / "mine")
    match what:
        case "state_dir":
            os.chown(state, NOBODY, NOBODY)
        case "runtime_dir":
            os.chown(runtime, NOBODY, NOBODY)
        case "journal.db":
            os.chown(state / "journal.db", NOBODY, NOBODY)
        case "a link":
            os.lchown(runtime, NOBODY, NOBODY)
        case "a file":
            runtime.unlink()
            runtime.touch()
        case "a link to a file":
            (tmp_path / "mine").rmdir()
            (tmp_path / "mine").touch()
        case "a link to nothing":
            (tmp_path / "mine").rmdir()
        case _:
            state.chmod(0o770)

    told = told_by_the_daemon(state, runtime)
    subject = Subject(state_dir=state, runtime_dir=runtime, directory=state)
    [found] = (each for each in examined(subject, "places") if each.verdict == "broken")

    key = "state_dir" if what in ("state_dir", "journal.db", "its mode") else "runtime_dir"
    assert f"{key}: {found.measured}; {found.remedy}, or set another {key}" == told


def test_a_directory_below_a_file_is_told_in_one_sentence_and_once(tmp_path):
    state = tmp_path / "file" / "state"
    (tmp_path / "file").touch()
    subject = Subject(state_dir=state, runtime_dir=tmp_path / "run", directory=tmp_path)
    findings = list(examined(subject, "places", "locks", "users"))
    [found] = (each for each in findings if each.verdict == "broken")

    told = told_by_the_daemon(state, tmp_path / "run")

    assert f"{state} cannot be used (Not a directory)" == found.measured
    assert "state directory" == found.what
    assert AS_ROOT not in [each.remedy for each in findings]
    assert f"state_dir: {found.measured}; {found.remedy}, or set another state_dir" == told


@as_root
def test_a_supervisors_directory_is_told_by_it_as_by_doctor(tmp_path):
    state, place = tmp_path / "state", tmp_path / "supervisor"
    state.mkdir(mode=0o700)
    place.mkdir(mode=0o700)
    os.chown(place, NOBODY, NOBODY)
    subject = Subject(
        state_dir=state, runtime_dir=state, directory=state, service_uid=0, supervisor_dir=place
    )
    [found] = (each for each in examined(subject, "places") if each.verdict == "broken")

    with pytest.raises(ConfigError) as refused:
        root_side._prepare(place)

    assert f"{found.measured}; {found.remedy}, and start the supervisor again" == str(refused.value)


# -- the disk of the state -------------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path):
    path = tmp_path / "disk"
    path.mkdir()
    with small_disk(path, kib=512, files=64):
        (path / "state").mkdir(mode=0o700)
        Journal.open(path / "state" / "journal.db").close()
        yield path / "state"


def told_by_doctor(state):
    """What it says of the directories, as ``FACT; CURE``, by what it looked at."""
    subject = Subject(state_dir=state, runtime_dir=state, directory=state)
    found = examined(subject, "journal disk", "runtime directory")
    broken = (finding for finding in found if finding.verdict == "broken")
    return {finding.what: f"{finding.measured}; {finding.remedy}" for finding in broken}


def told_by_silence(state):
    """As doctor tells it of the daemon's words where no supervisor could be started."""
    [found] = judge_supervisor({"supervisor_problem": client_of(state)._why_unreachable()})
    fact = f"no supervisor answers on {state / 'supervisor.sock'}, and "
    assert found.measured.startswith(fact)
    return f"{found.measured.removeprefix(fact)}; {found.remedy}"


def told_by_the_journal(state):
    with pytest.raises(JournalError) as refused:
        Journal.open(state / "journal.db")
    return str(refused.value)


@pytest.mark.node
def test_a_read_only_disk_is_told_in_one_sentence(disk):
    subprocess.run(["mount", "-o", "remount,ro", disk.parent], check=True)
    sentence = f"the file system of {disk} is read-only; mount it writable"

    assert f"state_dir: {sentence}, or set another state_dir" == told_by_the_daemon(disk, disk)
    assert f"journal {disk}/journal.db: {sentence}" == told_by_the_journal(disk)
    assert sentence == told_by_silence(disk)
    assert {sentence} == set(told_by_doctor(disk).values())


@pytest.mark.node
def test_a_full_disk_is_told_in_one_sentence(disk):
    sentence = f"no space is left on the file system of {disk}; free some space there"

    with full(disk.parent):
        journal, silence = told_by_the_journal(disk), told_by_silence(disk)
        found = told_by_doctor(disk)

    assert f"journal {disk}/journal.db: {sentence}" == journal
    assert sentence == silence
    assert sentence == found["journal disk"]


@pytest.mark.node
def test_a_disk_without_inodes_is_told_in_one_sentence(disk):
    sentence = f"no inode is left on the file system of {disk}; remove files there"

    with contextlib.suppress(OSError):
        for number in range(64):
            (disk.parent / str(number)).touch()
    silence = told_by_silence(disk)
    with pytest.raises(OSError, match="No space left") as met:
        (disk / "file").touch()

    assert sentence == silence
    assert sentence == str(of_error(disk, met.value))
    assert sentence == told_by_doctor(disk)["journal disk"]


@pytest.mark.node
def test_a_copy_names_the_disk_that_is_full_and_not_its_sources(disk, tmp_path):
    sentence = "no space is left on the file system of {}; free some space there"
    source, copy = tmp_path / "state", tmp_path / "copy.db"
    source.mkdir(mode=0o700)
    Journal.open(source / "journal.db", backend="linux").close()
    back_up(source, copy, replace=False)
    places = {"state_dir": str(disk), "runtime_dir": str(tmp_path)}

    with full(disk.parent):
        with pytest.raises(RequestError) as no_copy:
            back_up(source, disk / "copy.db", replace=False)
        with pytest.raises(JournalError) as not_restored:
            restore(load_config(None, {"HOME": str(disk)}, 1000, places), copy)

    assert f"{disk}/copy.db: {sentence.format(disk)}" == str(no_copy.value)
    assert f"journal {copy}: {sentence.format(disk)}" == str(not_restored.value)


@pytest.mark.node
def test_little_space_is_told_alike_at_the_start_and_by_doctor(disk):
    [warning] = (each for each in startup_warnings(disk) if " left on " in each)
    findings = {each.what: each for each in check_journal_disk(disk)}
    found = findings["journal space"]

    assert f"{found.measured}; {found.remedy}" == warning


# -- cgroups ---------------------------------------------------------------------------------------

AS_NOBODY = """
import os, sys
sys.path[:0] = {path!r}
from iodaemon.doctor.control_group import judge_cgroups, probe_cgroups
from iodaemon.supervisor.anchor import Config, open_cgroups
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
print(open_cgroups(Config("/nonexistent", 65534))[1].detail)
print({{each.what: each for each in judge_cgroups(probe_cgroups())}}["cgroup subtree"].measured)
"""


@as_root
def test_why_there_is_no_cgroup_is_told_by_the_supervisor_as_by_doctor():
    code = AS_NOBODY.format(path=sys.path)

    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    by_supervisor, by_doctor = told.stdout.splitlines()

    assert f"signals: {by_doctor}" == by_supervisor
    assert "no cgroup can be used in /" in by_doctor


def test_a_cgroup_that_is_not_delegated_costs_the_same_in_the_log_as_in_doctor():
    home = "/sys/fs/cgroup/x.service"
    reading = Reading(mount="/sys/fs/cgroup", home=home, undelegated="x.service", owner_uid=0)
    [found] = (each for each in judge_cgroups(reading) if each.what == "cgroup delegation")

    lack = find_lack({"lack": UNDELEGATED, "unit": "x.service"})

    assert (lack.cost, lack.remedy) == (found.cost, found.remedy)
    assert "which systemd has not delegated" in found.measured


# -- what the kernel counts, and what it allows ----------------------------------------------------


def test_a_disk_that_is_not_counted_is_told_by_doctor_as_by_calibrate():
    by_doctor, _ = judge_disks(["sda", "sdb"], unaccounted=["sdb"], fields=17)

    with pytest.raises(RequestError) as by_calibrate:
        check_counted(["sdb"])

    assert str(by_calibrate.value).startswith(f"{by_doctor.measured}, so nothing would show")
    assert str(by_calibrate.value).endswith(f"; {by_doctor.remedy}")


def test_too_few_files_have_one_cure_in_starts_that_wait_and_in_the_limit():
    node = {"condition": {"starts_blocked": str(FEW_FILES)}}
    [starts] = judge_condition(node)

    assert judge_files(64, 64).remedy == starts.remedy


def test_a_memory_limit_that_nobody_keeps_is_told_to_the_submitter_as_by_doctor():
    job = SubmittedJob(command=("true",), memory_bytes=1 << 30)
    _, [warning] = adjust([job], None, {"memory": False})
    [found] = judge_controls({"controls": {"memory": False}})

    assert f"{found.measured}; see 'iod doctor'" == warning


# -- sockets, rules --------------------------------------------------------------------------------


def test_sockets_that_do_not_fit_the_machine_are_told_by_doctor_as_at_the_start(tmp_path):
    subject = Subject(state_dir=tmp_path, runtime_dir=tmp_path, directory=tmp_path, sockets=["999"])
    [found] = examined(subject, "topology")
    places = {"state_dir": str(tmp_path), "runtime_dir": str(tmp_path)}
    config = load_config(
        None, {"HOME": str(tmp_path)}, 1000, {**places, "topology": {"sockets": ["999"]}}
    )

    with pytest.raises(ConfigError) as refused:
        linux_platform(config)

    assert f"{found.measured}; {found.remedy}" == str(refused.value)


@pytest.mark.parametrize("tier", [None, "fast"])
def test_a_rule_that_was_set_aside_is_told_by_doctor_as_in_the_log(tier):
    fault = RuleFault(kind="allocation", rule="a:B", place="/a.py:1", problem="no", tier=tier)
    [found] = judge_rules({"set_aside": _faults({fault.part: fault})})

    assert fault.text == found.measured


# -- users -----------------------------------------------------------------------------------------


def test_databases_that_do_not_answer_are_told_by_doctor_as_in_the_log(caplog):
    silence = threading.Event()
    _complain(7, 2.0)
    found = check_lookup(7, lambda _: silence.wait(), within_s=0.1)
    silence.set()

    fact = found.measured.partition(" for uid ")[0]
    assert f'text="{fact}; ' in caplog.text
    assert f'; {found.remedy}"' in caplog.text
