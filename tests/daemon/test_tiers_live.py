"""Space of tiers on two real disks: named, or left to the rule ``storage_aware`` to choose."""

import os
import re
from pathlib import Path

import pytest
from harness import until
from scratching import MIB, both_disks, disks, needs_root
from tiering import _lasting_tiered, make_tiered

pytestmark = [pytest.mark.node, needs_root]


__all__ = ["_lasting_tiered", "both_disks", "disks", "make_tiered"]


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


@pytest.mark.parametrize("make_tiered", ["cgroup"], indirect=True)
def test_space_outlives_whoever_is_killed_and_goes_with_its_job(make_tiered):
    server = make_tiered()
    job = server.held("a", "--scratch", "12M")
    paths = server.paths("a")
    Path(paths[0], "file").write_bytes(b"x" * 1000)
    server.kill_both()
    server.revive()
    server.goes_on("a")

    assert {job: 12 * MIB} == server.taken()
    assert all(map(os.path.isdir, paths))
    server.open_gate("a")
    assert [("COMPLETED", 0)] == server.outcome(job)
    server.await_nothing()


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


RATES = 'bandwidth = "1 GB/s"\nstaging = "500 KB/s"\n'
"""So copying takes twice as long as the slow tier takes for the same bytes."""
SLOW = '[tier.slow]\nbandwidth = "1 MB/s"\n'
HOUR = "3600M"
"""What takes the slow tier an hour, and the fast one no time to speak of."""
FILES = {"a": b"a" * 2_000_000, "b": b"b" * 1_000_000}
WHERE = 'echo "tier=$IOD_TIER space=$IOD_SCRATCH"'
RESULT = (
    'cd "${IOD_SCRATCH_0:-$IOD_INPUT}" && mkdir -p "$IOD_OUTPUT" &&'
    ' cat a b > "${IOD_SCRATCH_0:-$IOD_OUTPUT}/result" && ' + WHERE
)


@pytest.fixture
def server(make_tiered, disks):
    """Both disks are the fast tier's."""
    text = f'[tier.fast]\nsplit = "4 MiB"\n{RATES}'
    text += "".join(f'[[tier.fast.disk]]\npath = "{disk}"\n' for disk in disks)
    return make_tiered(text=text + SLOW, policy="storage-aware")


def staged(server, *words):
    source, output = server.input(**FILES), str(server.place / "out")
    return server.sent("--fast", "16M", "--input", source, "--output", output, *words, text=RESULT)


def full(server):
    """A job that has all of the fast tier, for an hour by what is known."""
    job = server.held("holder", "--fast", "24M", "--data-size", HOUR, "--time", "2h")
    server.paths("holder")
    return job


def gaining(server):
    """A job to which the fast tier is worth ten hours: more than it waits for it."""
    words = ("--fast", "8M", "--data-size", "36G", "--time", "20h")
    return server.sent(*words, text=WHERE)


def tier_of(server, job):
    """Where an ended job ran, by its own word; and whether it had space there."""
    found = re.fullmatch(r"tier=(\w+) space=(\S*)\n", server.output(job))
    assert found[1] == server.job(job)["scratch"]["tier"]
    return found[1], bool(found[2])


# -- with room on both tiers -----------------------------------------------------------------------


def test_a_job_that_moves_much_has_its_data_on_the_fast_tier(server):
    job = staged(server, "--data-size", "36G")

    assert [("COMPLETED", 0)] == server.outcome(job)
    assert ("fast", True) == tier_of(server, job)
    out = server.place / "out"
    assert FILES["a"] + FILES["b"] == (out / "result").read_bytes()
    assert ["a", "b"] == sorted(p.name for p in (server.place / "in").iterdir())
    server.await_nothing()


def test_a_job_that_moves_little_else_works_where_its_data_is(server):
    """Copying would take 6 s and save 3; nothing is copied, the script finds it all the same."""
    job = staged(server, "--data-size", "100K")

    assert [("COMPLETED", 0)] == server.outcome(job)
    assert ("slow", False) == tier_of(server, job)
    assert {} == server.taken()
    assert FILES["a"] + FILES["b"] == (server.place / "out" / "result").read_bytes()
    assert not server.output_file(job).with_suffix(".1.report").exists()


# -- while the fast tier is full -------------------------------------------------------------------


def test_while_the_fast_tier_is_full_who_gains_by_waiting_waits_and_is_told_for_whom(server):
    holder, first, second = full(server), gaining(server), gaining(server)
    quick = server.sent("--fast", "8M", "--time", "2min", text=WHERE)
    assert [("COMPLETED", 0)] == server.outcome(quick)
    server.kill()
    server.restart()
    until(lambda: server.job(first)["reason"], "a reason")
    queue, why = server.says("queue"), [server.says("why", str(j)) for j in (first, second, quick)]

    assert ["PENDING"] * 2 == server.states(first, second)
    assert {holder: 24 * MIB} == server.taken()
    assert re.search(
        r"needs 8 MiB on tier fast; .* ends [\d.]+ h sooner .* than on tier slow", queue
    )
    assert re.search(r"it is to run on tier fast, in \d+ min, where it takes [\d.]+ h less", why[0])
    assert f"space of tier fast is given back: job {holder} has 24 MiB; promised in " in why[0]
    assert f"waits behind job {first}, which waits for space on tier fast, promised in " in why[1]
    assert f"fits beside job {first}, which waits for space on tier fast" in why[2]
    server.open_gate("holder")
    assert [("COMPLETED", 0)] * 2 == server.outcome(first, second)
    ran = [tier_of(server, job) for job in (first, second, quick)]
    assert [("fast", True), ("fast", True), ("slow", False)] == ran
