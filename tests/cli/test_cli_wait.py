"""What ``iod wait`` tells of jobs that only a person lets go on."""

from __future__ import annotations

import pytest
from fake_daemon import job, reason

from iodaemon.api import client
from iodaemon.api.client import Client

BY_ANN = "suspended by ann; 'iod resume 1' lets it go"
HELD = reason("suspended by ann", "Suspended", cure="'iod resume 1'")


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


def test_of_very_many_held_jobs_some_are_named_and_how_all_are_listed(iod, daemon):
    odd = range(1, 400, 2)
    told = told_of(iod, daemon, *(job(n, "HELD", reason=HELD) for n in odd))

    assert told == (
        "iod: 200 jobs wait for 'iod resume', among them 1,3,5,7,9,11,13,15:"
        " 'iod queue -s h,su' lists them\n"
    )
    assert iod("queue", "-s", "h,su").code == 0


def test_many_held_jobs_with_numbers_in_a_row_are_named_all(iod, daemon):
    told = told_of(iod, daemon, *(job(n, "HELD", reason=HELD) for n in range(1, 201)))

    assert told == "iod: jobs 1-200 wait for 'iod resume 1-200': 'iod why 1-200' tells why\n"


# -- others' jobs ------------------------------------------------------------------------------


@pytest.fixture
def _as_ann(monkeypatch):
    monkeypatch.setattr("iodaemon.cli.selector.os.geteuid", lambda: 4242)


@pytest.mark.parametrize("cure", ["'iod resume 1'", "an administrator's 'iod resume 1'", ""])
@pytest.mark.usefixtures("_as_ann")
def test_who_may_not_let_a_job_go_is_told_who_may(iod, daemon, cure):
    why = reason("suspended by root", "Suspended", cure)
    told = told_of(iod, daemon, job(1, "HELD", user="bob", uid=4243, reason=why))

    assert told == (
        "iod: job 1 waits to be released: suspended by root;"
        " its user, bob, or an administrator can let it go\n"
    )


@pytest.mark.usefixtures("_as_ann")
def test_own_and_others_held_jobs_are_told_of_apart(iod, daemon):
    own = [job(n, "SUSPENDED_USER", reason=HELD) for n in (1, 2)]
    others = [job(n, "HELD", user="bob", uid=4243, reason=HELD) for n in (3, 4, 5)]

    assert told_of(iod, daemon, *own, *others) == (
        "iod: jobs 1-2 wait for 'iod resume 1-2': 'iod why 1-2' tells why\n"
        "iod: jobs 3-5 wait for their users or an administrator to let them go:"
        " 'iod why 3-5' tells why\n"
    )


@pytest.mark.usefixtures("_as_ann")
def test_of_very_many_held_jobs_of_others_some_are_named(iod, daemon):
    odd = range(1, 400, 2)
    told = told_of(iod, daemon, *(job(n, "HELD", uid=4243, reason=HELD) for n in odd))

    assert told == (
        "iod: 200 jobs wait for their users or an administrator to let them go,"
        " among them 1,3,5,7,9,11,13,15: 'iod queue -s h,su' lists them\n"
    )


def test_root_is_told_how_to_let_others_jobs_go(iod, daemon, monkeypatch):
    monkeypatch.setattr("iodaemon.cli.selector.os.geteuid", lambda: 0)
    told = told_of(iod, daemon, job(1, "HELD", user="bob", uid=4243, reason=HELD))

    assert told == f"iod: job 1 waits to be released: {BY_ANN}\n"


def told_of(iod, daemon, *jobs):
    """What is told of these jobs, which end after a first look at them."""
    daemon.add(*jobs)
    daemon.before_waits = [nothing, lambda: [daemon.end(made["id"]) for made in jobs]]
    return iod("wait", *(str(made["id"]) for made in jobs)).err


# -- a job that waits itself ---------------------------------------------------------------------


@pytest.fixture(params=["here", "elsewhere"])
def is_here(request, daemon):
    """Whether this process belongs to job 2 of the daemon."""
    daemon.own_job = 2 if request.param == "here" else None
    daemon.add(job(1), job(2), job(3))
    daemon.before_waits = [nothing, lambda: [daemon.end(n) for n in (1, 2, 3)]]
    daemon.after_follow = [lambda: daemon.end(2)]
    return request.param == "here"


