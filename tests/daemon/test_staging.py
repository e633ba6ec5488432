"""Input copied in before a job's command, output copied out after it: as its user, or kept."""

import os
import signal
import stat
from pathlib import Path

import pytest
from harness import until
from scratching import MIB, both_disks, disks, needs_root, place_of
from tiering import SLOW, _lasting_tiered, make_tiered, tables

__all__ = ["_lasting_tiered", "both_disks", "disks", "make_tiered"]

pytestmark = [pytest.mark.node, needs_root]

RESULT = 'cd "$IOD_SCRATCH"; cat a b > result; rm a b; echo ran >> "$OLDPWD/ledger"'
FILES = {"a": b"a" * 2_000_000, "b": b"b" * 1_000_000}


def staged(server, *words, text=RESULT, output="out"):
    source = server.input(**FILES)
    ways = ("--input", source, "--output", str(server.place / output))
    return server.sent("--fast", "12M", *ways, *words, text=text)


def kept_of(server, job):
    """Why its space is kept, once that is said."""
    return until(lambda: server.job(job)["scratch"]["kept"], "the word that it is kept")["text"]


def ended_of(server, job):
    ended = server.end_of(job)
    return ended["state"], ended["exit_code"], ended["reason"] and ended["reason"]["text"]


# -- what is copied --------------------------------------------------------------------------------


def test_input_comes_before_the_command_and_what_is_new_or_changed_goes_out_after_it(
    make_tiered, disks
):
    server = make_tiered(text=tables(disks, slow=SLOW.replace("50 MB/s", "1 MB/s")))
    source, out = Path(server.input(**FILES)), server.place / "out"
    ways = ("--fast", "12M", "--input", str(source), "--output", str(out))
    (source / "sub").mkdir(mode=0o750)
    (source / "sub" / "-f").write_text("#!/bin/sh")
    (source / "sub" / "-f").chmod(0o550)
    (source / "link").symlink_to("sub/-f")
    os.utime(source / "a", ns=(1, 1_234_567_890_000_000_000))
    source.chmod(0o500)
    out.mkdir(mode=0o2775)
    out.chmod(0o2775)
    elsewhere = server.place / "precious"
    elsewhere.write_text("before")
    (out / "b").symlink_to(elsewhere)
    text = (
        'cd "$IOD_SCRATCH"; stat -c "%a" .; stat -c "%Y" a; cat a > new; cp b c; mv c b; cp a sub'
    )
    job = server.sent(*ways, text=text)

    assert ("COMPLETED", 0, None) == ended_of(server, job)
    assert "700\n1234567890\n" == server.output(job)
    assert {"b", "new", "sub"} == set(os.listdir(out))  # new or changed
    assert FILES["a"] == (out / "new").read_bytes() == (out / "sub" / "a").read_bytes()
    assert ["a"] == os.listdir(out / "sub")
    assert 0o750 == (out / "sub").stat().st_mode & 0o777
    assert 0o2775 == stat.S_IMODE(out.stat().st_mode)
    assert (b"b" * 1_000_000, "before") == ((out / "b").read_bytes(), elsewhere.read_text())
    show = server.says("show", str(job))
    assert f"Copied out    to {out}" in show
    assert f"Copied in     from {source}" in show
    ended = server.job(job)
    assert ended["scratch"]["charged_s"] >= 5.0  # at 1 MB/s it read 3 MB and wrote more
    assert ended["written_bytes"] > 3_000_000 + 4_000_000 + 4_000_000  # of b some were cancelled
    server.await_nothing()
    source.chmod(0o700)


def test_what_came_in_and_was_not_touched_replaces_nothing_that_others_made(make_tiered, disks):
    """Two jobs work on parts of one directory; what changes with a file is its time of change."""
    server = make_tiered(text=tables(disks))
    source = Path(server.input(a=b"before", b=b"before", mode=b"", same=b"before"))
    (source / "gone").write_text("")
    (source / "sub").mkdir()
    (source / "sub" / "c").write_text("before")
    text = 'cd "$IOD_SCRATCH"; echo after > b; chmod 700 mode; cp -p same n; mv n same; touch sub/d'
    wait = f"until [ -e {server.place}/go ]; do sleep 0.02; done"
    ways = ("--fast", "12M", "--input", str(source), "--output", str(source))
    job = server.sent(*ways, text=f"{text}; echo ran > {server.place}/ran; {wait}")
    until((server.place / "ran").exists, "the job's work")
    (source / "a").write_text("another's")
    (source / "sub" / "c").write_text("another's")
    (source / "same").write_text("another's")
    (source / "gone").unlink()
    (server.place / "go").touch()

    assert [("COMPLETED", 0)] == server.outcome(job)
    assert {"a", "b", "mode", "same", "sub"} == set(os.listdir(source))
    assert "another's" == (source / "a").read_text() == (source / "sub" / "c").read_text()
    assert ("after\n", "before") == ((source / "b").read_text(), (source / "same").read_text())
    assert {"c", "d"} == set(os.listdir(source / "sub"))
    assert 0o700 == stat.S_IMODE((source / "mode").stat().st_mode)


