"""Who dies and what is lost with it, disk or machine: nothing of a job's space is left or lost."""

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest
from harness import FINAL, end, marked, until
from mounting import mount
from scratching import MIB, both_disks, disks, left, needs_root, place_of, read_only
from tiering import _lasting_tiered, make_tiered, tables

from iodaemon.errors import IodaemonError

pytestmark = [pytest.mark.node, needs_root]


__all__ = ["_lasting_tiered", "both_disks", "disks", "make_tiered"]


def test_nobody_is_held_for_a_disk_that_turned_read_only(make_tiered, disks):
    server = make_tiered(text=tables(disks[:1]))
    what = f"tier fast: disk {disks[0]} is read-only; mount it writable"
    with read_only(disks[0]):
        falls = server.sent(
            "--scratch", "2M", "--scratch-fallback", "slow", text="test $IOD_TIER = slow"
        )
        assert [("COMPLETED", 0)] == server.outcome(falls)
        waits = server.sent("--scratch", "2M", text='echo x > "$IOD_SCRATCH/f"')
        until(lambda: what in server.says("why", str(waits)), "its waiting")
        [shown] = server.client.node()["disks"]

        assert "PENDING" == server.job(waits)["state"]
        assert f"not usable: {what}" in shown["problem"]
        assert (0, []) == (shown["free_bytes"], shown["jobs"])
        assert what in server.says("node")

    assert [("COMPLETED", 0)] == server.outcome(waits)
    assert "" == server.client.node()["disks"][0]["problem"]
    told = "".join(path.read_text() for path in server.logs())
    assert 1 == told.count(f"event=disk_out disk={disks[0]} ")
    assert 1 == told.count(f"event=disk_back disk={disks[0]}")


FILES = {"a": b"a" * 2_000_000, "b": b"b" * 1_000_000}
RESULT = 'echo ran >> ledger; cp "$IOD_SCRATCH/a" "$IOD_SCRATCH/result"'


def staged(server, text=RESULT):
    source = server.input(**FILES)
    words = ("--fast", "8M", "--input", source, "--output", str(server.place / "out"))
    return server.sent(*words, text=text)


def kept_of(server, job):
    """Why its space is kept, once that is said."""
    return until(lambda: server.job(job)["scratch"]["kept"], "the word that it is kept")["text"]


# -- any step ------------------------------------------------------------------------------------


POINTS = (
    *("scratch.made", "node.prepared", "supervisor.ordered", "child.prepared", "child.recorded"),
    *("supervisor.exec_seen", "staging.step_begun", "staging.step_done", "staging.runs"),
    *("reap.exit_recorded", "reap.waited", "supervisor.ended", "scratch.unlinked"),
)
"""Each once; the copying has two more, which are passed a second time as results go out."""
PASSAGES = [
    *((point, 1) for point in POINTS),
    *(("staging.step_begun", 2), ("staging.step_done", 2)),
]
SMALL = {"a": b"a" * 200_000, "b": b"b" * 100_000}
JOINED = SMALL["a"] + SMALL["b"]
TEXT = 'echo ran >> ledger; cd "$IOD_SCRATCH" && cat a b > result'


def settled(server, holds, what):
    """Wait for it, with another daemon whenever one has died."""

    def look():
        if not server.is_running():
            server.start(wait=False)
        with contextlib.suppress(IodaemonError):
            return holds()
        return None

    return until(look, what)


def begin(server):
    """Submit, and say which number it gets; the answer may never come."""
    jobs = server.client.jobs(all_jobs=True)["jobs"]
    scratch = {
        "size_bytes": MIB,
        "input_path": server.input(**SMALL),
        "input_bytes": len(JOINED),
        "output_path": str(server.place / "out"),
    }
    with contextlib.suppress(IodaemonError):
        server.script(TEXT, scratch=scratch)
    return 1 + max((job["id"] for job in jobs), default=0)


def space_of(server, job):
    """The job, once it is said whether its space is cleared or kept."""
    found = server.job(job)
    scratch = found["scratch"]
    return found if scratch["kept"] or not scratch["shares"] else None


@pytest.mark.parametrize(("point", "passage"), PASSAGES)
def test_a_death_at_any_step_leaves_nothing_and_loses_no_result(make_tiered, disks, point, passage):
    server = make_tiered(text=tables(disks))
    server.arm(point, passage=passage)
    job = begin(server)
    settled(server, lambda: not server.armed(), f"passage of {point}")
    settled(server, lambda: server.job(job)["state"] in FINAL, "the end of the job")
    ended = settled(server, lambda: space_of(server, job), "word of its space")
    result = server.place / "out" / "result"
    if ended["scratch"]["kept"]:
        if server.lines():  # nobody knows of one that was killed just before it began
            assert JOINED == (place_of(disks) / "result").read_bytes()
        server.client.ask("POST", f"/v1/jobs/{job}/scratch/remove", {})
    elif ended["state"] == "COMPLETED" or server.lines():  # also of one that is LOST
        assert JOINED == result.read_bytes()
    settled(server, lambda: not left(disks) and not server.taken(), f"removal of {left(disks)}")

    assert not result.exists() or JOINED == result.read_bytes()
    assert server.lines() in ([], ["ran"])


