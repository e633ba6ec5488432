"""The ledger sees every kind of lie: each of these lives is wrong in one way."""

import pytest
from ledger import Line, Told, violations

END = {"code": 0}


def lines(*words, attempt=1, token="t1", at_s=1.0, name="n1", code=0):
    return [
        Line(word, 1, attempt, name, f"{token}", 10, at_s, code if word == "end" else None)
        for word in words
    ]


def record(state="COMPLETED", attempt=1, end=END, name="n1"):
    return {"state": state, "attempt": attempt, "exit": end, "spec": {"name": name}}


def step(before, after, code=None):
    return {"before": before, "after": after, "reason": code and {"code": code}}


ONCE = [step(None, "PENDING"), step("PENDING", "STARTING"), step("STARTING", "RUNNING")]
AGAIN = [*ONCE, step("COMPLETED", "PENDING", "Requeued"), step("PENDING", "STARTING")]
NEVER_RAN = [*ONCE[:2], step("STARTING", "PENDING", "StartFailed"), step("PENDING", "STARTING")]
RAN = lines("start", "end")
RAN_AGAIN = [*RAN, *lines("start", "end", attempt=2, token="t2", at_s=2.0)]


def told(**changes):
    return Told(**{"acknowledged": {1: "n1"}, **changes})


def faults(page=RAN, made=None, steps=ONCE, heard=None):
    jobs = {} if made == {} else {1: made or record()}
    return violations({1: page} if page else {}, jobs, {1: steps}, heard or told())


@pytest.mark.parametrize(
    "life",
    [
        {},
        {
            "page": [],
            "made": record("CANCELLED", 0, {}),
            "steps": ONCE[:1],
            "heard": told(cancelled={1}),
        },
        {"page": RAN_AGAIN, "made": record(attempt=2), "steps": AGAIN, "heard": told(requeued={1})},
        {"page": RAN[:1], "made": record("LOST", end={}), "heard": told(bereft={1})},
        {
            "page": lines("start", "end", attempt=2),
            "made": record(attempt=2),
            "steps": NEVER_RAN,
        },
    ],
)
def test_a_true_life_is_not_found_fault_with(life):
    assert [] == faults(**life)


@pytest.mark.parametrize(
    ("life", "fault"),
    [
        ({"page": [], "made": {}}, "acknowledged and is unknown"),
        ({"made": record(name="n2"), "page": []}, "acknowledged as n1 and is another"),
        ({"made": {}, "heard": Told()}, "ran and is unknown"),
        ({"made": record("PENDING")}, "nothing is left to wait for"),
        ({"page": [*RAN, *lines("start", token="t2", at_s=2.0)]}, "attempt 1 started 2 times"),
        ({"page": RAN_AGAIN, "steps": ONCE}, "the daemon knows of 1"),
        ({"page": RAN_AGAIN, "made": record(attempt=2), "steps": AGAIN}, "nobody asked for it"),
        (
            {
                "page": [RAN_AGAIN[0], RAN_AGAIN[2], RAN[1]],
                "made": record(attempt=2),
                "steps": AGAIN,
                "heard": told(requeued={1}),
            },
            "attempt 1 still ran when 2 had begun",
        ),
        ({"page": RAN_AGAIN, "made": record(attempt=2), "steps": NEVER_RAN}, "says it never did"),
        ({"made": record(attempt=2)}, "the steps tell of 1 attempts, the record of 2"),
        ({"page": RAN[:1]}, "did not come to its end"),
        ({"made": record("FAILED", end={"code": 3})}, "ended with 0, told is 3"),
        ({"page": RAN[:1], "made": record("FAILED", end={"code": 3})}, "did not come to its end"),
        ({"made": record("FAILED", end={"signal": 9})}, "nobody sent one"),
        ({"made": record("FAILED", end={})}, "without an exit"),
        ({"page": [], "made": record("FAILED", end={"code": 126})}, "never run"),
        ({"made": record("CANCELLED")}, "is CANCELLED, and nobody asked for it"),
        ({"made": record("LOST", end={})}, "is LOST, and the root side was not killed"),
        ({"made": record("TIMEOUT", end={"signal": 15})}, "had no limit"),
        ({"page": RAN[1:]}, "an end without its start"),
        ({"page": lines("start", "end", name="n7")}, "ran under another name"),
    ],
)
def test_every_kind_of_lie_is_found(life, fault):
    assert any(fault in found for found in faults(**life)), faults(**life)


def test_two_jobs_of_one_submission_are_found():
    jobs = {1: record(), 2: record()}
    pages = {1: RAN, 2: RAN}

    assert "n1 exists 2 times" in violations(pages, jobs, {1: ONCE, 2: ONCE}, told())
