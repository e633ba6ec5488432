"""Jobs' directories on tier disks: where they are, whose, how large, and that they go."""

import itertools
import json
import math
import os
import stat
import subprocess
from pathlib import Path

import pytest
from harness import end, means, until
from keeping import NOBODY
from scratching import (
    both_disks,
    disks,
    jobs,
    left,
    needs_root,
    own_jobs,
    share,
)

from iodaemon.backend.linux import scratch
from iodaemon.backend.linux.protocol import FREED_FILE, SCRATCH_FILE, STATUS_FILE
from iodaemon.backend.linux.scratch_tree import has_unknown

__all__ = ["both_disks", "disks", "jobs", "means", "own_jobs"]

pytestmark = [pytest.mark.node, needs_root]

WAITS = "until [ -e {gate} ]; do sleep 0.02; done"


@pytest.fixture
def gate(jobs):
    return jobs.keeper.root / "gate"


def test_a_job_has_a_directory_of_its_own_on_the_disk_it_was_given(jobs):
    status = jobs.run(
        'echo "$IOD_SCRATCH"; echo x > "$IOD_SCRATCH/f"; stat -c "%U %a" $IOD_SCRATCH'
    )
    where, owner = jobs.output().splitlines()

    assert status["exit"] == {"code": 0, "signal": None}
    assert Path(where).parent == jobs.disks[0] / ".iodaemon"
    assert Path(where).name.startswith("1-1-")
    assert "nobody 700" == owner


def test_a_request_that_is_split_has_one_path_on_each_disk(jobs):
    shares = [share(jobs.disks[1], 2), share(jobs.disks[0], 3)]
    jobs.run('echo "$IOD_SCRATCH"; echo "$IOD_SCRATCH_0:$IOD_SCRATCH_1"', shares)
    all_of_them, each = jobs.output().splitlines()

    assert all_of_them == each
    parents = [Path(path).parents[1] for path in each.split(":")]
    assert [jobs.disks[1], jobs.disks[0]] == parents


def test_a_job_without_a_request_has_none(jobs):
    jobs.run('echo "[$IOD_SCRATCH]"', [])

    assert "[]\n" == jobs.output()
    assert {"state": "removed", "because": ""} == jobs.scratch()


@pytest.mark.parametrize("text", ["echo > $IOD_SCRATCH/f", "exit 3", "kill -9 $$", "/none"])
def test_the_directory_goes_however_the_job_ends(jobs, text):
    jobs.run(text)

    assert "removed" == jobs.await_scratch("removed")["state"]
    assert [] == left(jobs.disks)


def test_it_goes_with_a_command_that_cannot_be_run(jobs):
    status = jobs.run("", command=["/none/such"])
    jobs.await_scratch("removed")

    assert "no such command" in status["never_ran"]


def test_a_job_that_is_killed_has_none_either(own_jobs):
    own_jobs.start("mkdir -p $IOD_SCRATCH/a/b; sleep 600")
    until(lambda: list(own_jobs.place().glob("a/b")), "a file")
    own_jobs.line.ask("kill", job=1, attempt=1, signal=9)
    own_jobs.await_scratch("removed")

    assert [] == left(own_jobs.disks)


def test_a_keeper_of_a_users_own_removes_what_is_closed_to_itself(own_jobs):
    own_jobs.run("mkdir -p $IOD_SCRATCH/a/b; echo > $IOD_SCRATCH/a/b/c; chmod 0 $IOD_SCRATCH/a")
    own_jobs.await_scratch("removed")

    assert [] == left(own_jobs.disks)


def test_it_stays_while_a_process_of_the_job_is_left(jobs, gate):
    jobs.start(f"({WAITS.format(gate=gate)}; ls $IOD_SCRATCH) & echo > $IOD_SCRATCH/f")
    until(lambda: (jobs.place() / "f").exists(), "a file")
    held = jobs.scratch()["state"]
    gate.touch()
    jobs.keeper.status()

    assert "held" == held
    assert "f\n" == jobs.output()


