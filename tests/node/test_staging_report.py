"""The report of a job with directories: its user may put anything into it."""

import os
import random
import subprocess

import pytest

from iodaemon.node.outcome import Report, read_report
from iodaemon.node.staging import command_of

LINES = (
    b'{"step": "in"}\n{"in": {"failed": null, "read_bytes": 5, "written_bytes": 7}}\n'
    b'{"step": "run"}\n{"status": 256}\n{"step": "out"}\n'
)
ODD = (
    b"\0" * 100,
    b"\xff\xfe\n",
    b"[" * 50_000,
    b'{"step": "dance"}',
    b'{"status": ' + b"9" * 5000 + b"}",
    b'{"in": {"failed": null, "read_bytes": -1, "written_bytes": 0}}',
    b'{"in": {"failed": null, "read_bytes": 1e300, "written_bytes": 0}}',
    b'{"problem": 7}',
    b"{}" * 100_000,
)


def test_the_last_word_of_each_kind_counts(tmp_path):
    path = tmp_path / "1.1.report"
    path.write_bytes(LINES)
    report = read_report(tmp_path, 1, 1)

    assert ("out", 256, 7) == (report.step, report.status, report.came.written_bytes)
    assert report.failure[1] == "it was killed"


@pytest.mark.parametrize("text", ODD, ids=range(len(ODD)))
def test_what_is_no_word_says_nothing_and_the_words_beside_it_count(tmp_path, text):
    path = tmp_path / "1.1.report"
    path.write_bytes(b'{"step": "run"}\n' + text + b"\n")

    assert Report(step="run") == read_report(tmp_path, 1, 1)


def test_random_bytes_are_a_report_of_something_or_of_nothing(tmp_path):
    path = tmp_path / "1.1.report"
    generator = random.Random(5)
    for _ in range(500):
        data = bytearray(LINES)
        for _ in range(generator.randrange(1, 20)):
            data[generator.randrange(len(data))] = generator.randrange(256)
        path.write_bytes(data)

        assert isinstance(read_report(tmp_path, 1, 1), Report)


def test_a_file_without_end_is_read_as_far_as_is_enough(tmp_path):
    path = tmp_path / "1.1.report"
    path.write_bytes(LINES)
    os.truncate(path, 1 << 40)

    assert "out" == read_report(tmp_path, 1, 1).step


@pytest.mark.parametrize("kind", ["link", "pipe", "directory"])
def test_what_is_no_file_is_not_waited_for(tmp_path, kind):
    path = tmp_path / "1.1.report"
    (tmp_path / "other").write_bytes(LINES)
    make = {
        "link": lambda: path.symlink_to(tmp_path / "other"),
        "pipe": lambda: os.mkfifo(path),
        "directory": path.mkdir,
    }
    make[kind]()

    assert read_report(tmp_path, 1, 1) is None


def test_a_command_whose_name_is_no_utf_8_is_told(tmp_path):
    path, options = tmp_path / "1.1.report", {"paths": [], "input": None, "output": None}
    words = command_of(["/no/such\udcff"], **options, on="success")
    subprocess.run(["sh", "-c", 'exec 3>"$0"; exec "$@"', str(path), *words], check=False)

    assert "/no/such" in read_report(tmp_path, 1, 1).problem
