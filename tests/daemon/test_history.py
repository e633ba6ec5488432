"""The history over a real journal: what is found, and that the sums are right."""

import asyncio
import math
import os
import re
import typing
from itertools import pairwise
from pathlib import Path

import pytest
from exploring import tries
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from multidict import MultiDict
from served import Served

from iodaemon.api import model
from iodaemon.core.job import FINAL, Exit, IoTotals, Job, JobId, JobSpec, JobState
from iodaemon.daemon.http.context import pages
from iodaemon.daemon.http.routes.history import Tallies, find_ended
from iodaemon.daemon.journal.record import Batch
from iodaemon.daemon.journal.writer import Journal
from iodaemon.errors import NotFound, RequestError

API = Path(__file__).parents[2] / "docs" / "api.md"
GIB = 1 << 30
UID = 2_000_000_000
"""Of a user who has no name."""
S = JobState


def ended(job_id, state=S.COMPLETED, at_s=100.0, *, uid=UID, name="", **fields):
    """One ended job; it ran unless ``started_s`` says otherwise."""
    made = {"started_s": 1.0, **fields}
    return Job(
        id=JobId(job_id),
        spec=JobSpec(command=("/bin/solve",), name=name),
        uid=uid,
        state=state,
        since_s=at_s,
        submitted_s=0.0,
        ended_s=at_s,
        **made,
    )


def moved(read_bytes, written_bytes):
    return IoTotals(read_bytes=read_bytes, written_bytes=written_bytes)


def write(journal, *jobs):
    answers = []
    journal.write(Batch(jobs=jobs), answers.append)
    journal.flush()
    assert answers == [None]


@pytest.fixture
def journal(tmp_path):
    journal = Journal.open(tmp_path / "journal.db")
    yield journal
    journal.close()


def found(journal, **query):
    """Ids, in the order of reading."""

    async def read():
        asked = await find_ended(journal, MultiDict(query), UID, 50.0)
        return [job.id async for page in pages(journal, asked) for job in page]

    return asyncio.run(read())


def added_up(jobs, by="user"):
    """The rows by key, and the total."""
    tallies = Tallies(by)
    tallies.add(jobs)
    return {row["key"]: row for row in tallies.rows()}, tallies.total()


# -- what is found -------------------------------------------------------------------------------


def test_only_what_has_ended_is_found_and_the_last_end_comes_first(journal):
    running = Job(
        id=JobId(9), spec=JobSpec(command=("x",)), uid=0, state=S.RUNNING, since_s=1, submitted_s=1
    )
    write(journal, ended(1, at_s=30.0), ended(2, at_s=10.0), ended(3, at_s=20.0), running)

    assert [1, 3, 2] == found(journal)


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ({"user": str(UID + 1)}, [3]),
        ({"user": "99999999999999999999999"}, []),
        ({"name": "sim-*"}, [3, 2]),
        ({"name": "SIM-*"}, []),
        ({"name": "solve"}, [4, 1]),
        ({"state": "FAILED"}, [2]),
        ({"state": "cd"}, [3, 1]),
        ({"state": "RUNNING"}, []),
        ({"since_s": "20"}, [4, 3, 2]),
        ({"until_s": "20"}, [1]),
        ({"since_s": "20", "until_s": "40.0"}, [3, 2]),
        ({"since_s": "-30", "until_s": "-10.0"}, [3, 2]),
        ({"since_s": "-0.0"}, []),
        ({"select": "2-3"}, [3, 2]),
        ({"select": "1, 4"}, [4, 1]),
        ({"select": "last"}, [4]),
        ({"select": "all"}, [4, 3, 2, 1]),
        ({"limit": "2"}, [4, 3]),
        ({"limit": "0"}, []),
        ({"name": "sim-*", "limit": "1"}, [3]),
        ({"user": str(UID), "state": "F", "name": "sim-?"}, [2]),
    ],
)
def test_every_filter_counts_and_all_of_them_together(journal, query, ids):
    write(
        journal,
        ended(1, at_s=10.0),
        ended(2, S.FAILED, at_s=20.0, name="sim-a"),
        ended(3, at_s=30.0, name="sim-b", uid=UID + 1),
        ended(4, S.CANCELLED, at_s=40.0, started_s=None),
    )

    assert ids == found(journal, **query)


def test_a_user_may_be_named(journal):
    write(journal, ended(1, uid=0), ended(2))

    assert [1] == found(journal, user="root")


@pytest.mark.parametrize(
    "query",
    [
        {"limit": "x"},
        {"limit": "-1"},
        {"since_s": "noon"},
        {"until_s": "inf"},
        {"state": "DONE"},
        {"select": "x"},
    ],
)
def test_a_query_that_means_nothing_is_refused(journal, query):
    with pytest.raises(RequestError):
        found(journal, **query)


