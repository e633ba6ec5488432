"""What is known from earlier runs: learned, imported, forgotten, and there after a restart."""

import asyncio
import contextlib
import json
import os
import sqlite3

import pytest
from builders import MB, job, remembered
from journals import store

from iodaemon.api.hints import forget_hints, import_runs, list_hints
from iodaemon.core.forecast import Outlook
from iodaemon.core.job import IoTotals, JobState
from iodaemon.core.meter import Meter
from iodaemon.daemon import knowledge as module
from iodaemon.daemon.knowledge import Knowledge
from iodaemon.errors import RequestError

MINE = os.geteuid()
READS = ("read=50MB", "compute=0.2s")


def run(rate=5.0 * MB, **fields):
    made = {"command": ["/far/bin/job", "read=1GiB"], "ended_s": 1.6e9, "run_s": 100.0}
    made |= {"processes": 8, "read_bytes": 0, "written_bytes": round(rate * 100), "io_s": 20.0}
    made |= {"operations": 1000, "uid": None, "name": "", "job": "4711"}
    return made | fields


def hints(served, *query):
    return {
        hint["key"]: hint
        for hint in list_hints(served.client, query)["hints"]
        if hint["uid"] == MINE
    }


def expected(served, *words, **fields):
    """What is expected of a job that waits."""
    job_id = served.submit(*words, hold=True, **fields)
    return served.client.job(job_id)["expected"]


# -- learned ---------------------------------------------------------------------------------------


def test_what_a_job_did_is_expected_of_the_next_one_also_after_a_restart(serve):
    served = serve()
    first = served.client.job(served.ended(*READS, name="load"))
    rate = (first["read_bytes"] + first["written_bytes"]) / first["run_s"]

    for _ in range(2):
        found = expected(served, *READS, name="load")
        assert ("learned", "name:load", 1) == (found["source"], found["by"], found["runs"])
        assert pytest.approx(rate) == found["rate_bytes_per_s"]
        assert found["operations_per_s"] > 0.0
        served = serve()


def test_a_job_that_ended_shows_what_was_expected_and_how_wrong_that_was(served):
    first, second = (served.client.job(served.ended(*READS)) for _ in range(2))

    assert ("unknown", None) == (first["expected"]["source"], first["expected"]["rate_bytes_per_s"])
    assert first["expected_ratio"] is None
    assert "learned" == second["expected"]["source"]
    assert 0.5 < second["expected_ratio"] < 2.0
    [accuracy] = list_hints(served.client)["accuracy"]
    assert ("learned", 1) == (accuracy["source"], accuracy["predictions"])
    assert 1.0 <= accuracy["off"] < 2.0
    found = expected(served, *READS, io_rate_bytes_per_s=4e7, io_share=0.25)
    told = [found[name] for name in ("source", "rate_bytes_per_s", "io_share")]
    assert ["declared", 1e7, 0.25] == told  # what a job says goes before what was learned


def test_each_key_is_shown_with_what_is_known_of_it(served):
    served.ended(*READS, name="load")

    found = hints(served)
    assert {"name", "command", "like", "program"} == {key.partition(":")[0] for key in found}
    assert all(hint["run_s"] > 0.0 and hint["last_s"] > 1e9 for hint in found.values())
    assert ["name:load"] == list(hints(served, ("name", "lo*")))
    assert ["name:load"] == list(hints(served, ("name", "name:*")))
    assert {} == hints(served, ("user", str(MINE + 1)))
    assert 2 == len(hints(served, ("user", str(MINE)), ("limit", "2")))


# -- imported --------------------------------------------------------------------------------------


def test_a_run_elsewhere_is_expected_here_also_after_a_restart(serve):
    served = serve()

    assert {"imported": 1, "known": 0} == import_runs(served.client, [run()])
    for _ in range(2):
        found = expected(served, "read=2GiB")
        assert ("imported", "like:job read=#GiB") == (found["source"], found["by"])
        assert pytest.approx(5.0 * MB) == found["rate_bytes_per_s"]
        assert (0.2, 10.0) == (found["io_share"], found["operations_per_s"])
        served = serve()


def test_a_run_counts_once_however_often_it_is_imported(serve):
    served = serve()
    import_runs(served.client, [run()])

    assert {"imported": 1, "known": 2} == import_runs(
        served.client, [run(), run(), run(ended_s=5.0)]
    )
    assert 2 == hints(served)["program:job"]["expected"]["runs"]
    served = serve()
    assert {"imported": 0, "known": 1} == import_runs(served.client, [run()])


