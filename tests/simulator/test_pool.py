"""Tasks run in this process or in others; the rows are the same, and nothing is left behind."""

import multiprocessing
import operator
import os
import signal

import numpy
import pytest
import tiny_study as tiny

from iodaemon.errors import RequestError
from iodaemon.simulator.draw import draw_all
from iodaemon.simulator.experiment import Figure, Series
from iodaemon.simulator.pool import Pool, TaskFailed, run_study

SEEDS = (1, 2, 3)


def run(study, seeds=SEEDS, *, processes=1, **options):
    with Pool(processes) as pool:
        return run_study(study, seeds, pool=pool, **options)


@pytest.fixture(autouse=True)
def _no_process_outlives_the_test():
    yield

    assert [] == multiprocessing.active_children()


def test_the_rows_are_those_of_the_tasks_in_their_order():
    rows = [row for row in run(tiny.Study(sizes=(5, 10))) if row["kind"] == "mean"]

    assert [(1, 5), (1, 10), (2, 5), (2, 10), (3, 5), (3, 10)] == [
        (row["seed"], row["size"]) for row in rows
    ]


def test_it_tells_how_far_it_is():
    told = []

    run(tiny.Study(), processes=2, on_done=lambda done, total: told.append((done, total)))

    assert [(0, 3), (1, 3), (2, 3), (3, 3)] == told


@pytest.mark.parametrize("processes", [1, 2])
def test_a_task_that_fails_is_named_with_its_error_in_one_line(processes):
    with pytest.raises(RequestError) as e:
        run(tiny.Study(sizes=(5, 10), fails="error"), (1,), processes=processes)

    assert "task 2 of 2 failed: ArithmeticError: no such mean; the task: (1, 10)" == str(e.value)
    assert "no such\n  mean" in str(e.value.__cause__)


def test_the_traceback_of_another_process_is_in_the_cause():
    with pytest.raises(RequestError) as e:
        run(tiny.Study(fails="error"), processes=2)

    assert 'raise ArithmeticError("no such' in str(e.value.__cause__)


def test_a_task_whose_process_is_killed_is_named():
    with pytest.raises(RequestError, match=r"task \d of 3 failed: its process was killed"):
        run(tiny.Study(fails="kill"), processes=2)


class Giving:
    """A study with one task, which gives one row."""

    def __init__(self, row):
        self.row = row

    def tasks(self, seeds):
        return [0]

    def run(self, task):
        return [self.row]


def test_numbers_of_numpy_become_plain_ones():
    row = {"kind": "x", "a": numpy.float64(0.1), "b": numpy.int64(3), "c": True}

    (given,) = run(Giving(row))

    assert {"kind": "x", "a": 0.1, "b": 3, "c": 1} == given
    assert [str, float, int, int] == [type(value) for value in given.values()]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"a": 1}, "task 1 of 1 failed: it gave a row without a 'kind', {'a': 1}"),
        ({"kind": "x", "a": None}, "it gave a = None, but rows hold text and numbers alone"),
        ({"kind": "x", "a": [1]}, r"it gave a = \[1\]"),
    ],
)
def test_a_row_that_cannot_be_written_is_refused(row, message):
    with pytest.raises(RequestError, match=message):
        run(Giving(row))


class Unsendable(Giving):
    """Its tasks are functions without a name."""

    def tasks(self, seeds):
        return [lambda: 0, lambda: 1]


def test_a_task_that_cannot_be_sent_is_named():
    study = Unsendable({"kind": "x"})

    with pytest.raises(RequestError, match=r"task \d of 2 failed: it cannot be sent .*--jobs 1"):
        run(study, processes=2)

    assert 2 == len(run(study, processes=1))


# -- processes that several studies and the drawing of figures share -------------------------------

ONE = Series(label="ours", x=(1, 2, 3), y=(1.0, 2.0, 3.0))
FIGURES = tuple(
    Figure(name=name, title="t", x_label="x", y_label="y", kind="line", series=(ONE,))
    for name in ("a", "b", "c")
)


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
