"""Processes that several studies and the drawing of figures share."""

import multiprocessing
import operator
import os
import signal

import pytest
import tiny_study as tiny

from iodaemon.errors import RequestError
from iodaemon.simulator.draw import draw_all
from iodaemon.simulator.experiment import Figure, Series
from iodaemon.simulator.pool import Pool, TaskFailed, run_study

ONE = Series(label="ours", x=(1, 2, 3), y=(1.0, 2.0, 3.0))
FIGURES = tuple(
    Figure(name=name, title="t", x_label="x", y_label="y", kind="line", series=(ONE,))
    for name in ("a", "b", "c")
)


@pytest.fixture(autouse=True)
def _no_process_outlives_the_test():
    yield

    assert [] == multiprocessing.active_children()


@pytest.fixture
def pool():
    with Pool(2) as made:
        yield made


def pids():
    return {child.pid for child in multiprocessing.active_children()}


def test_the_same_processes_serve_one_study_after_the_other(pool):
    first = run_study(tiny.Study(sizes=(5, 10)), (1, 2), pool=pool)
    used = pids()
    second = run_study(tiny.Study(sizes=(7, 9)), (1, 2), pool=pool)

    assert (2, used) == (len(used), pids())
    with Pool(1) as alone:
        assert first == run_study(tiny.Study(sizes=(5, 10)), (1, 2), pool=alone)
        assert second == run_study(tiny.Study(sizes=(7, 9)), (1, 2), pool=alone)


def test_there_are_no_more_processes_than_work(pool):
    assert [-1] == pool.map(operator.neg, [1])
    assert set() == pids()

    assert [-1, -2, -3] == pool.map(operator.neg, [1, 2, 3])
    assert 2 == len(pids())


def test_with_one_process_everything_is_done_here():
    with Pool(1) as pool:
        assert [os.getpid()] * 3 == pool.map(_pid, [1, 2, 3])


def _pid(_task):
    return os.getpid()


def test_after_a_failure_none_is_left_at_work_and_the_next_study_runs(pool):
    with pytest.raises(RequestError, match=r"task \d of 4 failed: ArithmeticError"):
        run_study(tiny.Study(sizes=(10, 5), fails="error", pause_s=60.0), (1, 2), pool=pool)

    assert set() == pids()
    assert 4 == len(run_study(tiny.Study(), (1, 2), pool=pool))


def test_a_process_that_was_killed_while_idle_is_replaced(pool):
    pool.map(operator.neg, [1, 2])
    for child in multiprocessing.active_children():
        os.kill(child.pid, signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)

    assert [-1, -2] == pool.map(operator.neg, [1, 2])


def test_what_cannot_be_loaded_there_is_a_failure_with_its_error(pool):
    with pytest.raises(TaskFailed, match="ImportError: not here"):
        pool.map(operator.neg, [Unloadable(), Unloadable()])


class Unloadable:
    def __reduce__(self):
        return _refuse, (os.getpid(),)


def _refuse(maker):
    assert maker != os.getpid()
    raise ImportError("not here")


@pytest.mark.slow
def test_figures_are_the_same_bytes_whoever_draws_them(tmp_path, pool):
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()

    with Pool(1) as alone:
        here = draw_all(FIGURES, tmp_path / "here", pool=alone)
    there = draw_all(FIGURES, tmp_path / "there", pool=pool)

    names = ["a.svg", "a.png", "b.svg", "b.png", "c.svg", "c.png"]
    assert names == [path.name for path in here] == [path.name for path in there]
    assert [path.read_bytes() for path in here] == [path.read_bytes() for path in there]


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_a_figure_that_cannot_be_drawn_is_named(tmp_path, processes):
    empty = Figure(name="d", title="t", x_label="x", y_label="y", kind="line", series=())

    with Pool(processes) as pool:
        with pytest.raises(RequestError, match=r"^figure d: nothing to draw, it has no series$"):
            draw_all((*FIGURES, empty), tmp_path, pool=pool)
        with pytest.raises(RequestError, match=r"^figure a cannot be drawn: FileNotFoundError: "):
            draw_all(FIGURES[:1], tmp_path / "none", pool=pool)
