"""A keeper alone, spoken to over its socket: it starts once, holds, lets go, is replaced."""

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from harness import cgroup_trees, end, full_pipe, until
from keeping import Keeper, keeper, keeper_words
from mounting import disk_of, full

import iodaemon
from iodaemon.backend.linux import protocol
from iodaemon.backend.linux.directory import JobDirectories
from iodaemon.backend.linux.freezer import SignalFreezer
from iodaemon.backend.linux.grip import Grip
from iodaemon.backend.linux.keeper_main import HOPELESS
from iodaemon.backend.linux.process import Identity, find_state
from iodaemon.backend.linux.stopping import stop_below

__all__ = ["keeper"]

pytestmark = pytest.mark.node


ONE = {"job": 1, "attempt": 1}


def test_a_start_asked_for_twice_at_once_happens_once(keeper):
    first, second = keeper.begin(), keeper.line()
    start = ("start", {**ONE, "launch": keeper.gated_launch()})
    first.say(start, start)
    second.say(start)
    answers = [first.hear(), first.hear(), second.hear()]
    keeper.open_gate("it")
    status = keeper.status()
    shims = {json.dumps(answer["ok"]["shim"]) for answer in answers}

    assert len(shims) == 1
    assert status["exit"]["code"] == 3
    assert keeper.lines() == ["done", "start"]
    assert first.ask("start", **ONE, launch=keeper.gated_launch()) == {"status": status}
    assert keeper.lines() == ["done", "start"]


def test_a_job_that_is_just_being_started_is_never_given_up(keeper):
    line = keeper.begin()
    list_it = ("list", {"jobs": [[1, 1]]})
    line.say(("start", {**ONE, "launch": keeper.gated_launch()}), list_it)
    answers = sorted([line.hear(), line.hear()], key=lambda answer: answer["id"])
    keeper.open_gate("it")
    [there] = answers[1]["ok"]["jobs"]

    assert "never_ran" not in there
    assert there["shim"]["main_pid"] == answers[0]["ok"]["shim"]["main_pid"]
    assert keeper.status()["exit"]["code"] == 3


def test_a_keeper_whose_messages_nobody_reads_starts_and_ends_jobs(keeper):
    with full_pipe() as (_, writer):
        line = keeper.begin(stderr=writer)
        line.ask("start", **ONE, launch=keeper.gated_launch())
        keeper.open_gate("it")

        assert keeper.status()["exit"]["code"] == 3
        assert "error" in line.ask("no such verb")


def test_the_next_keeper_answers_for_jobs_of_the_last(keeper):
    line = keeper.begin()
    started = line.ask("start", **ONE, launch=keeper.gated_launch())
    end(keeper.process.pid)
    keeper.process.wait()
    line = keeper.begin()
    again = line.ask("start", **ONE, launch=keeper.gated_launch())
    keeper.open_gate("it")
    keeper.status()

    assert again["alive"]
    assert again["shim"]["main_pid"] == started["shim"]["main_pid"]
    assert keeper.lines() == ["done", "start"]


def test_a_shim_thaws_its_job_when_the_keeper_dies(keeper):
    line = keeper.begin()
    line.ask("start", **ONE, launch=keeper.gated_launch())
    frozen = line.ask("freeze", **ONE)
    end(keeper.process.pid)
    keeper.goes_on("it")
    keeper.open_gate("it")

    assert frozen == {"frozen": True}
    assert keeper.status()["exit"]["code"] == 3


def test_a_shim_that_hears_late_of_the_death_leaves_the_job_to_the_next_keeper(keeper):
    line = keeper.begin()
    shim = line.ask("start", **ONE, launch=keeper.gated_launch())["shim"]["pid"]
    line.ask("freeze", **ONE)
    os.kill(shim, signal.SIGSTOP)
    end(keeper.process.pid)
    keeper.process.wait()
    line = keeper.begin()
    [there] = line.ask("list", jobs=[[1, 1]])["jobs"]
    os.kill(shim, signal.SIGCONT)
    until(lambda: find_state(shim) == "S", "a shim that listens")
    still = keeper.stands_still("it")
    line.ask("thaw", **ONE)
    keeper.goes_on("it")
    keeper.open_gate("it")

    assert there["frozen"]
    assert still
    assert keeper.status()["exit"]["code"] == 3


