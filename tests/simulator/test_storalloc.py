"""StorAlloc's simulation: placing and replay by hand, its quirks, its figures, what it refuses."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iodaemon.core.measure import cohens_d, standard_deviation
from iodaemon.core.storage import StorageRequest
from iodaemon.registry import find_rule
from iodaemon.simulator.catalogue import load_experiment, with_parameters
from iodaemon.simulator.storalloc import (
    GB,
    NodeClass,
    Placing,
    decide,
    earliest_starts_s,
    layout,
    storage_of,
)
from iodaemon.simulator.storalloc_replay import replay
from iodaemon.simulator.storalloc_run import Source, outcome_of
from iodaemon.simulator.study import storalloc as study
from iodaemon.simulator.study import storalloc_hetero

DAY_S = 86_400
EXPERIMENTS = Path(__file__).parents[2] / "sim/experiments"


def wanted(gb, start, end, name="r"):
    return StorageRequest(
        id=name, size_bytes=round(gb * GB), start_s=float(start), end_s=float(end)
    )


def placing(name, **options):
    options.setdefault("block_bytes", 200 * GB)
    return Placing(rule=find_rule("allocation", name)(), **options)


ONE = storage_of([NodeClass(name="n", nodes=1, disks=1, capacity_bytes=1000 * GB)])
TWO = storage_of([NodeClass(name="n", nodes=1, disks=2, capacity_bytes=1000 * GB)])


def run(storage, requests, name="worst_fit", **options):
    return outcome_of(storage, placing(name, **options), requests, 1)


# -- by hand ---------------------------------------------------------------------------------------


def test_the_indicators_of_two_requests_on_one_disk_by_hand():
    """500 GB for 100 s, 250 GB (249.5 rounded up) for 100 s, 50 s of them together."""
    found = run(ONE, [wanted(500, 0, 100), wanted(249.5, 50, 150)], block_bytes=None)
    (disk,) = found.disks

    assert (750 * GB, 750 * GB, 2, 2) == (
        found.sum_cap,
        found.allocated_bytes,
        found.requests,
        found.parts,
    )
    assert (0.0, 150.0, 150.0) == (found.first_s, found.last_s, found.duration_s)
    assert 75.0 == disk.max_disk_use
    assert pytest.approx(100 * (500 * 100 + 250 * 100) / (1000 * 150)) == disk.mean_disk_use
    assert pytest.approx(200 / 150) == disk.mean_alloc
    assert (2, 2) == (disk.max_alloc, found.max_concurrent)
    assert 150.0 == disk.last_s
    # busy for 150 s, and 200 s of allocations share what it writes in them
    assert pytest.approx(2.93e9 * 150 / 200) == found.mean_bytes_per_s


def test_the_parts_of_a_split_request_go_over_the_disks():
    found = run(TWO, [wanted(650, 0, 100)])

    assert (1, 4, 1) == (found.requests, found.parts, found.split)
    assert [2, 2] == [disk.max_alloc for disk in found.disks]
    assert {"n0": 4} == found.node_max_alloc


def test_what_does_not_fit_when_its_time_comes_fails_whole_in_correct_books():
    found = run(ONE, [wanted(900, 0, 100), wanted(300, 50, 150)])

    assert (900 * GB, 900 * GB) == (found.allocated_bytes, found.served_bytes)
    assert (1, 1, 1) == (found.failed, found.failed_split, found.allocated)
    assert (5, 90.0) == (found.disks[0].max_alloc, found.disks[0].max_disk_use)


def test_in_artefact_books_parts_that_are_given_back_count_as_allocated_and_in_the_maxima():
    """Of 500 GB one part of 200 fits beside 700; it is given back when the next does not."""
    found = run(ONE, [wanted(700, 0, 100), wanted(500, 50, 150)], bookkeeping="artefact")

    assert (900 * GB, 700 * GB) == (found.allocated_bytes, found.served_bytes)
    assert (1, 1) == (found.failed, found.allocated)
    assert (90.0, 5) == (found.disks[0].max_disk_use, found.disks[0].max_alloc)
    assert pytest.approx(70.0) == found.disks[0].mean_disk_use


def test_the_artefact_holds_a_request_for_its_length_modulo_a_day():
    requests = [wanted(100, 0, DAY_S + 3600)]

    assert 3600.0 == run(ONE, requests, bookkeeping="artefact").last_s
    assert DAY_S + 3600.0 == run(ONE, requests).last_s


def test_what_ends_when_another_begins_makes_room_for_it_but_not_in_the_artefact():
    requests = [wanted(600, 0, 100), wanted(600, 100, 200)]

    assert (0, 1) == (
        run(ONE, requests).failed,
        run(ONE, requests, bookkeeping="artefact").failed,
    )


def test_a_delayed_request_holds_its_space_for_its_whole_length():
    requests = [wanted(900, 0, 600), wanted(200, 300, 4000)]
    found = run(ONE, requests, "balanced", retries=True)

    assert (1, 1, 300.0, 0) == (found.delayed, found.requeued, found.delay_s, found.failed)
    assert 600.0 + 3700.0 == found.last_s


def test_refused_requests_are_counted_with_their_parts():
    found = run(ONE, [wanted(1500, 0, 100), wanted(10, 0, 100)], "best_bandwidth")

    assert (1, 8, 1, 0) == (
        found.refused,
        found.refused_parts,
        found.refused_split,
        found.failed,
    )
    assert pytest.approx(100 * 10 / 1510) == found.allocated_percent


def test_platforms_are_those_of_table_3():
    for name, nodes, disks in (("1N1D", 1, 1), ("1NnD", 1, 8), ("nN1D", 8, 1), ("nNnD", 4, 2)):
        storage = layout(name, 32)

        assert (nodes, nodes * disks) == (len(storage.nodes), len(storage.disks))
        assert 32_000 * GB == storage.capacity_bytes
    assert 1.465e9 == layout("1N1D", 8).disks[0].write_bytes_per_s


# -- properties ------------------------------------------------------------------------------------


@st.composite
def several(draw):
    count = draw(st.integers(1, 12))
    begins = [draw(st.integers(0, 40)) for _ in range(count)]
    return [
        wanted(draw(st.integers(1, 1500)), at, at + draw(st.integers(1, 30)), str(number))
        for number, at in enumerate(begins)
    ]


@pytest.mark.parametrize("name", ["balanced", "best_bandwidth", "round_robin"])
@given(several())
def test_what_a_rule_with_correct_books_accepts_does_not_fail(name, requests):
    found = run(TWO, requests, name)

    assert 0 == found.failed
    assert all(disk.max_disk_use <= 100.0 for disk in found.disks)
    assert found.served_bytes == found.allocated_bytes
    assert found.requests == found.allocated + found.refused


@given(several(), st.sampled_from(["random", "worst_fit", "round_robin", "balanced"]))
def test_no_books_ever_hold_more_than_a_disk(requests, name):
    for books in ("correct", "artefact"):
        found = run(TWO, requests, name, bookkeeping=books)

        assert all(disk.max_disk_use <= 100.0 for disk in found.disks)
        assert found.requests == found.allocated + found.refused + found.failed
        assert found.served_bytes <= found.allocated_bytes <= found.sum_cap


@given(several(), st.randoms(use_true_random=False))
def test_the_order_of_decisions_does_not_matter_for_what_is_taken_in_time(requests, rng):
    """Where everything fits, totals and means are those of the requests alone."""
    huge = storage_of([NodeClass(name="n", nodes=2, disks=2, capacity_bytes=10**6 * GB)])
    decisions = decide(huge, placing("worst_fit"), requests, 1)
    mixed = rng.sample(decisions, len(decisions))

    first, second = replay(huge, decisions), replay(huge, mixed)

    assert first == second
    assert first.served_bytes == first.sum_cap


@given(several())
def test_requests_that_come_before_the_past_see_all_that_is_there(requests):
    """A file in no order: what is forgotten early enough changes nothing."""
    starts = earliest_starts_s(requests)

    assert [min(r.start_s for r in requests[at:]) for at in range(len(requests))] == starts
    assert run(TWO, requests, "balanced").failed == 0


# -- measures --------------------------------------------------------------------------------------


def test_cohens_d_by_hand():
    assert pytest.approx(2.0) == cohens_d([3.0, 4.0, 5.0], [1.0, 2.0, 3.0])
    assert cohens_d([1.0, 1.0], [1.0, 1.0]) is None
    assert cohens_d([], [1.0]) is None
    assert pytest.approx(1.0) == standard_deviation([1.0, 2.0, 3.0])
    assert 0.0 == standard_deviation([1.0])


# -- the studies -----------------------------------------------------------------------------------

SMALL = Source(trace=msgspec.convert({"part": 0.03}, type=type(Source().trace)))


def test_all_256_configurations_are_run_and_ours_beside_them():
    tasks = study.Study().tasks([7])
    runs = [(task, retries) for task in tasks for retries in task.retries]

    assert 256 + 5 * 16 == len(runs)
    assert 256 == len({run for run in runs if run[0].books == "artefact"})
    assert {7} == {task.seed for task in tasks}


@pytest.mark.parametrize("rule", ["round_robin", "worst_fit"])
@pytest.mark.parametrize("is_split", [False, True])
def test_a_run_with_requeuing_is_the_one_without_where_nothing_can_be_requeued(rule, is_split):
    small = study.Study(source=SMALL)
    task = study.Point(1, "artefact", rule, 8.0, "1N1D", is_split, (False, True))
    alone = small._outcome(task, retries=True)
    first, second = (row for row in small.run(task) if row["kind"] == "run")

    assert (0, 1) == (first["retries"], second["retries"])
    assert (alone.allocated_percent, alone.requeued, alone.delayed) == (
        second["allocated_percent"],
        second["requeued"],
        second["delayed"],
    )
    if rule == "worst_fit" or is_split:
        assert {**first, "retries": 1} == second


def test_a_study_gives_the_same_rows_for_a_seed_and_others_for_another():
    small = study.Study(
        source=SMALL, capacities_tb=(8.0,), layouts=("nNnD",), retries=(False,), splits=(True,)
    )
    ran = [[row for task in small.tasks([seed]) for row in small.run(task)] for seed in (1, 1, 2)]

    assert ran[0] == ran[1] != ran[2]
    values = small.measure(ran[0])
    assert {"S3-random", "S7", "C-8-balanced", "B-8-balanced"} <= values.keys()
    assert not {"S1-8", "S5-random", "S8", "S10"} & values.keys()
    names = [figure.name for figure in small.figures(ran[0])]
    assert ["figure-4-split-8TB", "figure-5", "figure-9"] == names
    assert 1 == len(small.summary(ran[0]))


def test_the_study_of_two_kinds_of_disks_tells_them_apart():
    small = storalloc_hetero.Study(source=SMALL)
    rows = [row for task in small.tasks([1]) for row in small.run(task)]
    values = small.measure(rows)

    assert 1.0 == values["S12-best_bandwidth"]
    assert values["S11-ratio"] > 1.5
    assert {"T5-2-random", "T5-4-worst_fit", "S11-balanced-correct"} <= values.keys()
    assert 10 == len(small.summary(rows))
    assert ["figure-10-mean", "figure-10-max", "figure-11"] == [f.name for f in small.figures(rows)]


TINY = {"trace": {"part": 0.01}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "missing"), [("storalloc", {"S2-32", "S2-64"}), ("storalloc-hetero", set())]
)
def test_every_value_has_a_target_and_every_target_a_value(name, missing):
    """All configurations on a few days of requests; effects have a value where disks differ."""
    file = load_experiment(name, search=(EXPERIMENTS,))
    whole = with_parameters(file, {**file.experiment.parameters, "source": TINY})
    values = whole.measure([row for task in whole.tasks([1]) for row in whole.run(task)])
    targets = {target.id for target in file.experiment.targets}

    assert set() == values.keys() - targets
    assert {id_ for id_ in targets - values.keys() if not id_.startswith("T5")} <= missing
