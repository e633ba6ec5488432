"""A daemon without jobs: docs/api.md in memory, on a real unix socket, served by threads."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qs, urlsplit

from builders import job as made_job

from iodaemon.api.model import FINAL_STATES
from iodaemon.core.job import JobState
from iodaemon.daemon.http.record import job_record
from iodaemon.daemon.http.routes.history import Tallies

NOW_S = 1_800_000_000.0


def moment_s(text: str) -> float:
    """A time of a query; negative: so long ago."""
    value = float(text)
    return NOW_S + value if value < 0 else value


def job(job_id: int, state: str = "RUNNING", **changes: Any) -> dict[str, Any]:
    """One JOB of the API, complete: as the daemon makes it, with what a run leaves behind."""
    is_held = state in ("HELD", "PENDING")
    fields = {"name": f"job{job_id}", "command": ("sleep", "10"), "uid": os.geteuid()}
    made = job_record(made_job(job_id, state=JobState(state), **fields), None, NOW_S, Path("/out"))
    made |= {
        "user": "ann",
        "reason": None,
        "attempt": int(not is_held),
        "submitted_s": NOW_S - 100,
        "read_bytes": 1000,
        "suspended_io_s": 0.0,
        "suspended_user_s": 0.0,
        "predicted": {"rate_bytes_per_s": 3e6, "confidence": 0.5, "source": "history"},
        "expected": expected(5e6, "learned", by="name:lu", runs=3),
        "shares_cores": False,
        "stdout": f"/out/{job_id}",
    }
    if not is_held:
        made |= {"started_s": NOW_S - 90, "run_s": 65.0, "socket": 0}
        made["bandwidth"] = {"read_bytes_per_s": 2e6, "written_bytes_per_s": 1e6}
    if state in FINAL_STATES:
        code = {"COMPLETED": 0, "TIMEOUT": 124}.get(state, 1)
        made |= {"ended_s": NOW_S - 1, "expected_ratio": 1.25, "shell_code": code}
        made["exit_code"] = 0 if state == "COMPLETED" else None
    made["slots"] = [] if is_held or state in FINAL_STATES else [3]
    return made | changes


def expected(rate: float | None, source: str, **changes: Any) -> dict[str, Any]:
    """One EXPECTED of the API."""
    made = {"rate_bytes_per_s": rate, "confidence": 0.5, "source": source, "io_share": None}
    return made | {"operations_per_s": None, "by": "", "runs": 0} | changes


def reason(text: str, code: str = "Slots", cure: str = "") -> dict[str, str]:
    """A REASON of the API."""
    return {"code": code, "text": text} | ({"cure": cure} if cure else {})


def sum_of(**changes: Any) -> dict[str, Any]:
    """One SUM of the API; with ``key`` a row, without it a total."""
    return Tallies("user").total() | {"charged_s": changes.get("run_s", 0.0)} | changes


def on_a_terminal(*words: str, **variables: str) -> bytes:
    """What a terminal gets of ``iod``."""
    reader, writer = pty.openpty()
    command = [sys.executable, "-m", "iodaemon.cli", *words]
    environ = {name: text for name, text in (os.environ | variables).items() if text}
    subprocess.run(command, stdout=writer, env=environ, check=True, timeout=60)
    os.close(writer)
    pieces = []
    with open(reader, "rb", buffering=0) as terminal, contextlib.suppress(OSError):
        while piece := terminal.read(65536):
            pieces.append(piece)
    return b"".join(pieces)


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    request_queue_size = 128
    fake: FakeDaemon

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is no error."""


