"""The fault points that are played, and the play in which each of them is passed."""

DETAILS = {
    "api.heard": ("GET", "POST"),
    "api.done": ("GET", "POST"),
}
"""Points that are one for each detail."""

ELSEWHERE = ("staging.runs", "staging.step_begun", "staging.step_done")
"""Of jobs with directories on tier disks only: tests/daemon/test_tiers_losses.py has two disks."""

SUPERVISOR_PLAYS = {
    "daily": (
        "supervisor.cgroup_made",
        "supervisor.ordered",
        "supervisor.go_sent",
        "supervisor.exec_seen",
        "supervisor.frozen",
        "supervisor.ended",
        "launcher.received",
        "launcher.cloned",
        "child.begun",
        "child.prepared",
        "child.let_go",
        "child.recorded",
        "reap.exit_recorded",
        "reap.waited",
        "reap.use_recorded",
    ),
    "another supervisor": ("supervisor.ready", "supervisor.leaving", "anchor.leaving"),
    "supervisor away": ("anchor.thawed", "anchor.starting"),
    "daemon away": ("supervisor.let_go",),
}
"""Of the root side (``iodaemon.supervisor.failpoint``); the others of it are tried by
tests/supervisor/test_supervisor_faults.py."""

DAEMON_PLAYS = {
    "daily": (
        "api.heard.GET",
        "api.heard.POST",
        "api.done.GET",
        "api.done.POST",
        "journal.queued",
        "journal.stored",
        "journal.committed",
        "journal.answered",
        "driver.performed",
        "node.prepared",
        "node.let_run",
        "sampler.sweeping",
    ),
    "stop": ("daemon.ending", "daemon.let_go"),
    "adoption": (
        "daemon.restored",
        "daemon.opened",
        "daemon.adopted",
        "daemon.noted",
        "daemon.runs",
        "client.greeted",
    ),
    "another supervisor": ("client.spawning", "client.spawned"),
}
"""Of the daemon's side, with its sampler (``supervisor.failpoint``)."""

SUPERVISOR_POINTS = {point: play for play, points in SUPERVISOR_PLAYS.items() for point in points}
POINTS = SUPERVISOR_POINTS | {
    point: play for play, points in DAEMON_PLAYS.items() for point in points
}


def are_passed(points, means):
    """Those of these that are passed where jobs are held so: by signals there is no launcher."""
    return [p for p in points if means == "cgroup" or not p.startswith("launcher.")]


DEADLY = ("child.recorded",)
"""Where the job's first process dies after it is known to run: it has ended by that signal."""
