"""Events, mode, drain, trials and samples over a real socket, of a daemon with simulated jobs."""

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import msgspec
import pytest
from served import SHARED, Served

from iodaemon.api.care import begin_drain, end_drain, reload_config, show_drain
from iodaemon.api.hints import forget_hints, list_hints
from iodaemon.cli import main
from iodaemon.config import load_policy
from iodaemon.core.decision import Lesson, LimitState, RegulationPlan, TrialStep
from iodaemon.core.job import JobId
from iodaemon.core.rule import Mode
from iodaemon.daemon.http.access import Actor
from iodaemon.doctor.running_daemon import judge_condition
from iodaemon.errors import NotPermitted, RequestError
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


def listen(served, seen, **query):
    """Collect events in a thread, which ends with the daemon."""

    def run():
        with closing(served.client.events(**query)) as events:
            seen.extend(events)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


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


def test_evidence_and_a_switch_which_outlives_the_daemon_are_events_too(serve):
    served, seen = serve(regulation=BOUND), []
    assert {"mode": "on", "shadow_suspended_s": {}} == served.client.mode()
    thread = listen(served, seen)
    served.await_waiting(1)
    job_id = held(served)
    served.client.switch("off")
    served.until(lambda: state_of(served, job_id) == "RUNNING")
    served.until(lambda: any(event["kind"] == "mode" for event in seen))
    told = past(served, since_s=0.0)
    served.close()
    thread.join()

    evidence = next(event for event in seen if event["kind"] == "evidence")
    assert not evidence["is_shadow"]
    assert "suspend" in {row["verdict"] for row in evidence["jobs"]}
    switch = next(event for event in seen if event["kind"] == "mode")
    assert {"id", "kind", "at_s", "mode", "by"} == set(switch)
    assert "off" == switch["mode"] == serve().client.mode()["mode"]
    assert evidence in told
    assert switch in told


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
        kinds = {view.kind(job.id) for job in view.live}
        new = [kind for kind in kinds if view.lesson(kind) is None]
        lessons = {kind: msgspec.structs.replace(LESSON, at_s=view.now_s) for kind in new}
        trials = () if memory else (TRIAL,)
        return RegulationPlan(trials=trials, limits=(LIMIT,), lessons=lessons), True


@pytest.fixture
def learning(serve):
    """Makes daemons on one journal, one after the other, whose regulation learns."""

    def make():
        served = serve()
        controller = served.driver.controller
        rules = msgspec.structs.replace(controller.rules, regulation=Learns())
        served.call(lambda: controller.use(rules))
        return served

    return make


def kinds(served):
    return {row["key"]: row for row in list_hints(served.client)["lessons"]}


def test_what_was_tried_and_learned_is_told_and_can_be_forgotten_by_whose_it_is(learning):
    served = learning()
    job_id = served.running("compute=900s")
    served.until(lambda: len(served.state.lessons) > 0)
    served.journal.flush()
    [event] = [each for each in past(served, since_s=0.0) if each["kind"] == "trial"]
    [(key, row)] = kinds(served).items()

    told = {name: getattr(TRIAL, name) for name in ("resource", "verdict", "before", "text")}
    assert told.items() <= event.items()
    assert (2.6, False) == (event["gain"], event["is_shadow"])
    assert [msgspec.to_builtins(LIMIT)] == served.client.node()["limits"]
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
        pages = list(served.client.samples(0.0))
        return past(served, since_s=0.0), pages
    finally:
        served.close()


def test_a_replay_of_the_samples_gives_the_shadows_suspensions(tmp_path, monkeypatch):
    monkeypatch.setattr("iodaemon.daemon.http.routes.events._MOST_SAMPLES", 2)
    events, pages = recorded(tmp_path)
    recording = parse_recording(pages)

    noted = [(e["at_s"], e["job_id"], e["verdict"]) for e in events if e["kind"] == "shadow"]
    again = replay(recording, rules(**REPLAYED)).steps
    assert len(noted) > 2
    assert noted == [(step.at_s, step.job_id, step.verdict) for step in again]
    assert () == replay(recording, rules("none")).steps
    times = [sample["at_s"] for page in pages for sample in page["samples"]]
    assert sorted(set(times)) == times
    assert 5 <= len(times) <= 2 * len(pages)
    assert {"COMPLETED"} == {str(job.state) for job in recording.jobs}
    assert [0.0] * 3 == [job.suspended_io_s for job in recording.jobs]


@pytest.fixture
def iod(served, capsys):
    """Exit code and standard output of the command line."""

    def call(*words):
        code = main(["--api", served.socket_path, *words])
        return code, capsys.readouterr().out

    return call


def test_the_condition_stands_wherever_the_node_is_shown(served, iod):
    begin_drain(served.client, "new memory")
    begin_drain(served.client, "")  # the reason stays
    served.client.switch("shadow")
    drain = {"since_s": served.state.drain.since_s, "by": "root", "reason": "new memory"}
    expected = {"mode": "shadow", "drain": drain, "starts_blocked": ""}

    assert expected == served.client.jobs()["node"]["condition"]
    assert expected == served.client.node()["condition"]
    assert "iodaemon_draining 1.0" in served.ask("GET", "/metrics").body.decode()
    served.client.submit([{"command": ["exit=0"]}], {})
    mode, drain = judge_condition(served.client.node())
    assert "nothing starts, the node is drained by root: new memory" == drain.measured
    for verb in ("queue", "node", "mode", "drain"):
        code, told = iod(verb)
        assert 0 == code
        assert (verb != "drain") == (mode.measured in told)
        assert (verb != "mode") == (drain.measured in told)
    assert drain.measured in " ".join(iod("why", "1")[1].split())
    end_drain(served.client)
    began, ended = iod("events", "--kind", "drain")[1].splitlines()
    assert "new memory" in began
    assert "jobs start again" in ended
    served.client.switch("on")
    assert [] == list(judge_condition(served.client.node()))


def test_drain_alone_shows_and_changes_nothing(iod):
    for words, expected in (
        ((), False),
        (("on",), True),
        ((), True),
        (("off",), False),
        (("--reason", "x"), True),
        (("--off",), False),
        (("--wait",), True),
    ):
        code, told = iod("drain", "--json", *words)
        assert (0, expected) == (code, json.loads(told)["draining"])
    for words in (("on", "--off"), ("off", "--wait"), ("--off", "--wait"), ("onn",)):
        assert (2, "") == iod("drain", *words)


def test_a_wait_ends_when_somebody_ends_the_drain(served):
    job_id = served.running()
    begin_drain(served.client)
    with ThreadPoolExecutor() as others:
        waiting = others.submit(show_drain, served.client, 20)
        served.await_waiting(1)
        end_drain(served.client)
        told = waiting.result()

    assert (False, [job_id]) == (told["draining"], [job["id"] for job in told["holding"]])


def test_who_is_no_administrator_may_look_and_not_order(serve, monkeypatch):
    ann = Actor(pid=1, uid=1001, gids=frozenset({1001}))
    monkeypatch.setattr("iodaemon.daemon.http.access.read_peer", lambda _: ann)
    served = serve(rights=SHARED)

    assert not show_drain(served.client)["draining"]
    for order in (begin_drain, end_drain, reload_config):
        with pytest.raises(NotPermitted, match="root and the daemon's group may"):
            order(served.client)
