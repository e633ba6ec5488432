"""A private daemon as a user sees it: the command line, HTTP on its socket, and processes.

Nothing here looks into the state directory, and which process has which role is told by ``roles``
only, so that these tests say the same of any way to build the daemon.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self, TypeVar

from roles import find_role, is_ours

MARK = "IOD_ACCEPTANCE_MARK"
"""In the environment of all that a private daemon starts, so that nothing of it is overlooked."""
PATIENCE_S = 40.0
"""For what takes milliseconds on an idle machine; a test that waits so long has failed."""
LOOK_S = 0.02
FINAL = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "LOST")
_CGROUPS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
_T = TypeVar("_T")


def until(holds: Callable[[], _T], what: str | Callable[[], str]) -> _T:
    """Wait until this is true; its value."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not (value := holds()):
        if time.monotonic() >= deadline_s:
            raise AssertionError(f"{what() if callable(what) else what}: not within {PATIENCE_S} s")
        time.sleep(LOOK_S)
    return value


def let_others_work() -> None:
    """Have a shell do several steps; every process that may run has had its turns by then."""
    subprocess.run(["sh", "-c", "for n in 1 2 3 4 5 6 7 8; do sleep 0.02; done"], check=True)


class Ended:
    """A command that has ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err


class System:
    """One daemon, stopped and started again on its directories; a context manager.

    Args:
        freezer: ``cgroup`` or ``signals``: how jobs are suspended.
        settings: further lines of the configuration; a dictionary is a table.

    Attributes:
        state: the state directory.
        runtime: the runtime directory.
        work: a directory for the jobs of a test.
    """

    def __init__(self, freezer: str, **settings: Any) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="iod-acceptance-"))
        self.runtime = self._root / "run"
        self.socket_path = self.runtime / "iod.sock"
        self.state = self._root / "state"
        self.work = self._root / "work"
        self.work.mkdir()
        self.config = self._root / "config.toml"
        self._mark = uuid.uuid4().hex
        self.environment = {**os.environ, MARK: self._mark}
        self._log = self._root / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self._cgroups: set[Path] = set()
        self._threads = ThreadPoolExecutor(4)
        self.configure(
            state_dir=str(self.state),
            runtime_dir=str(self.runtime),
            suspend_by="signals" if freezer == "signals" else "auto",
            **{"orphan_grace": "1 s", "cancel_grace": "20 s", **settings},
        )

    def configure(self, **settings: Any) -> None:
        """Write the configuration file; what was there before is kept unless named."""
        self._settings = {**getattr(self, "_settings", {}), **settings}
        tables = {"topology": {"sockets": ["0"], "oversubscribe": 16}}
        lines = []
        for key, value in self._settings.items():
            if isinstance(value, dict):
                tables[key] = {**tables.get(key, {}), **value}
            else:
                lines.append(f"{key} = {json.dumps(value)}\n")
        for name, table in tables.items():
            lines.append(f"[{name}]\n")
            lines += [f"{key} = {json.dumps(value)}\n" for key, value in table.items()]
        self.config.write_text("".join(lines))

    # -- processes -------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start a daemon and wait until it answers."""
        if self._process is not None:
            self._process.wait(PATIENCE_S)
        words = [sys.executable, "-m", "iodaemon.cli", "daemon", "--config", str(self.config)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                words, stdout=log, stderr=log, env=self.environment, cwd="/"
            )
        until(self._answers, "a daemon that answers")
        return self

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"the daemon has ended: {self._log.read_text()}"
        try:
            self.get("/v1/mode")
        except OSError:
            return False
        return True

    def role_pid(self, role: str) -> int:
        """The process that has this role; waits until there is one."""
        if role == "daemon":
            assert self._process is not None
            return self._process.pid
        return until(lambda: find_role(role, self.processes()), f"a {role}")

    def has_role(self, role: str) -> bool:
        """Whether a living process has this role."""
        if role == "daemon":
            return self._process is not None and self._process.poll() is None
        return find_role(role, self.processes()) is not None

    def kill(self, *roles: str) -> None:
        """SIGKILL to each, the first one first, and wait until they are gone."""
        pids = [self.role_pid(role) for role in roles]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for role, pid in zip(roles, pids, strict=True):
            if role == "daemon" and self._process is not None:
                self._process.wait(PATIENCE_S)
            until(lambda pid=pid: state_of(pid) in (None, "Z", "X"), f"end of the {role}")

    def stop(self, *roles: str) -> None:
        """SIGSTOP: they are there and do nothing."""
        for role in roles:
            pid = self.role_pid(role)
            os.kill(pid, signal.SIGSTOP)
            until(lambda pid=pid: state_of(pid) == "T", f"standstill of the {role}")

    def cont(self, *roles: str) -> None:
        """SIGCONT after ``stop``."""
        for role in roles:
            os.kill(self.role_pid(role), signal.SIGCONT)

    def end(self) -> int:
        """Stop the daemon as a service manager does; its exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(PATIENCE_S)

    def ensure_running(self) -> None:
        """Start a daemon where none runs."""
        if not self.has_role("daemon"):
            self.start()

    def processes(self) -> list[int]:
        """All living processes that come from this daemon, itself included."""
        wanted = f"{MARK}={self._mark}".encode()
        found = []
        for name in os.listdir("/proc"):
            if not name.isdigit() or int(name) == os.getpid() or _is_executing(int(name)):
                continue
            with contextlib.suppress(OSError):
                if wanted in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                    found.append(int(name))
                    self._cgroups |= cgroups_of(int(name))
        return found

    def job_processes(self) -> list[int]:
        """All living processes of jobs."""
        daemon = None if self._process is None else self._process.pid
        return [pid for pid in self.processes() if pid != daemon and not is_ours(pid)]

    def frozen(self) -> list[int]:
        """Processes of jobs that stand still by the kernel's word, whoever stopped them."""
        return [
            pid
            for pid in self.job_processes()
            if state_of(pid) in ("T", "t") or any(map(_is_frozen, cgroups_of(pid)))
        ]

    # -- requests --------------------------------------------------------------------------------

    def iod(self, *words: str, **environment: str) -> Ended:
        """Call the command line, in the jobs' directory."""
        return self.iod_with("--api", str(self.socket_path), *words, **environment)

    def iod_with(self, *words: str, **environment: str) -> Ended:
        """Likewise, and have it find the daemon itself."""
        told = subprocess.run(
            [sys.executable, "-m", "iodaemon.cli", *words],
            env={**self.environment, **environment},
            cwd=self.work,
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE_S,
            check=False,
        )
        return Ended(told.returncode, told.stdout, told.stderr)

    def command(self, *words: str) -> list[str]:
        """What ``iod`` with these words is."""
        return [sys.executable, "-m", "iodaemon.cli", "--api", str(self.socket_path), *words]

    def says(self, *words: str, **environment: str) -> str:
        """What the command line printed, of a call that succeeded."""
        ended = self.iod(*words, **environment)
        assert ended.code == 0, ended.err
        return ended.out

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """One request on the socket: status, and the answer's JSON.

        Raises:
            OSError: no daemon answers.
        """
        connection = http.client.HTTPConnection("localhost")
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(2 * PATIENCE_S)
        try:
            connection.sock.connect(str(self.socket_path))
            data = None if body is None else json.dumps(body).encode()
            connection.request(method, path, data, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read() or b"null")
        except http.client.HTTPException as error:
            raise ConnectionResetError(str(error)) from error
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        """The answer to a GET that succeeds."""
        return self._good("GET", path)

    def post(self, path: str, body: Any = None) -> Any:
        """The answer to a POST that succeeds."""
        return self._good("POST", path, body)

    def _good(self, method: str, path: str, body: Any = None) -> Any:
        status, answer = self.ask(method, path, body)
        assert status < 300, answer
        return answer

    def later(self, call: Callable[..., _T], *arguments: Any) -> Future[_T]:
        """Make a call that waits, in a thread."""
        return self._threads.submit(call, *arguments)

    def events(self) -> list[dict[str, Any]]:
        """All that has happened: what is told is durable."""
        with contextlib.closing(http.client.HTTPConnection("localhost")) as connection:
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.connect(str(self.socket_path))
            connection.request("GET", "/v1/events?since=0&follow=0")
            lines = connection.getresponse().read().splitlines()
        return [json.loads(line) for line in lines]

    def await_waiting(self) -> None:
        """Wait until a command line is connected to the daemon, and so has begun to wait."""
        end = f" {self.socket_path}\n"

        def look() -> bool:
            return Path("/proc/net/unix").read_text().count(end) > 1  # one of them listens

        until(look, "a command that waits")

    # -- jobs ------------------------------------------------------------------------------------

    def submit(self, text: str, env: dict[str, str] | None = None, **options: Any) -> int:
        """A job that runs this text in a shell; its number."""
        return self.submit_all([text], env, **options)[0]

    def submit_all(
        self, texts: list[str], env: dict[str, str] | None = None, **options: Any
    ) -> list[int]:
        """Such jobs, in one request."""
        jobs = [
            {"command": ["/bin/sh", "-c", text], "cwd": str(self.work), **options} for text in texts
        ]
        environment = {**self.environment, **(env or {})}
        return self.post("/v1/jobs", {"jobs": jobs, "environment": environment})["ids"]

    def gated(self, name: str, *, code: int = 0, step: str = "", **options: Any) -> int:
        """A job that lasts until ``open``, writes its begin and end down, and ticks meanwhile."""
        return self.submit(
            f"echo begin {name} >> ledger\n"
            f"while [ ! -e open-{name} ]; do sleep 0.02; {step}\necho >> ticks-{name}; done\n"
            f"echo end {name} >> ledger\nexit {code}",
            **options,
        )

    def open(self, *names: str) -> None:
        """Let gated jobs end."""
        for name in names:
            (self.work / f"open-{name}").touch()

    def ledger(self) -> list[str]:
        """What jobs wrote down, sorted."""
        path = self.work / "ledger"
        return sorted(path.read_text().splitlines()) if path.exists() else []

    def _ticks(self, name: str) -> int:
        path = self.work / f"ticks-{name}"
        return path.stat().st_size if path.exists() else 0

    def goes_on(self, *names: str) -> None:
        """Wait until each of these ticks."""
        for name in names:
            before = self._ticks(name)
            until(lambda name=name, before=before: self._ticks(name) > before, f"ticks of {name}")

    def stands_still(self, *names: str) -> bool:
        """Whether none of these ticks while others do."""
        before = [self._ticks(name) for name in names]
        let_others_work()
        return before == [self._ticks(name) for name in names]

    def job(self, job: int) -> dict[str, Any]:
        """The job as it is shown."""
        return self.get(f"/v1/jobs/{job}")

    def states(self, *jobs: int) -> list[str]:
        """The state of each."""
        return [self.job(job)["state"] for job in jobs]

    def await_state(self, job: int, *states: str) -> dict[str, Any]:
        """Wait until the job has one of these states; the job."""

        def look() -> dict[str, Any] | None:
            found = self.job(job)
            return found if found["state"] in states else None

        return until(look, lambda: f"job {job} in {states}: {self.job(job)}")

    def await_durable(self, job: int, state: str) -> None:
        """Wait until it is on the disk that the job came to this state, its last one or not."""

        def look() -> bool:
            steps = (event for event in self.events() if event["kind"] == "moved")
            return any(step["job_id"] == job and step["after"] == state for step in steps)

        until(look, f"{state} of job {job} on the disk")

    def end_of(self, job: int) -> dict[str, Any]:
        """The job once it has ended."""
        return self.await_state(job, *FINAL)

    def outcome(self, *jobs: int) -> list[tuple[str, int | None]]:
        """State and exit code of each, once ended."""
        ended = [self.end_of(job) for job in jobs]
        return [(job["state"], job["exit_code"]) for job in ended]

    # -- the end ---------------------------------------------------------------------------------

    def clear(self) -> None:
        """Cancel all jobs and wait until nothing of them is left; a new directory for the next."""
        self.ensure_running()
        self.post("/v1/jobs/cancel", {"select": "all", "grace_s": 0})
        until(lambda: not self.job_processes(), "end of all jobs' processes")
        self.work = Path(tempfile.mkdtemp(prefix="work-", dir=self._root))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        try:
            if failed is None:
                self._leave_nothing()
        except AssertionError as error:
            error.add_note(self._log.read_text()[-3000:])
            raise
        finally:
            self._sweep()

    def _leave_nothing(self) -> None:
        """All ends by itself: no process, cgroup, mount or socket is left."""
        if self.has_role("daemon"):
            self.clear()
            assert self.end() == 0, self._log.read_text()
        until(lambda: not self.processes(), lambda: f"end of {self._named_processes()}")
        until(lambda: not self._left_cgroups(), lambda: f"end of {self._left_cgroups()}")
        assert str(self._root) not in Path("/proc/self/mountinfo").read_text()
        assert [path.name for path in self.runtime.glob("*.sock") if _is_served(path)] == []
        assert "Traceback" not in self._log.read_text()

    def _named_processes(self) -> list[str]:
        return [Path(f"/proc/{pid}/cmdline").read_text() for pid in self.processes()]

    def _left_cgroups(self) -> list[Path]:
        return [path for path in self._cgroups if path.exists()]

    def _sweep(self) -> None:
        """Kill what is left, frozen or not, and remove everything."""
        for _ in range(100):
            left = self.processes()
            for path in self._left_cgroups():
                with contextlib.suppress(OSError):
                    (path / "cgroup.kill").write_text("1")
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not left:
                break
            time.sleep(LOOK_S)
        if self._process is not None:
            self._process.wait()
        for path in sorted(self._left_cgroups(), reverse=True):
            with contextlib.suppress(OSError):
                path.rmdir()
        self._threads.shutdown(wait=False)
        shutil.rmtree(self._root, ignore_errors=True)