class FakeDaemon:
    """The in-memory daemon. ``jobs``, ``answers`` and ``seen`` are the test's to change and read.

    Attributes:
        jobs: by id.
        seen: every request: method, path, query or body.
        answers: raw bytes to send for a path instead of an answer, as (status, body).
        own_job: the job that the caller belongs to.
        backend: what the node says it runs jobs on.
        effective: whether cancel, requeue, suspend and resume have their effect.
        logs: what each job wrote, by stream.
        after_follow: what happens when the answer to each ``logs -f`` has ended.
        sums: what the history comes to, added up.
        before_waits: what is done when a request to wait comes, one for each.
        caller_uid: who asks.
        told_s: the mark of the caller's session.
        hurried: a request to wait is answered at once, as by a daemon that is about to stop.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.jobs: dict[int, dict[str, Any]] = {}
        self.seen: list[tuple[str, str, Any]] = []
        self.answers: dict[str, tuple[int, bytes]] = {}
        self.effective = True
        self.backend = "linux"
        self.logs: dict[tuple[int, str], bytes] = {}
        self.after_follow: list[Callable[[], None]] = []
        self.sums: dict[str, Any] = {"sums": [], "total": sum_of()}
        self.events: list[dict[str, Any]] = []
        self.whys: dict[int, dict[str, Any]] = {}
        self.mode = "on"
        self.hints: dict[str, Any] = {"hints": [], "accuracy": []}
        self.runs: list[dict[str, Any]] = []
        self.warnings: list[str] = []
        self.own_job: int | None = None
        self.shadow_suspended_s: dict[str, float] = {}
        self.samples: dict[str, Any] = {"samples": [], "jobs": [], "platform": {}}
        self.before_waits: list[Callable[[], None]] = []
        self.hurried = False
        self.caller_uid = os.geteuid()
        self.told_s = NOW_S - 1000
        self.waiting = threading.Event()
        self.changed = threading.Condition()
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._server = _Server(self.path, _Handler)
        self._server.fake = self
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}
        )
        self._thread.start()

    def stop(self) -> None:
        if self._server is None or self._thread is None:
            return
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._server = None
        os.unlink(self.path)
        with self.changed:
            self.changed.notify_all()

    def add(self, *jobs: dict[str, Any]) -> None:
        self.jobs |= {made["id"]: made for made in jobs}

    def end(self, job_id: int, state: str = "COMPLETED", **changes: Any) -> None:
        with self.changed:
            self.jobs[job_id] = job(job_id, state, **changes)
            self.changed.notify_all()

    def bodies(self, path: str) -> list[Any]:
        """What was sent to this path."""
        return [body for _, at, body in self.seen if at == path]

    # -- the API ---------------------------------------------------------------------------------

    def list_jobs(self, query: dict[str, list[str]]) -> dict[str, Any]:
        jobs = [made for _, made in sorted(self.jobs.items())]
        select = query.get("select", ["all"])[0]
        if select != "all":
            jobs = [made for made in jobs if self._selects(select, made["id"])]
        elif "all" not in query:
            jobs = [made for made in jobs if made["state"] not in FINAL_STATES]
        jobs = self._filtered(jobs, query)
        node = {
            "policy": "default",
            "timeslice_s": 1.0,
            "io_bound_bytes_per_s": 4e8,
            "slots": 16,
            "slots_free": 12,
            "read_bytes_per_s": 1e8,
            "written_bytes_per_s": 5e7,
            "states": {"RUNNING": 2, "PENDING": 1, "COMPLETED": 9},
        }
        return {"version": 1, "now_s": NOW_S, "node": node, "jobs": jobs}

    def _filtered(self, jobs: list[dict[str, Any]], by: dict[str, Any]) -> list[dict[str, Any]]:
        """Those that a selector's other parts mean; each part is a list, as in a query."""
        [user], [name] = by.get("user", [""]), by.get("name", ["*"])
        uid = str(self.caller_uid) if user == "me" else user
        return [
            made
            for made in jobs
            if made["state"] in by.get("state", [made["state"]])
            and fnmatchcase(made["name"], name)
            and uid in ("", made["user"], str(made["uid"]))
        ]

    def act_on_many(self, verb: str, body: dict[str, Any]) -> dict[str, Any]:
        """As docs/api.md says; nothing without ids is meant that is not the caller's."""
        select, rows = body.get("select", "all"), []
        by = {key: [body[key]] for key in ("user", "name") if key in body}
        by |= {"state": body["state"]} if "state" in body else {}
        named = set() if by else {int(part) for part in select.split(",") if part.isdigit()}
        jobs = [
            made
            for job_id, made in sorted(self.jobs.items())
            if select == "all" or self._selects(select, job_id)
        ]
        takes_ended = verb == "requeue" and (select != "all" or "state" in body)
        for made in self._filtered(jobs, by):
            is_meant = made["id"] in named or takes_ended or made["state"] not in FINAL_STATES
            rows += [{"id": made["id"], **self.outcome(made, verb)}] if is_meant else []
        for job_id in named - set(self.jobs):
            text = f"no job {job_id}: 'iod queue -a' lists them"
            rows.append({"id": job_id, "error": {"code": "not_found", "message": text}})
        return {"results": sorted(rows, key=lambda row: row["id"])}

    def outcome(self, made: dict[str, Any], verb: str) -> dict[str, Any]:
        """What became of one job: the answer, or the error."""
        if made["uid"] != self.caller_uid:
            told = ("not_permitted", f"job {made['id']} is not yours")
        elif made["state"] in FINAL_STATES and verb != "requeue":
            told = ("conflict", f"job {made['id']} has ended already")
        else:
            return self.act(made, verb)
        return {"error": dict(zip(("code", "message"), told, strict=True))}

    def awaited(self, query: dict[str, list[str]]) -> dict[str, Any]:
        """The caller's jobs that have not ended, or were submitted since the mark."""
        since_s = moment_s(query.get("since_s", [str(self.told_s)])[0])
        mine = [made for _, made in sorted(self.jobs.items()) if made["uid"] == self.caller_uid]
        ids = [
            made["id"]
            for made in self._filtered(mine, query)
            if made["ended_s"] is None or made["submitted_s"] >= since_s
        ]
        return {"since_s": since_s, "now_s": NOW_S, "ids": ids}

    def history(self, query: dict[str, list[str]]) -> dict[str, Any]:
        """All ended jobs but those deselected, or the sums that the test set."""
        if "by" in query:
            return {"version": 1, "now_s": NOW_S, "by": query["by"][0], **self.sums}
        jobs = [made for _, made in sorted(self.jobs.items()) if made["state"] in FINAL_STATES]
        if "select" in query:
            jobs = [made for made in jobs if self._selects(query["select"][0], made["id"])]
        return {"version": 1, "now_s": NOW_S, "jobs": jobs}

    def _selects(self, select: str, job_id: int) -> bool:
        for part in select.split(","):
            first, _, last = part.partition("-")
            if part == "last":
                first = last = str(max(self.jobs, default=0))
            if int(first) <= job_id <= int(last or first):
                return True
        return False

    def submit(self, body: dict[str, Any]) -> dict[str, Any]:
        ids = []
        for spec in body["jobs"]:
            job_id = max(self.jobs, default=0) + 1
            state = "HELD" if spec.get("hold") else "PENDING"
            self.jobs[job_id] = job(job_id, state, command=spec["command"])
            ids.append(job_id)
        return {"ids": ids} | ({"warnings": self.warnings} if self.warnings else {})

    def act(self, made: dict[str, Any], verb: str) -> dict[str, Any]:
        after = {
            "cancel": "CANCELLED",
            "requeue": "PENDING",
            "suspend": "SUSPENDED_USER",
            "resume": "RUNNING",
        }[verb]
        if self.effective:
            made = self.jobs[made["id"]] = job(made["id"], after, uid=made["uid"])
        else:
            made = made | {"reason": reason("sleeps in the kernel")}
        word = {"cancel": "gone", "requeue": "requeued"}.get(verb)
        return {"job": made} | ({word: self.effective} if word else {})

    def wait(self, body: dict[str, Any]) -> dict[str, Any] | None:
        """The answer; None when the daemon went away meanwhile."""
        server = self._server
        if self.before_waits:
            self.before_waits.pop(0)()

        def over() -> bool:
            return all(self.jobs[i]["state"] in FINAL_STATES for i in body["ids"])

        self.waiting.set()
        until_s = time.monotonic() + (0.0 if self.hurried else body["timeout_s"])
        with self.changed:
            while not over() and self._server is server and time.monotonic() < until_s:
                self.changed.wait(0.05)
        if self._server is not server:
            return None
        return {"jobs": [self.jobs[i] for i in body["ids"]], "finished": over()}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *_: Any) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = parse_qs(url.query)
        fake = self.server.fake
        fake.seen.append(("GET", url.path, query))
        if self._answered(url.path):
            return
        if url.path == "/v1/jobs":
            self._json(200, fake.list_jobs(query))
        elif url.path == "/v1/wait/all":
            self._json(200, fake.awaited(query))
        elif url.path == "/v1/history":
            self._json(200, fake.history(query))
        elif url.path in ("/v1/node", "/v1/policy", "/v1/config"):
            self._json(
                200,
                {
                    "name": url.path[4:],
                    "slots": 16,
                    "io_bound_bytes_per_s": None,
                    "backend": fake.backend,
                },
            )
        elif url.path == "/v1/hints":
            self._json(200, {"version": 1, "now_s": NOW_S, **fake.hints})
        elif url.path == "/v1/mode":
            stood_s = fake.shadow_suspended_s
            self._json(200, {"mode": fake.mode, "shadow_suspended_s": stood_s})
        elif url.path == "/v1/me":
            self._json(200, {"uid": fake.caller_uid, "user": "ann", "job_id": fake.own_job})
        elif url.path == "/v1/samples":
            since_s = moment_s(query["since"][0])
            page = [s for s in fake.samples["samples"] if s["at_s"] >= since_s]
            self._json(200, fake.samples | {"samples": page})
        elif url.path == "/v1/events":
            self._stream([json.dumps(event).encode() + b"\n" for event in fake.events])
        elif made := self._job(url.path):
            if url.path.endswith("/logs"):
                self._logs(made, query)
            elif url.path.endswith("/why"):
                self._json(200, {"job": made} | fake.whys[made["id"]])
            else:
                self._json(200, made | {"pids": [4711], "counters": {"read_bytes": 1000}})

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers["Content-Type"] == "application/x-ndjson":
            head, *jobs = map(json.loads, text.splitlines())
            body = {**head, "jobs": jobs}
        else:
            body = json.loads(text)
        fake = self.server.fake
        fake.seen.append(("POST", self.path, body))
        if self._answered(self.path):
            return
        if self.path == "/v1/jobs":
            self._json(201, fake.submit(body))
        elif self.path == "/v1/jobs?dry_run=1":
            self._json(200, {"ids": [], "warnings": fake.warnings})
        elif self.path == "/v1/hints":
            new = [run for run in body["runs"] if run not in fake.runs]
            fake.runs += new
            counts = {"imported": len(new), "known": len(body["runs"]) - len(new)}
            self._json(201, counts)
        elif self.path == "/v1/hints/forget":
            known = {hint["key"] for hint in fake.hints["hints"]}
            self._json(200, {"forgotten": [key for key in body["keys"] if key in known]})
        elif self.path == "/v1/mode":
            fake.mode = body["mode"]
            self._json(200, {"mode": fake.mode})
        elif self.path == "/v1/wait/all":
            fake.told_s = body["now_s"]
            self._json(200, {"since_s": fake.told_s})
        elif self.path == "/v1/wait":
            missing = [i for i in body["ids"] if i not in fake.jobs]
            if missing:
                self._error(404, "not_found", f"no job {missing[0]}")
                return
            answer = fake.wait(body)
            if answer is None:
                self.close_connection = True
            else:
                self._json(200, answer)
        elif self.path.split("/")[3] in ("cancel", "requeue", "suspend", "resume"):
            self._json(200, fake.act_on_many(self.path.split("/")[3], body))
        elif made := self._job(self.path):
            told = fake.outcome(made, self.path.rpartition("/")[2])
            codes = {"not_permitted": 403, "conflict": 409}
            self._json(codes[told["error"]["code"]] if "error" in told else 200, told)

    def _job(self, path: str) -> dict[str, Any] | None:
        job_id = int(path.split("/")[3])
        made = self.server.fake.jobs.get(job_id)
        if made is None:
            self._error(404, "not_found", f"no job {job_id}: 'iod queue -a' lists them")
        return made

    def _logs(self, made: dict[str, Any], query: dict[str, list[str]]) -> None:
        fake = self.server.fake
        data = fake.logs.get((made["id"], query["stream"][0]), b"")
        begin = int(query.get("begin", ["0"])[0])
        if "tail" in query:
            begin = len(data) - sum(
                map(len, data.splitlines(keepends=True)[-int(query["tail"][0]) :])
            )
        then = fake.after_follow.pop(0) if "follow" in query and fake.after_follow else None
        self._stream([data[begin:]], {"Output-Begin": str(begin)})
        if then is not None:
            then()

    def _answered(self, path: str) -> bool:
        if path not in self.server.fake.answers:
            return False
        status, data = self.server.fake.answers[path]
        if status == 0:
            self.wfile.write(data)
            self.close_connection = True
        else:
            self._bytes(status, data)
        return True

    def _json(self, status: int, value: object) -> None:
        self._bytes(status, json.dumps(value).encode())

    def _error(self, status: int, code: str, message: str) -> None:
        self._json(status, {"error": {"code": code, "message": message}})

    def _bytes(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(
        self, pieces: list[bytes], headers: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.send_response(200)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for piece in filter(None, pieces):
            self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        self.wfile.write(b"0\r\n\r\n")
