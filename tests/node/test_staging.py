"""Input copied in before a job's command, output copied out after: as the job, and whole."""

import contextlib
import hashlib
import json
import os
import subprocess
import time

import pytest
from harness import end, find_state, let_others_work, means, until
from keeping import NOBODY
from scratching import (
    KEY,
    MIB,
    both_disks,
    disks,
    jobs,
    left,
    needs_root,
    own_jobs,
    share,
)

__all__ = ["both_disks", "disks", "jobs", "means", "own_jobs"]

pytestmark = [pytest.mark.node, needs_root]


@pytest.fixture
def data(jobs):
    """A directory of the submitter's with some files, and one for results."""
    place = jobs.keeper.root / "data"
    (place / "in" / "sub" / "empty").mkdir(parents=True)
    (place / "out").mkdir()
    (place / "in" / "a").write_bytes(os.urandom(300_000))
    (place / "in" / "sub" / "b").write_text("b")
    (place / "in" / "sub" / "b").chmod(0o640)
    (place / "in" / "link").symlink_to("sub/b")
    os.utime(place / "in" / "a", ns=(1, 1_234_567_890_123_456_789))
    subprocess.run(["chown", "-R", "--no-dereference", NOBODY.pw_name, place], check=True)
    return place


def staging(data, *, on="success", **paths):
    return {"input": str(data / "in"), "output": str(data / "out"), "on": on, **paths}


def names(top):
    return sorted(str(path.relative_to(top)) for path in top.rglob("*"))


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def copied(jobs, step):
    lines = (jobs.keeper.directory(1) / f"stage-{step}.manifest").read_text().splitlines()
    return {line[0]: line for line in map(json.loads, lines) if line is not True}


def test_input_is_there_when_the_command_runs_with_modes_times_and_links(jobs, data):
    text = "cd $IOD_SCRATCH; find . | sort; stat -c '%a %Y %U' a sub/b; readlink link; md5sum a"
    status = jobs.run(text, staging=staging(data, output=None))
    md5 = hashlib.md5((data / "in" / "a").read_bytes()).hexdigest()

    assert status["exit"]["code"] == 0
    assert jobs.output().splitlines() == [
        *(".", "./a", "./link", "./sub", "./sub/b", "./sub/empty"),
        "644 1234567890 nobody",
        f"640 {int((data / 'in' / 'sub' / 'b').stat().st_mtime)} nobody",
        "sub/b",
        f"{md5}  a",
    ]
    assert digest(data / "in" / "a") == copied(jobs, "in")["a"][3]


def test_what_the_job_made_or_changed_is_copied_out_and_nothing_else(jobs, data):
    text = "cd $IOD_SCRATCH; echo new > new; echo more >> sub/b; mkdir d; echo x > d/x; ln -s x d/l"
    status = jobs.run(text, staging=staging(data))
    jobs.await_scratch("removed")

    assert status["exit"]["code"] == 0
    assert ["d", "d/l", "d/x", "new", "sub", "sub/b"] == names(data / "out")
    assert "bmore\n" == (data / "out" / "sub" / "b").read_text()
    assert NOBODY.pw_uid == (data / "out" / "d" / "x").stat().st_uid


def test_after_a_failure_nothing_is_copied_out_unless_it_is_always_wanted(jobs, data):
    first = jobs.run("echo x > $IOD_SCRATCH/x; exit 3", staging=staging(data))
    before = names(data / "out")
    jobs.await_scratch("removed")
    jobs.start("echo x > $IOD_SCRATCH/x; exit 3", job=2, staging=staging(data, on="always"))
    second = jobs.keeper.status(2)

    assert 3 == first["exit"]["code"] == second["exit"]["code"]
    assert [] == before
    assert "x" in names(data / "out")


def test_files_are_spread_over_the_directories_of_a_split_request(jobs, data):
    (data / "in" / "big").write_bytes(os.urandom(2 * MIB - 10_000))
    shares = [share(jobs.disks[0], 2), share(jobs.disks[1], 2)]
    status = jobs.run(
        "ls -A $IOD_SCRATCH_0; echo; ls -A $IOD_SCRATCH_1; echo y > $IOD_SCRATCH_1/y",
        shares,
        staging=staging(data),
    )
    first, second = jobs.output().split("\n\n")

    assert 0 == status["exit"]["code"]
    assert (["a", "link", "sub"], ["big", "sub"]) == (first.split(), second.split())
    assert ["y"] == names(data / "out")


def test_two_directories_with_a_file_of_one_name_are_not_merged(jobs, data):
    shares = [share(jobs.disks[0], 2), share(jobs.disks[1], 2)]
    text = "echo 0 > $IOD_SCRATCH_0/x; echo 1 > $IOD_SCRATCH_1/x"
    status = jobs.run(text, shares, staging=staging(data, input=None))
    report = jobs.await_scratch("kept")
    jobs.scratch(free=True)

    assert "two of the job's directories have a file 'x'" in status["note"]
    assert "two of the job's directories" in report["because"]