def test_a_shim_thaws_its_job_when_the_next_keeper_dies_at_once_as_well(keeper):
    line = keeper.begin()
    line.ask("start", **ONE, launch=keeper.gated_launch())
    for _ in range(2):
        end(keeper.process.pid)
        keeper.process.wait()
        line = keeper.begin()
        line.ask("freeze", **ONE)
    end(keeper.process.pid)
    keeper.goes_on("it")
    keeper.open_gate("it")

    assert keeper.status()["exit"]["code"] == 3


@pytest.mark.parametrize("is_adopted", [False, True])
def test_a_shim_thaws_its_job_when_the_keeper_stands_still_for_the_grace_time(keeper, is_adopted):
    line = keeper.begin(grace_s=0.6)
    line.ask("start", **ONE, launch=keeper.gated_launch())
    if is_adopted:
        end(keeper.process.pid)
        keeper.process.wait()
        line = keeper.begin(grace_s=60)  # the shim keeps the grace time that it began with
    assert {"frozen": True} == line.ask("freeze", **ONE)
    assert keeper.stands_still("it")
    keeper.stop_processes(keeper.process.pid)
    keeper.goes_on("it")
    keeper.process.send_signal(signal.SIGCONT)
    [there] = line.ask("list", jobs=[[1, 1]])["jobs"]
    keeper.open_gate("it")

    assert not there["frozen"]
    assert keeper.status()["exit"]["code"] == 3


def test_a_job_stays_frozen_while_its_keeper_has_nothing_to_do(keeper):
    line = keeper.begin(grace_s=0.6)
    line.ask("start", **ONE, launch=keeper.gated_launch())
    line.ask("freeze", **ONE)
    for _ in range(8):
        line.ask("list", jobs=[])
        still = keeper.stands_still("it")
    line.ask("thaw", **ONE)
    keeper.open_gate("it")

    assert still
    assert keeper.status()["exit"]["code"] == 3


def test_jobs_run_on_when_nobody_is_connected_for_the_grace_time(keeper):
    line = keeper.begin(grace_s=0.3)
    line.ask("start", **ONE, launch=keeper.gated_launch())
    line.ask("freeze", **ONE)
    line.close()
    keeper.goes_on("it")
    keeper.open_gate("it")
    keeper.process.wait(20)

    assert keeper.status()["exit"]["code"] == 3
    assert "run on" in (keeper.state / "keeper.log").read_text()
    assert not (keeper.state / "keeper.json").exists()


def test_a_second_keeper_of_one_state_directory_ends_by_itself(keeper):
    keeper.begin()
    command = keeper_words(keeper.state, keeper.runtime / "other.sock", 60, "signals")
    second = subprocess.run(command, env=keeper.environment, capture_output=True, timeout=20)

    assert second.returncode == 0
    assert (
        b"a keeper runs already on %s (pid %d)" % (os.fsencode(keeper.state), keeper.process.pid)
        in second.stderr
    )
    assert not (keeper.runtime / "other.sock").exists()


def test_what_makes_no_sense_is_refused_and_harms_nobody(keeper):
    line = keeper.begin()
    answers = [
        line.ask("dance"),
        line.ask("start", job=1),
        line.ask("freeze", job=9, attempt=1),
        line.ask("kill", job="../x", attempt=1, signal=15),
    ]

    assert all("error" in answer for answer in answers)
    assert line.ask("list", jobs=[[1, 1]]) == {
        "jobs": [{"job": 1, "attempt": 1, "frozen": False, "absent": True}]
    }


def test_a_daemon_of_another_version_or_state_is_refused(keeper):
    line = keeper.begin()
    old = line.ask("hello", version=0, state=os.path.realpath(keeper.state))
    strange = line.ask("hello", version=protocol.VERSION, state="/elsewhere")

    assert f"speaks protocol {protocol.VERSION}, not 0" in old["error"]
    assert "keeps the jobs of" in strange["error"]


