"""The study that needs no code: policies side by side, checked parameters, sums that hold."""

import math
from pathlib import Path

import msgspec
import pytest

from iodaemon.config import decode_table
from iodaemon.errors import ConfigError
from iodaemon.simulator.scenario import Disk, JobLine, Link, Room
from iodaemon.simulator.study.compare import MEASURES, Study
from iodaemon.simulator.workload import Mix
from iodaemon.units import key_of

MIX = {"jobs": 4, "mean_gap": "1 s", "cpus": [1, 2], "transfer": ["1 MB", "200 MB"]}
PFS = {"capacity": "1 GB/s"}
BB = {"capacity": "2 GB"}
LISTED = {"does": "read=100MB compute=2s", "count": 2, "every": "10 s", "name": "listed"}


def study(**parameters):
    made = {"policies": ["none"], "workload": MIX, "jobs": [LISTED]} | parameters
    return decode_table(made, Study, where="mine.toml [parameters]")


def rows_of(made, seeds=(1,)):
    return [row for task in made.tasks(seeds) for row in made.run(task)]


def runs(rows):
    return [row for row in rows if row["kind"] == "run"]


def jobs(rows):
    return [row for row in rows if row["kind"] == "job"]


def jobs_of(rows):
    return [row["ended_s"] for row in jobs(rows)]


def test_every_policy_meets_the_same_jobs_once_a_seed():
    rows = rows_of(study(policies=["none", "default"]), (1, 2))

    assert [(1, "none"), (1, "default"), (2, "none"), (2, "default")] == [
        (row["seed"], row["policy"]) for row in runs(rows)
    ]
    work = {
        (row["seed"], row["policy"]): [row["alone_s"] for row in jobs(rows) if row["seed"] == seed]
        for seed in (1, 2)
        for row in runs(rows)
        if row["seed"] == seed
    }
    assert work[1, "none"] == work[1, "default"] != work[2, "none"]


def test_two_jobs_that_read_at_once_take_turns_of_the_disk():
    listed = {"does": "read=500MB", "count": 2}
    made = study(
        workload="none", jobs=[listed], disk={"capacity": "100 MB/s", "scaling": [1.0, 0.5]}
    )

    rows = rows_of(made)

    assert [20.0, 20.0] == [row["ended_s"] for row in jobs(rows)]
    assert [4.0, 4.0] == [row["stretch"] for row in jobs(rows)]
    assert {
        "kind": "run",
        "seed": 1,
        "policy": "none",
        "makespan_s": 20.0,
        "mean_turnaround_s": 20.0,
        "mean_stretch": 4.0,
        "jain": 1.0,
        "suspended_s": 0.0,
        "jobs": 2,
        "not_completed": 0,
    } == runs(rows)[0]


def over_a_link(*jobs, **link):
    """Rows of jobs on a machine without disk; each transfers over one link of 100 MB/s."""
    made = study(
        workload="none",
        disk="none",
        links=[{"capacity": "100 MB/s"} | link],
        jobs=list(jobs),
        slots=2,
        sockets=2,
    )
    return jobs_of(rows_of(made))


LONG, SHORT = {"does": "transfer=300MB"}, {"does": "transfer=100MB"}


def test_an_exclusive_link_serves_in_the_chosen_order():
    first = {"does": "transfer=100MB"}

    ends = over_a_link(first, LONG, SHORT, sharing="exclusive", order="shortest_io")

    assert [1.0, 5.0, 2.0] == ends


def test_a_job_killed_at_its_walltime_has_no_stretch_and_is_counted():
    rows = rows_of(study(workload="none", jobs=[{"does": "compute=10s", "walltime": "5 s"}]))

    assert math.isnan(jobs(rows)[0]["stretch"])
    assert 1 == runs(rows)[0]["not_completed"]