def test_nothing_is_written_through_a_link_to_a_directory(make_tiered, disks):
    server = make_tiered(text=tables(disks))
    source, out = Path(server.input()), server.place / "out"
    (source / "sub").mkdir()
    (source / "sub" / "old").touch()
    elsewhere = server.place / "precious"
    elsewhere.mkdir()
    out.mkdir()
    (out / "sub").symlink_to(elsewhere)
    ways = ("--fast", "12M", "--input", str(source), "--output", str(out))
    job = server.sent(*ways, text='touch "$IOD_SCRATCH/sub/new"')

    assert [("FAILED", 74)] == server.outcome(job)
    assert "sub: Not a directory" in kept_of(server, job)
    assert [] == os.listdir(elsewhere)
    server.says("scratch", "remove", str(job))


def test_after_a_failure_nothing_is_copied_out_unless_it_is_always_wanted(make_tiered, disks):
    server = make_tiered(text=tables(disks))
    text = f"{RESULT}; exit 3"
    first = staged(server, text=text)
    second = staged(server, "--output-on", "always", text=text, output="always")

    assert [("FAILED", 3)] * 2 == server.outcome(first, second)
    assert not (server.place / "out").exists()
    assert ["result"] == os.listdir(server.place / "always")
    server.await_nothing()


def test_of_a_split_request_the_largest_directory_gets_the_input_and_results_go_out(make_tiered):
    server = make_tiered()
    source = server.input(a=b"a" * 3_000_000)
    out = server.place / "out"
    words = ("--scratch", "14M", "--input", source, "--output", str(out))
    first = server.sent(*words, text='test -e "$IOD_SCRATCH_0/a" && echo > "$IOD_SCRATCH_1/b"')

    assert [("COMPLETED", 0)] == server.outcome(first)
    assert ["b"] == os.listdir(out)
    second = server.sent(*words, text='echo > "$IOD_SCRATCH_0/c"; echo > "$IOD_SCRATCH_1/c"')
    assert ("FAILED", 74) == server.outcome(second)[0]
    assert "'c' is in two of the job's directories" in kept_of(server, second)
    server.says("scratch", "remove", str(second))
    server.await_nothing()


# -- what fails ------------------------------------------------------------------------------------


def test_an_input_that_is_gone_ends_the_job_with_the_reason(make_tiered, disks):
    server = make_tiered(text=tables(disks))
    job = staged(server, "--hold")
    for path in (server.place / "in").iterdir():
        path.unlink()
    (server.place / "in").rmdir()
    server.client.resume(job)

    missing = f"stage-in: {server.place}/in: No such file or directory"
    assert ("FAILED", 74, missing) == ended_of(server, job)
    assert [] == server.lines()
    assert "Not copied in" in server.says("show", str(job))
    server.await_nothing()


def test_a_disk_that_is_full_in_mid_copy_ends_the_job_with_the_reason_of_cp(make_tiered, disks):
    server = make_tiered(text=tables(disks))
    fillers = [disk / "of-somebody-else" for disk in disks]
    try:
        for filler in fillers:
            room = os.statvfs(filler.parent)
            filler.write_bytes(bytes(room.f_bfree * room.f_frsize - 2_500_000))
        state, code, text = ended_of(server, staged(server))
    finally:
        for filler in fillers:
            filler.unlink()

    assert ("FAILED", 74) == (state, code)
    assert text.startswith("stage-in: cp ended with 1: cp: error writing '")
    assert text.endswith("No space left on device")
    assert [] == server.lines()
    server.await_nothing()


def test_what_cannot_be_copied_out_is_kept_and_shown_until_its_user_removes_it(make_tiered, disks):
    server = make_tiered(text=tables(disks))
    first, second = staged(server, "--hold"), staged(server, "--hold")
    (server.place / "out").write_text("in the way")
    server.client.resume(first)
    server.client.resume(second)
    ended = ended_of(server, first)
    said = kept_of(server, first)
    kept_of(server, second)
    [path] = [Path(word) for word in said.split() if ".iodaemon" in word]

    assert ("FAILED", 74, f"stage-out: {server.place}/out: File exists") == ended
    assert FILES["a"] + FILES["b"] == (path / "result").read_bytes()
    assert {first: 12 * MIB, second: 12 * MIB} == server.taken()
    for told in (server.says("why", str(first)), server.says("show", str(first))):
        assert str(path) in told
    assert f"job {first} removed\n" == server.says("scratch", "remove", str(first))
    (
        place_of(disks) / "result"
    ).unlink()  # its user has what it needs: the next daemon finds nothing there
    server.kill()
    server.restart()
    server.await_nothing()
    assert "Not copied out" in server.says("show", str(second))


def test_a_job_that_is_cancelled_while_its_input_is_copied_leaves_nothing(make_tiered, disks):
    server = make_tiered(text=tables(disks))
    server.arm("staging.step_begun", number=signal.SIGSTOP)
    job = staged(server)
    server.stopped_at("staging.step_begun")
    shown = server.says("queue")
    server.says("cancel", str(job))

    assert "copies its input in" in shown
    assert "CANCELLED" == server.end_of(job)["state"]
    assert [] == server.lines()
    assert not (server.place / "out").exists()
    server.await_nothing()


def test_what_is_copied_out_is_kept_if_its_copying_is_killed(make_tiered, disks):
    server = make_tiered(text=tables(disks))
    server.arm("staging.step_begun", passage=2, number=signal.SIGSTOP)
    job = staged(server)
    os.kill(server.stopped_at("staging.step_begun"), signal.SIGKILL)
    state, code, _ = ended_of(server, job)
    said = kept_of(server, job)

    assert ("FAILED", None) == (state, code)
    assert "it was killed" in said
    assert FILES["a"] + FILES["b"] == (place_of(disks) / "result").read_bytes()
    server.says("scratch", "remove", str(job))
    server.await_nothing()
