"""What is asked of the scripted daemon: every route, over jobs in every state."""

from __future__ import annotations

import getpass
import re
from typing import Any

from schemas import find_undeclared
from scripted import START_S, Answered, ScriptedDaemon

from iodaemon.api.model import ErrorAnswer

CONFIG = """\
policy = "default"
journal_samples = true
cancel_grace = "5 s"

[regulation]
rule = "dynamic"
timeslice = "1 s"
io_bound = "10 MB/s"

[tier.fast]
split = "200 GB"
[[tier.fast.disk]]
path = "/scratch/nvme0"
kind = "nvme"
capacity = "1 TB"

[tier.slow]
bandwidth = "50 MB/s"

[users]
max_running = 30
"""
RELOADED = CONFIG.replace('rule = "dynamic"', 'rule = "exclusive"').replace(
    'io_bound = "10 MB/s"\n', ""
)
RELOADED = RELOADED.replace("max_running = 30", "max_running = 20")
READER = ["reader", "read=900GB"]
LONG = ["long", "compute=1000s"]
SPEAKER = ["speaker", "read=9GB", "speaks=yes"]
RUN = {
    "command": ["solve", "mesh.dat"],
    "ended_s": START_S - 3600.0,
    "run_s": 120.0,
    "read_bytes": 6_000_000_000,
    "written_bytes": 1_000_000_000,
    "io_s": 30.0,
    "operations": 7000,
}

Case = dict[str, Any]


