"""Admission and regulation crossed: the same jobs for every pair, nothing lost, a pick told."""

import tomllib

import msgspec
import pytest
from published import targets

from iodaemon.config import decode_table
from iodaemon.registry import shipped
from iodaemon.simulator.draw import check
from iodaemon.simulator.run import simulate
from iodaemon.simulator.site import Kind, Queue, draw_queue, rules_of
from iodaemon.simulator.study.together import Criterion, Study, overcommitted, pick, pick_everywhere

EXPERIMENTS = shipped("sim") / "experiments"
KINDS = (
    Kind(name="compute", cpus=(1, 2), compute_s=(5.0, 50.0)),
    Kind(name="reader", cycles=(1, 3), compute_s=(1.0, 3.0), read_bytes=(10**8, 10**9)),
)
QUEUE = {
    "jobs": 8,
    "kinds": [{"name": "both", "compute": ["5 s", "20 s"], "read": ["100 MB", "1 GB"]}],
}
ARM = {"capacity": "135 MB/s", "scaling": [1.0, 0.215, 0.17, 0.133]}


def study(**parameters):
    made = {
        "admission": ["fcfs", "easy"],
        "regulation": ["none", "adaptive"],
        "queue": QUEUE,
        "servers": [{"id": "arm", "slots": 2, "rotational": True, "disk": ARM}],
    }
    return decode_table(made | parameters, Study, where="mine.toml [parameters]")


def rows_of(made, seeds=(1,)):
    return [row for task in made.tasks(seeds) for row in made.run(task)]


def test_every_pair_ends_the_same_jobs_and_takes_no_slot_twice():
    rows = rows_of(study(), (1, 2))

    assert 8 == len(rows)
    assert {(8, 0, 0)} == {
        (row["jobs"], row["not_completed"], row["overcommitted"]) for row in rows
    }
    assert ["fcfs+none", "fcfs+adaptive", "easy+none", "easy+adaptive"] == [
        row["pair"] for row in rows if row["seed"] == 1
    ]


def test_regulation_by_evidence_wins_on_an_arm_and_is_not_seen_where_nothing_waits():
    parallel = {"id": "parallel", "slots": 2, "disk": {"capacity": "2 GB/s", "scaling": [0.3, 0.6]}}
    rows = rows_of(study(servers=[*SERVERS, parallel]))
    took_s = {(row["machine"], row["pair"]): row["makespan_s"] for row in rows}

    assert took_s["arm", "fcfs+none"] > 1.2 * took_s["arm", "fcfs+adaptive"]
    assert took_s["parallel", "fcfs+none"] == took_s["parallel", "fcfs+adaptive"]


SERVERS = ({"id": "arm", "slots": 2, "rotational": True, "disk": ARM},)


def test_a_cluster_runs_the_same_way_over_its_file_system():
    cluster = {
        "id": "cluster",
        "cluster": {"nodes": 200},
        "mix": {"low_jobs": 12, "peaks": 1, "peak_jobs": 3},
        "rules": {
            "none": {"timeslice": "60 s"},
            "adaptive": {"timeslice": "60 s"},
            "budget": {"rule": "io_budget", "bandwidth": "43 GB/s"},
        },
    }
    rows = rows_of(study(servers=[], clusters=[cluster], admission=["fcfs", "budget"]))

    assert [15] * 4 == [row["jobs"] for row in rows]
    assert [0] * 4 == [row["not_completed"] for row in rows]


def test_values_summary_and_figures_speak_of_the_same_pairs():
    made = study()
    rows = rows_of(made, (1, 2))
    values, summary = made.measure(rows), made.summary(rows)
    figures = made.figures(rows)

    assert 0.0 == values["not-completed"] == values["overcommitted"]
    assert {"arm.pick", "arm.default", "arm.harm", "everywhere"} <= values.keys()
    assert values["arm.pick"] <= 1.0
    assert 4 == len(summary)
    assert 1 == sum("here" in row["pick"] for row in summary)
    assert ["arm-turnaround", "arm-makespan", "arm-slowdown"] == [each.name for each in figures]
    for each in figures:
        check(each)


def test_what_is_shipped_can_be_run_and_its_targets_are_measured():
    for name in ("together-server", "together-cluster"):
        document = tomllib.loads((EXPERIMENTS / f"{name}.toml").read_text())
        made = decode_table(document["parameters"], Study, where=name)
        pairs = len(made.admission) * len(made.regulation)
        places = len(made.servers) + len(made.clusters)
        assert pairs * places == len(made.tasks([1]))
        row = {"seed": 1, "not_completed": 0, "overcommitted": 0, "overdue": 0}
        rows = [
            {**row, "machine": task.place, "pair": task.pair, **dict.fromkeys(MEASURES, 1.0)}
            for task in made.tasks([1])
        ]
        assert targets(name).keys() == made.measure(rows).keys()


MEASURES = (
    *("makespan_s", "turnaround_s", "slowdown", "worst", "stretch", "io_slowdown"),
    *("jain", "wait_s", "suspended_s", "displacement"),
)


def means(makespan, turnaround, worst):
    return {"makespan_s": makespan, "turnaround_s": turnaround, "worst": worst}


def test_the_pick_is_soon_done_bearable_and_of_least_turnaround():
    table = {
        "first": means(100.0, 50.0, 10.0),
        "late": means(120.0, 10.0, 10.0),
        "cruel": means(100.0, 20.0, 16.0),
        "good": means(104.0, 30.0, 15.0),
    }

    assert "good" == pick(table, Criterion())
    assert "cruel" == pick(table, Criterion(worst_slack=1.0))


def test_the_pick_for_all_does_no_harm_anywhere():
    here = {"first": means(100, 100, 1), "wins": means(50, 50, 1), "safe": means(90, 90, 1)}
    there = {"first": means(100, 100, 1), "wins": means(110, 110, 1), "safe": means(100, 102, 1)}

    assert "safe" == pick_everywhere({"a": here, "b": there}, Criterion())
    assert "wins" == pick_everywhere({"a": here, "b": there}, Criterion(harm_slack=0.1))
    there = {name: means(200, 200, 9) for name in there} | {"first": means(1, 1, 1)}
    assert "first" == pick_everywhere({"a": here, "b": there}, Criterion())


def test_slots_held_twice_are_seen():
    made = study()
    (place,) = made._places
    work = place.work(1)
    result = simulate(
        place.platform(),
        rules_of(place, "fcfs", "none"),
        [piece.submission for piece in work],
        model=place.model(),
    )
    twice = [msgspec.structs.replace(job, started_s=0.0) for job in result.jobs]

    assert 0 == overcommitted(result.jobs, place.platform())
    assert 0 < overcommitted(twice, place.platform())


def test_a_queue_is_drawn_from_its_kinds_and_tells_what_it_is_to_tell():
    queue = Queue(jobs=200, kinds=KINDS, hint_ratio=0.5, walltime_ratio=0.5, hint_error=0.0)
    pieces = draw_queue(queue, 1, stream_bytes_per_s=1e8)
    specs = [piece.submission[1] for piece in pieces]

    assert pieces == draw_queue(queue, 1, stream_bytes_per_s=1e8)
    assert 70 < sum(spec.walltime_s is not None for spec in specs) < 130
    assert 70 < sum(spec.declared is not None for spec in specs) < 130
    for piece in pieces:
        declared = piece.submission[1].declared
        if declared is not None and piece.io_alone_s:
            assert declared.rate_bytes_per_s == pytest.approx(
                1e8 * piece.io_alone_s / piece.alone_s
            )
