"""All fault points of the product, and the play in which each of them is passed."""

VERBS = ("hello", "start", "freeze", "thaw", "kill", "list", "tidy", "leave")
"""What the keeper can be asked."""

SERVICE_VERBS = ("retire",)
"""What only the system's daemon asks, of the keeper of another unit: in no play."""

CAP_VERBS = ("cap",)
"""What is asked where jobs' cgroups have io.max: tests/vm/test_vm_caps.py, in no play."""

SCRATCH_VERBS = ("scratch",)
"""What is asked about jobs with directories on tier disks: tests/daemon/test_tiers_deaths.py."""

SCRATCH_POINTS = (
    *("scratch.noted", "scratch.made", "scratch.given", "stage.in_begun", "stage.out_begun"),
    *("stage.out_forked", "stage.out_done", "scratch.sweeping", "scratch.closed"),
    *("scratch.unlinked", "scratch.removed", "scratch.forgotten"),
)
"""Of such jobs alone: played by tests/daemon/test_tiers_deaths.py, which needs two disks."""

DETAILS = {
    "keeper.heard": VERBS,
    "keeper.done": VERBS,
    "keeper.answered": VERBS,
    "link.asking": VERBS[1:],
    "link.asked": VERBS[1:],
    "link.told": VERBS[1:],
    "api.heard": ("GET", "POST"),
    "api.done": ("GET", "POST"),
    "file.written": ("status.json", "keeper.json"),
    "file.named": ("status.json", "keeper.json"),
    "file.synced": ("status.json",),
}
"""Points that are one for each detail."""

PLAYS = {
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
        *(f"link.{word}.{verb}" for word in ("asking", "asked", "told") for verb in VERBS[1:5]),
        *(f"keeper.{word}.{verb}" for word in ("heard", "done", "answered") for verb in VERBS[1:5]),
        "keeper.directory_made",
        "keeper.cgroup_made",
        "keeper.ordered",
        "keeper.reported_to",
        "claim.written",
        "claim.linked",
        "file.written.status.json",
        "file.named.status.json",
        "file.synced.status.json",
        "shim.begun",
        "shim.forked",
        "shim.claimed",
        "shim.prepared",
        "shim.let_go",
        "shim.told",
        "shim.reaped",
        "shim.emptied",
        "shim.written",
        "shim.over",
        "job.forked",
        "job.ready",
        "node.end_found",
    ),
    "stop": (
        "daemon.ending",
        "daemon.let_go",
        *(f"link.{word}.leave" for word in ("asking", "asked", "told")),
        *(f"keeper.{word}.leave" for word in ("heard", "done", "answered")),
    ),
    "adoption": (
        "daemon.restored",
        "daemon.opened",
        "daemon.adopted",
        "daemon.noted",
        "daemon.runs",
        "link.greeted",
        *(f"link.{word}.list" for word in ("asking", "asked", "told")),
        *(
            f"keeper.{word}.{verb}"
            for word in ("heard", "done", "answered")
            for verb in ("hello", "list")
        ),
    ),
    "another keeper": (
        "link.spawning",
        "link.spawned",
        "keeper.forked",
        "keeper.took_over",
        "keeper.leaving",
        "file.written.keeper.json",
        "file.named.keeper.json",
    ),
    "bereaved": (
        "keeper.reaped",
        *(f"link.{word}.tidy" for word in ("asking", "asked", "told")),
        *(f"keeper.{word}.tidy" for word in ("heard", "done", "answered")),
    ),
    "daemon away": ("keeper.let_one_go",),
    "both away": ("shim.thawed",),
}
"""What is played, and the points that are passed in it."""

POINTS = {point: play for play, points in PLAYS.items() for point in points}

DEADLY = ("shim.", "claim.", "file.written.status", "file.named.status", "file.synced.status")
"""Where it is a shim that dies: its job may be LOST, which is the truth then."""