class Record:
    """Asks, and keeps each answer under its route.

    Attributes:
        routes: ``METHOD /path`` to what was asked of it and answered, in order.
        undeclared: answers that are not as their route declares them.
    """

    def __init__(self, daemon: ScriptedDaemon) -> None:
        self.daemon = daemon
        self.routes: dict[str, list[Case]] = {}
        self.undeclared: list[str] = []
        self._declared = {
            f"{route.method} {route.path}": route.answers for route in daemon.server.routes
        }
        self._text = Normalised(str(daemon.directory))

    def ask(
        self,
        case: str,
        request: str,
        body: Any = None,
        *,
        lines: int | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answered:
        """One request while time stands still."""
        method, target = request.split()
        answer = self.daemon.ask(method, target, body, lines=lines, headers=headers)
        self.keep(case, request, body, answer, is_stream=lines is not None)
        return answer

    def act(self, case: str, request: str, body: Any = None) -> Answered:
        """One request that jobs have to answer."""
        answer = self.daemon.act(*request.split(), body)
        self.keep(case, request, body, answer)
        return answer

    def keep(
        self, case: str, request: str, body: Any, answer: Answered, *, is_stream: bool = False
    ) -> None:
        method, target = request.split()
        path = re.sub(r"/jobs/(\d+|seven)", "/jobs/{id}", target.partition("?")[0])
        kept: Case = {"case": case, "request": request}
        if body is not None:
            kept["body"] = self._text.of(body)
        kept["status"] = answer.status
        if path == "/metrics":
            kept["metrics"] = _series(answer.body.decode())
        elif path.endswith("/logs"):
            kept["text"] = answer.body.decode()
        elif is_stream or (path == "/v1/events" and answer.status == 200):
            kept["lines"] = self._text.of(answer.lines)
        else:
            kept["answer"] = self._text.of(answer.json)
            declared = self._declared.get(f"{method} {path}", ())
            if answer.status >= 400:
                declared = (ErrorAnswer,)
            if found := find_undeclared(answer.json, declared):
                self.undeclared.append(f"{request} ({case}): {found}")
        self.routes.setdefault(f"{method} {path}", []).append(kept)


class Normalised:
    """Replaces what differs from machine to machine and from run to run."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._user = getpass.getuser()

    def of(self, value: Any, key: str = "") -> Any:
        """The same document with words for moments, users, processes and places."""
        if key == "host":
            return dict.fromkeys(value, "MEASURED")
        if key == "sampling":
            value = {**value, "last_s": "MEASURED"}
        if isinstance(value, dict):
            return {name: self.of(each, name) for name, each in value.items()}
        if isinstance(value, list):
            return [self.of(each, key) for each in value]
        if key in ("uid", "user", "by_uid") and value not in ("", None):
            return key.upper()
        if key == "pid":
            return "PID"
        if key == "version" and isinstance(value, str):
            return "VERSION"
        if isinstance(value, float):
            return self._number(value, key)
        if isinstance(value, str):
            return self._words(value, key)
        return value

    def _number(self, value: float, key: str) -> Any:
        if key.endswith("_s") and not key.endswith("_per_s") and value > START_S - 1e6:
            return f"START+{value - START_S:.6g}"
        return float(f"{value:.9g}")

    def _words(self, text: str, key: str) -> str:
        text = text.replace(self._directory, "DIRECTORY")
        if key == "path" and text.endswith(".toml"):
            return f"POLICIES/{text.rpartition('/')[2]}"
        if key in ("by", "key") and text == self._user:
            return "USER"
        return re.sub(rf"\bby {re.escape(self._user)}\b", "by USER", text)


def record_routes(daemon: ScriptedDaemon) -> Record:
    """Everything that is recorded, by route."""
    record = Record(daemon)
    _before_any_job(record)
    _first_jobs(record)
    _jobs_that_ended(record)
    _standing_still(record)
    _while_it_stops(record)
    _many_at_once(record)
    _space(record)
    _other_rules(record)
    _drained(record)
    _past(record)
    return record


def _before_any_job(record: Record) -> None:
    record.ask("what there is", "GET /v1/openapi.json")
    record.ask("from outside of any job", "GET /v1/me")
    for path in ("jobs", "node", "policy", "config", "mode", "drain", "hints", "history"):
        record.ask("no job yet", f"GET /v1/{path}")
    record.ask("no job yet", "GET /v1/events?since=0&follow=0")
    record.ask("no job yet", "GET /v1/wait/all")
    record.ask("no such job", "GET /v1/jobs/7")
    record.ask("no such job", "GET /v1/jobs/7/why")
    record.ask("no such job", "GET /v1/jobs/7/logs")
    record.ask("no such job", "POST /v1/jobs/7/cancel", {})
    record.ask("not a number", "GET /v1/jobs/seven")
    record.ask("unknown key", "GET /v1/jobs?colour=red")
    record.ask("no such selector", "GET /v1/jobs?select=nine")
    record.ask("no job yet", "GET /metrics")
    record.ask("two beginnings", "GET /v1/events?since=0&after=1")
    record.ask("no job", "POST /v1/jobs", {"jobs": []})
    record.ask("no command", "POST /v1/jobs", {"jobs": [{"cpus": 2}]})
    record.ask("unknown key", "POST /v1/jobs", {"jobs": [{"command": ["a"], "colour": 1}]})
    record.ask("too large for a socket", "POST /v1/jobs", {"jobs": [{"command": ["a"], "cpus": 9}]})
    record.ask("a tier that is not", "POST /v1/jobs", _scratch(tier="none", size_bytes=1))


def _first_jobs(record: Record) -> None:
    everything = {
        "command": ["all", "compute=40s", "write=2GB"],
        "cwd": "/tmp",
        "name": "everything",
        "cpus": 2,
        "walltime_s": 600.0,
        "memory_bytes": 1 << 30,
        "io_rate_bytes_per_s": 5e6,
        "io_share": 0.5,
        "io_operations_per_s": 100.0,
        "no_suspend": True,
        "max_suspend_s": 60.0,
        "requeue": True,
        "stdout": "/tmp/out-%j",
        "stderr": "/tmp/err-%j",
        "umask": 63,
    }
    jobs = [everything, {"command": READER, "name": "first"}, {"command": READER, "name": "second"}]
    record.ask("three jobs", "POST /v1/jobs", {"jobs": jobs, "environment": {"A": "1"}})  # 1 2 3
    record.ask("starting", "GET /v1/jobs")
    record.ask("starting", "GET /v1/jobs/1/why")
    record.daemon.advance(0.5)
    record.ask("running", "GET /v1/jobs/1")
    record.ask("running", "GET /v1/jobs/2/why")
    record.daemon.advance(2.5)
    record.ask("suspended for the storage", "GET /v1/jobs")
    record.ask("suspended for the storage", "GET /v1/jobs/3")
    record.ask("suspended for the storage", "GET /v1/jobs/3/why")
    record.ask("one job at work", "GET /v1/node")
    record.ask("one job at work", "GET /metrics")
    vain = {"command": LONG, "name": "hint", "io_share": 7.0, "io_rate_bytes_per_s": 1.0}
    record.ask("senseless hint", "POST /v1/jobs", {"jobs": [vain]})  # 4
    wide = [{"command": LONG, "name": "wide", "cpus": 4} for _ in range(2)]
    record.ask("two wide jobs", "POST /v1/jobs", {"jobs": wide})  # 5 6
    held = {"command": LONG, "name": "held", "hold": True}
    record.ask("held at submission", "POST /v1/jobs", {"jobs": [held]})  # 7
    record.daemon.advance(1.0)
    record.ask("pending and held", "GET /v1/jobs")
    record.ask("held", "GET /v1/jobs/7")
    record.act("it waits already", "POST /v1/jobs/7/requeue", {})
    record.ask("held", "GET /v1/jobs/7/why")
    record.ask("pending", "GET /v1/jobs/6")
    record.ask("pending", "GET /v1/jobs/6/why")
    record.ask("by name and state", "GET /v1/jobs?name=wide&state=PENDING")
    record.ask("the newest two", "GET /v1/jobs?limit=2")
    record.ask("not ended yet", "POST /v1/wait", {"ids": [1, 2], "timeout_s": 0})
    record.ask("never started", "GET /v1/jobs/7/logs")


def _jobs_that_ended(record: Record) -> None:
    record.act("of a waiting job", "POST /v1/jobs/6/cancel", {"grace_s": 1})
    record.act("of a job that runs", "POST /v1/jobs/5/cancel", {})
    ends = [
        {"command": ["good", "exit=0"], "name": "good"},  # 8
        {"command": ["bad", "exit=3"], "name": "bad"},  # 9
        {"command": LONG, "name": "late", "walltime_s": 2.0},  # 10
        {"command": LONG, "name": "greedy", "memory_bytes": 1 << 20},  # 11
        {"command": LONG, "name": "lost"},  # 12
        {"command": ["slip", "compte=5s"], "name": "slip"},  # 13
    ]
    record.ask("jobs that end", "POST /v1/jobs", {"jobs": ends})
    record.daemon.advance(0.5)
    record.daemon.ended_by_kernel(11)
    record.daemon.lost(12)
    record.daemon.advance(3.0)
    record.ask("finished ones too", "GET /v1/jobs?all=1")
    for job_id, how in ((8, "completed"), (9, "failed"), (10, "timeout"), (11, "out of memory")):
        record.ask(how, f"GET /v1/jobs/{job_id}/why")
    record.ask("lost", "GET /v1/jobs/12/why")
    record.ask("never ran", "GET /v1/jobs/13/why")
    record.ask("all have ended", "POST /v1/wait", {"ids": [8, 9, 10], "timeout_s": 0})
    record.ask("no such job", "POST /v1/wait", {"ids": [8, 99], "timeout_s": 0})
    record.act("ended already", "POST /v1/jobs/8/cancel", {})
    record.act("ended already", "POST /v1/jobs/8/suspend")
    record.act("ended already", "POST /v1/jobs/8/resume")
    record.ask("nothing to wait for", "POST /v1/wait", {"ids": []})
    for query in ("select=8-10", "select=last", "state=FAILED&state=r", "all=1&limit=0"):
        record.ask("selected", f"GET /v1/jobs?{query}")
    record.daemon.write_output(8, b"one\ntwo\nthree\n")
    record.ask("all", "GET /v1/jobs/8/logs")
    record.ask("the last lines", "GET /v1/jobs/8/logs?tail=2")
    record.ask("from a byte on", "GET /v1/jobs/8/logs?begin=4")
    record.ask("to the end of an ended job", "GET /v1/jobs/8/logs?follow=1")
    record.ask("no such stream", "GET /v1/jobs/8/logs?stream=stdin")
    record.act("of an ended job", "POST /v1/jobs/9/requeue", {})
    record.ask("runs again", "GET /v1/jobs/9/why")


def _standing_still(record: Record) -> None:
    record.act("of a job that runs", "POST /v1/jobs/4/suspend")
    record.ask("suspended by a person", "GET /v1/jobs/4")
    record.ask("suspended by a person", "GET /v1/jobs/4/why")
    record.act("nobody suspended it", "POST /v1/jobs/2/resume")
    record.act("of a suspended job", "POST /v1/jobs/4/resume")
    record.act("of a held job", "POST /v1/jobs/7/resume")
    record.act("of a waiting job or a started one", "POST /v1/jobs/7/suspend")
    record.act("of a job that runs", "POST /v1/jobs/4/requeue", {"grace_s": 0})
    record.act("a grace that is too long", "POST /v1/jobs/4/requeue", {"grace_s": 1e9})


def _while_it_stops(record: Record) -> None:
    """Nobody confirms the end until time goes on."""
    begun = record.daemon.begin("POST", "/v1/jobs/7/cancel", {"grace_s": 3})
    record.ask("stopping", "GET /v1/jobs/7")
    record.ask("stopping", "GET /v1/jobs/7/why")
    answer = record.daemon.answer_of(begun)
    record.keep("of a suspended job", "POST /v1/jobs/7/cancel", {"grace_s": 3}, answer)


def _many_at_once(record: Record) -> None:
    jobs = [{"command": LONG, "name": f"batch-{number}"} for number in range(3)]
    record.ask("a batch", "POST /v1/jobs", {"jobs": jobs})  # 14 15 16
    record.daemon.advance(0.5)
    record.act("by name", "POST /v1/jobs/suspend", {"name": "batch-*"})
    record.act("by number", "POST /v1/jobs/resume", {"select": "14,15,99"})
    record.act("by number", "POST /v1/jobs/requeue", {"select": "14,16", "grace_s": 0})
    record.act("by name", "POST /v1/jobs/cancel", {"name": "batch-*", "grace_s": 0})
    record.act("no job is named", "POST /v1/jobs/cancel", {})
    record.act("grace of a suspend", "POST /v1/jobs/suspend", {"select": "1", "grace_s": 1})


def _series(text: str) -> list[str]:
    """Names, types and labels of Prometheus' text, without values; ours only."""
    lines = [line for line in text.splitlines() if "iodaemon_" in line]
    types = [line[2:] for line in lines if line.startswith("# TYPE ")]
    samples = [line for line in lines if not line.startswith("#")]
    shown = {re.sub(r'="[^"]*"', "", line.rpartition(" ")[0]) for line in samples}
    return [*types, *sorted(shown)]


def _scratch(**scratch: Any) -> dict[str, Any]:
    return {"jobs": [{"command": ["space", "compute=30s"], "name": "space", "scratch": scratch}]}


def _space(record: Record) -> None:
    record.ask("space of a tier", "POST /v1/jobs", _scratch(size_bytes=900_000_000_000))  # 17
    record.ask("no room now", "POST /v1/jobs", _scratch(size_bytes=500_000_000_000))  # 18
    record.daemon.advance(1.0)
    record.ask("with space", "GET /v1/jobs/17")
    record.ask("waits for space", "GET /v1/jobs/18/why")
    record.ask("space is taken", "GET /v1/node")
    record.act("nothing is kept", "POST /v1/jobs/8/scratch/remove")
    record.act("it runs", "POST /v1/jobs/scratch/remove", {"select": "17"})
    record.act("with space", "POST /v1/jobs/cancel", {"name": "space", "grace_s": 0})


def _other_rules(record: Record) -> None:
    record.ask("as it was", "POST /v1/config/reload")
    record.daemon.config.write_text(record.daemon.config.read_text() + "colour = 1\n")
    record.ask("an error in the file", "POST /v1/config/reload")
    head = record.daemon.config.read_text().partition("policy =")[0]
    record.daemon.config.write_text(head + RELOADED)
    record.ask("another regulation", "POST /v1/config/reload")
    record.ask("another regulation", "GET /v1/policy")
    record.act("clear the way", "POST /v1/jobs/cancel", {"select": "all", "grace_s": 0})
    speakers = [{"command": SPEAKER, "name": "speaker"}, {"command": SPEAKER, "name": "speaker"}]
    record.ask("jobs that tell of their I/O", "POST /v1/jobs", {"jobs": speakers})  # 19 20
    record.daemon.advance(2.0)
    record.ask("one has its turn", "GET /v1/jobs/19")
    record.ask("one has its turn", "GET /v1/jobs/19/why")
    record.ask("one waits for its turn", "GET /v1/jobs/20")
    record.ask("one waits for its turn", "GET /v1/jobs/20/why")
    record.ask("has its turn", "POST /v1/jobs/19/phase", {"phase": "io", "expect_bytes": 9})
    asked = {"phase": "io"}
    begun = record.daemon.begin("POST", "/v1/jobs/20/phase", asked)
    record.act("gives it back", "POST /v1/jobs/19/phase", {"phase": "done"})
    answer = record.daemon.answer_of(begun)
    record.keep("waits for its turn", "POST /v1/jobs/20/phase", asked, answer)
    record.ask("no such phase", "POST /v1/jobs/19/phase", {"phase": "lunch"})
    record.ask("it has ended", "POST /v1/jobs/8/phase", {"phase": "io"})
    for mode in ("shadow", "off", "on"):
        record.ask(mode, "POST /v1/mode", {"mode": mode})
        record.ask(mode, "GET /v1/mode")
    record.ask("no such mode", "POST /v1/mode", {"mode": "perhaps"})


def _drained(record: Record) -> None:
    record.ask("begin", "POST /v1/drain", {"drain": True, "reason": "new disks"})
    record.ask("while jobs run", "GET /v1/drain")
    record.ask("while drained", "POST /v1/jobs", {"jobs": [{"command": LONG}]})  # 21
    record.ask("while drained", "GET /v1/jobs/21/why")
    record.act("so that it is at rest", "POST /v1/jobs/cancel", {"select": "all", "grace_s": 0})
    record.ask("at rest", "GET /v1/drain?wait=1")
    record.ask("drained", "GET /v1/node")
    for case in ("end", "end of none"):
        record.ask(case, "POST /v1/drain", {"drain": False})


def _past(record: Record) -> None:
    record.daemon.advance(60.0)
    record.ask("all that ended", "GET /v1/history")
    record.ask("the last one", "GET /v1/history?select=last")
    record.ask("by age", "GET /v1/history?since_s=-65&until_s=-62&limit=2")
    record.ask("those that failed", "GET /v1/history?state=FAILED")
    record.ask("by name", "GET /v1/history?by=name")
    record.ask("by user", "GET /v1/history?by=user")
    record.ask("not a column", "GET /v1/history?by=colour")
    record.ask("learned", "GET /v1/hints")
    record.ask("a run", "POST /v1/hints", {"runs": [RUN]})
    record.ask("the same run", "POST /v1/hints", {"runs": [RUN]})
    record.ask("a run in no time", "POST /v1/hints", {"runs": [{**RUN, "run_s": -1.0}]})
    known = record.ask("imported", "GET /v1/hints?name=*solve*").json["hints"]
    record.ask("a key", "POST /v1/hints/forget", {"keys": [known[0]["key"]]})
    record.ask("an unknown key", "POST /v1/hints/forget", {"keys": ["like:nothing"]})
    record.ask("since the session's last request", "GET /v1/wait/all")
    record.ask("since a time", f"GET /v1/wait/all?since_s={START_S:.0f}")
    record.ask("since so long ago", "GET /v1/wait/all?since_s=-60")
    record.ask("told", "POST /v1/wait/all", {"now_s": START_S + 10.0})
    events = record.ask("all of it", "GET /v1/events?since=0&follow=0")
    newest = events.lines[-1]["id"]
    record.ask("after an event", f"GET /v1/events?after={newest - 5}&follow=0")
    record.ask("the first of a stream", "GET /v1/events?after=0", lines=5)
    resumed = {"Last-Event-ID": "5"}
    record.ask("a stream resumed", "GET /v1/events?since=0", lines=3, headers=resumed)
    record.ask("the last minute", f"GET /v1/samples?since={START_S + 65.0:.0f}")