def test_the_jobs_directory_and_cgroup_are_made_again_where_somebody_removed_them(keeper):
    line = keeper.begin()
    line.ask("start", **ONE, launch=keeper.launch("exit 3"))
    keeper.status()
    shutil.rmtree(keeper.state / "jobs")
    for tree in cgroup_trees(keeper.state):
        until(lambda tree=tree: not (tree / "jobs/1.1").exists(), "removal of the first cgroup")
        (tree / "jobs").rmdir()
    started = line.ask("start", job=2, attempt=1, launch=keeper.gated_launch())
    frozen = line.ask("freeze", job=2, attempt=1)
    groups = [path.name for tree in cgroup_trees(keeper.state) for path in tree.glob("jobs/*/")]
    line.ask("thaw", job=2, attempt=1)
    keeper.open_gate("it")
    status = keeper.status(2)

    assert started["alive"]
    assert {"frozen": True} == frozen
    assert groups == (["2.1"] if keeper.means == "cgroup" else [])
    assert 3 == status["exit"]["code"]
    assert 0o700 == stat.S_IMODE((keeper.state / "jobs").stat().st_mode)


def test_the_cgroup_of_a_job_without_its_shim_goes_when_its_last_process_has_ended(keeper):
    """Nobody tells the keeper of that end: the daemon may have been dead as well."""
    line = keeper.begin()
    line.ask("start", **ONE, launch=keeper.gated_launch())
    keeper.goes_on("it")
    keeper.kill_shim(1)
    until(lambda: not line.ask("list", jobs=[[1, 1]])["jobs"][0]["alive"], "the end of its shim")
    before = [path.name for tree in cgroup_trees(keeper.state) for path in tree.glob("jobs/*/")]
    keeper.open_gate("it")
    for tree in cgroup_trees(keeper.state):
        until(lambda tree=tree: not (tree / "jobs/1.1").exists(), "removal of its cgroup")

    assert before == (["1.1"] if keeper.means == "cgroup" else [])


def test_a_keeper_begins_and_acts_while_its_disk_takes_nothing(means):
    keeper = Keeper(means)
    with disk_of(keeper, files=200) as disk, keeper:
        line = keeper.begin()
        main = line.ask("start", **ONE, launch=keeper.gated_launch())["shim"]["main_pid"]
        keeper.goes_on("it")
        with full(disk, takes_no_file=True):
            end(keeper.process.pid)
            keeper.process.wait()
            line = keeper.begin()
            frozen = line.ask("freeze", **ONE)
            thawed = line.ask("thaw", **ONE)
            told = line.ask("kill", **ONE, signal=15)
            until(lambda: find_state(main) in (None, "Z"), "the end of its first process")

        assert ({"frozen": True}, {"frozen": False}) == (frozen, thawed)
        assert told["signalled"] > 0
        assert keeper.status()["exit"]["signal"] == 15


def test_a_start_that_a_full_disk_refuses_names_the_disk():
    keeper = Keeper("signals")
    with disk_of(keeper, files=200) as disk, keeper:
        line = keeper.begin()
        with full(disk, takes_no_file=True):
            no_file = line.ask("start", **ONE, launch=keeper.launch("true"))
        with full(disk):
            no_byte = line.ask("start", job=2, attempt=1, launch=keeper.launch("true"))
            listed = line.ask("list", jobs=[[2, 1]])

    told = f"no space is left on the file system of {keeper.state}; free some space there"
    assert [told] * 3 == [answer["error"] for answer in (no_file, no_byte, listed)]


def test_nothing_beside_this_package_replaces_a_module_of_the_standard_library(tmp_path):
    """Where the package is installed, other distributions lie beside it."""
    package = Path(iodaemon.__file__).parent
    ignored = shutil.ignore_patterns("__pycache__", "simulator", "calibration", "trial")
    shutil.copytree(package, tmp_path / "iodaemon", ignore=ignored)
    for name in ("selectors.py", "site.py"):
        (tmp_path / name).write_text("raise SystemExit('replaced')\n")
    state = tmp_path / "none"
    print_command = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from pathlib import Path; import json;"
        "from iodaemon.backend.linux.keeper_command import KeeperSpec, keeper_command;"
        f"state = Path({str(state)!r});"
        "print(json.dumps(keeper_command("
        "KeeperSpec(state=state, socket=state / 'socket', grace_s=1.0), 0, 0, 1)))"
    )
    # Its own selectors.py must not end this process, which has the package at the front.
    made = subprocess.run(
        [sys.executable, "-c", f"import selectors; {print_command}"],
        capture_output=True,
        check=True,
    )
    begun = subprocess.run(json.loads(made.stdout), capture_output=True, timeout=20)

    assert HOPELESS == begun.returncode, begun.stderr


