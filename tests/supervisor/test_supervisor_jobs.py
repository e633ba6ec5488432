"""What becomes of a launch: rights, files, limits, and how it is told."""

from __future__ import annotations

import os
import pwd
import signal
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from harness import until
from root_side import Daemon, RootSide, by_either_means, is_alive, over_both_launchers
from service import NOBODY

pytestmark = pytest.mark.node
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
READERS = 65533
"""The daemon's group."""


def owner_of(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)


def output_of(root: RootSide, daemon: Daemon, key: str, *words: str, **launch: Any) -> str:
    """What a job writes to a file of its own."""
    path = root.directory / f"output-{key}"
    daemon.run(key, *words, stdout=str(path), **launch)
    daemon.await_state(key, "ended", "failed")
    return path.read_text()


@by_either_means
def test_exit_codes_and_signals_are_told(shared):
    daemon = shared.connect()
    for key, text, code, number in (
        ("1.1", "exit 42", 42, None),
        ("2.1", "kill -KILL $$", None, 9),
        ("3.1", "kill -SEGV $$", None, 11),
        ("4.1", "kill -TERM $$", None, 15),
    ):
        daemon.run(key, "sh", "-c", text)
        ended = daemon.await_state(key, "ended")

        assert {"code": code, "signal": number} == ended["exit"]
        assert not ended["from_outside"]


@by_either_means
def test_a_job_ends_with_its_last_process(shared):
    daemon = shared.connect()
    marker = shared.directory / "marker"
    marker.touch()
    daemon.run("1.1", "sh", "-c", f"(setsid sh -c 'while [ -e {marker} ]; do sleep 0.01; done' &)")
    daemon.run("2.1", "true")
    daemon.await_state("2.1", "ended")

    assert "running" == daemon.states["1.1"]["state"]

    marker.unlink()

    assert 0 == daemon.await_state("1.1", "ended")["exit"]["code"]


@by_either_means
def test_a_prepared_job_waits_for_run_and_ends_unrun_without_it(shared):
    daemon = shared.connect()
    touched = shared.directory / "touched"
    launch = {"command": ["touch", str(touched)], "environment": {"PATH": os.environ["PATH"]}}
    daemon.say("prepare", key="1.1", launch=launch)
    daemon.await_prepared("1.1")
    daemon.say("kill", key="1.1")

    assert "killed" == daemon.await_state("1.1", "failed")["code"]

    daemon.say("run", key="1.1")
    daemon.await_state("1.1", "failed")

    assert not touched.exists()


def test_an_attempt_starts_at_most_once(shared):
    daemon = shared.connect()
    path = shared.directory / "lines"
    for _ in range(3):
        daemon.start("1.1", "sh", "-c", f"echo x >> {path}")
    daemon.await_state("1.1", "ended")
    daemon.start("1.1", "sh", "-c", f"echo x >> {path}")
    daemon.beat()

    assert "x\n" == path.read_text()


@over_both_launchers
def test_a_command_that_cannot_be_executed_ends_as_in_a_shell(shared):
    daemon = shared.connect()
    script = shared.directory / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    for key, word, code in (
        ("1.1", "no-such-command", 127),
        ("2.1", str(script), 127),
        ("3.1", "/dev/null", 126),
    ):
        daemon.start(key, word)
        ended = daemon.await_state(key, "ended")

        assert (code, True) == (ended["exit"]["code"], word in ended["problem"])


@over_both_launchers
def test_environment_signals_mask_and_limits_are_the_launchs_own(shared):
    daemon = shared.connect()
    text = output_of(
        shared, daemon, "1.1", "sh", "-c",
        "env; grep -E 'Sig(Blk|Ign)' /proc/self/status; "
        "umask; ulimit -n; ulimit -c; pwd; nice; ls /proc/$$/fd",
        environment={"PATH": os.environ["PATH"], "WORD": "a b"}, umask=0o027,
        rlimits={"nofile": [99, 99], "core": [0, 0]}, directory="/usr", nice=5,
    )  # fmt: skip
    lines = text.splitlines()
    masks = [int(line.split()[1], 16) & ~(3 << 31) for line in lines if line.startswith("Sig")]

    assert [0, 0] == masks  # no signal is blocked or ignored
    assert "WORD=a b" in lines
    assert not [line for line in lines if line.startswith("IOD_FAULTS")]
    assert ["0027", "99", "0", "/usr", "5"] == lines[-8:-3]
    assert ["0", "1", "2"] == lines[-3:]


