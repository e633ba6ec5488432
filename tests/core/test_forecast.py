"""What is expected of a job: what it says, what those like it did, what it has done until now."""

import itertools
import math
from collections import Counter

import msgspec
import pytest
from builders import MB, counters, exited, job, remembered, sample, started, submitted
from builders import platform as machine
from hypothesis import given
from hypothesis import strategies as st

from iodaemon.core.controller import Controller
from iodaemon.core.decision import AdmissionPlan, Placed
from iodaemon.core.forecast import (
    FAR_SURER,
    FLOOR_BYTES_PER_S,
    HALF_LIFE_S,
    KEPT,
    LEAST_CONFIDENCE,
    TRUSTED,
    WORTH,
    Answer,
    Fading,
    Outlook,
    Recollection,
    Trace,
    hindsight,
    moved_bytes_per_s,
    preferred,
)
from iodaemon.core.job import FINAL, UNKNOWN, IoTotals, JobId, JobState, Prediction, Reason
from iodaemon.core.meter import Meter
from iodaemon.core.platform import PartitionId
from iodaemon.core.similarity import KINDS, Key, keys_of
from iodaemon.core.state import State

VALUES = st.floats(-100.0, 100.0)
TIMES = st.floats(0.0, 400 * 86400.0)
SPELLS = st.lists(st.tuples(VALUES, TIMES), min_size=1, max_size=30)


def mean_of(runs):
    fading = Fading()
    for value, at_s in runs:
        fading.add(value, at_s)
    return fading


def by_hand(runs):
    """Mean, spread and weight as the docstring has it; runs in the order of their ends."""
    last_s = runs[-1][1]
    weights = [
        KEPT ** (len(runs) - 1 - place) * 0.5 ** ((last_s - at_s) / HALF_LIFE_S)
        for place, (_, at_s) in enumerate(runs)
    ]
    total = sum(weights)
    mean = sum(w * value for w, (value, _) in zip(weights, runs, strict=True)) / total
    squares = sum(w * (value - mean) ** 2 for w, (value, _) in zip(weights, runs, strict=True))
    return mean, math.sqrt(squares / total), total


def test_of_one_run_the_mean_is_that_run():
    fading = mean_of([(5.0, 100.0)])

    assert (5.0, 0.0, 1.0, 1) == (fading.mean, fading.spread, fading.weight, fading.count)


def test_of_two_at_once_the_later_one_counts_a_little_more():
    assert pytest.approx((1.0 + 0.9 * 0.0) / 1.9) == mean_of([(0.0, 5.0), (1.0, 5.0)]).mean


def test_after_a_half_life_a_run_counts_half():
    fading = mean_of([(0.0, 0.0), (1.0, HALF_LIFE_S)])

    assert pytest.approx(1.0 / 1.45) == fading.mean
    assert pytest.approx(0.5 * fading.weight) == fading.weight_at(2 * HALF_LIFE_S)


def test_time_before_the_last_run_makes_it_no_younger():
    fading = mean_of([(1.0, 100.0)])

    assert 1.0 == fading.weight_at(0.0)


@given(SPELLS)
def test_it_is_as_by_hand_in_either_direction(runs):
    runs = sorted(runs, key=lambda run: run[1])
    runs = [run for place, run in enumerate(runs) if not place or run[1] > runs[place - 1][1]]
    forward, backward = mean_of(runs), mean_of(runs[::-1])

    expected = pytest.approx(by_hand(runs), rel=1e-6, abs=1e-4)
    assert expected == (forward.mean, forward.spread, forward.weight)
    assert expected == (backward.mean, backward.spread, backward.weight)


@given(SPELLS)
def test_in_any_order_the_mean_lies_among_the_values(runs):
    fading = mean_of(runs)
    values = [value for value, _ in runs]

    assert min(values) - 1e-9 <= fading.mean <= max(values) + 1e-9
    assert 0.0 <= fading.weight <= 1.0 / (1.0 - KEPT) + 1e-9
    assert math.isfinite(fading.spread)


DAY_S = 86400.0
NUMBERS = itertools.count(1)


def ran(rate=1.0 * MB, *, at_s=0.0, run_s=10.0, state=JobState.COMPLETED, **fields):
    """A job that moved so much a second and ended then."""
    moved = None if rate is None else round(rate * run_s)
    io = IoTotals(read_bytes=moved, written_bytes=None if moved is None else 0, operations=100)
    return job(next(NUMBERS), state=state, at_s=at_s, **{"io": io, "run_s": run_s, **fields})


