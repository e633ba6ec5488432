"""The service on the virtual server: installed from the wheel, and spoken to as its users do."""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from recipe import ROOT

IOD = "/opt/iodaemon/bin/iod"
ASKS = (ROOT / "tests/vm/ask.py").read_text()
ASK = "/usr/local/lib/vm-ask"
"""The same on the server, for commands that wait there."""
SCOPE = "/sys/fs/cgroup/iodaemon.slice/iodaemon-jobs.scope"
UNITS = ("iodaemon.service", "iodaemon-supervisor.service")
SCRIPT = "while [ ! -e /tmp/gate-$IOD_JOB_ID ]; do sleep 0.2; done; exit 7"
"""A job that lasts until its gate is there, and ends with 7."""
CONFIG = """\
orphan_grace = "20 s"
cancel_grace = "3 s"
journal_samples = true  # what it measured can be held against what iostat says
[topology]
oversubscribe = 4
"""


class Service:
    """What the tests ask of it."""

    def __init__(self, machine):
        self.machine = machine

    def install(self):
        """As an administrator does it, with a configuration of the tests' own."""
        self.put_program()
        self.machine.put(ASK, ASKS.encode())
        self.machine.put("/etc/iodaemon/config.toml", CONFIG.encode())
        self.machine.sh(f"{IOD} install", limit_s=300)

    def put_program(self):
        """This tree's wheel into the venv that has all that it needs."""
        with tempfile.TemporaryDirectory() as place:
            wheel = build_wheel(place)
            self.machine.put(f"/root/{wheel.name}", wheel.read_bytes())
        self.machine.sh(
            "/opt/iodaemon/bin/python -m pip --disable-pip-version-check"
            f" install -q --no-index --no-deps --force-reinstall /root/{wheel.name}"
            "; sync"  # before somebody cuts the power
        )

    # -- as a user -------------------------------------------------------------------------------

    def iod(self, *words, user="ann", **options):
        """The program itself; it takes seconds to begin here."""
        return self.machine.run("iod", *words, user=user, **options)

    def ask(self, method, target, body=None, *, user="ann"):
        """What the daemon answers this user; a refusal as ``{"error": ...}``."""
        data = b"" if body is None else json.dumps(body).encode()
        ended = self.machine.program(ASKS, method, target, user=user, stdin=data)
        try:
            return json.loads(ended.out)
        except ValueError:
            raise AssertionError(f"{method} {target}: {ended}") from None

    def submit(self, script, *, user="ann", **spec):
        """Its number."""
        job = {"command": ["sh", "-c", script], "cwd": "/tmp", **spec}
        body = {"jobs": [job], "environment": {"PATH": "/usr/bin:/bin"}}
        [number] = self.ask("POST", "/v1/jobs", body, user=user)["ids"]
        return number

    def show(self, job):
        return self.ask("GET", f"/v1/jobs/{job}", user="root")

    def await_state(self, job, *states, limit_s=90.0):
        """The job, once it is in one of these states."""
        until_s = time.monotonic() + limit_s
        while (shown := self.show(job)).get("state") not in states:
            assert time.monotonic() < until_s, f"{states} did not come: {shown}"
            time.sleep(0.2)
        return shown

    def output(self, job, *, user="ann"):
        target = f"/v1/jobs/{job}/logs"
        ended = self.machine.program(ASKS, "GET", target, user=user)
        assert ended.code == 0, ended
        return ended.out

    def run(self, script, *, user="ann", **spec):
        """What a job prints, and how it ended."""
        job = self.submit(script, user=user, **spec)
        shown = self.await_state(job, "COMPLETED", "FAILED", "LOST", "TIMEOUT", "CANCELLED")
        return self.output(job, user=user), shown

    # -- as root ---------------------------------------------------------------------------------

    def main_pid(self, unit):
        return int(self.machine.sh(f"systemctl show -P MainPID {unit}"))

    def await_ready(self):
        for unit in UNITS:
            self.machine.until(f"systemctl is-active -q {unit}", what=f"{unit} active")
        self.ask("GET", "/v1/node")

    def cgroup(self, job):
        return f"{SCOPE}/jobs/{job}.1"

    def pids(self, job):
        return [
            int(word) for word in self.machine.sh(f"cat {self.cgroup(job)}/cgroup.procs").split()
        ]

    def frozen(self):
        """The cgroups of jobs that stand still."""
        found = self.machine.sh(f"grep -l '^frozen 1' {SCOPE}/jobs/*/cgroup.events || true")
        return [path.split("/")[-2] for path in found.split()]

    def leftovers(self):
        """Cgroups of jobs, and their processes, that are still there after a while; should be none.

        A job counts as ended when its first process has; what it left behind may take longer.
        """
        jobs = f"{SCOPE}/jobs"
        gone = f'for i in {{1..50}}; do [ -z "$(ls -d {jobs}/*/ 2>/dev/null)" ] && exit 0;'
        return self.machine.sh(f"{gone} sleep 0.2; done; head {jobs}/*/cgroup.procs")

    def cancel_all(self):
        """No job is left, so that the next test begins with an empty server."""
        for job in self.ask("GET", "/v1/jobs", user="root")["jobs"]:
            self.ask("POST", f"/v1/jobs/{job['id']}/cancel", {"grace_s": 0}, user="root")


def build_wheel(place, tree=ROOT):
    """The wheel of this project, or of another tree of it, in that directory."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*command, "--no-deps", "--wheel-dir", place, str(tree)], check=True)
    [wheel] = Path(place).glob("iodaemon-*.whl")
    return wheel
