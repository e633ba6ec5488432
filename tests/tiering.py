"""Daemons with storage tiers on two small disks, for tests: asked by the command line."""

import subprocess
import sys

import pytest
from harness import Server, cgroup_trees, find_state, marked, possible, until
from scratching import left

either_means = pytest.mark.parametrize("make_tiered", ["cgroup", "signals"], indirect=True)
"""For tests that hold by either means; all others have signals."""
SLOW = '[tier.slow]\nbandwidth = "50 MB/s"\n'


def tables(disks, *, split="", slow=SLOW):
    """The configuration of a fast tier on these disks, and a slow one without."""
    text = "[tier.fast]\n" + (f'split = "{split}"\n' if split else "")
    text += 'staging = "100 MB/s"\n'
    return text + "".join(f'[[tier.fast.disk]]\npath = "{disk}"\n' for disk in disks) + slow


class Tiered(Server):
    """A server with tiers.

    Args:
        disks: of ``two_disks``.
        text: further tables of the configuration.
        means: as of a ``Server``.
        settings: further lines of it.
    """

    def __init__(self, disks, text, *, means="signals", **settings):
        super().__init__(means, has_faults=True, **settings)
        self.disks = disks
        with open(self.config, "a") as file:
            file.write(text)

    def iod(self, *words):
        """Call the command line: exit code, and what it told."""
        told = subprocess.run(
            [sys.executable, "-m", "iodaemon.cli", "--api", self.client.socket_path, *words],
            env=self.environment,
            cwd=self.place,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return told.returncode, told.stdout + told.stderr

    def says(self, *words):
        """What it told, of a call that succeeded."""
        code, told = self.iod(*words)
        assert code == 0, told
        return told

    def sent(self, *words, text=None):
        """The number of a job that was submitted by the command line."""
        script = () if text is None else ("--", "/bin/sh", "-c", text)
        return int(self.says("submit", *words, *script).splitlines()[0].split()[-1])

    def held(self, name, *words):
        """A job that begins, says where its space is, and lasts until its gate is open."""
        text = (
            f'echo "start {name}" >> ledger; echo "$IOD_SCRATCH" > at-{name};'
            f" while [ ! -e gate-{name} ]; do sleep 0.02; echo >> ticks-{name}; done;"
            f' echo "done {name}" >> ledger'
        )
        return self.sent(*words, text=text)

    def paths(self, name):
        """Where the space of a held job is, once it has begun."""
        until(lambda: self.ticks(name), f"the start of {name}")
        return (self.place / f"at-{name}").read_text().split()[0].split(":")

    def taken(self):
        """Bytes of each job, by ``iod node``'s record."""
        rows = self.client.node()["allocated"]
        found = {}
        for row in rows:
            found[row["job_id"]] = found.get(row["job_id"], 0) + row["size_bytes"]
        return found

    def stopped_at(self, point):
        """Who was stopped there, once it stands still."""
        until(lambda: not self.armed(), f"passage of {point}")

        def look():
            return [pid for pid in marked(self.mark) if find_state(pid) == "T"]

        return until(look, f"a stop at {point}")[0]

    def revive(self):
        """Another daemon where none is left."""
        if not self.is_running():
            self.restart()

    def settle(self):
        """Nothing is left of a test but daemon and root side, and none of them is ill."""
        self.disarm()
        self.revive()
        self.end_all()
        self.await_nothing()
        assert not any("Traceback" in path.read_text() for path in self.logs())

    def await_nothing(self):
        """Nothing is on the disks any more, and nothing is taken of them."""
        until(lambda: not left(self.disks), f"removal of {left(self.disks)}")
        until(lambda: not self.taken(), f"space to be free again ({self.taken()})")

    def input(self, **files):
        """Files to be copied in; where."""
        (self.place / "in").mkdir(exist_ok=True)
        for name, content in files.items():
            (self.place / "in" / name).write_bytes(content)
        return str(self.place / "in")


@pytest.fixture(scope="module")
def _lasting_tiered():
    """Servers by their configuration; one that does not survive a test is not among them."""
    servers = {}
    yield servers
    for server in servers.values():
        server.__exit__(None, None, None)


@pytest.fixture
def make_tiered(request, _lasting_tiered, disks):
    """Gives servers with tiers on the two disks, which tests of a module share."""
    means = possible(getattr(request, "param", "signals"))
    used = []

    def make(*, text=None, **settings):
        text = tables(disks, split="4 MiB") if text is None else text
        key = (means, text, repr(settings))
        if key not in _lasting_tiered:
            server = Tiered(disks, text, means=means, **settings)
            _lasting_tiered[key] = server.__enter__().start()
            assert (means == "cgroup") == bool(cgroup_trees(server.runtime))
        used.append(key)
        return _lasting_tiered[key].new_page()

    yield make
    for key in used:
        try:
            _lasting_tiered[key].settle()
        except BaseException as error:
            _lasting_tiered.pop(key).__exit__(type(error), error, None)
            raise