# -- the root side ---------------------------------------------------------------------------------


def test_no_command_runs_twice_whoever_dies_while_its_input_is_copied(make_tiered, disks):
    server = make_tiered(text=tables(disks))
    server.arm("staging.step_begun", number=signal.SIGSTOP)
    job = staged(server)
    step = server.stopped_at("staging.step_begun")
    server.kill_all()
    os.kill(step, signal.SIGCONT)
    server.restart()
    server.end_of(job)

    assert ["ran"] == server.lines()
    assert FILES["a"] == (server.place / "out" / "result").read_bytes()
    assert FILES == {path.name: path.read_bytes() for path in (server.place / "in").iterdir()}
    server.await_nothing()


def test_a_result_that_is_copied_out_while_nobody_looks_is_there(make_tiered, disks):
    server = make_tiered(text=tables(disks))
    job = staged(server, text=f"{RESULT}; until [ -e gate ]; do sleep 0.02; done")
    until(server.lines, "its command")
    server.kill_all()
    (server.place / "gate").touch()
    until((server.place / "out" / "result").exists, "its result")
    server.restart()
    server.end_of(job)

    server.await_nothing()
    assert FILES["a"] == (server.place / "out" / "result").read_bytes()


def test_what_a_job_of_unknown_end_has_made_is_kept(make_tiered, disks):
    """What would copy it out is killed: whether the command succeeds is seen by nobody."""
    server = make_tiered(text=tables(disks))
    job = staged(server, text=f"{RESULT}; until [ -e gate ]; do sleep 0.02; done")
    until(server.lines, "its command")
    end(server.main_pid(job))
    (server.place / "gate").touch()
    ended = server.end_of(job)
    said = kept_of(server, job)
    place = place_of(disks)

    assert ("FAILED", 9) == (ended["state"], ended["signal"])
    assert f"what the job left was not copied to {server.place}/out" in said
    assert str(place) in said
    assert FILES["a"] == (place / "result").read_bytes()
    assert {job: 8 * MIB} == server.taken()
    server.says("scratch", "remove", str(job))
    server.await_nothing()


# -- the machine -----------------------------------------------------------------------------------


def lose_power(server):
    """End everything at once, and boot again: nobody sees how another one ends."""

    def is_ended():
        everything = marked(server.mark)  # somebody may just be starting another one
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in everything:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        return not everything

    until(is_ended, "end of everything")
    (server.runtime / "ledger").unlink()
    (server.state / "boot_id").write_text("another\n")


def test_after_a_reboot_results_are_there_and_all_else_is_cleared(make_tiered, disks):
    server = make_tiered(text=tables(disks))
    failed = staged(server, text=f"{RESULT}; touch {server.place}/out")
    kept_of(server, failed)
    result = place_of(disks) / "result"
    lost = server.held("lost", "--scratch", "4M")
    [path] = server.paths("lost")
    Path(path, "half").write_bytes(b"x" * 1000)
    before = server.taken()
    server.kill()
    lose_power(server)
    server.restart()
    ended = server.end_of(lost)
    until(lambda: server.taken() == {failed: 8 * MIB}, f"clearing ({server.taken()})")

    assert {failed: 8 * MIB, lost: 4 * MIB} == before
    assert "LOST" == ended["state"]
    assert [result.parent.name] == left(disks)
    assert FILES["a"] == result.read_bytes()
    assert str(result.parent) in server.says("why", str(failed))
    server.says("scratch", "remove", str(failed))
    server.await_nothing()


# -- a disk ----------------------------------------------------------------------------------------


# Last: afterwards the file system may have another number, of which the other server, that is not
# restarted, does not know.
def test_space_on_a_disk_that_is_unmounted_is_taken_until_it_is_back(make_tiered, disks):
    server = make_tiered(text=tables(disks, split="4 MiB"))
    job = server.held("a", "--scratch", "8M")
    paths = [Path(path) for path in server.paths("a")]
    [gone] = [path for path in paths if path.is_relative_to(disks[0])]
    image = disks[0].with_suffix(".img")
    subprocess.run(["umount", "--lazy", disks[0]], check=True)
    try:
        (disks[0] / "precious").write_text("of somebody else")
        server.open_gate("a")
        ended = server.outcome(job)
        said = kept_of(server, job)
        code, told = server.iod("scratch", "remove", str(job))
        taken, why = server.taken(), server.says("why", str(job))
        precious = (disks[0] / "precious").read_text()
    finally:
        (disks[0] / "precious").unlink()
        mount("-o", "loop", str(image), str(disks[0]))
    there = gone.is_dir()
    server.says("scratch", "remove", str(job))
    server.kill()  # the file system may have another number now, which is refused until a restart
    server.restart()

    assert [("COMPLETED", 0)] == ended
    assert f"{disks[0]} " in said
    assert "mount" in said
    assert said in why
    assert (1, 1) == (code, told.count("\n"))
    assert {job: 8 * MIB} == taken
    assert "of somebody else" == precious
    assert there
    server.await_nothing()