def waits(at_s=0.0, **fields):
    return job(next(NUMBERS), submitted_s=at_s, **fields)


def trace(rate=1.0 * MB, *, at_s=0.0, **fields):
    made = {"uid": 1000, "command": ("/far/true",), "log": "x", "ended_s": at_s}
    made |= {"imported_s": at_s, "run_s": 10.0, "processes": 4, "read_bytes": 0}
    made |= {"written_bytes": round(rate * 10.0), "io_s": 2.0, "operations": 50}
    return Trace(**(made | fields))


def taught(*jobs):
    recollection = Recollection()
    for made in jobs:
        recollection.learn(made)
    return recollection


# -- what is told ----------------------------------------------------------------------------------


def test_nothing_is_known_of_what_never_ran():
    assert Recollection().find(waits()) is None


def test_one_run_is_what_the_next_is_expected_to_be():
    found = taught(ran(3 * MB)).find(waits())

    assert pytest.approx(3 * MB) == found.rate_bytes_per_s
    assert pytest.approx(10.0) == found.operations_per_s
    assert ("learned", 1, "command:true in /") == (found.source, found.runs, found.by)
    assert 0.5 == found.confidence


def test_more_runs_alike_make_it_surer_and_never_sure():
    seen = Recollection()
    sure = []
    for _ in range(30):
        seen.learn(ran())
        sure.append(seen.find(waits()).confidence)

    assert sure == sorted(sure)
    assert 0.9 < sure[-1] < 1.0


def test_runs_that_differ_make_it_less_sure():
    even, uneven = taught(ran(), ran()), taught(ran(1 * MB), ran(64 * MB))

    assert uneven.find(waits()).confidence < 0.5 * even.find(waits()).confidence


def test_rates_that_differ_by_factors_are_averaged_by_factors():
    found = taught(ran(1 * MB), ran(100 * MB)).find(waits())

    assert 8 * MB < found.rate_bytes_per_s < 14 * MB


def test_a_job_that_moved_nothing_is_known_to_move_nothing():
    found = taught(ran(0.0), ran(0.0)).find(waits())

    assert pytest.approx(0.0, abs=1e-6) == found.rate_bytes_per_s
    assert found.confidence > 0.6


def test_what_is_long_ago_is_hardly_known_and_then_not_at_all():
    seen = taught(ran())

    month, year = seen.find(waits(HALF_LIFE_S)), seen.find(waits(365 * DAY_S))
    assert pytest.approx(0.5 / 1.5) == month.confidence
    assert year is None


def test_the_newest_runs_count_most():
    found = taught(*(ran(1 * MB) for _ in range(20)), *(ran(9 * MB) for _ in range(20)))

    assert found.find(waits()).rate_bytes_per_s > 7 * MB


# -- of what ---------------------------------------------------------------------------------------


def test_a_job_with_the_same_name_is_known_whatever_its_command():
    found = taught(ran(name="lu", command=("a",))).find(waits(name="lu", command=("b",)))

    assert "name:lu" == found.by


def test_a_like_command_is_known_with_less_confidence():
    seen = taught(ran(command=("./solve", "a.dat", "1")))

    same = seen.find(waits(command=("./solve", "a.dat", "1")))
    like = seen.find(waits(command=("./solve", "b.dat", "2")))
    program = seen.find(waits(command=("./solve", "--help")))
    assert ["like:solve *.dat #", "program:solve"] == [like.by, program.by]
    assert [1.0, 0.8, 0.5] == [found.confidence / 0.5 for found in (same, like, program)]


def test_a_name_for_everything_does_not_hide_what_is_known_of_the_command():
    seen = Recollection()
    for _ in range(5):
        seen.learn(ran(1 * MB, name="test", command=("./a",)))
        seen.learn(ran(512 * MB, name="test", command=("./b",)))

    found = seen.find(waits(name="test", command=("./b",)))
    assert "command:./b in /" == found.by
    assert pytest.approx(512 * MB) == found.rate_bytes_per_s


def test_another_users_runs_say_nothing():
    assert taught(ran(uid=1)).find(waits(uid=2)) is None


# -- what teaches ------------------------------------------------------------------------------


