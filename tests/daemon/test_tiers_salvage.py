"""Results that were not copied out, until ``iod scratch copy``; inputs that change meanwhile."""

import os
import signal
import time
from pathlib import Path

import pytest
from harness import until
from scratching import both_disks, disks, left, needs_root
from tiering import _lasting_tiered, make_tiered, tables

__all__ = ["_lasting_tiered", "both_disks", "disks", "make_tiered"]

pytestmark = [pytest.mark.node, needs_root]

FILES = {"a": b"a" * 200_000, "b": b"b" * 100_000}
RESULT = 'echo ran >> ledger; cd "$IOD_SCRATCH"; cp a result; mkdir sub; cp b sub/b'


@pytest.fixture
def out(make_tiered, disks):
    """A server, and an output directory with files of the user's own."""
    server = make_tiered(text=tables(disks))
    path = server.place / "out"
    (path / "sub").mkdir(parents=True)
    (path / "sub").chmod(0o2775)
    (path / "mine").write_text("mine")
    (path / "link").write_text("mine")
    source = Path(server.input(**FILES))
    (source / "link").symlink_to("a")
    (source / "empty").mkdir()
    return server, path


def staged(server, text=RESULT):
    words = ("--fast", "8M", "--input", str(server.place / "in"))
    return server.sent(*words, "--output", str(server.place / "out"), text=text)


def kept_of(server, job):
    """Why its space is kept, once that is said."""
    return until(lambda: server.job(job)["scratch"]["kept"], "the word that it is kept")["text"]


def names(top):
    return sorted(str(path.relative_to(top)) for path in top.rglob("*"))


def assert_whole(path):
    """The result is there, what was there before is as it was, and nothing else."""
    assert ["link", "mine", "result", "sub", "sub/b"] == names(path)
    assert FILES["a"] == (path / "result").read_bytes()
    assert FILES["b"] == (path / "sub" / "b").read_bytes()
    assert ["mine", "mine"] == [(path / name).read_text() for name in ("link", "mine")]
    assert 0o2775 == (path / "sub").stat().st_mode & 0o7777