def test_it_is_done_as_the_user_and_so_reads_and_writes_no_more_than_they_may(jobs, data):
    (data / "in" / "secret").write_text("root's")
    (data / "in" / "secret").chmod(0o600)
    status = jobs.run("true", staging=staging(data))

    assert (74, None) == tuple(status["exit"].values())
    assert status["note"].startswith("stage-in: ")
    assert "Permission denied" in status["note"]
    jobs.await_scratch("removed")


def test_an_output_that_is_not_the_users_is_not_written_and_the_data_is_kept(jobs, data):
    os.chown(data / "out", 0, 0)
    (data / "out").chmod(0o755)
    status = jobs.run("echo x > $IOD_SCRATCH/x", staging=staging(data, input=None))
    report = jobs.await_scratch("kept")
    kept = (jobs.place() / "x").read_text()
    jobs.begin_again()
    again = jobs.await_scratch("kept")
    jobs.scratch(free=True)
    jobs.await_scratch("removed")

    assert 74 == status["exit"]["code"]
    assert "stage-out: " in status["note"]
    assert "Permission denied" in status["note"]
    assert str(data / "out") in report["because"]
    assert "x\n" == kept
    assert report["because"] == again["because"]


def test_an_output_that_another_laid_where_everybody_may_is_not_written(jobs, data):
    (data / "out").chmod(0o1777)
    (data / "out" / "mine").mkdir()
    (data / "out" / "mine").chmod(0o777)
    os.chown(data / "out" / "mine", 1, 1)
    output = str(data / "out" / "mine")
    status = jobs.run("echo x > $IOD_SCRATCH/x", staging=staging(data, input=None, output=output))
    report = jobs.await_scratch("kept")
    jobs.scratch(free=True)
    jobs.await_scratch("removed")

    assert 74 == status["exit"]["code"]
    assert "somebody else put it" in report["because"]
    assert [] == names(data / "out" / "mine")


def test_a_file_that_grows_while_it_is_copied_takes_no_more_space_than_it_had(jobs, data):
    (data / "in" / "a").write_bytes(os.urandom(MIB))
    jobs.arm("stage.piece", number=19)
    jobs.start("true", staging=staging(data))
    step = jobs.stopped_at("stage.piece")
    with (data / "in" / "a").open("ab") as file:
        file.write(os.urandom(2 * MIB))
    jobs.arm("stage.piece", number=19)
    os.kill(step, 18)
    status = jobs.keeper.status()

    assert jobs.keeper.armed()  # there was no second piece
    assert f"stage-in: '{data / 'in' / 'a'}' changed while it was copied" == status["note"]


def test_input_larger_than_the_space_is_refused_before_anything_is_copied(jobs, data):
    (data / "in" / "large").write_bytes(b"x" * 5 * MIB)
    status = jobs.run("true", staging=staging(data))

    assert "the scratch space is 4194304" in status["note"]
    assert 74 == status["exit"]["code"]
    assert {} == copied(jobs, "in")


def test_input_that_is_not_there_fails_the_job_and_says_so(jobs, data):
    status = jobs.run("true", staging=staging(data, input=str(data / "none")))

    assert f"stage-in: '{data / 'none'}' vanished, or was never there" == status["note"]


def test_a_command_that_cannot_be_run_is_told_after_staging_too(jobs, data):
    status = jobs.run("", command=["/none/such"], staging=staging(data))

    assert 127 == status["exit"]["code"]
    assert "no such command" in status["note"]


def test_a_disk_that_becomes_full_in_the_middle_ends_the_job_with_the_reason(jobs, data):
    """Ours was promised less than there is, and somebody else took it."""
    for number in range(8):
        (data / "in" / f"f{number}").write_bytes(os.urandom(MIB))
    jobs.arm("stage.copied", passage=3, number=19)
    jobs.start("true", [share(jobs.disks[0], 12)], staging=staging(data))
    step = jobs.stopped_at("stage.copied")
    filler = jobs.disks[0] / "filler"
    try:
        with filler.open("wb") as file:
            while file.write(b"x" * 65536) and not file.flush():
                pass
    except OSError:
        pass
    os.kill(step, 18)
    status = jobs.keeper.status()
    filler.unlink()
    jobs.await_scratch("removed")

    assert 74 == status["exit"]["code"]
    assert "no space is left after " in status["note"]
    assert " of 8.3 MiB in all" in status["note"]
    assert not status["staged"]["has_come"]


