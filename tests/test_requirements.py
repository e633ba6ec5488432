"""requirements.txt, which root installs: in step with constraints.txt, and whole."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[1]
NEWER = {"hatchling", "tomlkit", "trove-classifiers"}
"""What builds the wheel and is not installed where tests run."""


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(text):
    return {
        normal(name): version for name, version in re.findall(r"^(\S+)==(\S+)", text, re.MULTILINE)
    }


PINNED = pins((ROOT / "constraints.txt").read_text())
TEXT = (ROOT / "requirements.txt").read_text()


def needed_by(name):
    """The packages that an installed one needs on this Python, without extras."""
    for line in metadata.requires(name) or []:
        requirement, _, marker = line.partition(";")
        if "extra ==" not in marker and not re.search(r"sys_platform|platform_system", marker):
            yield normal(re.match(r"[A-Za-z0-9._-]+", requirement)[0]), marker


def test_every_package_has_the_version_of_constraints_and_a_hash():
    required = pins(TEXT)

    assert required.items() <= PINNED.items()
    entries = re.split(r"\n(?=[a-z])", TEXT)[1:]  # behind the comment at its top
    assert len(required) == len(entries)
    for entry in entries:
        head, *hashes = entry.strip().split(" \\\n")
        assert hashes, head
        assert all(re.fullmatch(r" *--hash=sha256:[0-9a-f]{64}", each) for each in hashes), head


def test_what_the_project_needs_is_there_with_all_that_these_need():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    left = {normal(re.match(r"[A-Za-z0-9._-]+", each)[0]) for each in wanted}
    required, seen = pins(TEXT), set()
    while left:
        name = left.pop()
        seen.add(name)
        assert name in required, f"{name}: run 'make requirements'"
        if name not in NEWER:
            left |= {other for other, marker in needed_by(name) if not marker} - seen


# -- the example script ----------------------------------------------------------------------------


def test_the_example_script_is_read_with_its_hints():
    ended = subprocess.run(
        [sys.executable, "-m", "iodaemon.cli", "submit", "--dry-run", "--json", "examples/job.sh"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    [spec] = json.loads(ended.stdout)["jobs"]
    assert ("example", 1, 300.0) == (spec["name"], spec["cpus"], spec["walltime_s"])
    assert (32e6, 0.2) == (spec["io_rate_bytes_per_s"], spec["io_share"])


def test_the_example_script_is_one():
    shell = shutil.which("sh")

    assert 0 == subprocess.run([shell, "-n", ROOT / "examples/job.sh"], check=True).returncode
