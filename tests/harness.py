"""Real daemons for tests: started, stopped, killed; and nothing of them outlives the test.

Everything a daemon starts inherits one environment variable, by which leftovers are found however
they detached themselves.
"""

import contextlib
import fcntl
import json
import os
import pwd
import shlex
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import uuid
import zlib
from pathlib import Path

import pytest

from iodaemon.api.client import Client
from iodaemon.errors import IodaemonError, NoDaemon
from iodaemon.node.sampler.proc_files import find_state, is_executing
from iodaemon.supervisor.failpoint import VARIABLE

MARK = "IOD_TEST_MARK"
PATIENCE_S = 30.0
"""For what takes milliseconds on an idle machine; a test that waits so long has failed."""
LOOK_S = 0.01
FINAL = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "LOST")
CGROUPS = Path("/sys/fs/cgroup")
STANDING = ("iod-anchor", "iod-supervisor", "iod-launcher", "iod-sampler")
NOBODY = pwd.getpwnam("nobody")
DAEMON = pwd.getpwnam("daemon")
"""Stands for the service's own user, which is not installed here."""


def until(holds, what="that", patience_s=PATIENCE_S):
    """Wait until ``holds()`` is true; its value. ``what``: a text, or what makes it at the end."""
    deadline_s = time.monotonic() + patience_s
    while not (value := holds()):
        if time.monotonic() >= deadline_s:
            text = what() if callable(what) else what
            raise AssertionError(f"{text} did not happen within {patience_s:g} s")
        time.sleep(LOOK_S)
    return value


def let_others_work():
    """Have a shell do several steps of a gated job; who may run has had its turns by then."""
    subprocess.run(["sh", "-c", "for n in 1 2 3 4 5 6 7; do sleep 0.02; done"], check=True)


def is_listening(path):
    """Whether somebody listens at this Unix socket; its name is there a little before that."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
    return True


@contextlib.contextmanager
def full_pipe():
    """Both ends of a pipe that holds all that it can."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"." * 4096)
    os.set_blocking(writer, True)
    try:
        yield reader, writer
    finally:
        os.close(writer)
        with contextlib.suppress(OSError):
            os.close(reader)


def marked(mark):
    """All living processes that were started with this mark in their environment."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid() or is_executing(int(name)):
            continue
        with contextlib.suppress(OSError):
            if wanted in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                found.append(int(name))
    return found


def end(pid):
    """SIGKILL to one process, and wait until it is gone or a zombie."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    until(lambda: find_state(pid) in (None, "Z", "X"), f"end of process {pid}")


def name_of(pid):
    """What a process calls itself; empty when it is gone."""
    return _read(Path(f"/proc/{pid}/comm")).strip()


def is_of_job(pid):
    """Whether a process is in a job's cgroup, as one is that does not execute its command yet."""
    return "/jobs/" in _read(Path(f"/proc/{pid}/cgroup"))


def cgroup_trees(runtime):
    """The cgroups that the supervisor of this runtime directory made."""
    name = f"iodaemon-{zlib.crc32(os.path.realpath(runtime).encode()):08x}"
    return [path for path in (CGROUPS / name, CGROUPS / "unified" / name) if path.exists()]


