"""``iod stack`` and ``iod compare`` on a disk with one arm, whose time is its own.

The disk (spin.c) paces itself: a block of a stream takes 6 ms, and 20 where the arm comes from
another stream, which is so long that it hardly matters how busy the machine is. Needs nbdkit; a
machine that must have it says so in IOD_REQUIRE.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from beds import spinning

pytestmark = [pytest.mark.disk, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[2]
FOR_SURE = 0.3
"""Part of a run in contention: it has three to five looks, of which one or two may say nothing."""
STREAMS = """
[topology]
sockets = ["{}", "{}"]
slot = "thread"
oversubscribe = {}

[[job]]
name = "stream"
kernel = "read"
size = "16 MiB"
block = "256 KiB"
count = 4
"""


@pytest.fixture
def disk(tmp_path):
    lacks = spinning.missing()
    lacks += [] if len(os.sched_getaffinity(0)) > 1 else ["a second CPU"]
    if lacks:
        what = f"no spinning disk here: it lacks {', '.join(lacks)}"
        if "nbdkit" in os.environ.get("IOD_REQUIRE", ""):
            pytest.fail(what)
        pytest.skip(what)
    with spinning.spinning_disk(tmp_path, size="1G", rate="40M", seek_min="10000") as directory:
        yield directory
        assert ["lost+found"] == os.listdir(directory)


def run(tmp_path, disk, slots, *words):
    cpus = sorted(os.sched_getaffinity(0))
    (tmp_path / "streams.toml").write_text(STREAMS.format(cpus[0], cpus[1], slots))
    verb, *others = words
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "iodaemon.cli", verb, "streams.toml", "--rounds", "1"),
            *("--force", "--json", "--directory", str(disk), *others),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_a_stream_on_each_socket_loses_by_the_arm_that_both_share_and_waits(tmp_path, disk):
    document = run(tmp_path, disk, 1, "stack")

    first, second = document["summary"]
    assert (1, 2) == (first["sockets"], second["sockets"])
    assert second["normalized"] > 2.0
    waits, serves = (second[key] - first[key] for key in ("waiting_s", "serving_s"))
    assert waits > max(0.0, serves)
    assert first["contended_ratio"] < 0.2 < FOR_SURE < second["contended_ratio"]


def test_streams_that_share_the_arm_on_one_socket_are_contended_there_already(tmp_path, disk):
    document = run(tmp_path, disk, 2, "stack")

    first, second = document["summary"]
    assert (2, 4) == (first["jobs"], second["jobs"])
    assert second["normalized"] > 1.3
    assert second["waiting_s"] > first["waiting_s"] > first["serving_s"]
    assert min(first["contended_ratio"], second["contended_ratio"]) > FOR_SURE


def test_streams_that_share_an_arm_are_slower_than_alone_and_mostly_wait(tmp_path, disk):
    document = run(tmp_path, disk, 2, "compare", "--policies", "none,default")

    none, default = document["runs"]
    assert ("none", "default") == (none["policy"], default["policy"])
    assert none["average_runtime_s"] > 1.5 * document["alone_s"]["stream"]
    assert none["slowdown"] < 3.0
    assert none["waiting_s"] > none["serving_s"] > 0.0
    assert default["waiting_s"] is not None
    assert {"too few rounds", "same"} >= {each["verdict"] for each in document["changes"]}
