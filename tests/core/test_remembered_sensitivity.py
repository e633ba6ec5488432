"""What earlier runs teach of how much later ones will suffer."""

import itertools

import pytest
from builders import MB, job
from hypothesis import given
from hypothesis import strategies as st

from iodaemon.core.book import Book, Run
from iodaemon.core.fading import HALF_LIFE_S, KEPT
from iodaemon.core.job import IoTotals, JobState
from iodaemon.core.recollection import Recollection
from iodaemon.core.signature import Key
from iodaemon.core.work import LENGTH, Work

DAY_S = 86400.0
NUMBERS = itertools.count(1)


def windows(share, *, quiet=0, hindered=0):
    """What a program with this share of I/O got done beside nobody, and at a wait of 4."""
    work = Work()
    for count, excess in ((quiet, 0.0), (hindered, 3.0)):
        pace = 1.0 / (1.0 + share * excess)
        for _ in range(count):
            work.add(1.0, ((1.0 - share) * pace, 100 * MB * share * pace, 0.0), excess)
    return work


def ran(done, *, at_s=0.0, state=JobState.COMPLETED, **fields):
    io = IoTotals(read_bytes=10 * MB, written_bytes=0)
    fields = {"io": io, "run_s": 10.0, "work": done.told(), **fields}
    return job(next(NUMBERS), state=state, at_s=at_s, **fields)


def taught(*jobs):
    recollection = Recollection()
    for made in jobs:
        recollection.learn(made)
    return recollection


def asked(recollection, *, at_s=0.0, own=None, **fields):
    return recollection.sensitivity(job(next(NUMBERS), **fields), own, at_s)


ALONE, CROWDED = windows(0.4, quiet=20), windows(0.4, hindered=20)


def test_runs_alone_and_runs_beside_others_make_it_known_together():
    assert asked(taught(ran(ALONE), ran(ALONE))) is None
    assert asked(taught(ran(CROWDED))) is None
    assert pytest.approx(0.4, abs=0.01) == asked(taught(ran(ALONE), ran(CROWDED))).value


def test_what_a_job_went_through_itself_counts_as_well():
    seen = taught(ran(ALONE))

    assert asked(seen, own=ALONE) is None
    assert pytest.approx(0.4, abs=0.01) == asked(seen, own=CROWDED).value
    assert ALONE.told() == windows(0.4, quiet=20).told(), "nothing of it was changed"
    assert (
        pytest.approx(0.7, abs=0.01)
        == asked(Recollection(), own=windows(0.7, quiet=9, hindered=9)).value
    )


def test_the_most_specific_key_that_knows_is_the_one_that_counts():
    both = {"quiet": 20, "hindered": 20}
    seen = taught(
        ran(windows(0.2, **both), command=("./a",), name="mine"),
        ran(windows(0.8, **both), command=("./a",), name="other"),
        ran(windows(0.8, **both), command=("./a",), name="other"),
    )

    assert pytest.approx(0.2, abs=0.01) == asked(seen, command=("./b",), name="mine").value
    assert 0.5 < asked(seen, command=("./a",)).value < 0.8
    assert asked(seen, command=("./c",)) is None
    assert asked(seen, command=("./a",), uid=7) is None


@pytest.mark.parametrize("state", [JobState.FAILED, JobState.CANCELLED, JobState.LOST])
def test_a_run_that_did_not_do_its_work_teaches_nothing(state):
    assert asked(taught(ran(windows(0.4, quiet=20, hindered=20), state=state))) is None


def test_a_record_without_windows_or_with_damaged_ones_teaches_the_rest():
    for work in ("", "1 2", " ".join(["-1"] * LENGTH)):
        seen = taught(ran(ALONE, work=work), ran(CROWDED))
        assert asked(seen) is None
        assert seen.find(job(next(NUMBERS))) is not None


def test_a_program_that_changed_its_ways_is_seen_anew():
    both = {"quiet": 20, "hindered": 20}
    before, after = windows(0.8, **both), windows(0.2, **both)
    seen = taught(*(ran(before) for _ in range(20)), *(ran(after) for _ in range(30)))

    assert pytest.approx(0.2, abs=0.05) == asked(seen).value


def test_what_is_long_ago_is_less_sure_and_then_not_known():
    seen = taught(ran(windows(0.4, quiet=20, hindered=20)))

    now, later = asked(seen), asked(seen, at_s=HALF_LIFE_S)
    assert (20.0, 10.0) == (now.quiet, later.quiet)
    assert later.value == pytest.approx(now.value)
    assert asked(seen, at_s=6 * 30 * DAY_S) is None


def test_of_many_runs_the_last_ones_are_most_of_it():
    seen = taught(*(ran(windows(0.4, quiet=20, hindered=20)) for _ in range(60)))

    assert pytest.approx(20.0 / (1.0 - KEPT), rel=0.01) == asked(seen).quiet


def test_a_key_that_is_forgotten_knows_nothing_of_it_either():
    seen = taught(ran(windows(0.4, quiet=20, hindered=20), name="lu", at_s=5.0))
    for row in list(seen.remembered(5.0)):
        seen.forget(row.key, 5.0)

    assert asked(seen, name="lu", at_s=5.0) is None


def test_each_key_shows_what_it_knows_of_it():
    seen = taught(ran(windows(0.4, quiet=20, hindered=20), name="lu"), ran(ALONE, name="x"))

    shown = {row.key: row.sensitivity for row in seen.remembered(0.0)}
    assert pytest.approx(0.4, abs=0.01) == shown[Key(1000, "name", "lu")].value
    assert shown[Key(1000, "name", "x")] is None


@given(
    st.lists(
        st.tuples(st.floats(0.0, 0.9), st.integers(0, 30), st.integers(0, 30)),
        min_size=1,
        max_size=12,
    )
)
def test_a_journal_read_backwards_teaches_the_same_of_it(runs):
    key = Key(1000, "name", "lu")
    told = [
        Run(
            rate=20.0,
            at_s=10.0 * number,
            run=None,
            operations=None,
            work=windows(share, quiet=quiet, hindered=hindered),
        )
        for number, (share, quiet, hindered) in enumerate(runs)
    ]
    sums = []
    for order in (told, told[::-1]):
        book = Book("learned", 1.0, 10)
        for run in order:
            book.learn([key], run)
        [work] = book.works([key], 1000.0)
        sums.append(work.sums)

    assert pytest.approx(sums[0], rel=1e-6) == sums[1]
