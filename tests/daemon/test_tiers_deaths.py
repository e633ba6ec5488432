"""Whoever dies at any step around a job's space, daemon included: nothing is left or lost."""

import contextlib

import pytest
from harness import FINAL, until
from scratching import MIB, both_disks, disks, left, needs_root, place_of
from tiering import _lasting_tiered, make_tiered, tables

from iodaemon.errors import IodaemonError

__all__ = ["_lasting_tiered", "both_disks", "disks", "make_tiered"]

pytestmark = [pytest.mark.node, needs_root]

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
FILES = {"a": b"a" * 200_000, "b": b"b" * 100_000}
RESULT = FILES["a"] + FILES["b"]
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
        "input_path": server.input(**FILES),
        "input_bytes": len(RESULT),
        "output_path": str(server.place / "out"),
    }
    with contextlib.suppress(IodaemonError):
        server.script(TEXT, scratch=scratch)
    return 1 + max((job["id"] for job in jobs), default=0)


def kept_of(server, job):
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
    ended = settled(server, lambda: kept_of(server, job), "word of its space")
    result = server.place / "out" / "result"
    if ended["scratch"]["kept"]:
        if server.lines():  # nobody knows of one that was killed just before it began
            assert RESULT == (place_of(disks) / "result").read_bytes()
        server.client.ask("POST", f"/v1/jobs/{job}/scratch/remove", {})
    elif ended["state"] == "COMPLETED" or server.lines():  # also of one that is LOST
        assert RESULT == result.read_bytes()
    settled(server, lambda: not left(disks) and not server.taken(), f"removal of {left(disks)}")

    assert not result.exists() or RESULT == result.read_bytes()
    assert server.lines() in ([], ["ran"])
