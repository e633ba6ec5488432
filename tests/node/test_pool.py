"""One shim serves one job after another, and none of them notices; whatever dies in between."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest
from harness import end, marked, until
from keeping import Keeper, keeper

from iodaemon.backend.linux.process import children_of, find_state
from iodaemon.backend.linux.shim import MOST_JOBS

__all__ = ["keeper"]

pytestmark = [pytest.mark.node, pytest.mark.slow]

PROBE = """
import json, os, resource, signal
def status(pid):
    lines = (line.partition(":") for line in open(f"/proc/{pid}/status"))
    return {name: value.strip() for name, _, value in lines}
def text(path):
    try:
        return open(path).read().strip()
    except OSError as error:
        return error.errno
names = ["SigBlk", "SigIgn", "SigCgt", "SigPnd", "ShdPnd", "CapInh", "CapPrm", "CapEff", "CapBnd",
         "CapAmb", "NoNewPrivs", "Seccomp", "Mems_allowed", "Groups", "Uid", "Gid", "Umask",
         "Cpus_allowed", "Threads"]
mine = status("self")
stat = text("/proc/self/stat").rpartition(")")[2].split()
print(json.dumps({
    **{name: mine.get(name) for name in names},
    "descriptors": sorted(map(int, os.listdir("/proc/self/fd"))),
    "input": os.readlink("/proc/self/fd/0"),
    "cwd": os.getcwd(),
    "environment": dict(os.environ),
    "cpus": sorted(os.sched_getaffinity(0)),
    "limits": {name: resource.getrlimit(getattr(resource, name))
               for name in sorted(vars(resource)) if name.startswith("RLIMIT")},
    "leads": [os.getpid() == os.getsid(0) == os.getpgid(0)],
    "terminal": stat[4],
    "nice": [os.nice(0), os.sched_getscheduler(0)],
    "oom": text("/proc/self/oom_score_adj"),
    "slack": text("/proc/self/timerslack_ns"),
    "dump": text("/proc/self/coredump_filter"),
    "personality": text("/proc/self/personality"),
    "memory": os.path.exists("/proc/self/numa_maps")
    and sorted({line.split()[1] for line in open("/proc/self/numa_maps")}),
    "children": text(f"/proc/self/task/{os.getpid()}/children"),
}))
"""

WILD = """
ulimit -n 64; ulimit -c 0; umask 0; trap '' HUP INT TERM PIPE; exec 7>&1; cd /
echo 500 > /proc/self/oom_score_adj; renice 10 $$ > /dev/null
head -c 3000000 /dev/zero > /dev/null; kill -KILL $$
"""
"""A job that changes whatever it can, and ends badly."""


WORK = """
head -c 9000000 /dev/zero | wc -c; i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; exit 3
"""
"""A job that moves bytes and uses its CPU."""


def attempt(job):
    return {"job": job, "attempt": 1}


def start(line, job, launch):
    return line.ask("start", **attempt(job), launch=launch)["shim"]["pid"]


def run(line, keeper, job, launch):
    """Start it and wait until its shim is idle, or has ended; the shim."""
    shim = start(line, job, launch)
    keeper.status(job)
    settle(line, keeper)
    return shim


def settle(line, keeper):
    """Wait until no shim is busy, and the keeper knows."""
    idle = lambda: all(map(awaits_orders, children_of(keeper.process.pid)))  # noqa: E731
    until(idle, "a standstill of all shims")
    line.ask("list", jobs=[])  # what shims said before this, it has heard by the next request


def order(line, keeper):
    """Have the keeper send a shim that is stopped its orders for job 1."""
    line.say(("start", {**attempt(1), "launch": keeper.gated_launch()}))
    line.ask("list", jobs=[])  # which it does after what was asked before


def awaits_orders(shim):
    """True for one that reads from its keeper, and for one that is gone."""
    try:
        return "unix_stream" in Path(f"/proc/{shim}/wchan").read_text()
    except OSError:
        return True


def probe(keeper):
    return {**keeper.launch(""), "command": [sys.executable, "-I", "-S", "-c", PROBE]}


def only_idle(line, keeper, keep=None):
    """Kill every shim but this one, or but one, which the next job goes to; that one."""
    until(lambda: children_of(keeper.process.pid), "a shim")
    settle(line, keeper)
    shims = children_of(keeper.process.pid)
    kept = keep or shims[0]
    for shim in shims:
        if shim != kept:
            end(shim)
    until(lambda: children_of(keeper.process.pid) == [kept], "an end of the others")
    return kept


# -- one after the other ---------------------------------------------------------------------------


def test_jobs_in_one_shim_have_their_own_ends_and_counts(keeper):
    line = keeper.begin()
    only_idle(line, keeper)
    first = run(line, keeper, 1, keeper.launch(WORK))
    only_idle(line, keeper, keep=first)
    second = run(line, keeper, 2, keeper.launch("echo two; kill -TERM $$"))
    statuses = [keeper.status(job) for job in (1, 2)]

    assert first == second
    assert [status["exit"] for status in statuses] == [
        {"code": 3, "signal": None},
        {"code": None, "signal": signal.SIGTERM},
    ]
    assert statuses[0]["io"]["operations"] > 500 > statuses[1]["io"]["operations"]
    assert statuses[0]["cpu_s"] > 2 * statuses[1]["cpu_s"] > 0
    assert statuses[0]["ended_s"] <= statuses[1]["started_s"]
    outputs = [(keeper.directory(job) / "output").read_text() for job in (1, 2)]
    assert outputs == ["9000000\n", "two\n"]


def test_a_job_in_a_used_shim_finds_what_one_in_a_new_shim_finds(keeper):
    line = keeper.begin()
    only_idle(line, keeper)
    shims = [run(line, keeper, 1, probe(keeper))]
    only_idle(line, keeper, keep=shims[0])
    wild = {"umask": 0, "cpus": [0], "memory_nodes": [0], "open_files": 100, "cwd": "/"}
    environment = {"PATH": "/bin:/usr/bin", "WILD": "1", "IOD_TEST_MARK": keeper.mark}
    wild_launch = {**keeper.launch(WILD), **wild, "environment": environment}
    shims += [run(line, keeper, 2, wild_launch)]
    absent = line.ask("start", **attempt(3), launch={**wild_launch, "cwd": "/none"})
    settle(line, keeper)
    shims += [run(line, keeper, 4, probe(keeper))]
    found = [json.loads((keeper.directory(job) / "output").read_text()) for job in (1, 4)]

    assert len(set(shims)) == 1
    assert absent["status"]["exit_code"] == 126
    assert found[0]["descriptors"] == [0, 1, 2, 3]
    assert found[0]["terminal"] == "0"
    assert found[0] == found[1]
    assert keeper.status(2)["exit"] == {"code": None, "signal": signal.SIGKILL}


def test_a_shim_is_free_only_when_the_last_descendant_has_ended(keeper):
    line = keeper.begin()
    text = "(setsid sh -c 'until [ -e gate-it ]; do sleep 0.02; done; echo late > late' &); exit 4"
    first = start(line, 1, keeper.launch(text))
    main = keeper.shim_of(1)["main_pid"]
    until(lambda: find_state(main) is None, "an end of the first process")
    second = start(line, 2, keeper.launch("exit 5"))
    keeper.status(2)
    free = keeper.idle_shims()
    keeper.open_gate("it")

    assert second != first
    assert first not in free
    assert keeper.status(1)["exit"]["code"] == 4
    assert (keeper.place / "late").exists()


def test_nothing_reaches_a_job_by_the_name_of_the_one_before(keeper):
    line = keeper.begin()
    first = run(line, keeper, 1, keeper.launch("exit 1"))
    only_idle(line, keeper, keep=first)
    second = start(line, 2, keeper.gated_launch())
    refused = line.ask("freeze", **attempt(1))
    killed = line.ask("kill", **attempt(1), signal=int(signal.SIGKILL))
    line.ask("thaw", **attempt(1))
    [there] = line.ask("list", jobs=[[1, 1]])["jobs"]
    keeper.goes_on("it")
    keeper.open_gate("it")

    assert first == second
    assert "no living shim" in refused["error"]
    assert killed == {"signalled": 0}
    assert there["status"]["exit"]["code"] == 1
    assert not there["frozen"]
    assert keeper.status(2)["exit"]["code"] == 3


def test_a_shim_ends_after_so_many_jobs(keeper):
    line = keeper.begin()
    launch = {**keeper.launch(""), "command": ["/bin/true"]}
    shims = [run(line, keeper, job, launch) for job in range(1, 2 * MOST_JOBS)]

    assert max(shims.count(shim) for shim in shims) == MOST_JOBS
    assert {keeper.status(job)["exit"]["code"] for job in range(1, 2 * MOST_JOBS)} == {0}


def test_a_shim_that_a_large_job_has_swollen_ends_with_it(keeper):
    line = keeper.begin()
    launch = keeper.launch("exit 6")
    launch["environment"] = {**launch["environment"], "LARGE": "y" * 100_000}
    shim = start(line, 1, launch)

    assert keeper.status()["exit"]["code"] == 6
    until(lambda: find_state(shim) is None, "an end of the shim")


def test_not_more_shims_are_kept_than_a_few(keeper):
    line = keeper.begin()
    for job in range(1, 13):
        start(line, job, keeper.gated_launch())
    busy = len(children_of(keeper.process.pid))
    keeper.open_gate("it")
    for job in range(1, 13):
        keeper.status(job)
    until(lambda: len(children_of(keeper.process.pid)) <= 6, "an end of most")

    assert busy >= 12
    assert keeper.status(12)["exit"]["code"] == 3


# -- deaths in between -----------------------------------------------------------------------------


def test_an_idle_shim_that_is_killed_is_missed_by_nobody(keeper):
    line = keeper.begin()
    used = run(line, keeper, 1, keeper.launch("exit 1"))
    for shim in keeper.idle_shims():
        end(shim)
    other = run(line, keeper, 2, keeper.launch("exit 2"))

    assert used != other
    assert keeper.status(2)["exit"]["code"] == 2
    assert "Traceback" not in (keeper.state / "keeper.log").read_text()


def test_idle_shims_that_die_are_not_replaced_again_and_again(keeper):
    line = keeper.begin()
    only_idle(line, keeper)
    end(children_of(keeper.process.pid)[0])
    until(lambda: not children_of(keeper.process.pid), "an end of the shim")
    for _ in range(3):
        line.ask("list", jobs=[])
    none = children_of(keeper.process.pid)
    run(line, keeper, 1, keeper.launch("exit 4"))

    assert none == []
    assert keeper.status(1)["exit"]["code"] == 4
    assert children_of(keeper.process.pid)


def test_a_shim_that_is_killed_with_its_orders_unread_starts_nothing(keeper):
    line = keeper.begin()
    shim = only_idle(line, keeper)
    keeper.stop_processes(shim)
    order(line, keeper)
    end(shim)

    assert line.hear()["ok"] == {"never_ran": True}
    assert line.ask("start", **attempt(1), launch=keeper.gated_launch()) == {"never_ran": True}
    run(line, keeper, 2, keeper.launch("exit 2"))
    assert not keeper.ledger.exists()


def test_orders_of_a_dead_keeper_that_are_read_late_start_nothing_given_up(keeper):
    line = keeper.begin()
    shim = only_idle(line, keeper)
    keeper.stop_processes(shim)
    order(line, keeper)
    end(keeper.process.pid)
    keeper.process.wait()
    line = keeper.begin()
    answer = line.ask("start", **attempt(1), launch=keeper.gated_launch())
    os.kill(shim, signal.SIGCONT)
    until(lambda: find_state(shim) is None, "an end of the shim")

    assert answer == {"never_ran": True}
    assert not keeper.ledger.exists()


def test_orders_of_a_dead_keeper_that_are_read_late_are_obeyed_once(keeper):
    line = keeper.begin()
    shim = only_idle(line, keeper)
    keeper.stop_processes(shim)
    order(line, keeper)
    end(keeper.process.pid)
    keeper.process.wait()
    os.kill(shim, signal.SIGCONT)
    keeper.goes_on("it")
    line = keeper.begin()
    there = line.ask("start", **attempt(1), launch=keeper.gated_launch())
    keeper.open_gate("it")

    assert there["alive"]
    assert there["shim"]["pid"] == shim
    assert keeper.status()["exit"]["code"] == 3
    assert keeper.lines() == ["done", "start"]
    until(lambda: find_state(shim) is None, "an end of the shim")


def test_idle_shims_end_with_their_keeper(keeper):
    line = keeper.begin()
    run(line, keeper, 1, keeper.launch("exit 1"))
    idle = keeper.idle_shims()
    end(keeper.process.pid)
    keeper.process.wait()

    assert idle
    until(lambda: not marked(keeper.mark), "an end of all shims")


def test_a_used_shim_finishes_its_job_without_a_keeper_and_ends(keeper):
    line = keeper.begin()
    only_idle(line, keeper, keep=run(line, keeper, 1, keeper.launch("exit 1")))
    shim = start(line, 2, keeper.gated_launch())
    line.ask("freeze", **attempt(2))
    end(keeper.process.pid)
    keeper.process.wait()
    keeper.goes_on("it")
    keeper.open_gate("it")

    assert keeper.status(2)["exit"]["code"] == 3
    assert keeper.shim_of(1)["pid"] == shim
    until(lambda: not marked(keeper.mark), "an end of the shim")


def test_the_next_keeper_holds_the_job_of_a_used_shim_and_makes_its_own(keeper):
    line = keeper.begin()
    only_idle(line, keeper, keep=run(line, keeper, 1, keeper.launch("exit 1")))
    shim = start(line, 2, keeper.gated_launch())
    end(keeper.process.pid)
    keeper.process.wait()
    line = keeper.begin()
    jobs = line.ask("list", jobs=[[1, 1], [2, 1]])["jobs"]
    frozen = line.ask("freeze", **attempt(2))
    other = start(line, 3, keeper.launch("exit 5"))
    keeper.status(3)
    still = keeper.stands_still("it")
    line.ask("thaw", **attempt(2))
    keeper.goes_on("it")
    keeper.open_gate("it")

    assert jobs[0]["status"]["exit"]["code"] == 1
    assert (jobs[1]["alive"], jobs[1]["shim"]["pid"]) == (True, shim)
    assert frozen == {"frozen": True}
    assert still
    assert other != shim
    assert keeper.status(2)["exit"]["code"] == 3
    assert keeper.status(3)["exit"]["code"] == 5
    until(lambda: find_state(shim) is None, "an end of the old shim")


def test_a_used_shim_that_is_killed_leaves_its_job_to_go_on(keeper):
    line = keeper.begin()
    only_idle(line, keeper, keep=run(line, keeper, 1, keeper.launch("exit 1")))
    shim = start(line, 2, keeper.gated_launch())
    line.ask("freeze", **attempt(2))
    end(shim)
    keeper.goes_on("it")
    [there] = line.ask("list", jobs=[[2, 1]])["jobs"]
    keeper.open_gate("it")

    assert not there["alive"]
    until(lambda: keeper.lines() == ["done", "start"], "an end of the job")
    line.ask("tidy", **attempt(2))


def test_a_keeper_that_leaves_takes_its_idle_shims_along(means):
    with Keeper(means) as keeper:
        line = keeper.begin()
        run(line, keeper, 1, keeper.launch("exit 1"))
        idle = keeper.idle_shims()
        answer = line.ask("leave")
        keeper.process.wait(20)

        assert idle
        assert answer == {"jobs": 0}
        until(lambda: not marked(keeper.mark), "an end of all shims")