def test_a_run_that_cannot_be_is_refused_by_its_field(served):
    for fields, told in (
        ({"run_s": 0.0}, "run_s"),
        ({"run_s": 1e300}, "run_s"),
        ({"written_bytes": -1}, "written_bytes"),
        ({"read_bytes": 2**70}, "read_bytes"),
        ({"uid": 2**40}, "uid"),
        ({"what": 1}, "what"),
        ({"command": []}, "run 1 of 1 names no program; say with --name of which jobs it is"),
        ({"command": ["x" * 5000]}, r"command\[0\] has more than 4096 characters"),
        ({"command": ["x"] * 5000}, "command has more than 4096 elements"),
        ({"command": ["x" * 4096] * 2100}, r"a request of \d+ bytes, \d+ are the most"),
    ):
        with pytest.raises(RequestError, match=told):
            import_runs(served.client, [run(**fields)])
    with pytest.raises(RequestError, match="0 runs in one import"):
        import_runs(served.client, [])
    assert {} == hints(served)


# -- forgotten ---------------------------------------------------------------------------------


def test_a_forgotten_key_stays_forgotten_and_is_learned_anew(serve):
    served = serve()
    served.ended(*READS, name="load")

    assert ["name:load"] == forget_hints(served.client, ["name:load", "name:nothing"])
    for _ in range(2):
        assert "name:load" not in hints(served)
        assert expected(served, *READS, name="load")["by"].startswith("command:")
        served = serve()
    served.ended(*READS, name="load")
    assert 1 == hints(served)["name:load"]["expected"]["runs"]


def test_of_keys_that_nobody_has_and_of_what_is_no_key_nothing_is_kept(served, tmp_path):
    assert [] == forget_hints(served.client, [f"name:{number}" for number in range(1000)])
    for key in ("name:" + "x" * 50_000, "lu"):
        with pytest.raises(RequestError, match="is no key of a hint; 'iod hint show' lists them"):
            forget_hints(served.client, [key])
    served.close()

    with contextlib.closing(sqlite3.connect(tmp_path / "journal.db")) as db:
        assert [(0,)] == db.execute("SELECT count(*) FROM forgotten").fetchall()


# -- the journal -----------------------------------------------------------------------------------


def test_while_the_journal_cannot_be_written_nothing_is_imported(served):
    served.call(lambda: setattr(served.driver, "problem", "the disk is full"))

    for target, body in (
        ("/v1/hints", {"runs": [run()]}),
        ("/v1/hints/forget", {"keys": ["name:a"]}),
    ):
        answer = served.ask("POST", target, json.dumps(body).encode())
        assert (503, "unavailable", "the disk is full") == answer.error
    assert {} == hints(served)


COUNT = 1300


def one_that_ended(number):
    return job(
        number,
        state=JobState.COMPLETED,
        at_s=1000.0 + number // 2,  # two end together
        name=f"n{number % 40}",
        run_s=10.0,
        io=IoTotals(read_bytes=number * MB, written_bytes=0),
    )


@pytest.fixture
def past(journal):
    """A journal of jobs that have ended."""
    store(journal, jobs=tuple(map(one_that_ended, range(1, COUNT + 1))))
    return journal


def recalled(journal, *, finished, now_s=1e9):
    """What is known after the background has done, and how many jobs that took."""
    knowledge = Knowledge()
    knowledge.recall(journal.restore(finished=finished), now_s)
    outlook = Outlook(Meter(), knowledge.recollection)
    return knowledge, asyncio.run(knowledge.learn_the_past(journal, outlook))


def known(knowledge):
    return {
        row.key: (
            row.expected.runs,
            round(row.expected.confidence, 3),
            round(row.expected.rate_bytes_per_s / MB, 1),
        )
        for row in remembered(knowledge.recollection, 2000.0)
    }


def test_in_the_background_the_same_is_learned_as_at_once(past):
    at_once, none = recalled(past, finished=COUNT + 1)
    later, seen = recalled(past, finished=100)

    assert (0, COUNT - 100) == (none, seen)
    assert known(at_once) == known(later)
    assert COUNT == max(runs for runs, *_ in known(later).values())


def test_only_so_many_jobs_of_the_past_are_looked_through(past, monkeypatch):
    monkeypatch.setattr(module, "MOST_PAST", 500)

    assert 500 == recalled(past, finished=100)[1]


def test_a_hint_that_a_waiting_job_has_is_made_anew_by_the_past(past):
    knowledge = Knowledge()
    knowledge.recall(past.restore(finished=2), 1e9)
    outlook = Outlook(Meter(), knowledge.recollection)
    waits = job(9999, name="n7", command=("other",), submitted_s=2000.0)
    before = outlook.expected(waits)

    asyncio.run(knowledge.learn_the_past(past, outlook))

    assert not before.is_known
    assert "name:n7" == outlook.expected(waits).by


def test_no_run_teaches_from_the_future(past):
    knowledge, _ = recalled(past, finished=100, now_s=100.0)

    assert 100.0 == max(row.last_s for row in remembered(knowledge.recollection, 100.0))


def test_a_damaged_past_is_no_reason_to_stop(past, caplog):
    db = sqlite3.connect(past.path)
    db.execute("UPDATE life SET record = 'x' WHERE job_id = 600")
    db.commit()
    db.close()

    knowledge, seen = recalled(past, finished=100)

    assert 0 < seen < COUNT
    assert "event=past_unread problem=journal" in caplog.text
    assert known(knowledge)