@pytest.mark.parametrize("state", sorted(FINAL))
def test_only_a_run_that_did_its_work_teaches(state):
    teaches = state in (JobState.COMPLETED, JobState.TIMEOUT)

    assert teaches == (taught(ran(state=state)).find(waits()) is not None)


@pytest.mark.parametrize(
    "fields", [{"io": IoTotals()}, {"run_s": 0.0}, {"run_s": 0.05}], ids=["unread", "none", "blink"]
)
def test_a_run_whose_io_is_not_known_teaches_nothing(fields):
    assert taught(ran(**fields)).find(waits()) is None


def test_a_run_cut_off_by_its_walltime_says_nothing_of_run_times():
    [row, *_] = remembered(taught(ran(state=JobState.TIMEOUT)), 0.0)

    assert row.run_s is None


def test_a_total_that_may_be_too_small_teaches_nothing():
    made = ran(10 * MB)
    less = msgspec.structs.replace(made, io=msgspec.structs.replace(made.io, at_least=True))

    assert moved_bytes_per_s(made) is not None
    assert moved_bytes_per_s(less) is None


def test_suspended_time_is_no_run_time():
    made = ran(10 * MB, run_s=2.0, suspended_io_s=98.0)

    assert 10 * MB == moved_bytes_per_s(made)


# -- what is noticed -----------------------------------------------------------------------------


def test_what_teaches_nothing_new_is_not_noticed():
    seen = Recollection()
    noticed = [bool(seen.learn(ran())) for _ in range(60)]

    assert all(noticed[:2])
    assert not any(noticed[30:])


def test_a_run_unlike_those_before_is_noticed_under_each_key():
    seen = taught(*(ran() for _ in range(60)))
    odd = ran(64 * MB)

    assert keys_of(odd) == seen.learn(odd)


# -- imported --------------------------------------------------------------------------------------


def test_a_run_elsewhere_is_expected_with_its_share():
    seen = Recollection()
    seen.take(trace(5 * MB))

    found = seen.find(waits())
    assert ("imported", 0.2, 5.0) == (found.source, found.io_share, found.operations_per_s)
    assert pytest.approx(5 * MB) == found.rate_bytes_per_s
    assert pytest.approx(25 * MB) == found.burst_bytes_per_s
    assert pytest.approx(0.5 * WORTH["like"] * TRUSTED) == found.confidence


def test_what_was_learned_here_goes_before_what_was_imported():
    seen = taught(ran(1 * MB))
    seen.take(trace(5 * MB))

    assert "learned" == seen.find(waits()).source


def test_noise_does_not_hide_an_import_that_was_named():
    seen = taught(*(ran(rate, command=("./vpic",)) for rate in [0.0, 0.0, 0.0, 150 * MB] * 3))
    seen.take(trace(40 * MB, name="vpic", command=("/far/vpic", "x")))

    noisy = seen.find(waits(command=("./vpic", "y")))
    found = seen.find(waits(name="vpic", command=("./vpic", "y")))
    assert noisy.confidence < 0.2
    assert ("imported", "name:vpic") == (found.source, found.by)
    assert pytest.approx(40 * MB) == found.rate_bytes_per_s


def test_a_program_seen_often_here_does_not_hide_an_import_of_that_name():
    seen = taught(*(ran(0.0, command=("./vpic", str(n) * n)) for n in range(1, 9)))
    seen.take(trace(40 * MB, name="vpic", command=("/far/x",)))

    assert "learned" == seen.find(waits(command=("./vpic", "y"))).source
    assert "imported" == seen.find(waits(name="vpic", command=("./vpic", "y"))).source


def test_what_was_learned_of_the_same_goes_before_an_import_that_is_not_twice_as_sure():
    seen = taught(ran(1 * MB, name="a"), ran(1.5 * MB, name="a"))
    for number in range(9):
        seen.take(trace(5 * MB, name="a", log=str(number)))

    found = seen.find(waits(name="a"))
    assert "learned" == found.source
    for _ in range(4):
        for rate in (0.0, 512 * MB):
            seen.learn(ran(rate, name="a", command=("./b",)))
    assert "imported" == seen.find(waits(name="a", command=("./c",))).source


def test_more_time_in_io_than_there_was_is_all_of_it():
    assert 1.0 == trace(io_s=99.0).io_share


# -- forgetting ----------------------------------------------------------------------------------


