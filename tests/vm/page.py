"""What the virtual server was put through, and the page that says so: docs/vm.md."""

import datetime
import re
import time
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).parents[2] / "docs/vm.md"
HEAD = """\
# The virtual server

What `make vm-test` checks: a virtual machine with four sockets and four memory nodes, systemd and
cgroup v2, built from Debian packages; the wheel is installed in it, the units are started, and jobs
of two users run as they would on a server. The gate (`make test`) has none of this: no second
socket, no systemd, no reboot. What it cannot show: how fast anything is (the CPUs are emulated),
and what pinning gains (its memory is equally far from everywhere).

A check that fails is tried once more, on a machine that was booted anew, and only then counts:
emulated CPUs that share a few real ones starve at times. The table says where that was needed.
Those about `users` and `bad` have no second try: what went wrong there once is wrong.
The seconds are of a check alone, without boots and installations. Each section is written by
`make vm-test ARGS=--write`, the other Debian's with `IOD_VM_SUITE=trixie` before it.
"""


class Check(NamedTuple):
    """One test: what it says, and how it went."""

    topic: str
    sentence: str
    seconds: float
    result: str


class Record:
    """Fills while the tests run; ``section`` is what the page says of it."""

    def __init__(self, suite):
        self.suite = suite
        self.began_s = time.monotonic()
        self.steps = []
        """Image, boots and installations: what, and how many seconds."""
        self.facts = []
        """Versions, as the machine itself tells them."""
        self.machine = None
        """The one that runs now."""
        self.checks = []

    def step(self, what, began_s):
        """Took from then until now, by ``time.monotonic``."""
        seconds = time.monotonic() - began_s
        self.steps.append((what, seconds))
        print(f"\n{what}: {seconds:.1f} s")

    def add(self, item, reports, *, again):
        """One test is over; its seconds are those of its last try, without what all tests share."""
        failed = any(report.failed for report in reports)
        skipped = any(report.skipped for report in reports)
        result = "failed" if failed else "skipped" if skipped else "ok"
        if again and not failed:
            result += ", at the second try"
        seconds = sum(report.duration for report in reports if report.when != "setup")
        topic = item.path.stem.removeprefix("test_vm_")
        self.checks.append(Check(topic, sentence(item.name), seconds, result))

    def section(self, exit_status):
        """This suite's part of the page."""
        total_s = time.monotonic() - self.began_s
        again = sum("second" in each.result for each in self.checks)
        how = f"{len(self.checks)} checks, {total_s / 60:.1f} minutes with all that is before them"
        return "\n".join(
            [
                f"## {self.suite}",
                "",
                f"{datetime.datetime.now(datetime.UTC).date()}, {', '.join(self.facts)}.",
                f"{how}; {again or 'none'} needed a second try; exit status {exit_status}.",
                "",
                "| Before the checks | seconds |",
                "|---|---|",
                *(f"| {what} | {seconds:.0f} |" for what, seconds in self.steps),
                "",
                "| About | Check | seconds | result |",
                "|---|---|---|---|",
                *(
                    f"| {each.topic} | {each.sentence} | {each.seconds:.1f} | {each.result} |"
                    for each in self.checks
                ),
                "",
            ]
        )

    def write(self, exit_status):
        """Put the section into the page, in its place; other suites' stay."""
        sections = {}
        if PAGE.exists():
            for text in re.split(r"^(?=## )", PAGE.read_text(), flags=re.MULTILINE)[1:]:
                sections[text.split("\n")[0].removeprefix("## ")] = text.rstrip("\n") + "\n"
        sections[self.suite] = self.section(exit_status)
        parts = [HEAD, *(sections[name] for name in sorted(sections))]
        PAGE.write_text("\n".join(parts))


def sentence(name):
    """A test's name as one; what it was parametrised with follows."""
    words, _, values = name.removeprefix("test_").partition("[")
    text = words.replace("_", " ")
    return f"{text}: {values.removesuffix(']')}" if values else text