def test_a_source_that_vanishes_ends_the_job_with_the_reason(jobs, data):
    (data / "in" / "z").write_text("x")
    jobs.arm("stage.copied", number=19)
    jobs.start("true", staging=staging(data))
    step = jobs.stopped_at("stage.copied")
    (data / "in" / "z").unlink()
    os.kill(step, 18)
    status = jobs.keeper.status()

    assert 74 == status["exit"]["code"]
    assert f"stage-in: '{data / 'in' / 'z'}' vanished" in status["note"]


def test_a_source_that_changes_while_it_is_read_ends_the_job_with_the_reason(jobs, data):
    (data / "in" / "a").write_bytes(os.urandom(2 * MIB))
    jobs.arm("stage.piece", number=19)
    jobs.start("true", staging=staging(data))
    step = jobs.stopped_at("stage.piece")
    with (data / "in" / "a").open("r+b") as file:
        file.write(b"other")
    os.kill(step, 18)
    status = jobs.keeper.status()

    assert 74 == status["exit"]["code"]
    assert f"stage-in: '{data / 'in' / 'a'}' changed while it was copied" == status["note"]


def test_progress_can_be_read_while_it_is_under_way(jobs, data):
    jobs.arm("stage.noted", number=19)
    jobs.start("true", staging=staging(data))
    step = jobs.stopped_at("stage.noted")
    path = jobs.keeper.directory(1) / "stage.json"
    until(path.exists, "a report")
    told = json.loads(path.read_text())
    os.kill(step, 18)
    jobs.keeper.status()
    last = json.loads(path.read_text())

    assert ("in", 300_001, 2) == (told["step"], told["total_bytes"], told["total_files"])
    assert ("out", 300_001, 2) == (last["step"], last["bytes"], last["files"])


def test_a_job_can_be_cancelled_while_its_input_is_copied(jobs, data):
    jobs.arm("stage.copied", number=19)
    answer = jobs.start("echo ran", staging=staging(data))
    step = jobs.stopped_at("stage.copied")
    jobs.line.ask("kill", **KEY, signal=15)
    status = jobs.keeper.status()
    jobs.await_scratch("removed")

    assert answer["shim"]["main_pid"] == step
    assert {"code": None, "signal": 15} == status["exit"]
    assert "" == jobs.output()


def test_input_that_was_cut_off_is_never_copied_out_as_a_result(jobs, data):
    """Not over the input itself either, where that is the output as well."""
    (data / "in" / "a").write_bytes(os.urandom(3 * MIB))
    before = digest(data / "in" / "a")
    jobs.arm("stage.piece", number=19)
    jobs.start("true", staging=staging(data, on="always", output=str(data / "in")))
    jobs.stopped_at("stage.piece")
    jobs.line.ask("kill", **KEY, signal=15)
    status = jobs.keeper.status()
    jobs.await_scratch("removed")

    assert {"code": None, "signal": 15} == status["exit"]
    assert before == digest(data / "in" / "a")


def test_copying_stands_still_with_the_job_and_goes_on_with_it(own_jobs):
    place = own_jobs.keeper.root / "data"
    place.mkdir()
    for number in range(200):
        (place / f"{number}").write_bytes(os.urandom(10_000))
    own_jobs.start("ls $IOD_SCRATCH | wc -l", staging={"input": str(place)})
    frozen = own_jobs.line.ask("freeze", **KEY)
    manifest = own_jobs.keeper.directory(1) / "stage-in.manifest"
    sizes = []
    for _ in range(2):
        sizes.append(manifest.stat().st_size if manifest.exists() else 0)
        let_others_work()
    own_jobs.line.ask("thaw", **KEY)
    own_jobs.keeper.status()

    assert {"frozen": True} == frozen
    assert sizes[0] == sizes[1]
    assert "200\n" == own_jobs.output()


def test_how_long_copying_took_is_told_without_the_time_it_stood_still(jobs, data):
    jobs.arm("stage.copied", number=19)
    jobs.start("true", staging=staging(data))
    step = jobs.stopped_at("stage.copied")
    time.sleep(1.5)
    os.kill(step, 18)
    status = jobs.keeper.status()
    run_s = status["ended_monotonic_s"] - status["started_monotonic_s"]

    assert 0.0 < status["staged"]["took_s"] < run_s - 0.9


def test_a_step_that_is_frozen_stops_its_clock(own_jobs):
    """It has so many files that it is at it for long after this test has asked for the freeze."""
    place = own_jobs.keeper.root / "data"
    place.mkdir()
    for number in range(900):
        (place / f"{number}").write_bytes(os.urandom(1000))
    own_jobs.start("true", staging={"input": str(place)})
    own_jobs.line.ask("freeze", **KEY)
    time.sleep(1.5)
    own_jobs.line.ask("thaw", **KEY)
    status = own_jobs.keeper.status()
    run_s = status["ended_monotonic_s"] - status["started_monotonic_s"]

    assert 0.0 < status["staged"]["took_s"] < run_s - 0.9


