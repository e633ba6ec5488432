"""``iod compare`` with real jobs and real daemons, and what is left: nothing."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from harness import MARK, cgroup_is_writable, cgroup_trees, end, marked, until

from iodaemon.trial.private import own_directory, private, sweep

pytestmark = [pytest.mark.node, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PATIENCE_S = 240.0
"""For what takes seconds on a free machine."""
PLAINLY = """
import sys
from pathlib import Path
sys.modules["matplotlib"] = None
from iodaemon.cli import main
from iodaemon.trial import site
site._DROP = Path("/proc/none")
sys.exit(main())
"""
"""The command without what draws (seconds of every trial), on a machine whose page cache it may not
drop: as root it would make everything else here read its files again, and wait for what all others
are writing, before every run."""
SMALL = """
[topology]
oversubscribe = 4

[[job]]
kernel = "read"
size = "4 MiB"
count = 2

[[job]]
name = "own"
command = ["sh", "-c", "cat {file} > {scratch}/out{copy}"]
file = "1 MiB"
"""
SIZES = {
    "120 MB/s": "30 MB/s",
    "192 MiB": "48 MiB",
    "128 MiB": "32 MiB",
    "64 MiB": "16 MiB",
    "2 MiB": "512 KiB",
}
"""Sizes and rates of the example with kernels, and what is tried."""
AFTER = """
[[job]]
name = "counting"
command = ["sh", "-c", '''n=$(cat n 2>/dev/null || echo 0); echo $((n+1)) > n
[ $n -lt LIMIT ] || WHAT''']
"""


@pytest.fixture
def place(monkeypatch):
    """A directory of a short name for all: files, daemons, results; nothing may be left of them."""
    path = Path(tempfile.mkdtemp(prefix="iodt", dir="/tmp"))
    monkeypatch.setenv("TMPDIR", str(path))
    monkeypatch.setenv(MARK, path.name)  # in the environment of all that is started
    yield path
    left = [each.name for each in path.iterdir() if each.name.startswith("iod-trial")]
    processes = marked(path.name)
    for pid in processes:
        end(pid)
    shutil.rmtree(path)

    assert [] == left
    assert [] == processes


def a_fourth(text):
    """The example with kernels with a fourth of what it moves, under a fourth of its cap."""
    for size, quarter in SIZES.items():
        assert f'"{size}"' in text
        text = text.replace(f'"{size}"', f'"{quarter}"')
    return text


def start(place, *words):
    return subprocess.Popen(
        [sys.executable, "-c", PLAINLY, *words],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(place, *words):
    return finish(start(place, *words))


def finish(process):
    try:
        out, err = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        pytest.fail(f"not within {PATIENCE_S:g} s: {out} {err}")
    return process.returncode, out, err


def write(place, text, name="w.toml"):
    (place / name).write_text(text)
    return name


def doing_after(limit, what):
    """A workload whose job, after so many runs in which it does nothing, does this."""
    return AFTER.replace("LIMIT", str(limit)).replace("WHAT", what)


# -- compare ---------------------------------------------------------------------------------------


def test_policies_by_name_and_by_file_are_compared_by_real_jobs(place):
    write(place, (ROOT / "policies/dynamic.toml").read_text(), "mine.toml")
    words = (write(place, SMALL), "--policies", "none,mine.toml", "--rounds", "1", "--json")
    code, out, err = run(place, "compare", *words, "--force")

    assert code == 0, err
    document = json.loads(out)
    assert document == json.loads((place / "iod-compare/w/results.json").read_text())
    runs = [(each["policy"], each["round"]) for each in document["runs"]]
    assert [("none", 1), ("mine", 1)] == runs
    assert {"read", "own"} == set(document["alone_s"])
    assert [1, 1] == [len(each) for each in document["alone_times_s"].values()]
    assert [3] * 2 == [len(each["jobs"]) for each in document["runs"]]
    assert all(0.0 < each["slowdown"] for each in document["runs"])
    assert {"too few rounds", "same", "unknown"} >= {e["verdict"] for e in document["changes"]}
    assert not (place / "n").exists()


@pytest.mark.slow
def test_a_command_that_fails_later_ends_the_trial_and_complete_rounds_are_told(place):
    file = write(place, doing_after(5, "{ echo last >&2; exit 5; }"))
    code, out, err = run(place, "compare", file, "--force", "--policies", "none,dynamic")

    assert code == 1
    assert "rounds: 1 of 6 asked" in out
    assert "round 2 of 6, none: job counting.0 is FAILED: exit code 5" in err
    assert "it said last: 'last'" in err
    assert [1, 1] == [
        len(json.loads((place / "iod-compare/w/results.json").read_text())[key])
        for key in ("partial", "alone_s")
    ]


@pytest.mark.slow
def test_what_a_killed_one_left_is_removed_by_the_next(place):
    file = write(place, doing_after(0, "sleep 300"))
    process = start(place, "compare", file, "--force")
    until((place / "n").exists, "the job", PATIENCE_S)
    process.kill()
    process.communicate()
    assert marked(place.name)
    [runtime] = place.glob("iod-trial.*/daemon/run")
    before = cgroup_trees(runtime)
    sweep(place)

    assert cgroup_is_writable() == bool(before)
    assert [] == marked(place.name)
    assert [] == cgroup_trees(runtime)


@pytest.mark.slow
def test_a_busy_machine_is_refused_and_said(place):
    burn = [sys.executable, "-c", "while True: pass"]
    burners = [subprocess.Popen(burn) for _ in os.sched_getaffinity(0)]
    try:
        code, _, err = run(place, "compare", write(place, SMALL))
    finally:
        for each in burners:
            each.kill()
            each.wait()

    assert code == 1
    assert "the machine is busy: " in err
    assert "--force" in err
    assert ["w.toml"] == os.listdir(place)


@pytest.mark.slow
def test_the_example_with_kernels_is_compared_under_a_cap_of_its_own(place):
    file = write(place, a_fourth((EXAMPLES / "workload-mixed.toml").read_text()))
    words = (file, "--policies", "none,dynamic", "--rounds", "1", "--json")
    code, out, err = run(place, "compare", *words, "--force")

    assert code == 0, err
    document = json.loads(out)
    assert {"reader": 3, "writer": 2, "lookups": 2, "solver": 2} == document["counts"]
    assert all(each["moved_bytes"] > 2e8 for each in document["runs"])


def test_a_private_daemon_takes_its_jobs_with_it(place):
    with own_directory(place) as base:
        with private(base, {"policy": "none"}) as daemon:
            daemon.client.submit([{"command": ["sleep", "300"], "cwd": "/"}], daemon.environment)
        until(lambda: not marked(place.name), "their end")
