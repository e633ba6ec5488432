"""The history over a real journal: what is found, and that the sums are right."""

import asyncio
import math
import os
from itertools import pairwise

import builders
import pytest
from exploring import tries
from hypothesis import given, settings
from hypothesis import strategies as st
from journals import store
from msgspec.structs import replace
from multidict import MultiDict

from iodaemon.core.job import FINAL, Exit, IoTotals, JobState
from iodaemon.daemon.http.context import pages
from iodaemon.daemon.http.routes.history import Tallies, find_ended
from iodaemon.errors import RequestError

GIB = 1 << 30
UID = 2_000_000_000
"""Of a user who has no name."""
S = JobState


def ended(job_id, state=S.COMPLETED, at_s=100.0, *, uid=UID, **fields):
    """One ended job; it ran unless ``started_s`` says otherwise."""
    fields = {"command": ("/bin/solve",), "started_s": 1.0, **fields}
    return builders.job(job_id, state=state, at_s=at_s, uid=uid, **fields)


def moved(read_bytes, written_bytes):
    return IoTotals(read_bytes=read_bytes, written_bytes=written_bytes)


def found(journal, **query):
    """Ids, in the order of reading."""

    async def read():
        asked = await find_ended(journal, MultiDict(query), UID, 50.0)
        return [job.id async for page in pages(journal, asked) for job in page]

    return asyncio.run(read())


# -- what is found -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ({}, [4, 2, 3, 1]),  # of what has ended, and the last end comes first
        ({"user": str(UID + 1)}, [3]),
        ({"user": "root"}, [5]),
        ({"user": "99999999999999999999999"}, []),
        ({"name": "sim-*"}, [2, 3]),
        ({"name": "SIM-*"}, []),
        ({"name": "solve"}, [4, 1]),
        ({"state": "FAILED"}, [2]),
        ({"state": "cd"}, [3, 1]),
        ({"state": "RUNNING"}, []),
        ({"since_s": "20"}, [4, 2, 3]),
        ({"until_s": "20"}, [1]),
        ({"since_s": "20", "until_s": "40.0"}, [2, 3]),
        ({"since_s": "-30", "until_s": "-10.0"}, [2, 3]),
        ({"since_s": "-0.0"}, []),
        ({"select": "2-3"}, [2, 3]),
        ({"select": "1, 4"}, [4, 1]),
        ({"select": "last"}, [4]),
        ({"select": "all"}, [4, 2, 3, 1]),
        ({"limit": "2"}, [4, 2]),
        ({"limit": "0"}, []),
        ({"name": "sim-*", "limit": "1"}, [2]),
        ({"user": str(UID), "state": "F", "name": "sim-?"}, [2]),
    ],
)
def test_every_filter_counts_and_all_of_them_together(journal, query, ids):
    jobs = (
        ended(1, at_s=10.0),
        ended(2, S.FAILED, at_s=30.0, name="sim-a"),
        ended(3, at_s=20.0, name="sim-b", uid=UID + 1),
        ended(4, S.CANCELLED, at_s=40.0, started_s=None),
        builders.job(9, state=S.RUNNING),
        *([ended(5, uid=0)] if query == {"user": "root"} else []),
    )
    store(journal, jobs=jobs)

    assert ids == found(journal, **query)


@pytest.mark.parametrize(
    "query", [{"since_s": "noon"}, {"until_s": "inf"}, {"state": "DONE"}, {"select": "x"}]
)
def test_a_query_that_means_nothing_is_refused(journal, query):
    with pytest.raises(RequestError):
        found(journal, **query)


