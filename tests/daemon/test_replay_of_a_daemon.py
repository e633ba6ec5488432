"""A daemon in shadow, and a replay of what it measured: both say the same."""

from served import Served

from iodaemon.config import load_policy
from iodaemon.core.rule import Mode
from iodaemon.registry import shipped
from iodaemon.simulator.replay import parse_recording, replay

BOUND = {"rule": "dynamic", "io_bound": "100 MB/s"}


def rules(name="default", **regulation):
    overrides = {"regulation": {"timeslice": "0.1 s", **regulation}}
    return load_policy(name, overrides=overrides, search=(shipped("policies"),)).rules


def recorded(directory):
    """Suspensions as the daemon noted them, and what it measured."""
    served = Served(directory, regulation=BOUND, mode=Mode.SHADOW, keeps_samples=True)
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
    again = replay(recording, rules(**BOUND)).steps
    assert len(noted) > 2
    assert noted == [(step.at_s, step.job_id, step.verdict) for step in again]
    assert () == replay(recording, rules("none")).steps
    assert {"COMPLETED"} == {str(job.state) for job in recording.jobs}
    assert [0.0] * 3 == [job.suspended_io_s for job in recording.jobs]