def test_many_small_files_take_longer_than_their_bytes_and_that_is_told(jobs, data):
    for number in range(300):
        (data / "in" / f"{number}").write_text("12345")
    status = jobs.run("echo x > $IOD_SCRATCH/x", staging=staging(data))
    took_s = status["staged"]["took_s"]
    run_s = status["ended_monotonic_s"] - status["started_monotonic_s"]

    assert 0.001 < took_s < run_s


def test_what_is_not_copied_is_told_of_both_steps(jobs, data):
    os.mkfifo(data / "in" / "pipe")
    status = jobs.run("mkfifo $IOD_SCRATCH/p $IOD_SCRATCH/q", staging=staging(data))

    assert 3 == status["staged"]["others"]
    assert (True, True) == (status["staged"]["has_come"], status["staged"]["has_gone"])


def test_the_tries_of_copying_out_are_told_as_one(jobs, data):
    (data / "in" / "a").unlink()
    jobs.arm("stage.part", number=9)
    status = jobs.run("head -c 5000 /dev/zero > $IOD_SCRATCH/x", staging=staging(data))

    assert status["exit"]["code"] == 0
    assert 5_000 == status["staged"]["went_bytes"]
    assert status["staged"]["has_gone"]
    assert status["staged"]["took_s"] > 0.0


def test_what_it_reads_and_writes_is_counted_as_the_jobs(jobs, data):
    (data / "in" / "more").write_bytes(os.urandom(2 * MIB))
    status = jobs.run("true", staging=staging(data))

    assert status["io"]["written_bytes"] >= 2 * MIB


def test_copying_out_that_is_killed_by_nobody_who_meant_the_job_goes_on(jobs, data):
    """As by the kernel, when memory runs out."""
    jobs.arm("stage.part", passage=2, number=9)
    text = "for n in 1 2 3; do echo $n > $IOD_SCRATCH/$n; done"
    status = jobs.run(text, staging=staging(data, input=None))
    jobs.await_scratch("removed")

    assert 0 == status["exit"]["code"]
    assert ["1", "2", "3"] == names(data / "out")


def test_a_result_is_copied_out_though_the_working_directory_is_gone(jobs, data):
    (data / "work").mkdir()
    os.chown(data / "work", NOBODY.pw_uid, NOBODY.pw_gid)
    text = f"echo x > $IOD_SCRATCH/x; rmdir {data / 'work'}"
    status = jobs.run(text, cwd=str(data / "work"), staging=staging(data, input=None))
    jobs.await_scratch("kept", "removed")
    jobs.scratch(free=True)

    assert 0 == status["exit"]["code"]
    assert ["x"] == names(data / "out")


def test_copying_out_that_is_cancelled_keeps_the_data_and_fails_the_job(jobs, data):
    jobs.arm("stage.part", number=19)
    jobs.start("echo x > $IOD_SCRATCH/x", staging=staging(data, input=None))
    jobs.stopped_at("stage.part")
    jobs.line.ask("kill", **KEY, signal=9)
    status = jobs.keeper.status()
    report = jobs.await_scratch("kept")
    kept = (jobs.place() / "x").read_text()
    jobs.scratch(free=True)

    assert 74 == status["exit"]["code"]
    assert "stage-out: the copying was killed (signal 9)" == status["note"]
    assert str(data / "out") in report["because"]
    assert "x\n" == kept


def test_a_shim_that_dies_while_output_is_copied_leaves_the_data(jobs, data):
    jobs.arm("stage.part", number=19)
    jobs.start("echo x > $IOD_SCRATCH/x", staging=staging(data, input=None))
    step = jobs.stopped_at("stage.part")
    jobs.keeper.kill_shim(1)
    os.kill(step, 18)
    until(lambda: find_state(step) is None, "end of the step")
    report = jobs.await_scratch("kept")
    jobs.scratch(free=True)

    assert "its shim was killed before all was copied" in report["because"]


def test_a_keeper_that_dies_while_output_is_copied_changes_nothing(jobs, data):
    jobs.arm("stage.part", number=19)
    jobs.start("echo x > $IOD_SCRATCH/x", staging=staging(data, input=None))
    step = jobs.stopped_at("stage.part")
    end(jobs.keeper.process.pid)
    jobs.begin_again()
    with contextlib.suppress(ProcessLookupError):  # its shim let it go on when the keeper died
        os.kill(step, 18)
    status = jobs.keeper.status()
    jobs.await_scratch("removed")

    assert 0 == status["exit"]["code"]
    assert ["x"] == names(data / "out")
    assert [] == left(jobs.disks)
