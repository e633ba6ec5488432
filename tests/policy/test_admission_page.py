"""docs/admission.md: the example's numbers, and the reasons that it quotes."""

import re
from pathlib import Path

import pytest
from builders import platform
from scene import Promises, run

from iodaemon.core.job import JobSpec
from iodaemon.model.node import Compute, LinkSpec, Model, Profile, Transfer
from iodaemon.policy.admission import easy, equilibrio, fcfs

PAGE = (Path(__file__).parents[2] / "docs/admission.md").read_text()
EXAMPLE = PAGE.partition("## An example")[2]
MB = 1e6
STORAGE = Model(links=(LinkSpec(id="pfs", capacity_bytes_per_s=84 * MB),), disk=None)
RULES = {
    "`fcfs`": fcfs.Rule(),
    "`easy`": easy.Rule(),
    '`easy`, `bandwidth = "60 MB/s"`': easy.Rule(bandwidth_bytes_per_s=60 * MB),
    "`equilibrio`, `alpha = 0.5`": equilibrio.Rule(alpha=0.5),
}


def table(first):
    """The rows of the table whose head begins so."""
    lines = EXAMPLE.partition(f"| {first} |")[2].splitlines()[2:]
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def submissions():
    jobs = []
    for _, comes, cpus, alone, walltime, rate, share in table("Job"):
        at, alone_min, walltime_min, mb, percent = (
            float(cell.split()[0]) for cell in (comes, alone, walltime, rate, share)
        )
        spec = JobSpec(
            command=("x",),
            cpus=int(cpus),
            walltime_s=60.0 * walltime_min,
            io_rate_bytes_per_s=mb * MB,
            io_share=percent / 100.0,
        )
        in_io_s = 60.0 * alone_min * percent / 100.0 if mb else 0.0
        steps = [Compute((60.0 * alone_min - in_io_s) / 10)]
        if mb:
            steps.append(Transfer(mb * MB * in_io_s / 10, "pfs", cap_bytes_per_s=mb * MB))
        jobs.append((60.0 * at, spec, Profile(steps=tuple(steps), repeat=10)))
    return jobs


@pytest.mark.parametrize("name", RULES)
def test_the_jobs_run_from_when_to_when_the_page_says(name):
    jobs = run(RULES[name], platform(4), submissions(), model=STORAGE).jobs

    shown = [f"{job.started_s / 60:.0f}-{job.ended_s / 60:.0f}" for job in jobs]
    [cells] = [row[1:] for row in table("Rule") if row[0] == name]
    assert shown[1:] == cells


def test_every_reason_that_the_example_quotes_was_given():
    runs = (run(rule, platform(4), submissions(), model=STORAGE) for rule in RULES.values())
    given = {job.started_because.text for r in runs for job in r.jobs if job.started_because}
    quoted = re.findall(r"`((?:fits|it makes)[^`]*passes[^`]*)`", EXAMPLE)

    assert 3 == len(quoted)
    assert set(quoted) <= given


@pytest.mark.parametrize(("rule", "minute"), [("`easy`", 64), (list(RULES)[2], 70)])
def test_job_5_is_promised_what_the_page_says(rule, minute):
    watch = Promises()

    run(RULES[rule], platform(4), submissions(), watch, model=STORAGE)

    assert minute == round(watch.first_s[5] / 60.0)
    assert f"promised minute {minute}" in EXAMPLE


def test_every_rule_of_the_example_is_in_its_table():
    assert [row[0] for row in table("Rule")] == list(RULES)
