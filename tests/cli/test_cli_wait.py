"""What ``iod wait`` tells of jobs that only a person lets go on."""

from __future__ import annotations

import pytest
from fake_daemon import job, reason

BY_ANN = "suspended by ann; 'iod resume 1' lets it go"
HELD = reason(BY_ANN, "Suspended")


@pytest.mark.parametrize(
    ("state", "words"), [("HELD", "waits to be released"), ("SUSPENDED_USER", "stands still")]
)
def test_who_waits_is_told_once_of_a_job_that_only_a_person_lets_go(iod, daemon, state, words):
    daemon.hurried = True
    daemon.add(job(1, state, reason=HELD))
    daemon.before_waits = [nothing, nothing, lambda: daemon.end(1)]
    result = iod("wait", "1")

    assert (result.code, result.out) == (0, "")
    assert result.err == f"iod: job 1 {words}: {BY_ANN}\n"


def test_who_waits_is_told_of_a_job_that_becomes_held(iod, daemon):
    daemon.hurried = True
    daemon.add(job(1))
    daemon.before_waits = [
        nothing,
        lambda: daemon.add(job(1, "HELD", reason=HELD)),
        lambda: daemon.add(job(1)),
        lambda: daemon.add(job(1, "HELD", reason=HELD)),
        lambda: daemon.end(1),
    ]
    told = iod("wait", "1").err

    assert (
        told == 2 * "iod: job 1 waits to be released: suspended by ann; 'iod resume 1' lets it go\n"
    )


def test_who_waits_is_told_what_to_do_also_where_the_reason_does_not_say_it(iod, daemon):
    daemon.add(job(1, "SUSPENDED_USER", reason=reason("no answer in 5 s", "SuspendFailed")))
    daemon.before_waits = [nothing, lambda: daemon.end(1)]

    assert iod("wait", "1").err == (
        "iod: job 1 stands still: no answer in 5 s; 'iod resume 1' lets it go\n"
    )


def test_who_waits_is_told_of_many_held_jobs_in_one_line(iod, daemon):
    daemon.add(*(job(n, "HELD", reason=HELD) for n in (1, 2, 3)), job(4))
    daemon.before_waits = [nothing, lambda: [daemon.end(n) for n in (1, 2, 3, 4)]]
    told = iod("wait", "1-4").err

    assert told == "iod: jobs 1-3 wait for 'iod resume 1-3': 'iod why 1-3' tells why\n"


def test_a_held_job_is_told_of_before_the_first_long_wait(iod, daemon):
    daemon.add(job(1, "HELD", reason=HELD))
    daemon.before_waits = [nothing, lambda: daemon.end(1)]
    iod("wait", "1")

    assert [0.0, 30.0] == [body["timeout_s"] for body in daemon.bodies("/v1/wait")]


def nothing():
    """Nothing is done."""