@pytest.mark.parametrize("ends", [True, False], ids=["it ends", "its user says so"])
def test_what_is_deleted_and_open_elsewhere_takes_space_until_then(disks, tmp_path, ends):
    """Who has it open is a process of the same user's that never was the job's."""
    shares = scratch.plan("1.1", [share(disks[0])])
    scratch.make(str(tmp_path), shares, os.geteuid(), None)
    (tmp_path / STATUS_FILE).write_text("{}")
    [place] = map(Path, scratch.paths_of(shares))
    (place / "f").write_bytes(b"x" * 3_000_000)
    (place / "trifle").write_bytes(b"x" * 1000)
    sleeper = ["/bin/sleep", "60"]
    with (place / "f").open() as large, (place / "trifle").open() as small:
        holder = subprocess.Popen(sleeper, stdin=large)
        other = subprocess.Popen(sleeper, stdin=small, cwd=place)
    try:
        with pytest.raises(scratch.OpenError) as kept:
            scratch.remove(str(tmp_path), math.inf)
        there = left(disks)
        if ends:
            holder.kill()
            holder.wait()
        else:
            (tmp_path / FREED_FILE).touch()
        scratch.remove(str(tmp_path), math.inf)
    finally:
        for process in (holder, other):
            process.kill()
            process.wait()

    assert [] == there
    assert f"are still open in process {holder.pid}; they take 3 MiB" in str(kept.value)
    assert not (tmp_path / SCRATCH_FILE).exists()


def test_who_waits_is_told_when_it_is_gone(jobs, gate):
    jobs.start(WAITS.format(gate=gate))
    other = jobs.keeper.line()
    other.say(("scratch", {"job": 1, "attempt": 1, "known": "held"}))
    gate.touch()

    assert other.hear()["ok"]["state"] in ("removing", "removed")


# -- deaths --------------------------------------------------------------------------------------


def test_it_goes_after_a_death_of_the_keeper(jobs, gate):
    jobs.start(WAITS.format(gate=gate))
    end(jobs.keeper.process.pid)
    gate.touch()
    jobs.keeper.status()
    before = left(jobs.disks)
    jobs.begin_again()
    jobs.await_scratch("removed")

    assert 1 == len(before)


def test_it_goes_after_a_death_of_the_shim_with_the_last_process_of_the_job(jobs, gate):
    jobs.start(f"{WAITS.format(gate=gate)}; echo > $IOD_SCRATCH/late")
    jobs.keeper.kill_shim(1)
    until(lambda: jobs.scratch()["state"] == "held", "a report")
    there = left(jobs.disks)
    gate.touch()
    jobs.await_scratch("removed")

    assert 1 == len(there)


def test_it_goes_after_a_death_of_both(jobs, gate):
    jobs.start(WAITS.format(gate=gate))
    end(jobs.keeper.process.pid)
    jobs.keeper.kill_shim(1)
    jobs.begin_again()
    there = left(jobs.disks)
    gate.touch()
    jobs.await_scratch("removed")

    assert 1 == len(there)


def test_it_goes_after_a_reboot(jobs, gate):
    shim = jobs.start(WAITS.format(gate=gate))["shim"]
    end(jobs.keeper.process.pid)
    end(shim["pid"])
    end(shim["main_pid"])
    path = jobs.keeper.directory(1) / "shim.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "boot_id": "another"}))
    jobs.begin_again()
    jobs.await_scratch("removed")

    assert [] == left(jobs.disks)


def test_the_keeper_of_a_daemon_that_leaves_removes_it_before_it_ends(own_jobs):
    own_jobs.run("for i in $(seq 300); do mkdir $IOD_SCRATCH/$i; done")
    own_jobs.line.ask("leave")
    own_jobs.keeper.process.wait(20)

    assert [] == left(own_jobs.disks)


def test_the_directory_of_a_job_is_not_retired_before_that(jobs):
    jobs.run("mkdir $IOD_SCRATCH/m", staging={"output": "/none/such", "on": "success"})
    jobs.await_scratch("kept")
    kept = jobs.line.ask("retire", before_s=2e9, most=10)
    jobs.scratch(free=True)
    jobs.await_scratch("removed")

    assert {"removed": 0} == kept
    assert {"removed": 1} == jobs.line.ask("retire", before_s=2e9, most=10)


# -- disks that are not as they must be ------------------------------------------------------


def refusal(jobs, disk):
    return jobs.run("true", [share(disk)])["never_ran"]


def test_a_disk_that_is_not_there_is_told_as_the_one_at_fault(jobs):
    status = jobs.run("true", [share(jobs.disks[0]), share(jobs.keeper.root / "none")])

    assert "does not exist; make it, or mount what belongs there" in status["never_ran"]
    assert (None, str(jobs.keeper.root / "none")) == (status["exit_code"], status["disk"])


def test_a_disk_that_others_may_write_to_is_refused(jobs):
    disk = jobs.keeper.root / "open"
    disk.mkdir()
    disk.chmod(0o777)

    status = jobs.run("true", [share(disk)])
    assert "so that others may change it" in status["never_ran"]
    assert (str(disk), None) == (status["disk"], status.get("holds"))
    assert [] == list(disk.iterdir())


def test_what_another_made_where_ours_would_be_is_refused(jobs):
    disk = jobs.keeper.root / "tmp"
    disk.mkdir()
    disk.chmod(0o1777)
    (disk / ".iodaemon").mkdir()
    os.chown(disk / ".iodaemon", NOBODY.pw_uid, NOBODY.pw_gid)

    assert "was made by somebody else; move it away" in refusal(jobs, disk)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/etc/passwd")])
