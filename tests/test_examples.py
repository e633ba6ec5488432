"""The example script says what it is said to say."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


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
