"""Whoever dies at whichever step: an attempt runs at most once, and what is told of it is true."""

import re
import signal
from pathlib import Path

import pytest
from harness import until
from root_side import by_either_means

import iodaemon.supervisor

pytestmark = pytest.mark.node
PACKAGE = Path(iodaemon.supervisor.__file__).parent
POINTS = sorted(
    {
        point
        for path in PACKAGE.glob("*.[cp]*")
        if path.suffix in (".c", ".py")
        for point in re.findall(r'reach\("([a-z_.]+)"\)', path.read_text())
    }
)
ON_THE_WAY = [
    point
    for point in POINTS
    if point.split(".")[0] in ("launcher", "child", "reap")
    or point in ("supervisor.cgroup_made", "supervisor.ordered", "supervisor.go_sent",
                 "supervisor.exec_seen", "supervisor.ended", "supervisor.ready")
]  # fmt: skip


def test_every_point_is_tried_here_or_named():
    elsewhere = {
        "anchor.starting", "anchor.thawed", "anchor.reaped", "anchor.silence", "anchor.reexec",
        "anchor.leaving", "supervisor.held", "supervisor.frozen", "supervisor.let_go",
        "supervisor.begun", "supervisor.reexec", "supervisor.leaving",
        "holder.frozen", "holder.recorded", "scratch.made", "scratch.unlinked",
    }  # fmt: skip

    assert elsewhere.union(ON_THE_WAY) == set(POINTS)


@pytest.mark.parametrize(
    ("point", "launcher"),
    [
        (point, launcher)
        for point in ON_THE_WAY
        for launcher in ("compiled", "python")
        if point != "supervisor.ready"
        if launcher == "compiled" or point.startswith(("launcher.", "child."))
    ],
)
def test_a_death_on_the_way_of_a_job(point, make_root):
    root = make_root("cgroup")
    lines = root.directory / "lines"
    daemon = root.connect()
    root.arm(point)
    try:
        daemon.start("1.1", "sh", "-c", f"echo x >> {lines}; exit 7")
        daemon.await_state("1.1", "ended", "failed")
    except (ConnectionError, TimeoutError):
        pass
    outcome = root.outcome("1.1")
    ran = lines.read_text() if lines.exists() else ""

    assert root.has_fired(point)
    if point == "child.let_go":
        assert ("failed", "died", "") == (outcome["state"], outcome["code"], ran)
    elif point == "child.recorded":
        assert ("ended", 9, "") == (outcome["state"], outcome["exit"]["signal"], ran)
    elif outcome["state"] in ("absent", "failed"):
        assert "" == ran
    else:
        assert ("ended", 7, "x\n") == (outcome["state"], outcome["exit"]["code"], ran)

    again = root.connect()
    if outcome["state"] in ("absent", "failed"):
        again.start("1.1", "sh", "-c", f"echo x >> {lines}; exit 7")

        assert 7 == again.await_state("1.1", "ended")["exit"]["code"]
    again.say("forget", key="1.1")
    until(lambda: not root.job_cgroup("1.1").exists())


@pytest.mark.parametrize("point", ["holder.recorded", "child.begun", "child.prepared"])
def test_a_death_on_the_way_of_a_job_with_a_holder(point, make_root):
    root = make_root("processes")
    daemon = root.connect()
    root.arm(point)
    daemon.start("1.1", "sh", "-c", "exit 7")
    end = daemon.await_state("1.1", "ended", "failed")

    assert root.has_fired(point)
    assert end.get("exit", {}).get("code", 7) == 7

    assert 7 == daemon.code_of("1.1", "exit 7")


@pytest.mark.parametrize("point", ["anchor.thawed", "anchor.starting"])
def test_a_death_of_the_anchor_after_the_supervisors(point, make_root):
    root = make_root("cgroup")
    daemon = root.connect()
    daemon.run("1.1", "sleep", "1000")
    daemon.hold("1.1")
    root.arm(point)
    root.kill("iod-supervisor")
    root.process.wait()
    root.begin()
    again = root.find("1.1")
    again.await_state("1.1", "running", frozen=False)
    again.say("kill", key="1.1")

    assert again.await_state("1.1", "lost", "ended")["whole"] is False


@by_either_means
@pytest.mark.parametrize("point", ["supervisor.held", "supervisor.frozen"])
def test_a_death_while_freezing(point, root):
    daemon = root.connect()
    daemon.run("1.1", "sh", "-c", "while :; do sleep 0.01; done")
    root.arm(point)
    daemon.say("freeze", key="1.1")
    until(lambda: root.has_fired(point))
    again = root.connect()
    again.sync(**{"1_1": "freeze"})
    again.await_state("1.1", "running", frozen=True)
    again.thaw("1.1")


@pytest.mark.parametrize("point", ["supervisor.reexec", "supervisor.ready"])
def test_a_death_as_it_becomes_the_installed_program_or_begins(point, root):
    daemon = root.connect()
    daemon.run("1.1", "sleep", "1000")
    root.arm(point)
    daemon.say("reexec")
    until(lambda: root.has_fired(point))
    again = root.find("1.1")
    again.say("signal", key="1.1", number=int(signal.SIGTERM))

    assert 15 == again.await_state("1.1", "ended")["exit"]["signal"]

    assert 2 == again.code_of("2.1", "exit 2")