class Server:
    """One state directory and whatever daemon runs on it; a context manager.

    Args:
        means: ``cgroup`` or ``signals``.
        has_faults: whatever is started can be armed (``supervisor.failpoint``).
        settings: further lines of the configuration file.
    """

    def __init__(self, means, *, has_faults=False, **settings):
        self.root = Path(tempfile.mkdtemp(prefix="iod-"))
        self.means = means
        self.state = self.root / "state"
        self.runtime = self.root / "run"
        self.mark = uuid.uuid4().hex
        self.place = self.root
        self.log = self.root / "daemon.log"
        self.environment = {**os.environ, MARK: self.mark}
        self.faults = self.root / "faults"
        if has_faults:
            self.faults.mkdir()
            self.environment[VARIABLE] = str(self.faults)
        self.config = self.root / "config.toml"
        self.config.write_text(_config(self, settings))
        self.process = None
        self.client = Client(str(self.runtime / "iod.sock"), timeout_s=PATIENCE_S)

    @property
    def ledger(self):
        """Where jobs write what they did."""
        return self.place / "ledger"

    def new_page(self):
        """A place of its own for the next test on this server."""
        self.place = Path(tempfile.mkdtemp(prefix="page-", dir=self.root))
        return self

    # -- life of the daemon ------------------------------------------------------------------

    def command(self):
        return [sys.executable, "-m", "iodaemon.cli", "daemon", "--config", str(self.config)]

    def start(self, *, wait=True):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                self.command(), stdout=log, stderr=log, env=self.environment, cwd="/"
            )
        if wait:
            until(self.answers, "a daemon that answers")
        return self

    def answers(self):
        assert self.process.poll() is None, f"the daemon ended: {self.log.read_text()}"
        try:
            self.client.jobs()
        except NoDaemon:
            return False
        return True

    def stop(self):
        """SIGTERM; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)

    def kill(self):
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def kill_supervisor(self):
        end(self.supervisor_pid())

    def kill_both(self):
        """The daemon and its supervisor; the anchor is left."""
        supervisor = self.supervisor_pid()
        self.kill()
        end(supervisor)

    def kill_root_side(self):
        """Anchor and supervisor: how a job ends that runs now is not known."""
        supervisor = self.supervisor_pid()
        end(self.anchor_pid())
        end(supervisor)

    def kill_all(self):
        """The daemon and the root side; the jobs are left."""
        self.kill()
        self.kill_root_side()

    def stop_processes(self, *pids):
        """Make them deaf; a SIGKILL reaches them all the same."""
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
            until(lambda pid=pid: find_state(pid) == "T", f"stop of process {pid}")

    def continue_processes(self, *pids):
        for pid in pids:
            os.kill(pid, signal.SIGCONT)

    def arm(self, point, *, passage=1, number=signal.SIGKILL):
        """Whoever passes this point for the nth time from now on sends itself the signal."""
        unseen = self.root / f"{point}.new"
        unseen.write_text(f"{passage} {int(number)}")
        unseen.rename(self.faults / point)

    def armed(self):
        """The points that nobody has passed often enough."""
        return sorted(path.name for path in self.faults.iterdir())

    def disarm(self):
        for path in self.faults.iterdir():
            path.unlink(missing_ok=True)

    def restart(self):
        """Start another daemon where one was killed or stopped."""
        return self.start()

    def is_running(self):
        return self.process is not None and self.process.poll() is None

    def of_role(self, name):
        """The processes of this name among those that serve the jobs."""
        return [pid for pid in marked(self.mark) if name_of(pid) == name]

    def supervisor_pid(self):
        return until(lambda: self.of_role("iod-supervisor"), "a supervisor")[0]

    def anchor_pid(self):
        return until(lambda: self.of_role("iod-anchor"), "an anchor")[0]

    def supervisor_lives(self):
        return any(find_state(pid) not in (None, "Z") for pid in self.of_role("iod-supervisor"))

    def standing(self):
        """All that is there without jobs: daemon, anchor, supervisor, launcher."""
        ours = {pid for pid in marked(self.mark) if name_of(pid) in STANDING and not is_of_job(pid)}
        return {self.process.pid, *ours}

    def job_processes(self):
        """Those of jobs; by signals their holders as well."""
        ours = self.standing() if self.is_running() else set()
        return [p for p in marked(self.mark) if p not in ours and name_of(p) not in STANDING]

    # -- jobs ----------------------------------------------------------------------------------

    def submit(self, *command, env=None, **options):
        [job] = self.submit_many([{"command": list(command), **options}], env)
        return job

    def submit_many(self, specs, env=None):
        environment = {**self.environment, **(env or {})}
        return self.client.submit([{"cwd": str(self.place), **spec} for spec in specs], environment)

    def script(self, text, **options):
        """A job that runs this text in a shell."""
        return self.submit("/bin/sh", "-c", text, **options)

    def gated(self, name, *, code=0, step="sleep 0.02", **options):
        """A job that writes to the ledger at its start and end, and lasts until ``open_gate``.

        While it lasts, it repeats ``step``.
        """
        return self.script(
            f"cd {self.place}\n"
            f'echo "start {name}" >> ledger\n'
            f"while [ ! -e gate-{name} ]; do {step}; echo >> ticks-{name}; done\n"
            f'echo "done {name}" >> ledger\nexit {code}',
            **options,
        )

    def gate(self, name):
        return self.place / f"gate-{name}"

    def open_gate(self, *names):
        for name in names:
            self.gate(name).touch()

    def ticks(self, name):
        path = self.place / f"ticks-{name}"
        return path.stat().st_size if path.exists() else 0

    def goes_on(self, name):
        """Wait for a sign of life of a gated job."""
        before = self.ticks(name)
        until(lambda: self.ticks(name) > before, f"progress of {name}")

    def stands_still(self, name):
        """True when a gated job makes no progress while others do."""
        before = self.ticks(name)
        let_others_work()
        return self.ticks(name) == before

    def lines(self):
        return sorted(self.ledger.read_text().splitlines()) if self.ledger.exists() else []

    def job(self, job):
        return self.client.job(job)

    def logs(self):
        """What daemons and supervisors have told."""
        return self.log, self.state / "supervisor.log"

    def states(self, *jobs):
        return [self.job(job)["state"] for job in jobs]

    def await_state(self, job, *states):
        """Wait for one of the states; the job."""

        def look():
            found = self.job(job)
            return found if found["state"] in states else None

        return until(look, f"{states} of job {job} ({self.job(job)['state']})")

    def await_durable(self, job, state):
        """Wait until the journal on the disk has the job's step to this state, its last or not."""
        steps = "SELECT 1 FROM event WHERE job_id = ? AND json_extract(record, '$[1]') = ?"

        def look():
            with contextlib.closing(sqlite3.connect(self.state / "journal.db")) as journal:
                return journal.execute(steps, (job, state)).fetchall()

        until(look, f"{state} of job {job} in the journal")

    def suspend(self, job):
        return self.client.suspend(job)["job"]["state"]

    def end_of(self, job):
        """The job once it has ended."""
        answer = self.client.wait([job], timeout_s=PATIENCE_S)
        assert answer["finished"], f"job {job} does not end: {answer['jobs']}"
        return answer["jobs"][0]

    def outcome(self, *jobs):
        """State and exit code of each, once ended."""
        ended = [self.end_of(job) for job in jobs]
        return [(job["state"], job["exit_code"]) for job in ended]

    def output(self, job):
        return b"".join(self.client.logs(job)).decode()

    def output_file(self, job, attempt=1):
        """Of a job that names none."""
        return self.state / "output" / f"{job}.{attempt}"

    def main_pid(self, job):
        """The first process of a job that runs."""
        return self.job(job)["pids"][0]

    def frozen(self):
        """What stands still: cgroups that are frozen, processes that are stopped."""
        trees = cgroup_trees(self.runtime)
        groups = [path for tree in trees for path in tree.glob("jobs/*/cgroup.freeze")]
        cold = [str(path) for path in groups if _read(path).strip() == "1"]
        return cold + [pid for pid in marked(self.mark) if find_state(pid) in ("T", "t")]

    # -- the end ---------------------------------------------------------------------------------

    def __enter__(self):
        return self

    def __exit__(self, failed, *_):
        try:
            if failed is None:
                self._leave_nothing()
        except AssertionError as error:
            error.add_note(self._describe_left())
            raise
        finally:
            self._sweep()

    def end_all(self):
        """Cancel every job; nothing but daemon and root side is left then."""
        for job in self.client.jobs()["jobs"]:
            with contextlib.suppress(IodaemonError):
                self.client.cancel(job["id"], grace_s=0)
        until(lambda: set(marked(self.mark)) <= self.standing(), "end of all processes of all jobs")
        until(lambda: not self.job_cgroups(), "removal of all jobs' cgroups")

    def job_cgroups(self):
        return [path for tree in cgroup_trees(self.runtime) for path in tree.glob("jobs/*/")]

    def _leave_nothing(self):
        """Whatever was left running ends by itself: the root side goes with its last job."""
        if self.is_running():
            self.end_all()
            exit_code = self.stop()
            assert exit_code == 0, self.log.read_text()
        until(lambda: not marked(self.mark), "end of all processes")
        assert cgroup_trees(self.runtime) == []
        assert [path.name for path in self.runtime.glob("*.sock")] in ([], ["iod.sock"])
        assert not (self.runtime / "supervisor.sock").exists()
        assert not any("Traceback" in path.read_text() for path in self.logs())

    def _describe_left(self):
        """What is left, and the last words of daemon and supervisor."""
        left = [_read(Path(f"/proc/{pid}/cmdline")).replace("\0", " ") for pid in marked(self.mark)]
        logs = [_read(path)[-2000:] for path in (self.log, self.state / "supervisor.log")]
        return "\n".join(["left:", *left, *logs])

    def _sweep(self):
        """After a failure: kill what is left, frozen or not."""
        for _ in range(100):
            for tree in cgroup_trees(self.runtime):
                for path in tree.glob("jobs/*/cgroup.kill"):
                    with contextlib.suppress(OSError):
                        path.write_text("1")
            left = marked(self.mark)
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not left:
                break
            time.sleep(LOOK_S)
        if self.process is not None:
            self.process.wait()
        for tree in cgroup_trees(self.runtime):
            for path in [*tree.glob("jobs/*/"), *tree.glob("*/"), tree]:
                with contextlib.suppress(OSError):
                    path.rmdir()
        shutil.rmtree(self.root, ignore_errors=True)