LEAVES = (
    "setsid sh -c 'setsid sh -c \"echo \\$\\$ > far.new; mv far.new far; "
    "while [ ! -e gate-far ]; do sleep 0.02; echo >> ticks-far; done\" & exit 0'; exit 0"
)
"""A process that leaves its session twice, so that only its shim is above it."""


@pytest.mark.parametrize("who_dies", ["shim", "shim and keeper"])
def test_a_stopped_process_outside_of_its_session_outlives_its_shim(who_dies):
    with Keeper("signals") as keeper:
        line = keeper.begin()
        launch = keeper.launch(f"cd {keeper.place}; {LEAVES}")
        shim = line.ask("start", **ONE, launch=launch)["shim"]["pid"]
        keeper.goes_on("far")
        far = int((keeper.place / "far").read_text())
        assert {"frozen": True} == line.ask("freeze", **ONE)
        if "keeper" in who_dies:
            keeper.stop_processes(shim)  # it hears of no death
            end(keeper.process.pid)
            keeper.process.wait()
        end(shim)
        line = keeper.begin() if "keeper" in who_dies else line
        keeper.goes_on("far")
        told = line.ask("kill", **ONE, signal=9)

        assert told["signalled"] >= 1  # it, and its child of the moment
        until(lambda: find_state(far) in (None, "Z"), "its end")


class ShimDies(SignalFreezer):
    """In the middle of one verb somebody kills the shim."""

    def __init__(self, directories, verb, shim):
        super().__init__(directories, "")
        self._verb, self._shim = verb, shim

    def _reach(self, verb):
        if verb == self._verb:
            self._verb = ""
            end(self._shim)

    def freeze(self, key, shim_pid):
        is_still = super().freeze(key, shim_pid)
        self._reach("freeze")
        return is_still

    def thaw(self, key, shim_pid):
        self._reach("thaw")
        super().thaw(key, shim_pid)

    def kill(self, key, shim_pid):
        stop_below(shim_pid)
        self._reach("kill")
        super().kill(key, shim_pid)


@pytest.mark.parametrize("verb", ["freeze", "thaw", "kill"])
def test_a_shim_that_dies_in_the_middle_leaves_nothing_stopped(verb):
    with Keeper("signals") as keeper:
        line = keeper.begin()
        launch = keeper.launch(f"cd {keeper.place}; {LEAVES}")
        shim = line.ask("start", **ONE, launch=launch)["shim"]
        keeper.goes_on("far")
        far = int((keeper.place / "far").read_text())
        keeper.stop_processes(keeper.process.pid)  # this test is the keeper
        directories = JobDirectories(str(keeper.state / "jobs"))
        grip = Grip(directories, ShimDies(directories, verb, shim["pid"]))
        if verb != "kill":
            grip.freeze("1.1", Identity(shim["pid"], shim["start_ticks"], shim["boot_id"]))
        if verb == "thaw":
            grip.thaw("1.1")
        if verb == "kill":
            grip.kill("1.1", signal.SIGKILL)
        grip.lay_to_rest("1.1")
        state = find_state(far)
        grip.kill("1.1", signal.SIGKILL)
        os.kill(keeper.process.pid, signal.SIGCONT)

        assert state not in ("T", "t")
        until(lambda: find_state(far) in (None, "Z"), "its end")


def test_keeper_and_shims_are_named_in_the_list_of_processes(keeper):
    def name(pid):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode()
        return Path(f"/proc/{pid}/comm").read_text().rstrip("\n"), words

    line = keeper.begin()
    shim = line.ask("start", job=12, attempt=1, launch=keeper.gated_launch())["shim"]
    keeper.goes_on("it")
    job = name(shim["main_pid"])
    busy, parent = name(shim["pid"]), name(keeper.process.pid)
    idle = {("iod-shim idle", "iod-shim idle")}
    until(lambda: {name(pid) for pid in keeper.idle_shims()} == idle, "names of idle shims")
    keeper.open_gate("it")
    keeper.status(12)

    assert ("iod-shim 12.1", "iod-shim 12.1") == busy
    assert ("iod-keeper", f"iod-keeper {keeper.state}") == parent
    assert "sh" == job[0]
    assert job[1].startswith("/bin/sh\0-c\0")