def test_a_user_who_does_not_exist_is_not_found(journal):
    with pytest.raises(NotFound, match="no user 'nosuch'"):
        found(journal, user="nosuch")


@pytest.mark.parametrize("limit", [None, 999, 1000, 1001, 2000])
def test_pages_neither_repeat_nor_lose_jobs_that_ended_at_one_time(journal, limit):
    ends = [ended(n, at_s=float(n // 700)) for n in range(1, 2101)]
    write(journal, *ends)
    query = {} if limit is None else {"limit": str(limit)}

    ids = found(journal, **query)

    expected = [job.id for job in sorted(ends, key=lambda j: (j.ended_s, j.id), reverse=True)]
    assert expected[:limit] == ids


# -- sums ----------------------------------------------------------------------------------------


def test_a_hand_made_set_adds_up():
    jobs = [
        ended(1, run_s=10.0, io=moved(3 * GIB, GIB), suspended_io_s=4.0),
        ended(2, S.FAILED, run_s=30.0, io=moved(0, 0), suspended_user_s=5.0, exit=Exit(code=1)),
        ended(3, S.TIMEOUT, run_s=60.0, io=moved(None, None)),
        ended(4, S.CANCELLED, started_s=None),
        ended(5, S.LOST, uid=0, run_s=1.0, io=moved(GIB, None)),
        ended(6, uid=UID + 1, run_s=1.0, io=replace(moved(GIB, 0), at_least=True)),
    ]

    rows, total = added_up(jobs)

    assert rows[str(UID)] == {
        "key": str(UID),
        "jobs": 4,
        "failed": 2,
        "cancelled": 1,
        "run_s": 100.0,
        "suspended_io_s": 4.0,
        "suspended_user_s": 5.0,
        "read_bytes": 3 * GIB,
        "written_bytes": GIB,
        "unknown_io_jobs": 1,
        "bandwidth_bytes_per_s": 4 * GIB / 40.0,
        "charged_s": 100.0,
        "mean_slowdown": pytest.approx(5.0),  # 100 s over 10, 30 and 60
        "jain_index": pytest.approx(15.0**2 / (3 * (10.0**2 + (10 / 3) ** 2 + (5 / 3) ** 2))),
    }
    at_least = rows[str(UID + 1)]
    assert (GIB, 1) == (at_least["read_bytes"], at_least["unknown_io_jobs"])
    assert at_least["bandwidth_bytes_per_s"] is None
    assert [1, 1, GIB, None, 1, float(GIB)] == [
        rows["root"][key]
        for key in (
            *("jobs", "failed", "read_bytes", "written_bytes", "unknown_io_jobs"),
            "bandwidth_bytes_per_s",
        )
    ]
    assert [6, 3, 5 * GIB, 5 * GIB / 41.0] == [
        total[key] for key in ("jobs", "failed", "read_bytes", "bandwidth_bytes_per_s")
    ]
    assert "key" not in total


def test_a_job_with_space_is_charged_what_its_run_takes_on_the_slowest_tier():
    rows, total = added_up([ended(1, run_s=10.0), ended(2, run_s=10.0, charged_s=25.0)])

    assert (20.0, 35.0) == (total["run_s"], total["charged_s"])
    assert 35.0 == rows[str(UID)]["charged_s"]


def test_a_run_of_a_moment_counts_as_ten_seconds_and_alike_is_fair():
    _, total = added_up([ended(1, run_s=0.001), ended(2, run_s=10.0)])

    assert (10.0, 1.0) == (total["mean_slowdown"], total["jain_index"])


def test_of_jobs_that_never_ran_no_slowdown_is_known():
    _, total = added_up([ended(1, S.CANCELLED, started_s=None)])

    assert (None, None) == (total["mean_slowdown"], total["jain_index"])


def test_who_moved_most_comes_first_and_a_program_stands_for_a_name():
    tallies = Tallies("name")
    tallies.add([ended(1), ended(2, name="b", io=moved(5, 0)), ended(3, name="a", io=moved(0, 5))])

    assert ["a", "b", "solve"] == [row["key"] for row in tallies.rows()]


def test_nothing_comes_to_nothing():
    rows, total = added_up([])

    assert ({}, 0, None, None) == (
        rows,
        total["jobs"],
        total["read_bytes"],
        total["bandwidth_bytes_per_s"],
    )


def test_documentation_daemon_and_client_agree_on_a_sum():
    text = re.search(r"^SUM: `([^`]*)`", API.read_text(), re.MULTILINE)[1]
    rows, _ = added_up([ended(1)])

    assert text.split() == list(rows[str(UID)])
    assert set(text.split()) == set(typing.get_type_hints(model.KeyedSum))


SIZES = st.none() | st.integers(0, 2**50)
TIMES_S = st.integers(0, 10**6).map(float)
JOBS = st.lists(
    st.builds(
        lambda uid, name, state, times, io, ran: ended(
            1,
            state,
            uid=uid,
            name=name,
            run_s=times[0],
            suspended_io_s=times[1],
            suspended_user_s=times[2],
            io=moved(*io),
            started_s=1.0 if ran else None,
        ),
        st.integers(2**31, 2**31 + 2),
        st.sampled_from(["", "a", "b"]),
        st.sampled_from(sorted(FINAL)),
        st.tuples(TIMES_S, TIMES_S, TIMES_S),
        st.tuples(SIZES, SIZES),
        st.booleans(),
    ),
    max_size=30,
)


@given(jobs=JOBS, by=st.sampled_from(["user", "name"]))
@settings(max_examples=tries(100), deadline=None)
def test_the_rows_together_are_the_total_and_each_job_is_in_one(jobs, by):
    rows, total = added_up(jobs, by)

    for key in ("jobs", "failed", "cancelled", "run_s", "suspended_io_s", "suspended_user_s"):
        assert total[key] == sum(row[key] for row in rows.values())
    for key in ("read_bytes", "written_bytes"):
        known = [row[key] for row in rows.values() if row[key] is not None]
        assert total[key] == (sum(known) if known else None)
    assert total["jobs"] == len(jobs)


@given(jobs=JOBS)
@settings(max_examples=tries(100), deadline=None)
def test_a_total_is_what_a_plain_sum_says(jobs):
    _, total = added_up(jobs)

    known = [job for job in jobs if job.io.total_bytes is not None]
    run_s = math.fsum(job.run_s for job in known)
    assert total["run_s"] == math.fsum(job.run_s for job in jobs)
    assert total["failed"] + total["cancelled"] == sum(job.state != S.COMPLETED for job in jobs)
    assert total["unknown_io_jobs"] == sum(
        job.started_s is not None and None in (job.io.read_bytes, job.io.written_bytes)
        for job in jobs
    )
    expected = sum(job.io.total_bytes for job in known) / run_s if run_s else None
    assert expected == total["bandwidth_bytes_per_s"]


# -- over the socket -------------------------------------------------------------------------------


@pytest.fixture
def served(tmp_path):
    served = Served(tmp_path, kept_finished=1)
    yield served
    served.close()


def test_what_has_ended_is_answered_from_the_journal_the_last_end_at_the_end(served):
    ids = [served.ended(f"exit={code}") for code in range(3)]
    served.running()

    answer = served.client.history()

    assert {"version", "now_s", "jobs"} == set(answer)
    assert ids == [job["id"] for job in answer["jobs"]]
    assert [0, 1, 2] == [job["exit_code"] for job in answer["jobs"]]
    assert all(a["ended_s"] <= b["ended_s"] for a, b in pairwise(answer["jobs"]))
    assert ids[1:] == [job["id"] for job in served.client.history([("state", "F")])["jobs"]]
    assert ids[2:] == [job["id"] for job in served.client.history([("limit", "1")])["jobs"]]


def test_sums_are_answered_by_user_and_by_name(served):
    served.ended("exit=0", name="a")
    served.ended("exit=3", name="b")
    served.ended("exit=0", name="b")

    by_user = served.client.history_sums("user")
    by_name = served.client.history_sums("name", [("user", str(os.geteuid()))])

    assert [3, 1] == [by_user["total"]["jobs"], by_user["sums"][0]["failed"]]
    assert {"a": 1, "b": 2} == {row["key"]: row["jobs"] for row in by_name["sums"]}
    assert {"version", "now_s", "by", "sums", "total"} == set(by_name)


def test_a_query_that_means_nothing_is_told_in_one_line(served):
    for target, status in (("?limit=x", 400), ("?by=day", 400), ("?user=nosuch", 404)):
        answer = served.ask("GET", f"/v1/history{target}")

        assert status == answer.error[0]


def test_the_loop_goes_on_while_a_long_history_is_read(served):
    write(served.journal, *(ended(n, name=f"n{n % 7}") for n in range(10, 20_010)))
    ticks = []

    async def tick():
        while True:
            ticks.append(served.loop.time())
            await asyncio.sleep(0.001)

    ticking = asyncio.run_coroutine_threadsafe(tick(), served.loop)
    answer = served.client.history_sums("name")
    ticking.cancel()

    assert [20_000, 7] == [answer["total"]["jobs"], len(answer["sums"])]
    assert len(ticks) > 20  # as many as there are pages; a loop that waits has one or two