@pytest.mark.parametrize("words", [("all",), ("1-3",), ("-J", "job*")])
def test_a_job_does_not_wait_for_itself(iod, daemon, is_here, words):
    code = iod("wait", *words).code

    waits = daemon.bodies("/v1/wait")
    assert code == 0
    assert {tuple(body["ids"]) for body in waits} == {(1, 3) if is_here else (1, 2, 3)}


@pytest.mark.parametrize("words", [("wait", "2"), ("wait", "1,2"), ("logs", "-f", "2")])
def test_a_job_that_names_itself_is_refused(iod, daemon, is_here, words):
    result = iod(*words)

    assert (result.code == 1) is is_here
    assert ("never end" in result.err) is is_here


def test_a_job_does_not_drain_the_node_of_itself(iod, daemon, is_here):
    told = iod("drain", "--wait").err

    assert ("job 2 is the one that waits here, and holds CPUs itself" in told) is is_here


# -- when it is told ---------------------------------------------------------------------------


def test_a_held_job_is_told_of_before_the_first_long_wait(iod, daemon):
    daemon.add(job(1, "HELD", reason=HELD))
    daemon.before_waits = [nothing, lambda: daemon.end(1)]
    iod("wait", "1")

    assert [0.0, 30.0] == [body["timeout_s"] for body in daemon.bodies("/v1/wait")]


# -- more jobs than one request may wait for ----------------------------------------------------


def test_a_held_job_of_a_later_batch_is_told_of_before_the_first_long_wait(
    iod, daemon, monkeypatch
):
    monkeypatch.setattr(client, "_AWAITED_AT_ONCE", 2)
    daemon.add(job(1), job(2), job(3, "HELD", reason=reason("held at submission", "Held")))
    told_before = []

    def look():
        told_before.append(iod.capsys.readouterr().err)
        daemon.end(1), daemon.end(2), daemon.end(3)

    daemon.before_waits = [nothing, nothing, look]
    result = iod("wait", "1-3")

    told = "iod: job 3 waits to be released: held at submission; 'iod resume 3' lets it go\n"
    assert (told_before, result.err) == ([told], "")


def test_a_held_job_of_a_later_batch_is_told_of_once(iod, daemon, monkeypatch):
    monkeypatch.setattr(client, "_AWAITED_AT_ONCE", 1)
    daemon.hurried = True
    daemon.add(job(1), job(2, "HELD", reason=reason("held at submission", "Held")))
    daemon.before_waits = [
        *[nothing] * 3,
        lambda: daemon.end(1),
        nothing,
        lambda: daemon.end(2),
    ]

    assert iod("wait", "1-2").err.count("job 2 waits to be released") == 1


def test_who_looks_on_is_given_all_jobs_each_time(daemon, monkeypatch):
    monkeypatch.setattr(client, "_AWAITED_AT_ONCE", 2)
    daemon.add(job(1), job(2), job(3))
    daemon.before_waits = [
        nothing,
        nothing,
        lambda: [daemon.end(1), daemon.end(2)],
        lambda: daemon.end(3),
    ]
    told = []
    Client(daemon.path).wait([1, 2, 3], on_told=lambda jobs: told.append(states_of(jobs)))

    assert told == [["R", "R", "R"], ["CD", "CD", "R"], ["CD", "CD", "CD"]]


def test_a_batch_that_has_ended_at_the_first_look_is_not_asked_for_again(daemon, monkeypatch):
    monkeypatch.setattr(client, "_AWAITED_AT_ONCE", 1)
    daemon.add(job(1, "COMPLETED"), job(2, "FAILED"))
    answer = Client(daemon.path).wait([1, 2], on_told=lambda _: None)

    assert ([1, 2], True) == ([made["id"] for made in answer["jobs"]], answer["finished"])
    assert [[1], [2]] == [body["ids"] for body in daemon.bodies("/v1/wait")]


def test_at_the_timeout_every_batch_is_told_as_it_is_then(daemon, monkeypatch):
    monkeypatch.setattr(client, "_AWAITED_AT_ONCE", 1)
    daemon.add(job(1), job(2))
    daemon.before_waits = [nothing, nothing, lambda: daemon.end(2)]
    answer = Client(daemon.path).wait([1, 2], timeout_s=0.1, on_told=lambda _: None)

    assert (["R", "CD"], False) == (states_of(answer["jobs"]), answer["finished"])


def states_of(jobs):
    """Their codes, in order."""
    return [made["code"] for made in jobs]


def nothing():
    """Nothing is done."""