def test_what_is_forgotten_is_learned_anew_from_later_runs_alone():
    seen = taught(ran(1 * MB, at_s=10.0), ran(1 * MB, at_s=20.0))
    key = Key(1000, "command", "true in /")

    assert seen.forget(key, 25.0)
    assert "like:true" == seen.find(waits()).by
    seen.learn(ran(1 * MB, at_s=15.0))
    assert "like:true" == seen.find(waits()).by
    seen.learn(ran(9 * MB, at_s=30.0))
    assert (1, "command:true in /") == (seen.find(waits()).runs, seen.find(waits()).by)


def test_to_forget_what_is_not_known_is_told():
    assert not Recollection().forget(Key(1, "name", "x"), 0.0)


# -- bounds ----------------------------------------------------------------------------------------


def test_what_nothing_was_learned_of_for_longest_goes_first():
    seen = Recollection(most=6)
    for number in range(4):
        seen.learn(ran(at_s=float(number), command=(f"./p{number}",)))

    assert [False, False, True, True] == [
        seen.find(waits(3.0, command=(f"./p{number}",))) is not None for number in range(4)
    ]


def test_read_backwards_the_oldest_find_no_room():
    seen = Recollection(most=6)
    for number in reversed(range(4)):
        seen.learn(ran(at_s=float(number), command=(f"./p{number}",)))

    assert [False, False, True, True] == [
        seen.find(waits(3.0, command=(f"./p{number}",))) is not None for number in range(4)
    ]


@given(st.lists(st.integers(1, 4), max_size=40), st.booleans())
def test_nobodys_runs_push_out_what_is_known_of_one_who_has_less(uids, backwards):
    seen = Recollection(most=8)
    for number in reversed(range(len(uids))) if backwards else range(len(uids)):
        seen.take(trace(at_s=float(number), uid=uids[number], command=(f"./p{number}",)))

    counts = Counter(each.key.uid for each in remembered(seen, 1e3))
    # A run has two keys here, and pushes out what it must one by one.
    assert sum(counts.values()) <= 8
    for uid, count in counts.items():
        asked = 2 * uids.count(uid)
        assert count >= min(asked, max(counts.values()) - 2)


def test_what_is_remembered_of_all_users_is_shown_newest_first():
    seen = Recollection()
    for number, uid in enumerate([1, 2, 1, 2, 2, 1]):
        seen.take(trace(at_s=float(number), uid=uid, command=(f"./p{number}",)))

    times = [each.last_s for each in remembered(seen, 1e3)]
    assert sorted(times, reverse=True) == times


RUNS = st.lists(
    st.builds(
        ran,
        st.sampled_from([None, 0.0, 1.0, 5e3, 1e6, 3e9]),
        at_s=st.floats(0.0, 1e7),
        run_s=st.floats(0.0, 1e5),
        state=st.sampled_from(sorted(FINAL)),
        name=st.sampled_from(["", "a"]),
        command=st.sampled_from([("./x",), ("./x", "1"), ("./x", "2"), ("y",)]),
    ),
    max_size=25,
)


@given(RUNS, st.floats(0.0, 1e7), st.integers(1, 12))
def test_whatever_ran_what_is_told_is_within_what_was_seen(runs, now_s, most):
    seen = Recollection(most=most)
    for made in runs:
        seen.learn(made)

    told = seen.find(waits(now_s, command=("./x", "1"), name="a"))
    rates = [rate for made in runs if (rate := moved_bytes_per_s(made)) is not None]
    assert len(remembered(seen, now_s)) <= most
    if told is not None:
        assert LEAST_CONFIDENCE <= told.confidence < 1.0
        lowest, highest = min(rates), max(rates)
        assert lowest * 0.999 - 1.0 <= told.rate_bytes_per_s <= highest * 1.001 + 1.0


@given(RUNS)
def test_a_journal_read_backwards_teaches_the_same(runs):
    runs = [
        msg for msg in {made.ended_s: made for made in runs}.values() if msg.state == "COMPLETED"
    ]
    runs.sort(key=lambda made: made.ended_s)
    found = [taught(*order).find(waits(1e7)) for order in (runs, runs[::-1])]

    assert (found[0] is None) == (found[1] is None)
    if found[0] is not None:
        rates, sure = zip(
            *((told.rate_bytes_per_s, told.confidence) for told in found), strict=True
        )
        assert pytest.approx(rates[0], rel=1e-3, abs=1.0) == rates[1]
        assert pytest.approx(sure[0], abs=1e-3) == sure[1]