@pytest.mark.parametrize("limit", [None, 999, 1001, 2000])
def test_pages_neither_repeat_nor_lose_jobs_that_ended_at_one_time(journal, limit):
    ends = [ended(n, at_s=float(n // 700)) for n in range(1, 2101)]
    store(journal, jobs=tuple(ends))

    ids = found(journal, **({} if limit is None else {"limit": str(limit)}))

    expected = [job.id for job in sorted(ends, key=lambda j: (j.ended_s, j.id), reverse=True)]
    assert expected[:limit] == ids


# -- sums ----------------------------------------------------------------------------------------


def added_up(*jobs, by="user"):
    """The rows by key, and the total."""
    tallies = Tallies(by)
    tallies.add(jobs)
    return {row["key"]: row for row in tallies.rows()}, tallies.total()


def test_a_hand_made_set_adds_up():
    rows, total = added_up(
        ended(1, run_s=10.0, io=moved(3 * GIB, GIB), suspended_io_s=4.0),
        ended(2, S.FAILED, run_s=30.0, io=moved(0, 0), suspended_user_s=5.0, exit=Exit(code=1)),
        ended(3, S.TIMEOUT, run_s=60.0, io=moved(None, None), charged_s=75.0),
        ended(4, S.CANCELLED, started_s=None),
        ended(5, S.LOST, uid=0, run_s=1.0, io=moved(GIB, None)),
        ended(6, uid=UID + 1, run_s=1.0, io=replace(moved(GIB, 0), at_least=True)),
    )

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
        "charged_s": 115.0,  # with space: what its run takes on the slowest tier
        "mean_slowdown": pytest.approx(5.0),  # 100 s over 10, 30 and 60
        "jain_index": pytest.approx(15.0**2 / (3 * (10.0**2 + (10 / 3) ** 2 + (5 / 3) ** 2))),
    }
    at_least = {"read_bytes": GIB, "unknown_io_jobs": 1, "bandwidth_bytes_per_s": None}
    assert at_least.items() <= rows[str(UID + 1)].items()
    partly = {"jobs": 1, "failed": 1, "read_bytes": GIB, "written_bytes": None}
    partly |= {"unknown_io_jobs": 1, "bandwidth_bytes_per_s": float(GIB)}
    assert partly.items() <= rows["root"].items()
    every = {"jobs": 6, "failed": 3, "read_bytes": 5 * GIB, "charged_s": 117.0}
    every |= {"bandwidth_bytes_per_s": 5 * GIB / 41.0}
    assert every.items() <= total.items()
    assert "key" not in total


def test_who_moved_most_comes_first_and_a_program_stands_for_a_name():
    rows, _ = added_up(
        *(ended(1), ended(2, name="b", io=moved(5, 0)), ended(3, name="a", io=moved(0, 5))),
        by="name",
    )

    assert ["a", "b", "solve"] == list(rows)


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
def test_a_total_is_the_sum_of_the_rows_and_what_a_plain_sum_says(jobs, by):
    rows, total = added_up(*jobs, by=by)

    for key in ("jobs", "failed", "cancelled", "run_s", "suspended_io_s", "suspended_user_s"):
        assert total[key] == sum(row[key] for row in rows.values())
    for key in ("read_bytes", "written_bytes"):
        sizes = [row[key] for row in rows.values() if row[key] is not None]
        assert total[key] == (sum(sizes) if sizes else None)
    known = [job for job in jobs if job.io.total_bytes is not None]
    run_s = math.fsum(job.run_s for job in known)
    assert total["jobs"] == len(jobs)
    assert total["run_s"] == math.fsum(job.run_s for job in jobs)
    assert total["failed"] + total["cancelled"] == sum(job.state != S.COMPLETED for job in jobs)
    assert total["unknown_io_jobs"] == sum(
        job.started_s is not None and None in (job.io.read_bytes, job.io.written_bytes)
        for job in jobs
    )
    expected = sum(job.io.total_bytes for job in known) / run_s if run_s else None
    assert expected == total["bandwidth_bytes_per_s"]


# -- over the socket -------------------------------------------------------------------------------


def test_what_has_ended_is_answered_from_the_journal_the_last_end_at_the_end(serve):
    served = serve(kept_finished=1)
    ids = [served.ended(f"exit={code}", name="ab"[code % 2]) for code in range(3)]
    served.running()

    def ids_of(*query):
        return [job["id"] for job in served.client.history(query)["jobs"]]

    answer = served.client.history()
    assert {"version", "now_s", "jobs"} == set(answer)
    assert [0, 1, 2] == [job["exit_code"] for job in answer["jobs"]]
    assert all(a["ended_s"] <= b["ended_s"] for a, b in pairwise(answer["jobs"]))
    assert (ids, ids[1:], ids[2:]) == (ids_of(), ids_of(("state", "F")), ids_of(("limit", "1")))

    by_user = served.client.history_sums("user")
    by_name = served.client.history_sums("name", [("user", str(os.geteuid()))])
    assert [3, 2] == [by_user["total"]["jobs"], by_user["sums"][0]["failed"]]
    assert {"a": 2, "b": 1} == {row["key"]: row["jobs"] for row in by_name["sums"]}
    assert {"version", "now_s", "by", "sums", "total"} == set(by_name)


def test_the_loop_goes_on_while_a_long_history_is_read(served):
    store(served.journal, jobs=tuple(ended(n, name=f"n{n % 7}") for n in range(10, 20_010)))
    turns = []

    async def count():
        while True:
            turns.append(1)
            await asyncio.sleep(0)

    counting = asyncio.run_coroutine_threadsafe(count(), served.loop)
    answer = served.client.history_sums("name")
    counting.cancel()

    assert [20_000, 7] == [answer["total"]["jobs"], len(answer["sums"])]
    assert len(turns) > 20  # as many as there are pages; a loop that waits has one or two
