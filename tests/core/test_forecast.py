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


def test_the_mean_is_of_all_runs_the_later_and_younger_count_more():
    one, fading = mean_of([(5.0, 100.0)]), mean_of([(0.0, 0.0), (1.0, HALF_LIFE_S)])

    assert (5.0, 0.0, 1.0, 1) == (one.mean, one.spread, one.weight, one.count)
    assert pytest.approx(1.0 / 1.9) == mean_of([(0.0, 5.0), (1.0, 5.0)]).mean
    assert pytest.approx(1.0 / 1.45) == fading.mean
    assert pytest.approx(0.5 * fading.weight) == fading.weight_at(2 * HALF_LIFE_S)
    assert 1.0 == one.weight_at(0.0), "time before the last run makes it no younger"


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


def test_one_run_is_what_the_next_is_expected_to_be():
    found = taught(ran(3 * MB)).find(waits())

    assert Recollection().find(waits()) is None
    assert pytest.approx((3 * MB, 10.0)) == (found.rate_bytes_per_s, found.operations_per_s)
    assert ("learned", 1, "command:true in /") == (found.source, found.runs, found.by)
    assert 0.5 == found.confidence


def test_more_runs_alike_make_it_surer_and_never_sure_and_runs_that_differ_less_sure():
    seen, sure = Recollection(), []
    for _ in range(30):
        seen.learn(ran())
        sure.append(seen.find(waits()).confidence)

    assert sure == sorted(sure)
    assert 0.9 < sure[-1] < 1.0
    assert taught(ran(1 * MB), ran(64 * MB)).find(waits()).confidence < 0.5 * sure[1]


@pytest.mark.parametrize(
    ("rates", "least", "most"),
    [
        ([1 * MB, 100 * MB], 8 * MB, 14 * MB),  # they are averaged by factors
        ([0.0, 0.0], 0.0, 1e-6),
        ([1 * MB] * 20 + [9 * MB] * 20, 7 * MB, 9 * MB),  # the newest count most
    ],
)
def test_what_is_expected_is_a_mean_by_factors_in_which_the_newest_count_most(rates, least, most):
    found = taught(*(ran(rate) for rate in rates)).find(waits())

    assert least - 1e-6 <= found.rate_bytes_per_s <= most
    assert found.confidence > (0.0 if len(set(rates)) > 1 else 0.6)


def test_what_is_long_ago_is_hardly_known_and_then_not_at_all():
    seen = taught(ran())

    assert pytest.approx(0.5 / 1.5) == seen.find(waits(HALF_LIFE_S)).confidence
    assert seen.find(waits(365 * DAY_S)) is None


# -- of what ---------------------------------------------------------------------------------------


def test_a_like_job_of_the_same_user_is_known_with_less_confidence():
    seen = taught(ran(command=("./solve", "a.dat", "1"), name="lu"))
    asked = [
        {"name": "lu", "command": ("b",)},
        {"command": ("./solve", "a.dat", "1")},
        {"command": ("./solve", "b.dat", "2")},
        {"command": ("./solve", "--help")},
    ]
    found = [seen.find(waits(**fields)) for fields in asked]

    assert ["name:lu", "command:./solve a.dat 1 in /", "like:solve *.dat #", "program:solve"] == [
        each.by for each in found
    ]
    assert [1.0, 0.8, 0.5] == [each.confidence / 0.5 for each in found[1:]]
    assert seen.find(waits(uid=2, name="lu")) is None


def test_a_name_for_everything_does_not_hide_what_is_known_of_the_command():
    seen = Recollection()
    for _ in range(5):
        seen.learn(ran(1 * MB, name="test", command=("./a",)))
        seen.learn(ran(512 * MB, name="test", command=("./b",)))
    found = seen.find(waits(name="test", command=("./b",)))

    assert ("command:./b in /", pytest.approx(512 * MB)) == (found.by, found.rate_bytes_per_s)


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


def test_the_rate_of_a_run_is_of_the_time_it_ran_and_unknown_where_the_total_may_be_too_small():
    made = ran(10 * MB, run_s=2.0, suspended_io_s=98.0)
    less = msgspec.structs.replace(made, io=msgspec.structs.replace(made.io, at_least=True))

    assert (10 * MB, None) == (moved_bytes_per_s(made), moved_bytes_per_s(less))


def test_a_run_like_those_before_is_not_noticed_and_an_odd_one_is_under_each_key():
    seen, odd = Recollection(), ran(64 * MB)
    noticed = [bool(seen.learn(ran())) for _ in range(60)]

    assert (True, False) == (all(noticed[:2]), any(noticed[30:]))
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
    assert 1.0 == trace(io_s=99.0).io_share, "more time in I/O than there was is all of it"
    seen.learn(ran(1 * MB))
    assert "learned" == seen.find(waits()).source, "what was learned here goes first"


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


