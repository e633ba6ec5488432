"""Why, events, mode and samples over a real socket, of a daemon with simulated jobs."""

import json
import threading
from contextlib import closing

import pytest
from served import Served

from iodaemon.core.job import JobId
from iodaemon.core.rule import Mode
from iodaemon.errors import NotFound, RequestError

BOUND = {"rule": "dynamic", "io_bound": "10 MB/s"}
"""Any one reader of the simulated disk is far above it."""
NEVER_BACK = {"rule": "adaptive", "io_bound": "10 MB/s"}
READER = "read=900GiB"


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    served = Served(tmp_path_factory.mktemp("shared"))
    yield served
    served.close()


@pytest.fixture
def serve(tmp_path):
    """Makes daemons on one journal."""
    made = []

    def serve(**options):
        made.append(Served(tmp_path, **options))
        return made[-1]

    yield serve
    for each in made:
        each.close()


def state_of(served, job_id):
    return served.state.jobs[JobId(job_id)].state


def held(served):
    """Two readers above a cap; the one that the rule took off, and keeps off."""
    ids, found = [served.running(READER), served.running(READER)], []

    def look():
        found.extend(i for i in ids if state_of(served, i) == "SUSPENDED_IO")
        return found

    served.until(look)
    return found[0]


# -- why -----------------------------------------------------------------------------------------


def test_why_of_a_suspended_job_says_who(shared):
    job_id = shared.running()
    shared.client.suspend(job_id)

    assert shared.client.why(job_id)["is_so"].startswith("stands still: suspended by ")


def test_why_of_an_ended_job_is_its_end(shared):
    answer = shared.client.why(shared.ended("exit=3"))

    assert ("failed: exit code 3", "") == (answer["is_so"], answer["until"])


def test_why_of_a_job_that_only_the_journal_knows(serve):
    served = serve(kept_finished=1)
    first = served.ended("exit=3")
    served.ended()
    served.running()

    assert JobId(first) not in served.state.jobs
    assert "failed: exit code 3" == served.client.why(first)["is_so"]


def test_why_of_a_job_held_for_io_has_the_table_of_the_slice(serve):
    served = serve(regulation=NEVER_BACK)
    job_id = held(served)

    answer = served.client.why(job_id)

    verdicts = {row["job_id"]: row["verdict"] for row in answer["evidence"]["jobs"]}
    assert "suspend" == verdicts[job_id]
    assert "total of all jobs" == answer["evidence"]["signal"]
    assert answer["evidence"]["value"] > answer["evidence"]["threshold"]
    assert "io_bound is 10.0 MB/s" in answer["is_so"]
    assert "there is room for its I/O (all together may bring 10.0 MB/s)" in answer["until"]
    assert answer["evidence"]["fits"] is None


def test_why_of_a_job_that_does_not_exist_is_not_found(shared):
    with pytest.raises(NotFound, match="no job 999999"):
        shared.client.why(999999)


# -- events --------------------------------------------------------------------------------------


def listen(served, seen, **query):
    """Collect events in a thread, which ends with the daemon."""

    def run():
        with closing(served.client.events(**query)) as events:
            seen.extend(events)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_the_past_is_told_and_ends(serve):
    served = serve()
    job_id = served.ended()

    past = list(served.client.events(since_s=0.0, follow=False))

    assert ["PENDING", "STARTING", "RUNNING", "COMPLETED"] == [e["after"] for e in past]
    assert {(job_id, "moved")} == {(event["job_id"], event["kind"]) for event in past}


def test_without_a_time_there_is_no_past(serve):
    served = serve()
    served.ended()

    assert [] == list(served.client.events(follow=False))


def test_the_past_begins_where_it_is_asked_for(serve):
    served = serve()
    served.ended()
    served.ended()
    every = list(served.client.events(since_s=0.0, follow=False))
    since_s = every[-1]["at_s"]

    expected = [event for event in every if event["at_s"] >= since_s]
    assert expected == list(served.client.events(since_s=since_s, follow=False))
    assert len(expected) < len(every)


def test_past_and_present_leave_nothing_out_and_tell_nothing_twice(serve):
    """Listeners come while jobs come and go; each sees every step once."""
    served, heard = serve(), [[] for _ in range(8)]
    threads, ids = [], []
    for seen in heard:
        ids += served.client.submit([{"command": ["job", "exit=0"]}] * 5, {"A": "1"})
        threads.append(listen(served, seen, since_s=0.0))
    assert served.client.wait(ids, timeout_s=20.0)["finished"]
    complete = len(ids) * 4
    served.until(lambda: all(len(seen) >= complete for seen in heard))
    served.close()
    for thread in threads:
        thread.join()

    for seen in heard:
        steps = sorted((e["job_id"], e["after"]) for e in seen)
        after = ("COMPLETED", "PENDING", "RUNNING", "STARTING")
        assert [(job_id, state) for job_id in ids for state in after] == steps