def test_an_id_that_is_no_file_is_neither_waited_for_nor_followed(jobs, make):
    disk = jobs.keeper.root / "disk"
    (disk / ".iodaemon").mkdir(parents=True)
    make(disk / ".iodaemon" / "id")

    assert "id is damaged; remove it" in refusal(jobs, disk)


def test_no_directory_is_made_for_a_uid_that_has_no_jobs(jobs):
    """Asked for by a daemon that was taken over."""
    before = left(jobs.disks)
    status = jobs.run("true", uid=1)

    assert "no scratch space is given to uid 1" in status["never_ran"]
    assert before == left(jobs.disks)


def test_the_directory_is_the_users_and_their_groups(jobs):
    jobs.run("stat -c '%u %g' $IOD_SCRATCH")

    assert f"{NOBODY.pw_uid} {NOBODY.pw_gid}\n" == jobs.output()


def test_what_lay_on_a_disk_that_was_replaced_is_forgotten_once_somebody_says_so(jobs, gate):
    jobs.start(WAITS.format(gate=gate))
    path, place = jobs.disks[0] / ".iodaemon" / "id", jobs.place()
    before = path.read_text()
    path.write_text('{"id": "another"}')
    gate.touch()
    jobs.await_scratch("kept")
    jobs.scratch(free=True)
    jobs.await_scratch("removed")
    path.write_text(before)
    place.rmdir()


def test_a_link_where_ours_would_be_is_refused(jobs):
    disk, other = jobs.keeper.root / "tmp", jobs.keeper.root / "other"
    disk.mkdir()
    other.mkdir()
    (disk / ".iodaemon").symlink_to(other)

    assert "it is no directory" in refusal(jobs, disk)
    assert [] == list(other.iterdir())


def fill(directory):
    """Use up the names that its disk has."""
    for number in itertools.count():
        (directory / f"{number}").touch()


def test_a_disk_without_room_for_a_directory_is_told(jobs):
    (jobs.disks[0] / ".iodaemon").mkdir(exist_ok=True)
    filler = jobs.disks[0] / "filler"
    filler.mkdir()
    try:
        with pytest.raises(OSError, match="No space"):
            fill(filler)
        text = refusal(jobs, jobs.disks[0])
    finally:
        for path in filler.iterdir():
            path.unlink()
        filler.rmdir()

    assert "has no inode left" in text


def test_what_lies_on_a_disk_that_is_mounted_elsewhere_now_is_kept(jobs, gate):
    """By its name alone it would be taken for gone, and its space be given away."""
    jobs.start(WAITS.format(gate=gate))
    path = jobs.disks[0] / ".iodaemon" / "id"
    before = path.read_text()
    path.write_text('{"id": "another"}')
    gate.touch()
    report = jobs.await_scratch("kept")
    path.write_text(before)
    jobs.scratch(free=True)
    jobs.await_scratch("removed")

    assert "another file system is there now" in report["because"]


# -- size ------------------------------------------------------------------------------------


def test_more_than_was_asked_for_is_seen_and_told_where_the_disk_has_no_quotas(jobs, gate):
    jobs.start(
        f"fallocate -l 3000000 $IOD_SCRATCH/f; {WAITS.format(gate=gate)}",
        [share(jobs.disks[0], 2)],
    )
    report = jobs.await_scratch("over")
    gate.touch()

    assert 3_000_000 <= report["used_bytes"] < 3_100_000
    assert (1, True) == (report["files"], report["is_all"])


def test_the_store_lets_users_through_and_shows_them_nothing(jobs):
    jobs.run("ls $(dirname $IOD_SCRATCH); cat $(dirname $IOD_SCRATCH)/id; true")

    assert 2 == jobs.output().count("Permission denied")
    assert 0o711 == stat.S_IMODE((jobs.disks[0] / ".iodaemon").stat().st_mode)


def test_what_is_not_known_below_a_directory_is_found(tmp_path):
    top = tmp_path / "top"
    (top / "sub" / "empty").mkdir(parents=True)
    (top / "sub" / "file").touch()
    parent = os.open(tmp_path, os.O_RDONLY)

    def finds(known, until_s=math.inf, name="top"):
        return has_unknown(parent, name, lambda path, _: path in known, until_s)

    try:
        told = finds(["sub/file"]), finds([]), finds(["sub/file"], -1.0), finds([], name="none")
        (top / "link").symlink_to("sub")
        told += (finds(["sub/file"]),)
    finally:
        os.close(parent)

    assert (False, True, True, False, True) == told