# -- bounds ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0)], ids=["forward", "backward"])
def test_of_too_many_that_goes_of_which_nothing_was_learned_for_longest(order):
    seen = Recollection(most=6)
    for number in order:
        seen.learn(ran(at_s=float(number), command=(f"./p{number}",)))

    found = [seen.find(waits(3.0, command=(f"./p{number}",))) for number in range(4)]
    assert [False, False, True, True] == [each is not None for each in found]
    assert not seen.forget(Key(1, "name", "x"), 0.0)


@given(st.lists(st.integers(1, 4), max_size=40), st.booleans())
def test_nobodys_runs_push_out_what_is_known_of_one_who_has_less(uids, backwards):
    seen = Recollection(most=8)
    for number in reversed(range(len(uids))) if backwards else range(len(uids)):
        seen.take(trace(at_s=float(number), uid=uids[number], command=(f"./p{number}",)))

    shown = remembered(seen, 1e3)
    assert backwards or sorted(shown, key=lambda each: -each.last_s) == shown, "newest first"
    counts = Counter(each.key.uid for each in shown)
    # A run has two keys here, and pushes out what it must one by one.
    assert sum(counts.values()) <= 8
    for uid, count in counts.items():
        asked = 2 * uids.count(uid)
        assert count >= min(asked, max(counts.values()) - 2)


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


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, (40.0, 40.0, "declared")),
        ({"io_share": 0.25}, (10.0, 40.0, "declared")),
        ({"io_share": 1.0}, (40.0, 40.0, "declared")),
        ({"io_rate_bytes_per_s": None}, None),
    ],
)
def test_a_declared_rate_is_that_of_the_time_in_io(fields, told):
    found = Outlook(Meter()).expected(job(**{"io_rate_bytes_per_s": 40.0} | fields))

    if told is None:
        assert (UNKNOWN, False) == (found, found.is_known)
    else:
        assert told == (found.rate_bytes_per_s, found.burst_bytes_per_s, found.source)


def test_declared_operations_are_of_the_time_in_io_too():
    made = job(io_rate_bytes_per_s=0.0, io_operations_per_s=1000.0, io_share=0.5)

    assert 500.0 == Outlook(Meter()).expected(made).operations_per_s


def test_what_a_job_says_goes_before_experience_but_for_how_long_it_runs():
    experience = Remembering(msgspec.structs.replace(LEARNED, run_s=90.0))
    experience.learn(job())
    outlook = Outlook(Meter(), experience)
    limited = outlook.expected(job(1, io_rate_bytes_per_s=1.0, walltime_s=60.0))
    endless = outlook.expected(job(2, io_rate_bytes_per_s=1.0))

    assert ("declared", [2]) == (limited.source, experience.asked)
    assert (1.0, "declared", 90.0) == (endless.rate_bytes_per_s, endless.source, endless.run_s)


def test_experience_is_asked_again_of_those_of_whom_something_was_learned():
    experience = Remembering()
    outlook = Outlook(Meter(), experience)
    jobs = [job(1, command=("a", "b")), job(2, command=("b", "c"))]

    def expect():
        return [outlook.expected(each) for each in jobs * 2]

    assert [UNKNOWN] * 4 == expect()
    outlook.learn(job(3, state=JobState.COMPLETED, command=("b", "c")))
    assert [UNKNOWN, LEARNED] * 2 == expect()
    assert [1, 2, 2] == experience.asked
    outlook.forget(JobId(2))
    outlook.expected(jobs[1])
    assert [1, 2, 2, 2] == experience.asked


@pytest.mark.parametrize(
    ("read", "told"), [((100, 300), (100.0, "measured")), ((None, None), (0.0, "unknown"))]
)
def test_of_one_that_runs_and_said_nothing_the_mean_until_now_is_expected(read, told):
    meter = Meter()
    meter.take(sample(4.0, {1: counters(*read)}), run_s={JobId(1): 4.0})
    found = Outlook(meter).expected(job(state=JobState.RUNNING))

    assert told == (found.rate_bytes_per_s, found.source)


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
    rules = msgspec.structs.replace(rig.controller.rules, admission=Hasty())
    controller = Controller(state, rules)
    declared = job(2, io_rate_bytes_per_s=5.0)
    plan = controller.step([submitted(job(1)), submitted(declared)])

    assert Hasty.why == state.jobs[2].started_because
    assert [Hasty.why] == [t.reason for t in plan.transitions if t.after is JobState.STARTING]
    assert declared.spec.declared == state.jobs[2].expected
    told = [controller.account(state.jobs[number]) for number in (1, 2)]
    assert ["job 1 is in no hurry", ""] == told

    controller.step([started(1.0, 2)])
    controller.step([exited(9.0, 2)])
    [learned] = experience.learned
    assert (JobState.COMPLETED, declared.spec.declared) == (learned.state, learned.expected)
