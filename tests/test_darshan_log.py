"""Darshan's real logs, those that its library ships, whole and damaged."""

import importlib.resources
import os
import random
import warnings

import pytest

from iodaemon.cli.hint import PATIENCE_S, Reader, find_logs
from iodaemon.errors import ConfigError

SHIPPED = {
    path.name: path
    for folder in ("examples", "tests/input")
    for path in (importlib.resources.files("darshan") / folder).glob("**/*.darshan")
}


@pytest.fixture(scope="module")
def reader():
    with Reader() as reader:
        yield reader


def read(reader, path):
    reading = reader.read(str(path))
    assert (reading.run is None) == bool(reading.problem)
    assert "\n" not in reading.problem
    assert len(reading.problem) < 400
    return reading


@pytest.fixture(scope="module")
def library():
    """Darshan's own report of a log."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import darshan

        def report(name):
            found = darshan.DarshanReport(str(SHIPPED[name]), read_all=False)
            for module in ("POSIX", "STDIO"):
                if module in found.modules:
                    found.mod_read_all_records(module)
            return found

        yield report


# -- what a log tells ------------------------------------------------------------------------------


def test_there_are_logs_of_several_versions_and_sizes():
    assert len(SHIPPED) >= 15


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (  # 2 TiB in one file of 2048 ranks, which wrote for 100397.6 s and opened for 11.3 s
            "example.darshan",
            {
                "run_s": 117.0,
                "processes": 2048,
                "read_bytes": 0,
                "written_bytes": 2199023259968 + 3309,
                "io_s": (100397.60042190552 + 11.300841808319092) / 2048,
                "operations": 16402 + 1,
                "uid": 69615,
                "job": "4478544",
                "ended_s": 1490000983.0,
            },
        ),
        (  # no POSIX at all
            "noposix.darshan",
            {"processes": 512, "read_bytes": 1812408359, "written_bytes": 29562779},
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_log_tells_what_its_run_moved(reader, name, told):
    run = read(reader, SHIPPED[name]).run

    assert {key: pytest.approx(value) for key, value in told.items()} == {k: run[k] for k in told}


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_every_shipped_log_tells_what_the_librarys_own_report_does(reader, library, name):
    run = read(reader, SHIPPED[name]).run
    report = library(name)
    job = report.metadata["job"]
    bytes_, io_s = 0, 0.0
    for module in {"POSIX", "STDIO"} & set(report.modules):
        frames = report.records[module].to_df()
        bytes_ += int(
            frames["counters"][[f"{module}_BYTES_READ", f"{module}_BYTES_WRITTEN"]].sum().sum()
        )
        times = [f"{module}_F_{what}_TIME" for what in ("READ", "WRITE", "META")]
        io_s += float(frames["fcounters"][times].clip(lower=0.0).sum().sum())

    assert bytes_ == run["read_bytes"] + run["written_bytes"]
    assert pytest.approx(io_s / job["nprocs"]) == run["io_s"]
    assert (job["run_time"], job["nprocs"]) == (run["run_s"], run["processes"])
    assert (job["uid"], str(job["jobid"])) == (run["uid"], run["job"])


# -- what is no log --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"", "empty"),
        (b"\0", "no Darshan log, or damaged (Failed to open file.)"),
        (b"hello world\n" * 1000, "no Darshan log, or damaged (Failed to open file.)"),
        (b"\x1f\x8b" + bytes(500), "no Darshan log, or damaged (Failed to open file.)"),
    ],
    ids=["empty", "nul", "text", "gzip"],
)
def test_what_is_no_log_is_one_line(reader, tmp_path, content, line):
    (tmp_path / "x.darshan").write_bytes(content)

    assert line == read(reader, tmp_path / "x.darshan").problem


def test_what_cannot_be_read_is_one_line(reader, tmp_path):
    os.mkfifo(tmp_path / "pipe")

    assert "No such file or directory" == read(reader, tmp_path / "none").problem
    assert "no regular file" == read(reader, tmp_path / "pipe").problem
    assert "no *.darshan in this folder" == read(reader, tmp_path).problem


def cut(data, chance):
    return data[: chance.randrange(len(data))]


def flipped(data, chance):
    for _ in range(5):
        place = chance.randrange(len(data))
        data = data[:place] + bytes([data[place] ^ 1 << chance.randrange(8)]) + data[place + 1 :]
    return data


def wrong_head(data, chance):
    place = chance.randrange(300)
    return data[:place] + b"\xff" * 8 + data[place + 8 :]


@pytest.mark.slow
@pytest.mark.parametrize("damage", [cut, flipped, wrong_head], ids=lambda damage: damage.__name__)
@pytest.mark.parametrize(
    "name", ["example.darshan", "ior_hdf5_example.darshan", "sample-goodost.darshan"]
)
def test_a_damaged_log_is_one_line_and_the_next_one_is_read(reader, tmp_path, name, damage):
    """Or it is damaged behind all that counts, and tells what the whole one does."""
    chance = random.Random(f"{name}{damage.__name__}")
    whole, told = SHIPPED[name].read_bytes(), read(reader, SHIPPED[name]).run
    problems = 0
    for _ in range(12):
        (tmp_path / "x.darshan").write_bytes(damage(whole, chance))
        reading = read(reader, tmp_path / "x.darshan")
        problems += reading.run is None
        assert reading.run in (None, told)
        assert told == read(reader, SHIPPED[name]).run

    assert problems


# -- the process that reads ------------------------------------------------------------------------


@pytest.fixture
def instead(tmp_path, monkeypatch):
    """Puts a module in the place of the library."""

    def put(body):
        (tmp_path / "darshan.py").write_text(body)
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
        (tmp_path / "x").write_text("x")
        return tmp_path / "x"

    return put


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("import os\ndef DarshanReport(*_, **__): os.abort()\n", "broke on it (by signal 6)"),
        ("def DarshanReport(*_, **__): bytearray(2**40)\n", "library broke on it"),
        ("def DarshanReport(*_, **__): raise IndexError\n", "library broke on it"),
        ("import time\ndef DarshanReport(*_, **__): time.sleep(99)\n", "takes longer than 0.5 s"),
        ("def DarshanReport(*_, **__): raise ValueError('a\\n b' * 999)\n", "or damaged (a ba b"),
    ],
    ids=["aborts", "memory", "bug", "hangs", "talks"],
)
def test_a_library_that_breaks_is_one_line(instead, body, line):
    path = instead(body)
    with Reader(patience_s=0.5 if "0.5 s" in line else PATIENCE_S) as reader:
        assert [True, True] == [line in read(reader, path).problem for _ in range(2)]


def test_a_library_that_does_not_start_is_said(instead):
    path = instead("import nothing_of_this_name")
    with Reader() as reader, pytest.raises(ConfigError, match="library does not start"):
        reader.read(str(path))


def test_no_process_is_left_behind(reader):
    with Reader() as own:
        read(own, SHIPPED["example.darshan"])
        process = own._process
        assert process.poll() is None
    assert process.poll() is not None


# -- finding them ----------------------------------------------------------------------------------


def test_logs_are_found_below_folders_and_files_are_taken_as_they_are(tmp_path):
    (tmp_path / "b/c").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    for name in ("b/2.darshan", "b/1.darshan", "b/c/3.darshan", "b/x.txt", "y.txt"):
        (tmp_path / name).touch()

    found = find_logs([str(tmp_path / name) for name in ("y.txt", "b", "empty", "none")])
    names = [os.path.relpath(path, tmp_path) for path in found]
    assert ["y.txt", "b/1.darshan", "b/2.darshan", "b/c/3.darshan", "empty", "none"] == names