def test_every_measure_of_every_policy_has_a_mean():
    made = study(policies=["none", "default"])
    rows = rows_of(made, (1, 2))

    values = made.measure(rows)

    assert {f"{policy}.{name}" for policy in ("none", "default") for name in MEASURES} == set(
        values
    )
    first = [row["mean_stretch"] for row in runs(rows) if row["policy"] == "none"]
    assert sum(first) / 2 == values["none.mean_stretch"]


def test_the_summary_compares_with_the_first_policy():
    made = study(policies=["none", "default"])

    first, second = made.summary(rows_of(made, (1, 2)))

    assert ("none", "1.00 [1.00, 1.00]") == (first["policy"], first["turnaround_vs_first"])
    assert first.keys() == second.keys()


def test_the_figures_show_every_policy():
    made = study(policies=["none", "default"])

    relative, stretch = made.figures(rows_of(made))

    assert ["none", "default"] == [series.label for series in relative.series]
    assert (1.0, 1.0, 1.0) == relative.series[0].y
    assert {"none"} == set(stretch.series[0].x)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"policies": []}, "policies is empty"),
        ({"slots": 1}, "a job of 2 cpus never fits: each socket has slots = 1"),
        ({"workload": "none", "jobs": []}, "no work: give a table workload"),
        ({"disk": {"capacity": "0 MB/s"}}, "[disk]: capacity must be above 0"),
        ({"workload": MIX | {"jobs": 0}}, "[workload]: jobs is 0; it must be at least 1"),
        ({"workload": MIX | {"job": 1}}, "[workload]: unknown key 'job'; did you mean 'jobs'?"),
        ({"jobs": [LISTED, {"does": "red=1G"}]}, "[[jobs]] 2: does: 'red=1G' is no step; did you"),
        ({"jobs": [{"count": 1}]}, "[[jobs]] 1: 'does' is missing"),
        ({"jobs": [{"does": "transfer=1GB"}]}, "jobs: no link 'pfs'; none is known"),
        ({"disk": "none"}, "disk is none, but jobs read and write"),
        ({"links": [PFS | {"sharing": "x"}]}, "[[links]] 1: sharing: 'x' is none of 'fair', 'exc"),
        ({"links": [PFS | {"order": "lowest_id"}]}, "order 'lowest_id' needs sharing = 'exclusive"),
        ({"links": [PFS, PFS]}, "links: 'pfs' is there twice"),
        ({"jobs": [LISTED | {"holds": "1 GB"}]}, "jobs: no store 'bb'"),
        ({"jobs": [LISTED | {"holds": "3 GB"}], "stores": [BB]}, "3000000000 bytes never fit"),
    ],
)
def test_what_cannot_be_run_is_refused_with_its_key(parameters, message):
    with pytest.raises(ConfigError) as e:
        study(**parameters)

    assert message in str(e.value)
    assert str(e.value).startswith("mine.toml [parameters]")


def test_a_job_that_finds_no_room_in_the_store_waits_for_it():
    listed = {"does": "compute=5s", "holds": "1500 MB", "count": 2}
    first_s, second_s = jobs_of(rows_of(study(workload="none", jobs=[listed], stores=[BB])))

    assert first_s == 5.0
    assert second_s >= 10.0


@pytest.mark.parametrize(
    ("policies", "message"),
    [(["nix"], "no policy 'nix'"), (["none", "none"], "policies: 'none' is there twice")],
)
def test_a_policy_that_is_not_there_or_twice_is_refused(policies, message):
    with pytest.raises(ConfigError, match=message):
        study(policies=policies).tasks((1,))


def test_every_parameter_is_in_the_documentation():
    page = (Path(__file__).parents[2] / "docs" / "simulation.md").read_text()
    places = {"": Study, "disk.": Disk, "links.": Link}
    places |= {"stores.": Room, "workload.": Mix, "jobs.": JobLine}
    keys = [
        prefix + key_of(field.name)
        for prefix, type_ in places.items()
        for field in msgspec.structs.fields(type_)
        if (prefix + key_of(field.name)) != "disk"
    ]

    assert [] == [key for key in keys if f"`{key}`" not in page]