# -- hindsight -------------------------------------------------------------------------------------


def foretold(rate, moved, **fields):
    source = fields.pop("source", "learned")
    expected = Prediction(
        rate_bytes_per_s=rate, confidence=0.5, source=source, by="command:true in /", runs=1
    )
    return ran(moved, expected=expected, **fields)


def test_hindsight_is_the_expected_rate_over_the_true_one():
    assert pytest.approx(2.0, rel=1e-2) == hindsight(foretold(2 * MB, 1 * MB))
    assert 1.0 == hindsight(foretold(0.0, 0.0))
    assert 1.0 / 3.0 == hindsight(foretold(0.0, 2 * FLOOR_BYTES_PER_S))


@pytest.mark.parametrize(
    "made",
    [
        ran(),
        ran(expected=UNKNOWN),
        foretold(1.0, None),
        foretold(1.0, 1.0, state=JobState.FAILED),
    ],
    ids=["nothing expected", "unknown", "unread", "failed"],
)
def test_what_was_not_foretold_or_did_not_come_to_its_end_is_not_judged(made):
    assert hindsight(made) is None


def test_how_wrong_it_was_is_kept_by_source_and_by_key():
    seen = taught(
        ran(1 * MB, at_s=1.0),
        foretold(4 * MB, 1 * MB, at_s=2.0),
        foretold(1 * MB, 4 * MB, at_s=3.0),
        foretold(16 * MB, 1 * MB, at_s=4.0, source="declared"),
    )

    rows = {row.key.kind: row for row in remembered(seen, 4.0)}
    assert (2, 0) == (rows["command"].predictions, rows["like"].predictions)
    assert pytest.approx(4.0, rel=1e-2) == rows["command"].off
    assert rows["like"].off is None
    assert {"learned": 2, "declared": 1} == {s: a.jobs for s, a in seen.accuracy.items()}
    assert pytest.approx(16.0, rel=1e-2) == seen.accuracy["declared"].off
    assert math.isclose(2.0 ** (seen.accuracy["learned"].sum_doublings / 2), 4.0, rel_tol=1e-2)


def answer(source, kind, confidence):
    told = Prediction(rate_bytes_per_s=1.0, confidence=confidence, source=source, by=f"{kind}:x")
    return Answer(Key(1, kind, "x"), told)


SURE = st.floats(LEAST_CONFIDENCE, 1.0)


@given(st.sampled_from(KINDS), SURE, st.sampled_from(KINDS), SURE)
def test_the_less_specific_goes_first_only_where_it_is_far_surer(one, sure, other, surer):
    learned, imported = answer("learned", one, sure), answer("imported", other, surer)

    found = preferred(learned, imported)
    left = learned if found is imported else imported
    assert left.confidence <= FAR_SURER * found.confidence
    if left.worth > found.worth or (left.worth == found.worth and left is learned):
        assert found.confidence > FAR_SURER * left.confidence
    assert preferred(learned, None) is learned
    assert preferred(None, imported) is imported


LEARNED = Prediction(rate_bytes_per_s=7.0, confidence=0.9, source="learned")


class Remembering:
    """An experience that knows of every job, once one has ended."""

    def __init__(self, told=LEARNED):
        self.asked, self.learned, self._told = [], [], told

    def find(self, made):
        self.asked.append(made.id)
        return self._told if self.learned else None

    def learn(self, made):
        self.learned.append(made)
        return keys_of(made)


def test_of_a_job_that_says_nothing_nothing_is_expected():
    assert UNKNOWN == Outlook(Meter()).expected(job())
    assert not UNKNOWN.is_known


@pytest.mark.parametrize(
    ("fields", "rate", "burst"),
    [
        ({}, 40.0, 40.0),
        ({"io_share": 0.25}, 10.0, 40.0),
        ({"io_share": 1.0}, 40.0, 40.0),
    ],
)
def test_a_declared_rate_is_that_of_the_time_in_io(fields, rate, burst):
    found = Outlook(Meter()).expected(job(io_rate_bytes_per_s=40.0, **fields))

    assert (rate, burst) == (found.rate_bytes_per_s, found.burst_bytes_per_s)
    assert "declared" == found.source


