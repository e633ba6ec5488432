"""Why, events, mode and samples over a real socket, of a daemon with simulated jobs."""

import json
import threading
from contextlib import closing

import pytest

from iodaemon.core.job import JobId
from iodaemon.core.rule import Mode
from iodaemon.errors import RequestError

BOUND = {"rule": "dynamic", "io_bound": "10 MB/s"}
"""Any one reader of the simulated disk is far above it."""
NEVER_BACK = {"rule": "adaptive", "io_bound": "10 MB/s"}
READER = "read=900GiB"
LIFE = ["PENDING", "STARTING", "RUNNING", "COMPLETED"]


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


def past(served, **query):
    return list(served.client.events(follow=False, **query))


# -- why -----------------------------------------------------------------------------------------


def test_why_of_a_suspended_job_says_who(served):
    job_id = served.running()
    served.client.suspend(job_id)

    assert served.client.why(job_id)["is_so"].startswith("stands still: suspended by ")


def test_why_of_a_job_held_for_io_has_the_table_of_the_slice(serve):
    served = serve(regulation=NEVER_BACK)
    job_id = held(served)

    answer = served.client.why(job_id)

    evidence = answer["evidence"]
    assert "suspend" == {row["job_id"]: row["verdict"] for row in evidence["jobs"]}[job_id]
    assert "total of all jobs" == evidence["signal"]
    assert evidence["value"] > evidence["threshold"]
    assert evidence["fits"] is None
    assert "io_bound is 10.0 MB/s" in answer["is_so"]
    assert "there is room for its I/O (all together may bring 10.0 MB/s)" in answer["until"]


# -- events --------------------------------------------------------------------------------------


def listen(served, seen, **query):
    """Collect events in a thread, which ends with the daemon."""

    def run():
        with closing(served.client.events(**query)) as events:
            seen.extend(events)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_the_past_is_told_from_where_it_is_asked_for_and_ends(served):
    first, last = served.ended("exit=3"), served.ended()

    every = past(served, since_s=0.0)

    mine = [event for event in every if event["job_id"] == first]
    assert [None, *LIFE[:3]] == [event["before"] for event in mine]
    assert [*LIFE[:3], "FAILED"] == [event["after"] for event in mine]
    assert "exit code 3" == mine[-1]["reason"]["text"]
    assert LIFE == [event["after"] for event in every if event["job_id"] == last]
    assert {"moved"} == {event["kind"] for event in every}
    since_s = every[-1]["at_s"]
    later = [event for event in every if event["at_s"] >= since_s]
    assert later == past(served, since_s=since_s)
    assert len(later) < len(every)
    assert [] == past(served)  # without a time there is no past


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
        assert [(job_id, state) for job_id in ids for state in sorted(LIFE)] == steps


def test_evidence_and_switches_are_events_too(serve):
    served, seen = serve(regulation=BOUND), []
    thread = listen(served, seen)
    served.await_waiting(1)
    held(served)
    served.client.switch("off")
    served.until(lambda: any(event["kind"] == "mode" for event in seen))
    told = past(served, since_s=0.0)
    served.close()
    thread.join()

    evidence = next(event for event in seen if event["kind"] == "evidence")
    assert not evidence["is_shadow"]
    assert "suspend" in {row["verdict"] for row in evidence["jobs"]}
    switch = next(event for event in seen if event["kind"] == "mode")
    assert {"id", "kind", "at_s", "mode", "by"} == set(switch)
    assert "off" == switch["mode"]
    assert evidence in told
    assert switch in told


# -- mode ----------------------------------------------------------------------------------------


def test_a_switch_takes_effect_and_outlives_the_daemon(serve):
    served = serve(regulation=NEVER_BACK)
    assert {"mode": "on", "shadow_suspended_s": {}} == served.client.mode()
    job_id = held(served)
    served.client.switch("off")
    served.until(lambda: state_of(served, job_id) == "RUNNING")

    assert "off" == served.client.mode()["mode"]
    assert "off" == serve().client.mode()["mode"]


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


@pytest.mark.parametrize("is_known", [False, True], ids=["found out now", "known"])
def test_a_full_journal_refuses_a_switch_and_nothing_is_switched(served, is_known):
    served.call(lambda: served.journal._writer.execute("PRAGMA query_only=ON"))
    if is_known:
        with pytest.raises(RequestError):
            served.submit()
    answer = served.ask("POST", "/v1/mode", json.dumps({"mode": "off"}).encode())
    mode = served.client.mode()["mode"]
    served.call(lambda: served.journal._writer.execute("PRAGMA query_only=OFF"))

    assert (503, "unavailable") == answer.error[:2]
    assert "on" == mode


# -- samples -------------------------------------------------------------------------------------


def test_samples_are_kept_where_that_is_asked_for_and_come_page_by_page(serve, monkeypatch):
    monkeypatch.setattr("iodaemon.daemon.http.routes.events._MOST_SAMPLES", 2)
    served, seen = serve(keeps_samples=True), set()
    job_id = served.running(READER)

    def has_seen_six():
        if served.state.meter.last is not None:
            seen.add(served.state.meter.last.at_s)
        return len(seen) > 5

    served.until(has_seen_six)
    served.client.switch("off")
    until_s = served.driver.timeline.now_s
    served.journal.flush()

    pages = list(served.client.samples(0.0))

    samples = [sample for page in pages for sample in page["samples"]]
    times = [sample["at_s"] for sample in samples if sample["at_s"] < until_s]
    assert len(pages) > 2
    assert sorted(set(times)) == times
    assert len(times) >= 5
    assert samples[-1]["jobs"][str(job_id)]["read_bytes"] > 0
    assert [job_id] == [job["id"] for job in pages[-1]["jobs"]]
    assert 2 == len(pages[0]["platform"]["partitions"])


def test_otherwise_there_are_none(served):
    assert [] == list(served.client.samples(0.0))