@needs_root
def test_a_limit_holds_for_the_command_and_not_for_its_start(service):
    for limits in ({"fsize": [1, 1]}, {"as": [4 << 20, 4 << 20]}):
        assert 42 == service.run("exit 42", rlimits=limits)["exit"]["code"]


@over_both_launchers
def test_affinity_and_the_memory_beside_it_are_taken_on(shared):
    """Children inherit them; memory is preferred: as Linux tells it before 5.15, and since."""
    daemon = shared.connect()
    cpu = min(os.sched_getaffinity(0))
    text = output_of(
        shared, daemon, "1.1", "sh", "-c",
        "grep Cpus_allowed_list /proc/self/status; cut -d' ' -f2 /proc/self/numa_maps 2>&1",
        affinity=[cpu], memory_nodes=[0],
    )  # fmt: skip
    cpus, *policies = [line.partition("\t")[2] or line for line in text.splitlines()]

    assert str(cpu) == cpus
    if os.path.exists("/proc/self/numa_maps"):
        assert ("prefer:0" in policies) or ("prefer" in policies), policies

    daemon.start("2.1", "true", affinity=[8000])

    assert "cpus" == daemon.await_state("2.1", "failed")["code"]


@needs_root
def test_a_job_has_its_submitters_rights_and_no_others(service):
    path = service.tmp / "output"
    text = "id -u; id -G; grep Cap /proc/self/status; env"
    service.run(text, stdout=str(path), umask=0o077)
    lines = path.read_text().splitlines()
    account = pwd.getpwuid(NOBODY)

    assert str(NOBODY) == lines[0]
    assert set(map(str, os.getgrouplist(account.pw_name, account.pw_gid))) == set(lines[1].split())
    assert {0} == {int(line.split()[1], 16) for line in lines if line.startswith(("CapP", "CapE"))}
    assert f"HOME={account.pw_dir}" in lines
    assert (NOBODY, 0o600) == (path.stat().st_uid, stat.S_IMODE(path.stat().st_mode))


@needs_root
@over_both_launchers
def test_no_job_runs_as_root_or_below_min_uid_or_without_an_account(make_root):
    root = make_root("cgroup", min_uid=1000)
    daemon = root.connect()
    for key, uid in (("1.1", 0), ("2.1", 999), ("3.1", None), ("4.1", 3_999_999)):
        daemon.start(key, "true", **({} if uid is None else {"uid": uid}))
        report = daemon.await_state(key, "failed")

        assert ("no_account", uid != 3_999_999) == (report["code"], report["is_lasting"])

    assert "uid 3999999 has no account on this machine (any more)" == report["problem"]


@needs_root
@over_both_launchers
def test_files_of_its_own_are_the_users_in_a_directory_of_roots(make_root, tmp_path):
    outputs = tmp_path / "outputs"
    root = make_root("cgroup", min_uid=1, outputs=str(outputs), is_service=True, daemon_gid=READERS)
    daemon = root.connect()
    script = "echo mine; echo done >&3; ls /proc/$$/fd"
    daemon.run("1.1", "sh", "-c", script, uid=NOBODY, report=True)
    daemon.await_state("1.1", "ended")
    files = [outputs / "1.1", outputs / "1.1.report"]
    found = [owner_of(file) for file in files]

    assert (0, READERS, 0o750) == owner_of(outputs)
    assert (0, READERS, 0o640) == owner_of(root.runtime / "ledger")
    assert ["mine 0 1 2 3", "done"] == [" ".join(file.read_text().split()) for file in files]
    assert [(NOBODY, READERS, 0o640)] * 2 == found


@needs_root
@over_both_launchers
def test_a_disk_of_outputs_that_takes_nothing_fails_those_who_need_it(make_root, tmp_path):
    mount = ["mount", "-t", "tmpfs", "-o"]
    subprocess.run([*mount, "ro,mode=755", "none", str(tmp_path)], check=True)
    try:
        outputs = tmp_path / "outputs"
        root = make_root("cgroup", min_uid=1, outputs=str(outputs), daemon_gid=READERS)
        daemon = root.connect()
        daemon.start("1.1", "true", uid=NOBODY)
        failed = daemon.await_state("1.1", "failed")
        daemon.run("2.1", "true", stdout="/dev/null", uid=NOBODY)

        assert ("output", False) == (failed["code"], failed["is_lasting"])
        assert 0 == daemon.await_state("2.1", "ended")["exit"]["code"]
        assert 1 == root.log.read_text().count("cannot be made (Read-only")

        subprocess.run(["mount", "-o", "remount,rw", str(tmp_path)], check=True)
        daemon.start("1.1", "true", umask=0o777, uid=NOBODY)

        assert 0 == daemon.await_state("1.1", "ended")["exit"]["code"]
        assert (0, READERS, 0o750) == owner_of(outputs)
        assert (NOBODY, READERS, 0o640) == owner_of(outputs / "1.1")
        root.end()
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


