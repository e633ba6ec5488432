"""Jobs that leave the tier to the rule ``storage_aware``: real ones, on two real disks.

Sizes and times are such that each decision is by minutes or hours; what is copied are megabytes.
"""

import re

import pytest
from harness import until
from scratching import MIB, both_disks, disks, needs_root
from tiering import _lasting_tiered, make_tiered

__all__ = ["_lasting_tiered", "both_disks", "disks", "make_tiered"]

pytestmark = [pytest.mark.node, needs_root]

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


@pytest.mark.parametrize("words", [(), ("--data-size", "100K")], ids=["nothing", "little"])
def test_a_job_that_moves_little_else_works_where_its_data_is(server, words):
    """Copying would take 6 s and save 3; nothing is copied, the script finds it all the same."""
    job = staged(server, *words)

    assert [("COMPLETED", 0)] == server.outcome(job)
    assert ("slow", False) == tier_of(server, job)
    assert {} == server.taken()
    assert FILES["a"] + FILES["b"] == (server.place / "out" / "result").read_bytes()
    assert not server.output_file(job).with_suffix(".1.report").exists()


# -- while the fast tier is full -------------------------------------------------------------------


def test_while_the_fast_tier_is_full_who_ends_sooner_on_the_slow_one_runs_there_now(server):
    words = ("--fast", "8M", "--data-size", "60M", "--time", "2min")
    holder = full(server)
    beside = server.sent(*words, text=WHERE)
    assert [("COMPLETED", 0)] == server.outcome(beside)
    server.open_gate("holder")
    server.end_of(holder)
    server.await_nothing()
    alone = server.sent(*words, text=WHERE)

    assert [("COMPLETED", 0)] == server.outcome(alone)
    assert [("slow", False), ("fast", True)] == [tier_of(server, job) for job in (beside, alone)]


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
