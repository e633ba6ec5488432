"""Which sockets are stacked, and what the steps say together."""

from itertools import pairwise
from pathlib import Path

import pytest
from builders import platform
from hypothesis import given
from hypothesis import strategies as st

from iodaemon.config.settings import Topology
from iodaemon.errors import RequestError
from iodaemon.trial.stacking import Layout, StepRun, divide, lay_out, steps_of, summarise
from iodaemon.trial.workload import JobTable, Workload


def workload(topology=None, **job):
    jobs = (JobTable(name="x", kernel="compute", rounds=1, **job),)
    return Workload(
        name="w",
        path=Path("/w.toml"),
        directory=Path("/"),
        jobs=jobs,
        topology=topology or Topology(),
    )


def machine(root, packages):
    """A sysfs with CPU 0, whatever this machine has, in the first of so many packages."""
    base = root / "sys/devices/system/cpu"
    for cpu in range(packages):
        place = base / f"cpu{cpu}/topology"
        place.mkdir(parents=True)
        (place / "physical_package_id").write_text(f"{cpu}\n")
        (place / "core_id").write_text("0\n")
        (place / "thread_siblings_list").write_text(f"{cpu}\n")
        (place / "core_cpus_list").write_text(f"{cpu}\n")
    (base / "online").write_text(f"0-{packages - 1}\n" if packages > 1 else "0\n")
    return root


@given(st.integers(1, 64))
def test_steps_double_and_end_with_all_sockets(sockets):
    steps = steps_of(sockets)

    assert steps[0] == 1
    assert steps[-1] == sockets
    assert all(step < after <= 2 * step for step, after in pairwise(steps))


@given(st.integers(1, 40))
def test_a_socket_is_divided_into_equal_parts_that_share_nothing(cores):
    [part] = platform(cores).partitions
    groups = divide(part)
    cpus = [cpu for group in groups for cpu in group]

    assert len(groups) in (1, 2, 4, 8)
    assert 1 == len({len(group) for group in groups})
    assert len(cpus) == len(set(cpus))
    assert len(groups) == 8 or 2 * len(groups) > cores


def test_a_machine_with_one_core_has_nothing_to_stack(tmp_path):
    with pytest.raises(RequestError, match="one core"):
        lay_out(workload(), machine(tmp_path, 1))


@pytest.mark.node
def test_sockets_that_the_machine_has_are_not_called_divided(tmp_path):
    layout = lay_out(workload(Topology(oversubscribe=4)), machine(tmp_path, 2))

    assert (("0", "1"), (4, 4), (1, 2), False) == (
        layout.sockets,
        layout.slots,
        layout.steps,
        layout.is_divided,
    )


@pytest.mark.node
def test_a_job_that_fits_on_no_socket_is_refused(tmp_path):
    with pytest.raises(RequestError, match=r"\[\[job\]\] 1 \(x\): 3 cpus, a socket 2 slots"):
        lay_out(workload(Topology(oversubscribe=2), cpus=3), machine(tmp_path, 2))


def test_every_socket_is_filled_by_itself():
    layout = Layout(sockets=("0", "1"), slots=(5, 5), steps=(1, 2), is_divided=True)

    assert (2, 4) == (layout.copies(1, 2), layout.copies(2, 2))


def step_run(kind, sockets, number, runtime_s, **values):
    return StepRun(
        kind=kind,
        sockets=sockets,
        round=number,
        jobs=sockets,
        runtime_s=runtime_s,
        runtimes_s=(runtime_s,),
        **values,
    )


def test_a_run_time_is_normalized_by_one_socket_in_the_same_round():
    runs = [
        step_run("a", 1, 1, 2.0, waiting_s=0.1),
        step_run("a", 2, 1, 6.0, waiting_s=0.3),
        step_run("a", 2, 2, 20.0),
        step_run("a", 1, 2, 4.0),
    ]
    first, second = summarise(runs)

    assert (1.0, 1.0, 1.0) == (first.normalized, first.normalized_low, first.normalized_high)
    assert (4.0, 3.0, 5.0) == (second.normalized, second.normalized_low, second.normalized_high)
    assert (0.3, None) == (second.waiting_s, second.used_ratio)


@given(st.lists(st.tuples(st.floats(0.01, 1e4), st.floats(0.01, 1e4)), min_size=1, max_size=8))
def test_a_curve_has_a_point_for_every_step_and_lies_in_its_range(pairs):
    runs = [
        step_run(kind, sockets, number, value)
        for kind in "ab"
        for number, pair in enumerate(pairs, start=1)
        for sockets, value in zip((1, 2), pair, strict=True)
    ]
    steps = summarise(runs)

    assert [("a", 1), ("a", 2), ("b", 1), ("b", 2)] == [(s.kind, s.sockets) for s in steps]
    assert all(s.normalized_low <= s.normalized <= s.normalized_high for s in steps)
