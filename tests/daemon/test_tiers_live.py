"""Space of tiers on two real disks, from ``iod submit`` to the last file that is removed."""

import os
from pathlib import Path

import pytest
from harness import end, until
from scratching import MIB, both_disks, disks, left, needs_root
from tiering import _lasting_tiered, make_tiered

__all__ = ["_lasting_tiered", "both_disks", "disks", "make_tiered"]

pytestmark = [pytest.mark.node, needs_root]

any_victim = pytest.mark.parametrize(
    ("make_tiered", "victim"),
    [("cgroup", "kill_supervisor"), ("signals", "kill_both")],
    indirect=["make_tiered"],
)
"""A supervisor's death matters most: the next one finds the cgroups again."""


def strike(server, victim):
    """Kill, and have a daemon again."""
    getattr(server, victim)()
    server.revive()


# -- placing ---------------------------------------------------------------------------------------


def test_space_is_placed_split_shown_waited_for_and_given_back(make_tiered, disks):
    server = make_tiered()
    small = server.held("small", "--scratch", "3M")
    server.paths("small")
    large = server.held("large", "--scratch", "14M")
    paths = {name: server.paths(name) for name in ("small", "large")}
    late = server.held("late", "--scratch", "9M")
    server.await_state(late, "PENDING")

    assert {small: 3 * MIB, large: 14 * MIB} == server.taken()
    assert 1 == len(paths["small"])
    assert {str(disk) for disk in disks} == {str(Path(p).parents[1]) for p in paths["large"]}
    for path in (*paths["small"], *paths["large"]):
        assert (0o700, os.getuid()) == (os.stat(path).st_mode & 0o777, os.stat(path).st_uid)
    node = server.says("node")
    for word in ("fast", *map(str, disks), f"{small}", f"{large}"):
        assert word in node
    why = server.says("why", str(late))
    assert "needs 9 MiB of tier fast" in why
    assert f"job {large} has 14 MiB" in why
    assert "of tier fast" in server.says("queue")
    server.open_gate("small", "large")
    server.paths("late")
    server.open_gate("late")

    assert [("COMPLETED", 0)] * 3 == server.outcome(small, large, late)
    server.await_nothing()
    assert "given back" in server.says("show", str(large))


@any_victim
def test_space_outlives_whoever_is_killed_and_goes_with_its_job(make_tiered, victim):
    server = make_tiered()
    job = server.held("a", "--scratch", "12M")
    paths = server.paths("a")
    Path(paths[0], "file").write_bytes(b"x" * 1000)
    strike(server, victim)
    server.goes_on("a")

    assert {job: 12 * MIB} == server.taken()
    assert all(map(os.path.isdir, paths))
    server.open_gate("a")
    assert [("COMPLETED", 0)] == server.outcome(job)
    server.await_nothing()


def test_space_goes_with_its_job_also_where_nobody_knows_how_that_ends(make_tiered):
    server = make_tiered()
    job = server.held("a", "--scratch", "12M")
    paths = server.paths("a")
    [holder] = server.of_role("iod-holder")
    end(holder)
    server.goes_on("a")

    assert all(map(os.path.isdir, paths))
    server.open_gate("a")
    assert "done a" in until(lambda: [x for x in server.lines() if x == "done a"], "its end")
    server.end_of(job)
    server.await_nothing()


def test_what_ended_while_nobody_looked_is_cleared(make_tiered):
    """Of a job that ends with nobody there the next daemon clears the space."""
    server = make_tiered()
    job = server.held("a", "--scratch", "12M")
    server.paths("a")
    server.kill_both()
    server.open_gate("a")
    until(lambda: "done a" in server.lines(), "the end of its command")
    server.revive()
    server.end_of(job)

    server.await_nothing()


# -- what can never be -----------------------------------------------------------------------------


def test_more_than_every_disk_is_refused_or_runs_on_the_slow_tier(make_tiered, disks):
    server = make_tiered()
    code, told = server.iod("submit", "--scratch", "64M", "--", "true")
    job = server.sent(
        "--scratch", "64M", "--scratch-fallback", "slow", text='echo "<$IOD_SCRATCH>"'
    )

    assert (1, 1) == (code, told.count("\n"))
    assert "asks for 64 MiB of tier fast" in told
    assert [("COMPLETED", 0)] == server.outcome(job)
    assert "<>" in server.output(job)
    assert [] == left(disks)


def test_under_a_policy_that_chooses_it_runs_on_the_slow_tier(make_tiered):
    server = make_tiered(policy="storage-aware")
    job = server.sent("--fast", "64M", "--data-size", "1G", text='echo "<$IOD_SCRATCH> $IOD_TIER"')

    assert [("COMPLETED", 0)] == server.outcome(job)
    assert "<> slow" in server.output(job)


# -- how large -------------------------------------------------------------------------------------

TOO_MUCH = 'fallocate -l 5000000 "$IOD_SCRATCH/f"; while [ ! -e gate ]; do sleep 0.05; done'
"""At once: a file that grows would be found at any size."""


def test_who_has_more_than_it_asked_for_is_shown_with_it(make_tiered):
    server = make_tiered()
    job = server.sent("--scratch", "2M", text=TOO_MUCH)
    until(lambda: server.job(job)["scratch"]["over"], "the word that it is too much")

    assert "has 4.8 MiB in its scratch space and asked for 2 MiB" in server.says("why", str(job))
    assert "Too much" in server.says("show", str(job))
    (server.place / "gate").touch()
    assert [("COMPLETED", 0)] == server.outcome(job)
    server.await_nothing()


def test_who_has_more_than_it_asked_for_is_ended_where_that_is_configured(make_tiered):
    server = make_tiered(scratch_over="end")
    job = server.sent("--scratch", "2M", text=TOO_MUCH)
    ended = server.end_of(job)

    assert "CANCELLED" == ended["state"]
    assert "has 4.8 MiB in its scratch space and asked for 2 MiB" in ended["reason"]["text"]
    server.await_nothing()
