"""Simulated jobs that tell of their I/O: the live token gives what the model's own link gives."""

import msgspec
import pytest
from builders import PACKS_NEEDS, PACKS_OVERRIDES, platform
from exploring import tries
from hypothesis import given, settings
from hypothesis import strategies as st

from iodaemon.config import load_policy
from iodaemon.core.decision import Grant
from iodaemon.core.job import JobSpec, JobState
from iodaemon.core.measure import mean_turnaround_s
from iodaemon.core.rule import Mode, Rules
from iodaemon.model.node import (
    Compute,
    LinkSpec,
    Model,
    Profile,
    Read,
    SimulatedDisk,
    Stage,
    Transfer,
    Write,
    table_scaling,
)
from iodaemon.policy.admission.fcfs import Rule as Fcfs
from iodaemon.policy.list_order import ORDERS
from iodaemon.policy.placement.least_io import Rule as LeastIo
from iodaemon.policy.regulation.exclusive import Rule as Exclusive
from iodaemon.policy.regulation.none import Rule as Unregulated
from iodaemon.registry import shipped
from iodaemon.simulator.run import simulate

MB = 1_000_000
KNOWN = ("fifo", "lowest_id", "shortest_io", "longest_io")
"""Orders for which the daemon knows of a job that speaks what the model knows of it."""


def rules(regulation):
    return Rules(name="x", admission=Fcfs(), placement=LeastIo(), regulation=regulation)


def link(**fields):
    return Model(links=(LinkSpec(id="io", capacity_bytes_per_s=1.0 * MB, **fields),))


def jobs(shapes, *, speaks):
    return [
        (
            float(submit_s),
            JobSpec(command=("x",)),
            Profile(
                steps=(Compute(compute_s), Transfer(megabytes * MB, "io")),
                repeat=repeat,
                speaks=speaks,
            ),
        )
        for submit_s, compute_s, megabytes, repeat in shapes
    ]


SHAPES = st.lists(
    st.tuples(
        st.integers(0, 4),
        st.sampled_from([0.0, 0.5, 1.0, 2.0, 5.25]),
        st.integers(1, 6),
        st.integers(1, 4),
    ),
    min_size=1,
    max_size=8,
)


def ends_s(result):
    return [made.ended_s for made in result.jobs]


@settings(max_examples=tries(60))
@given(shapes=SHAPES, order=st.sampled_from(KNOWN), sampling=st.booleans())
def test_turns_and_an_exclusive_link_end_all_jobs_at_the_same_times(shapes, order, sampling):
    machine = platform(len(shapes))
    taught = simulate(
        machine,
        rules(Exclusive(order=order)),
        jobs(shapes, speaks=True),
        model=link(),
        sampling=sampling,
    )
    inborn = simulate(
        machine,
        rules(Unregulated()),
        jobs(shapes, speaks=False),
        model=link(sharing="exclusive", order=ORDERS[order]),
        sampling=False,
    )

    assert ends_s(inborn) == pytest.approx(ends_s(taught), rel=1e-9)


@pytest.mark.parametrize(
    ("regulation", "mode"),
    [(Unregulated(), Mode.ON), (Exclusive(), Mode.SHADOW), (Exclusive(), Mode.OFF)],
)
def test_where_no_rule_gives_turns_speaking_changes_nothing(regulation, mode):
    shapes = [(0, 1.0, 4, 3), (0, 0.5, 6, 2), (2, 0.0, 3, 4)]
    spoken, silent = (
        simulate(platform(3), rules(regulation), jobs(shapes, speaks=each), model=link(), mode=mode)
        for each in (True, False)
    )

    assert ends_s(silent) == pytest.approx(ends_s(spoken))


def test_reads_and_writes_are_told_and_staging_is_not():
    granted = []

    def look(state, plan):
        granted.extend(d.job_id for d in plan.decisions if isinstance(d, Grant))

    steps = (Read(MB), Write(MB), Write(MB, direct=True), Stage(MB, "io"), Compute(1.0))
    work = [(0.0, JobSpec(command=("x",)), Profile(steps=steps, speaks=True))]
    both = msgspec.structs.replace(link(), disk=SimulatedDisk())
    [made] = simulate(platform(1), rules(Exclusive()), work, model=both, on_step=look).jobs

    assert [1, 1, 1] == granted
    assert made.state is JobState.COMPLETED


# -- the policy files that win --------------------------------------------------------------------


SEEKING = Model(
    disk=SimulatedDisk(
        capacity_bytes_per_s=100.0 * MB,
        scaling=table_scaling((1.0, 0.5, 0.4, 0.35, 0.3, 0.25)),
    )
)
"""A disk with one arm: two streams together get less than one alone."""


def run_shipped(name):
    overrides = PACKS_OVERRIDES if name == "packs" else {}
    rules = load_policy(name, overrides=overrides, search=[shipped("policies")]).rules
    spec = JobSpec(command=("x",), **PACKS_NEEDS)
    profile = Profile(steps=(Compute(3.0), Write(100 * MB, direct=True)), repeat=4, speaks=True)
    return simulate(platform(4, 4), rules, [(0.0, spec, profile)] * 8, model=SEEKING)


def test_on_a_disk_with_one_arm_turns_end_the_work_sooner_and_packs_each_job():
    """The disk works all the time under both; in packs fewer jobs share it at once."""
    none, exclusive, packs = (run_shipped(name) for name in ("none", "exclusive", "packs"))

    assert max(packs.ended_s, exclusive.ended_s) < none.ended_s
    assert mean_turnaround_s(packs.jobs) < 0.9 * mean_turnaround_s(exclusive.jobs)
    assert packs.ended_s == pytest.approx(exclusive.ended_s, rel=0.02)
