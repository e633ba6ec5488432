"""``iod sim storage``, as a user meets it."""

from pathlib import Path

import pytest
from storalloc_files import ROWS, YAML, told

from iodaemon.simulator.storalloc_file import read_requests


@pytest.fixture
def write(tmp_path):
    def write(text, name="requests.yml"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def test_the_command_shows_indicators_and_json(iod, write):
    path = str(write(YAML))
    shown = iod("sim", "storage", path, "--capacity", "8 TB", "--rule", "round_robin")
    document = iod("sim", "storage", path, "--split", "none", "--json").json

    assert "sum_cap    475 GB, 4 parts" in shown.out
    assert "allocated  100.00 %, served whole 100.00 %" in shown.out
    assert (2, 0) == (document["parts"], document["split"])


def test_the_command_writes_requests_for_other_programs(iod, write, tmp_path):
    to = tmp_path / "own.csv"
    written = iod("sim", "storage", str(write(YAML)), "--write", str(to))

    assert (0, 3) == (written.code, len(to.read_text().splitlines()))
    assert ROWS == told(read_requests(Path(to)).requests)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--layout", "2N2D"), "--layout 2N2D: write 1N1D, 1NnD, nN1D, nNnD"),
        (("--books", "wrong"), "--books wrong: write correct or artefact"),
        (("--seed", "x"), "--seed x: write a whole number"),
        (("--split", "5"), "--split 5: write at least 1 GB, or none"),
        (("--capacity", "0"), "--capacity 0: write at least 1 GB"),
        (("--rule", "nobody"), "unknown allocation rule 'nobody'"),
    ],
)
def test_the_command_refuses_in_one_line(iod, write, words, message):
    ended = iod("sim", "storage", str(write(YAML)), *words)

    assert ended.code != 0
    assert message in ended.err
    assert 1 == len(ended.err.splitlines())


def test_a_scheduler_alone_is_refused(iod):
    ended = iod("sim", "storage", "--scheduler", "x.csv")

    assert (2, "--scheduler belongs to a FILE") == (ended.code, ended.err[5:34])