def test_declared_operations_are_of_the_time_in_io_too():
    made = job(io_rate_bytes_per_s=0.0, io_operations_per_s=1000.0, io_share=0.5)

    assert 500.0 == Outlook(Meter()).expected(made).operations_per_s


def test_what_a_job_says_goes_before_experience():
    experience = Remembering()
    experience.learn(job())

    limited = job(io_rate_bytes_per_s=1.0, walltime_s=60.0)
    assert "declared" == Outlook(Meter(), experience).expected(limited).source
    assert [] == experience.asked


def test_how_long_a_job_without_walltime_runs_is_learned_whatever_it_says_of_its_io():
    experience = Remembering(msgspec.structs.replace(LEARNED, run_s=90.0))
    experience.learn(job())

    found = Outlook(Meter(), experience).expected(job(io_rate_bytes_per_s=1.0))

    assert (1.0, "declared", 90.0) == (found.rate_bytes_per_s, found.source, found.run_s)


def test_experience_is_asked_once_until_something_was_learned():
    experience = Remembering()
    outlook = Outlook(Meter(), experience)

    assert [UNKNOWN, UNKNOWN] == [outlook.expected(job()), outlook.expected(job())]
    outlook.learn(job(2, state=JobState.COMPLETED))
    assert [LEARNED, LEARNED] == [outlook.expected(job()), outlook.expected(job())]
    assert [1, 1] == experience.asked


def test_what_was_learned_of_others_leaves_what_is_known_of_a_job():
    experience = Remembering()
    outlook = Outlook(Meter(), experience)
    outlook.expected(job(1, command=("a", "b")))
    outlook.expected(job(2, command=("b", "c")))

    outlook.learn(job(3, state=JobState.COMPLETED, command=("b", "c")))
    for number, command in ((1, ("a", "b")), (2, ("b", "c"))):
        outlook.expected(job(number, command=command))

    assert [1, 2, 2] == experience.asked


def test_nothing_is_kept_of_a_job_that_is_forgotten():
    outlook = Outlook(Meter(), Remembering())
    outlook.expected(job(1))

    outlook.forget(JobId(1))

    assert [{}, {}, {}] == [outlook._hints, outlook._kinds, outlook._jobs_of]


def test_of_one_that_runs_and_said_nothing_the_mean_until_now_is_expected():
    meter = Meter()
    made = job(state=JobState.RUNNING)
    meter.take(sample(4.0, {1: counters(100, 300)}), run_s={JobId(1): 4.0})

    found = Outlook(meter).expected(made)
    assert (100.0, "measured") == (found.rate_bytes_per_s, found.source)


def test_a_job_whose_counters_are_unknown_stays_unknown():
    meter = Meter()
    meter.take(sample(4.0, {1: counters(None, None)}), run_s={JobId(1): 4.0})

    assert UNKNOWN == Outlook(meter).expected(job(state=JobState.RUNNING))


class Hasty:
    """Starts the second job before the first."""

    why = Reason(code="Test", text="it is in a hurry")

    def decide(self, view, memory):
        starts = tuple(
            Placed(job_id=made.id, partition=PartitionId(0), why=self.why)
            for made in view.pending
            if made.id == 2
        )
        return AdmissionPlan(starts=starts), memory

    def explain(self, view, made, memory):
        return f"job {made.id} is in no hurry"


def test_what_was_expected_and_why_it_was_preferred_is_kept_with_the_job(rig):
    experience = Remembering()
    state = State(machine(2), experience=experience)
    controller = Controller(state, rig.controller.rules)
    controller.rules = type(rig.controller.rules)(
        name="hasty",
        admission=Hasty(),
        placement=rig.controller.rules.placement,
        regulation=rig.controller.rules.regulation,
    )
    declared = job(2, io_rate_bytes_per_s=5.0)
    plan = controller.step([submitted(job(1)), submitted(declared)])

    assert Hasty.why == state.jobs[2].started_because
    assert [Hasty.why] == [t.reason for t in plan.transitions if t.after is JobState.STARTING]
    assert declared.spec.declared == state.jobs[2].expected
    assert "job 1 is in no hurry" == controller.account(state.jobs[1])
    assert "" == controller.account(state.jobs[2])

    controller.step([started(1.0, 2)])
    controller.step([exited(9.0, 2)])
    assert [JobState.COMPLETED] == [made.state for made in experience.learned]
    assert declared.spec.declared == experience.learned[0].expected