def test_evidence_and_switches_are_events_too(serve):
    served, seen = serve(regulation=BOUND), []
    thread = listen(served, seen)
    served.await_waiting(1)
    held(served)
    served.client.switch("off")
    served.until(lambda: any(event["kind"] == "mode" for event in seen))
    past = list(served.client.events(since_s=0.0, follow=False))
    served.close()
    thread.join()

    evidence = next(event for event in seen if event["kind"] == "evidence")
    assert not evidence["is_shadow"]
    assert "suspend" in {row["verdict"] for row in evidence["jobs"]}
    switch = next(event for event in seen if event["kind"] == "mode")
    assert {"id", "kind", "at_s", "mode", "by"} == set(switch)
    assert "off" == switch["mode"]
    assert evidence in past
    assert switch in past


@pytest.mark.parametrize("since", ["x", "", "1e"])
def test_a_time_that_is_none_is_refused_in_one_line(shared, since):
    status, code, message = shared.ask("GET", f"/v1/events?since={since}").error

    assert (400, "refused") == (status, code)
    assert "write seconds since 1970" in message


# -- mode ----------------------------------------------------------------------------------------


def test_regulation_is_on_until_it_is_switched(serve):
    served = serve()

    assert {"mode": "on", "shadow_suspended_s": {}} == served.client.mode()


def test_a_switch_takes_effect(serve):
    served = serve(regulation=NEVER_BACK)
    job_id = held(served)
    served.client.switch("off")
    served.until(lambda: state_of(served, job_id) == "RUNNING")

    assert "off" == served.client.mode()["mode"]


def test_in_shadow_it_is_told_how_long_jobs_would_have_stood_still(serve):
    served = serve(regulation=NEVER_BACK, mode=Mode.SHADOW)
    ids = [served.running(READER), served.running(READER)]
    stood_s = served.driver.controller.regulator.shadow.stood_s
    served.until(lambda: max(stood_s(served.driver.timeline.now_s).values(), default=0) > 0.3)

    answer = served.client.mode()

    assert "shadow" == answer["mode"]
    assert {str(i) for i in ids} >= set(answer["shadow_suspended_s"])
    assert max(answer["shadow_suspended_s"].values()) > 0.3
    assert {"RUNNING"} == {state_of(served, i) for i in ids}
    told = [served.client.why(i)["is_so"] for i in ids]
    assert any("in shadow it would stand still, since " in text for text in told)


def test_a_switch_outlives_the_daemon(serve):
    first = serve()
    first.client.switch("shadow")
    first.close()

    assert "shadow" == serve().client.mode()["mode"]


def test_a_mode_that_does_not_exist_is_refused(shared):
    body = json.dumps({"mode": "bogus"}).encode()

    assert 400 == shared.ask("POST", "/v1/mode", body).error[0]
    assert "on" == shared.client.mode()["mode"]


@pytest.mark.parametrize("is_known", [False, True], ids=["found out now", "known"])
def test_a_full_journal_refuses_a_switch_and_nothing_is_switched(serve, is_known):
    served = serve()
    served.call(lambda: served.journal._writer.execute("PRAGMA query_only=ON"))
    if is_known:
        with pytest.raises(RequestError):
            served.submit()
    answer = served.ask("POST", "/v1/mode", b'{"mode": "off"}')
    mode = served.client.mode()["mode"]
    served.call(lambda: served.journal._writer.execute("PRAGMA query_only=OFF"))

    assert (503, "unavailable") == answer.error[:2]
    assert "on" == mode


# -- samples -------------------------------------------------------------------------------------


def test_samples_are_kept_where_that_is_asked_for(serve):
    served = serve(keeps_samples=True)
    job_id = served.running(READER)
    served.until(lambda: served.state.meter.bandwidth(JobId(job_id)) is not None)
    served.journal.flush()

    pages = list(served.client.samples(0.0))  # a slow machine takes more samples than one has room
    samples = [sample for page in pages for sample in page["samples"]]

    assert sorted(sample["at_s"] for sample in samples) == [sample["at_s"] for sample in samples]
    assert samples[-1]["jobs"][str(job_id)]["read_bytes"] > 0
    assert [job_id] == [job["id"] for job in pages[-1]["jobs"]]
    assert 2 == len(pages[0]["platform"]["partitions"])


def test_samples_come_page_by_page_each_once(serve, monkeypatch):
    monkeypatch.setattr("iodaemon.daemon.http.routes.events._MOST_SAMPLES", 2)
    served, seen = serve(keeps_samples=True), set()
    served.running(READER)

    def has_seen_six():
        if served.state.meter.last is not None:
            seen.add(served.state.meter.last.at_s)
        return len(seen) > 5

    served.until(has_seen_six)
    served.client.switch("off")
    until_s = served.driver.timeline.now_s

    pages = list(served.client.samples(0.0))

    times = [s["at_s"] for page in pages for s in page["samples"] if s["at_s"] < until_s]
    assert len(pages) > 2
    assert sorted(set(times)) == times
    assert len(times) >= 5


def test_otherwise_there_are_none(shared):
    assert [] == list(shared.client.samples(0.0))