def _read(path):
    try:
        return path.read_text()
    except OSError:
        return ""


def _config(server, settings):
    lines = {
        "state_dir": str(server.state),
        "runtime_dir": str(server.runtime),
        "orphan_grace": "1 s",
        "cancel_grace": "5 s",
        "suspend_by": "signals" if server.means == "signals" else "auto",
    }
    tables = {"topology": {"sockets": ["0"], "oversubscribe": 16}}
    for key, value in settings.items():
        (tables if isinstance(value, dict) else lines)[key] = value
    tables["topology"] = {"oversubscribe": 1, **tables["topology"]}
    text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in lines.items())
    for name, table in tables.items():
        text += f"[{name}]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in table.items())
    return text


def direct_reads(directory, mebibytes=64):
    """A shell command that reads a file past the page cache; the file is made by this call."""
    data = Path(directory) / "data"
    if not data.exists():
        data.write_bytes(os.urandom(1 << 20) * mebibytes)
        subprocess.run(["sync", data], check=True)
    return f"dd if={shlex.quote(str(data))} of=/dev/null bs=1M iflag=direct 2>/dev/null"


@pytest.fixture(params=["cgroup", pytest.param("signals", marks=pytest.mark.slow)], scope="module")
def means(request):
    """How jobs are suspended."""
    return possible(request.param)


def possible(means):
    """These means; without them the test is skipped, unless IOD_REQUIRE names cgroup."""
    if means == "cgroup" and not cgroup_is_writable():
        if "cgroup" in os.environ.get("IOD_REQUIRE", ""):
            pytest.fail("IOD_REQUIRE names cgroup, and no cgroup v2 is writable")
        pytest.skip("no writable cgroup v2 here")
    return means


@pytest.fixture
def make_server(means):
    """Makes servers; each is left behind clean."""
    with contextlib.ExitStack() as servers:
        yield lambda **settings: servers.enter_context(Server(means, **settings))


@pytest.fixture
def server(make_server):
    """A daemon that runs, to be killed and restarted."""
    return make_server().start()


@pytest.fixture(scope="module")
def _lasting_server(means):
    with Server(means) as server:
        yield server.start()


@pytest.fixture
def shared(_lasting_server):
    """A daemon that runs for all tests of a module; each has to leave it without jobs."""
    yield _lasting_server.new_page()
    _lasting_server.end_all()


def cgroup_is_writable():
    """Whether a supervisor can have cgroups of its own here."""
    for base in (CGROUPS, CGROUPS / "unified"):
        if (base / "cgroup.procs").exists() and os.access(base, os.W_OK):
            return True
    return False