@needs_root
@pytest.mark.parametrize("which", ["runtime", "outputs"])
def test_a_directory_that_others_can_change_is_refused(which, make_root, tmp_path):
    directory = tmp_path / "directory"
    directory.mkdir()
    os.chown(directory, NOBODY, -1)
    root = make_root("cgroup", **{which: str(directory)})

    assert 78 == root.process.wait(60)
    assert [f"{directory}: it is not a directory that nobody else may write to"] == (
        root.log.read_text().splitlines()
    )


@over_both_launchers
def test_what_is_no_place_for_a_job_fails_it_by_itself(shared):
    """A descriptor of the process that starts jobs, whatever leads there; what is not there."""
    daemon = shared.connect()
    before = shared.log.read_bytes()
    link, missing = shared.directory / "link", shared.directory / "missing"
    link.symlink_to("/dev/stdout")
    descriptors = ("/dev/stdout", "/dev/stderr", "/dev/fd/1", "/proc/self/fd/2", link, "/dev/fd/5")
    cases = [
        *(
            ("stdout", path, "output", "leads to a descriptor of the process")
            for path in descriptors
        ),
        ("stdout", "/proc/no-such-file", "output", "cannot be written"),
        ("directory", missing, "directory", "No such file or directory"),
    ]
    for number, (name, path, code, words) in enumerate(cases, 1):
        daemon.start(f"{number}.1", "echo", "x", **{name: str(path)})
        report = daemon.await_state(f"{number}.1", "failed")

        assert (code, True) == (report["code"], words in report["problem"]), report
    daemon.start("99.1", "sh", "-c", "echo x", stdout="/dev/full")

    assert 0 != daemon.await_state("99.1", "ended")["exit"]["code"]
    assert before == shared.log.read_bytes()


@by_either_means
def test_a_signal_reaches_every_process_and_kill_ends_all(shared):
    daemon = shared.connect()
    ready = shared.directory / "ready"
    text = f"trap 'exit 7' TERM; touch {ready}; while :; do sleep 0.01; done"
    daemon.run("1.1", "sh", "-c", text)
    until(ready.exists)
    daemon.say("signal", key="1.1", number=int(signal.SIGTERM))

    assert 7 == daemon.await_state("1.1", "ended")["exit"]["code"]

    pid = daemon.run("2.1", "sh", "-c", "trap '' TERM; sleep 1000 & setsid sleep 1000")["pid"]

    assert 9 == daemon.kill("2.1")["exit"]["signal"]
    assert not is_alive(pid)


def test_nested_cgroups_of_a_job_are_frozen_killed_and_removed_with_it(shared):
    daemon = shared.connect()
    daemon.run("1.1", "sleep", "1000")
    path = shared.job_cgroup("1.1")
    deep = path.joinpath(*"abcdefgh")
    deep.mkdir(parents=True)
    (path / "other").mkdir()
    (deep / "cgroup.procs").write_text(str(shared.members("1.1")[0]))
    daemon.hold("1.1")
    daemon.thaw("1.1")
    daemon.say("signal", key="1.1", number=int(signal.SIGTERM))
    ended = daemon.await_state("1.1", "ended")

    assert (15, True) == (ended["exit"]["signal"], ended["whole"])

    until(lambda: not path.exists())


def test_a_launch_that_is_not_well_formed_fails_by_itself(shared):
    daemon = shared.connect()
    launches: list[dict[str, Any]] = [
        {}, {"command": []}, {"command": [1]}, {"command": ["a\0b"]},
        {"command": ["true"], "environment": {"A=B": "c"}},
        {"command": ["true"], "umask": -1}, {"command": ["true"], "nice": 1.5},
        {"command": ["true"], "rlimits": {"speed": [1, 1]}},
        {"command": ["true"], "affinity": "all"}, {"command": ["true"], "stdout": ""},
        {"command": ["true"], "stdout": "/tmp/\ud800"}, {"command": ["a\ud800"]},
        {"command": ["true"], "rlimits": {"core": [-1, 1]}},
    ]  # fmt: skip
    for number, launch in enumerate(launches):
        daemon.say("prepare", key=f"{number}.1", launch=launch)
    for number in range(len(launches)):
        assert "bad_launch" == daemon.await_state(f"{number}.1", "failed")["code"]

    assert 0 == daemon.code_of("99.1", "true")
