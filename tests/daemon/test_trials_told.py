"""What a regulation tries and learns is told by every route of a daemon, and outlives it."""

import os

import msgspec
import pytest

from iodaemon.api.hints import forget_hints, list_hints
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


def test_in_shadow_a_trial_is_told_and_nothing_is_limited(learning):
    served = learning(mode=Mode.SHADOW)
    served.running("compute=900s")
    served.running("compute=900s")
    tried(served)

    assert {True} == {event["is_shadow"] for event in trials(served)}
    assert ([], {}) == (served.client.node()["limits"], kinds(served))


def test_what_was_learned_is_shown_to_be_its_users_and_outlives_the_daemon(learning):
    served = learning()
    served.running("compute=900s")
    learned(served)
    [first] = kinds(served).values()

    again = kinds(learning())[first["key"]]

    assert (2, 6, 2.6, 2, os.geteuid()) == tuple(
        first[name] for name in ("limit", "too_many", "gain", "tries", "uid")
    )
    assert first == again


def test_what_was_learned_can_be_forgotten_for_good_by_whose_it_is(learning):
    served = learning()
    job_id = served.running("compute=900s")
    learned(served)
    [key] = kinds(served)
    assert [] == forget_hints(served.client, [key], os.geteuid() + 1)
    assert [key] == list(kinds(served))
    served.client.cancel(job_id, grace_s=0.0)

    assert [key] == forget_hints(served.client, [key, "like:nothing"])
    served.until(lambda: len(served.state.lessons) == 0)
    assert {} == kinds(learning())
