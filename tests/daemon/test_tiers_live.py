"""Space of tiers on two real disks, from ``iod submit`` to the last file that is removed."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from harness import until
from mounting import mount
from scratching import MIB, both_disks, disks, left, needs_root
from tiering import SLOW, Tiered, _lasting_tiered, either_means, make_tiered, tables

__all__ = ["_lasting_tiered", "both_disks", "disks", "make_tiered"]

pytestmark = [pytest.mark.node, needs_root]

any_victim = pytest.mark.parametrize(
    ("make_tiered", "victim"),
    [("cgroup", "kill_keeper"), ("signals", "kill"), ("signals", "kill_both")],
    indirect=["make_tiered"],
)
"""A keeper's death matters most: the next one finds the cgroups again."""


def strike(server, victim):
    """Kill, and have a daemon again."""
    getattr(server, victim)()
    server.revive()


# -- placing ---------------------------------------------------------------------------------------


@either_means
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


def test_space_goes_with_its_job_also_where_that_loses_its_shim(make_tiered):
    server = make_tiered()
    job = server.held("a", "--scratch", "12M")
    paths = server.paths("a")
    server.kill_shim(job)
    server.goes_on("a")

    assert all(map(os.path.isdir, paths))
    server.open_gate("a")
    assert "done a" in until(lambda: [x for x in server.lines() if x == "done a"], "its end")
    server.end_of(job)
    server.await_nothing()


@pytest.mark.parametrize("victim", ["kill", "kill_both"])
def test_what_ended_while_nobody_looked_is_cleared(make_tiered, victim):
    """Of a job that ends with nobody there the next daemon clears the space."""
    server = make_tiered()
    job = server.held("a", "--scratch", "12M")
    server.paths("a")
    getattr(server, victim)()
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


def test_a_job_that_could_never_gain_by_a_fast_tier_is_told_so_at_submission(make_tiered, disks):
    by_default = tables(disks).replace('staging = "100 MB/s"\n', "")
    server = make_tiered(text=by_default, policy="storage-aware")
    code, told = server.iod("submit", "--wait", "--fast", "2M", "--output-size", "1M", "--", "true")

    assert (0, 1) == (code, told.count("it always runs on tier slow under this policy: copying"))
    assert "slow" == server.job(1)["scratch"]["tier"]


def refused(disks, text):
    """The line with which a daemon of this configuration does not start."""
    server = Tiered(disks, text)
    try:
        ended = subprocess.run(
            server.command(), env=server.environment, capture_output=True, text=True, timeout=60
        )
    finally:
        shutil.rmtree(server.root)
    assert ended.returncode
    [line] = [line for line in ended.stderr.splitlines() if line.startswith("iod: ")]
    return line


def test_a_disk_that_cannot_be_used_keeps_the_daemon_from_starting(disks):
    first, second = map(str, disks)
    inner = Path(first, "inner")
    inner.mkdir()
    try:
        lines = [
            refused(disks, tables([first, f"{second}/none"])),
            refused(disks, tables([first, inner])),
            refused(disks, tables([first]) + f"[[tier.slow.disk]]\npath = '{inner}'\n"),
            refused(disks, tables([first]).replace(SLOW, "capacity = '1 TB'\n" + SLOW)),
        ]
        mount("-o", "remount,ro", second)
        lines.append(refused(disks, tables([first, second])))
    finally:
        subprocess.run(["mount", "-o", "remount,rw", second], check=True)
        inner.rmdir()

    assert ["does not exist", "filesystem", "filesystem", "capacity", "read-only"] == [
        next((w for w in ("does not exist", "read-only", "capacity", "filesystem") if w in x), x)
        for x in lines
    ]


def test_space_that_others_take_is_warned_of_at_the_start_and_shown_at_the_disk(disks):
    filler = disks[0] / "of-somebody-else"
    filler.write_bytes(bytes(6 * MIB))
    try:
        with Tiered(disks, tables(disks)) as server:
            server.start()
            until(lambda: "others' files take" in server.log.read_text(), "the warning")
            log, node = server.log.read_text(), server.says("node")
            [first, second] = server.client.node()["disks"]
            doctor = server.iod("--config", str(server.config), "doctor")[1]
    finally:
        filler.unlink()

    [line] = [line for line in log.splitlines() if "others' files take" in line]
    assert "WARNING event=warned" in line
    assert f"tier fast: {disks[0]}: " in line
    cost = "jobs are promised space that others' files take"
    remedy = line.partition(f"{cost}; ")[2].rstrip('"')
    assert remedy.startswith("remove them, or set capacity to what is left of ")
    assert (cost in doctor, remedy in doctor) == (True, True)
    assert "TAKEN BY OTHERS" in node
    assert 5 * MIB < first["taken_by_others_bytes"] <= 7 * MIB
    assert 0 == second["taken_by_others_bytes"]


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