def test_only_what_the_job_made_is_put_beside_what_is_there(out):
    server, path = out
    assert [("COMPLETED", 0)] == server.outcome(staged(server))
    assert_whole(path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_cancelled_copy_leaves_no_halves_and_can_be_had_later(out, number):
    server, path = out
    server.arm("stage.part", number=signal.SIGSTOP)
    job = staged(server)
    step = server.stopped_at("stage.part")
    half = names(path)
    if number == signal.SIGKILL:
        os.kill(step, number)
        server.arm("stage.part", number=signal.SIGSTOP)
        server.stopped_at("stage.part")
    server.iod("cancel", str(job))
    ended = server.end_of(job)
    kept_of(server, job)
    until(lambda: ["link", "mine", "sub"] == names(path), f"halves to go ({half}, {names(path)})")
    why, show = (server.says(verb, str(job)) for verb in ("why", "show"))
    server.says("scratch", "copy", str(job))

    assert f"Not copied out  {path}" in show
    assert f"Copied out    to {path}" in server.says("show", str(job))
    assert any(".iod-part." in name for name in half)
    assert 74 == ended["exit_code"] or ended["state"] == "CANCELLED"
    assert f"'iod scratch copy {job}' copies it out now" in why
    assert_whole(path)
    server.await_nothing()


def test_the_result_of_a_job_that_lost_its_shim_can_be_copied_out(out):
    """It ends well all the same: what is not where it was to be is no success."""
    server, path = out
    gate = server.place / "gate"
    text = f"{RESULT}; echo made >> {server.place}/ledger; until [ -e {gate} ]; do sleep 0.02; done"
    job = staged(server, text=text)
    until(lambda: "made" in server.lines(), "its result")
    server.kill_shim(job)
    gate.touch()
    ended = server.end_of(job)
    kept_of(server, job)
    server.says("scratch", "copy", str(job))

    assert (ended["state"], ended["exit_code"]) in (("FAILED", 74), ("LOST", None))
    assert_whole(path)
    server.await_nothing()


def test_what_cannot_be_copied_out_still_is_kept_and_a_requeue_is_told(out):
    server, path = out
    (path / "result").mkdir()
    job = staged(server)
    server.end_of(job)
    kept_of(server, job)
    code, told = server.iod("scratch", "copy", str(job))
    _, again = server.iod("requeue", str(job))
    why = server.says("why", str(job))
    (path / "result").rmdir()
    server.says("scratch", "copy", str(job))

    assert 0 != code
    assert f"job {job}: not copied: it was not copied to {path}: " in told
    assert "it was not copied to" in again
    assert f"'iod scratch copy {job}', or 'iod scratch remove {job}'" in why
    assert FILES["a"] == (path / "result").read_bytes()
    assert "COMPLETED" == server.end_of(job)["state"]
    server.await_nothing()


def test_until_when_a_result_is_kept_is_told(make_tiered, disks):
    server = make_tiered(text=tables(disks), scratch_keep="1 d")
    (server.place / "out" / "result").mkdir(parents=True)
    server.input(**FILES)
    job = staged(server)
    server.end_of(job)
    kept_of(server, job)
    shown, why = server.says("show", str(job)), server.says("why", str(job))
    server.says("scratch", "remove", str(job))

    assert "Kept until" in shown
    assert "then removed (scratch_keep)" in shown
    assert "it is removed by itself (scratch_keep)" in why


def test_what_nobody_has_copied_goes_when_its_time_is_over_also_after_everybody_died(
    make_tiered, disks
):
    server = make_tiered(text=tables(disks), scratch_keep="10 s")
    (server.place / "out" / "result").mkdir(parents=True)
    server.input(**FILES)
    job = staged(server)
    server.end_of(job)
    kept_of(server, job)
    until_s = server.job(job)["scratch"]["kept_until_s"]
    server.kill_both()
    assert left(disks)
    server.revive()
    again_s = server.job(job)["scratch"]["kept_until_s"]
    server.await_nothing()

    [event] = [e for e in server.client.events(since_s=0.0, follow=False) if e["kind"] == "scratch"]
    assert (job, "ScratchKeep") == (event["job_id"], event["reason"]["code"])
    assert until_s <= event["at_s"] < until_s + 60.0
    assert "nobody had it copied for 10 s" in server.says("events", "--kind", "scratch", str(job))
    assert until_s == again_s
    assert time.time() >= until_s
    for words in (server.says("show", str(job)), server.says("why", str(job))):
        assert "nobody had it copied for 10 s (scratch_keep)" in words
    assert "FAILED" == server.job(job)["state"]


def test_without_an_output_there_is_nothing_to_copy(out):
    server, _ = out
    job = server.held("a", "--scratch", "2M")
    server.paths("a")
    running = server.iod("scratch", "copy", str(job))
    server.open_gate("a")
    server.end_of(job)
    server.await_nothing()
    ended = server.iod("scratch", "copy", str(job))

    assert all(code != 0 for code, _ in (running, ended))
    assert "what it uses is not removed" in running[1]
    assert "has nothing in any tier's space" in ended[1]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda top: (top / "b").unlink(), "b' vanished while it was copied"),
        (lambda top: (top / "a").write_text("other"), "a' changed while it was copied"),
        (lambda top: (top / "link").unlink(), "link' vanished"),
        (lambda top: (top / "new").touch(), "new' appeared while the input was copied"),
    ],
)
def test_an_input_that_changes_once_it_is_being_copied_fails_the_job(out, change, line):
    server, path = out
    server.arm("stage.copied", number=signal.SIGSTOP)
    job = staged(server)
    step = server.stopped_at("stage.copied")
    change(server.place / "in")
    os.kill(step, signal.SIGCONT)
    ended = server.end_of(job)

    assert ("FAILED", 74) == (ended["state"], ended["exit_code"])
    assert line in ended["reason"]["text"]
    assert [] == server.lines()
    assert ["link", "mine", "sub"] == names(path)
    server.await_nothing()