def state_of(pid: int) -> str | None:
    """The letter of a process's state; None: there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None


def _is_executing(pid: int) -> bool:
    """Whether a process is inside execve(2), where to read its environment may block for long.

    It has a new address space without a program: /proc/PID/statm, fields size and text.
    """
    try:
        words = Path(f"/proc/{pid}/statm").read_text().split()
    except OSError:
        return False
    return words[0] != "0" and words[3] == "0"


def cgroups_of(pid: int) -> set[Path]:
    """The process's cgroup (version 2) and those above it, up to this process's own."""
    try:
        [name] = [line for line in _lines(f"/proc/{pid}/cgroup") if line.startswith("0::/")]
    except (OSError, ValueError):
        return set()
    own = next((line for line in _lines("/proc/self/cgroup") if line.startswith("0::/")), "0::/")
    home, path = Path(own[3:]), Path(name[3:])
    return {base / str(up)[1:] for up in _between(home, path) for base in _bases()}


def _between(home: Path, path: Path) -> Iterator[Path]:
    while path != home and path != path.parent:
        yield path
        path = path.parent


def _bases() -> list[Path]:
    return [base for base in _CGROUPS if (base / "cgroup.procs").exists()][-1:]


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


def _is_frozen(cgroup: Path) -> bool:
    try:
        return "frozen 1" in (cgroup / "cgroup.events").read_text()
    except OSError:
        return False


def _is_served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def can_freeze_by_cgroup() -> bool:
    """Whether cgroups of one's own can be made here."""
    return any(os.access(base, os.W_OK) for base in _bases())


def reads(directory: Path, mebibytes: int) -> str:
    """A shell command that reads so much past the page cache; the file is made by this call."""
    data = directory / f"data-{mebibytes}"
    if not data.exists():
        data.write_bytes(os.urandom(1 << 20) * mebibytes)
        subprocess.run(["sync", data], check=True)
    return f"dd if={shlex.quote(str(data))} of=/dev/null bs=1M iflag=direct 2>/dev/null"
