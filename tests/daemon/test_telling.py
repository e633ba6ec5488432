"""Events, mode, trials and samples over a real socket, of a daemon with simulated jobs."""

import json
import os
import threading
from contextlib import closing

import msgspec
import pytest
from served import Served

from iodaemon.api.hints import forget_hints, list_hints
from iodaemon.config import load_policy
from iodaemon.core.decision import (
    AdmissionPlan,
    Lesson,
    LimitState,
    RegulationPlan,
    StartLimit,
    TrialStep,
)
from iodaemon.core.job import JobId, Reason
from iodaemon.core.rule import Mode
from iodaemon.core.state import CONTENTION
from iodaemon.errors import RequestError
from iodaemon.registry import shipped
from iodaemon.simulator.replay import parse_recording, replay

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


WHY = Reason(code=CONTENTION, text="2 jobs contend for memory, which is the most that gets on")
LESSON = Lesson(limit=2, too_many=6, gain=2.6, tries=2)
TRIAL = TrialStep(
    resource="memory",
    verdict="kept",
    before=6,
    tried=2,
    gain=2.6,
    text="2 at a time got 2.6 times as much done as 6 at a time",
)
LIMIT = LimitState(resource="memory", contending=2, limit=2, text=TRIAL.text)


class Learns(msgspec.Struct, frozen=True, kw_only=True):
    """A regulation that tries once, learns of every job's kind, and keeps its limit."""

    timeslice_s: float = 0.1

    def decide(self, view, memory):
        lessons = {}
        for job in view.live:
            kind = view.kind(job.id)
            if view.lesson(kind) is None:
                lessons[kind] = msgspec.structs.replace(LESSON, at_s=view.now_s)
        plan = RegulationPlan(
            starts=StartLimit(most=0, why=WHY),
            trials=() if memory else (TRIAL,),
            limits=(LIMIT,),
            lessons=lessons,
        )
        return plan, True


class Heeds(msgspec.Struct, frozen=True, kw_only=True):
    """An admission that goes by how many the regulation lets start."""

    inner: object

    def decide(self, view, memory):
        state = view._state  # as an admission of the daemon will see it
        if state.start_limit is None or not any(True for _ in view.live):
            return self.inner.decide(view, memory)
        return AdmissionPlan(rest=state.start_limit.why), memory


@pytest.fixture
def learning(serve):
    """Makes daemons on one journal, one after the other, whose regulation learns."""

    def make(**options):
        served = serve(**options)
        controller = served.driver.controller
        admission = Heeds(inner=controller.rules.admission)
        rules = msgspec.structs.replace(controller.rules, regulation=Learns(), admission=admission)
        served.call(lambda: controller.use(rules))
        return served

    return make


def kinds(served):
    return {row["key"]: row for row in list_hints(served.client)["lessons"]}


def learned(served):
    """Wait until something is, and known to be durable."""
    served.until(lambda: len(served.state.lessons) > 0)
    served.journal.flush()


def tried(served):
    """Wait until something is on the disk that was tried, or would have been."""
    served.until(
        lambda: [
            note
            for _, note in served.journal.events_since(0.0, limit=99)[0]
            if getattr(note, "kind", None) == "trial"
        ]
    )


def trials(served):
    told = served.client.events(since_s=0.0, follow=False)
    return [event for event in told if event["kind"] == "trial"]


def test_a_trial_is_an_event_and_a_job_that_waits_for_it_is_told(learning):
    served = learning()
    tried(served)
    served.running("compute=900s")
    waiting = served.submit("compute=900s")
    served.until(lambda: served.state.queue_reason(JobId(waiting)) == WHY)

    [event] = trials(served)
    answer = served.client.why(waiting)

    told = {name: getattr(TRIAL, name) for name in ("resource", "verdict", "before", "text")}
    assert told.items() <= event.items()
    assert (2.6, False) == (event["gain"], event["is_shadow"])
    assert event["at_s"] == answer["trials"][0]["at_s"]
    assert f"waits: {WHY.text}" == answer["is_so"]
    assert [msgspec.to_builtins(LIMIT)] == answer["limits"] == served.client.node()["limits"]


def test_what_was_learned_can_be_forgotten_for_good_by_whose_it_is(learning):
    served = learning()
    job_id = served.running("compute=900s")
    learned(served)
    [(key, row)] = kinds(served).items()
    fields = ("limit", "too_many", "gain", "tries", "uid")
    assert (2, 6, 2.6, 2, os.geteuid()) == tuple(row[name] for name in fields)
    assert [] == forget_hints(served.client, [key], os.geteuid() + 1)
    assert [key] == list(kinds(served))
    served.client.cancel(job_id, grace_s=0.0)
    served = learning()
    assert row == kinds(served)[key]
    assert [key] == forget_hints(served.client, [key, "like:nothing"])
    served.until(lambda: len(served.state.lessons) == 0)
    assert {} == kinds(learning())


REPLAYED = {"rule": "dynamic", "io_bound": "100 MB/s"}


def rules(name="default", **regulation):
    overrides = {"regulation": {"timeslice": "0.1 s", **regulation}}
    return load_policy(name, overrides=overrides, search=(shipped("policies"),)).rules


def recorded(directory):
    """Suspensions as the daemon noted them, and what it measured."""
    served = Served(directory, regulation=REPLAYED, mode=Mode.SHADOW, keeps_samples=True)
    try:
        ids = [
            served.submit("compute=150ms", "read=150MB", "compute=250ms", "read=100MB"),
            served.submit("read=200MB", "compute=100ms", "write=300MB"),
            served.submit("read=100MB", no_suspend=True),
        ]
        assert served.client.wait(ids, timeout_s=20.0)["finished"]
        ended_s = served.driver.timeline.now_s
        served.until(lambda: served.state.meter.last.at_s > ended_s + 0.3)
        events = list(served.client.events(since_s=0.0, follow=False))
        return events, parse_recording(served.client.samples(0.0))
    finally:
        served.close()


def test_a_replay_under_the_same_policy_gives_the_shadows_suspensions(tmp_path):
    events, recording = recorded(tmp_path)

    noted = [(e["at_s"], e["job_id"], e["verdict"]) for e in events if e["kind"] == "shadow"]
    again = replay(recording, rules(**REPLAYED)).steps
    assert len(noted) > 2
    assert noted == [(step.at_s, step.job_id, step.verdict) for step in again]
    assert () == replay(recording, rules("none")).steps
    assert {"COMPLETED"} == {str(job.state) for job in recording.jobs}
    assert [0.0] * 3 == [job.suspended_io_s for job in recording.jobs]
