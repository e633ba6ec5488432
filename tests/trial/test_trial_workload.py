"""Workload files: what they say, and what is refused."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iodaemon.errors import ConfigError, NotFound, RequestError
from iodaemon.kernels import builtin as kernel
from iodaemon.trial.workload import Places, check_fit, job_spec, load_workload, needed_bytes

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("workload-*.toml"))
PLACES = Places(data=Path("/d"), scratch=Path("/s"))


def load(tmp_path, text, directory=None):
    file = tmp_path / "some.toml"
    file.write_text(text)
    return load_workload(file, directory)


def refused(tmp_path, text):
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    return str(caught.value)


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_an_example_is_a_workload_and_says_what_it_is(path):
    workload = load_workload(path)

    assert workload.jobs
    assert path.read_text().startswith("# ")


def test_a_job_is_submitted_with_what_the_file_says(tmp_path):
    workload = load(
        tmp_path,
        '[[job]]\ncommand = ["./run", "{scratch}/a{copy}", "{file}", "{other}"]\ncpus = 2\n'
        'mem = "1 GiB"\ntime = "5m"\nio_rate = "2 MB/s"\nio_share = 0.5\nno_suspend = true\n'
        'file = "1 MiB"\ncwd = "sub"\n',
    )
    spec = job_spec(workload.jobs[0], 3, workload, PLACES)

    assert spec == {
        "command": ["./run", "/s/a3", "/d/run.3", "{other}"],
        "name": "run.3",
        "cwd": str(tmp_path / "sub"),
        "cpus": 2,
        "no_suspend": True,
        "memory_bytes": 1 << 30,
        "walltime_s": 300.0,
        "io_rate_bytes_per_s": 2e6,
        "io_share": 0.5,
    }


def test_a_kernel_is_a_program_on_a_file_of_the_copys_own(tmp_path):
    workload = load(tmp_path, '[[job]]\nkernel = "read"\nsize = "8 MiB"\nrate = "1 MB/s"\n')
    [job] = workload.jobs
    words = job_spec(job, 1, workload, PLACES)["command"]

    assert [sys.executable, "-P", "-m", "iodaemon.kernels.builtin", "read"] == words[:5]
    assert words[5] == "/d/read.1"
    assert ["--rate", "1000000.0"] == words[words.index("--rate") :][:2]
    assert "--cached" not in words


def test_the_paced_reader_reads_as_those_of_a_calibration_do(tmp_path):
    workload = load(tmp_path, '[[job]]\nkernel = "paced"\nsize = "8 MiB"\nrate = "1 MB/s"\n')
    words = job_spec(workload.jobs[0], 0, workload, PLACES)["command"]

    assert ["iodaemon.kernels.builtin", "read", "/d/paced.0"] == words[3:6]
    assert ["--size", "8388608", "--block", "131072"] == words[6:10]
    assert ["--rate", "1000000.0"] == words[words.index("--rate") :][:2]


@pytest.mark.parametrize(
    "keys", ['kernel = "random"', 'kernel = "paced"\nrate = "1 GB/s"'], ids=["kernel", "paced"]
)
def test_what_lies_beside_the_workload_file_is_not_run_by_its_kernels(tmp_path, keys):
    workload = load(tmp_path, f'[[job]]\n{keys}\nsize = "128 KiB"\n')
    for name in ("random", "argparse", "mmap", "json", "subprocess"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('this is another file')\n")
    data = tmp_path / "data"
    data.mkdir()
    (data / f"{workload.jobs[0].name}.0").write_bytes(bytes(128 << 10))
    places = Places(data=data, scratch=tmp_path, is_direct=False)
    spec = job_spec(workload.jobs[0], 0, workload, places)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        spec["command"], cwd=spec["cwd"], env=environment, capture_output=True, check=False
    )

    assert (0, b"") == (ended.returncode, ended.stderr)


def test_where_files_cannot_be_read_directly_kernels_go_through_the_page_cache(tmp_path):
    workload = load(tmp_path, '[[job]]\nkernel = "read"\nsize = "8 MiB"\n')
    places = Places(data=Path("/d"), scratch=Path("/s"), is_direct=False)

    assert "--cached" in job_spec(workload.jobs[0], 0, workload, places)["command"]


def test_the_room_is_that_of_all_copies(tmp_path):
    workload = load(
        tmp_path,
        '[[job]]\nkernel = "read"\nsize = "8 MiB"\ncount = 2\n'
        '[[job]]\nkernel = "write"\nsize = "1 GiB"\n[[job]]\nkernel = "compute"\nrounds = 3\n',
    )

    assert 2 * (8 << 20) + (256 << 20) + 4096 == needed_bytes(workload.jobs)


def test_jobs_without_names_are_told_apart(tmp_path):
    text = '[[job]]\nkernel = "compute"\nrounds = 3\n'

    assert ["compute", "compute-2"] == [job.name for job in load(tmp_path, text * 2).jobs]


def test_a_directory_in_the_file_is_beside_it_and_one_that_is_given_goes_before(tmp_path):
    text = 'directory = "disk"\n[[job]]\nkernel = "compute"\nrounds = 3\n'

    assert tmp_path / "disk" == load(tmp_path, text).directory
    assert Path("/var") == load(tmp_path, text, "/var").directory


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no job in it"),
        ("[[job]]\n", "write either command or kernel"),
        ('[[job]]\nkernel = "reed"', "did you mean 'read'"),
        ('[[job]]\nkernel = "read"\nsize = "1 MB"', "write a multiple of 1048576"),
        ('[[job]]\nkernel = "fork"\nsize = "4 MiB"\nblock = 4096', "none for fork"),
        ('[[job]]\nkernel = "paced"\nsize = "1 MiB"', "rate is missing"),
        (
            '[[job]]\nkernel = "paced"\nsize = "2 MiB"\nrate = 1\nfile = "1 MiB"',
            "file is below size",
        ),
        ('[[job]]\nkernel = "read"\nsize = "1 MiB"\nfile = 7', "file is 7; write 1048576 or more"),
        ('[[job]]\ncommand = ["x"]\nfile = 0', "write a size above 0"),
        ('[[job]]\ncommand = ["x"]\nname = "a/b"', "up to 40 letters"),
        ('[[job]]\ncommand = ["x"]\nname = "a"\n' * 2, "a second 'a'"),
        ('[[job]]\ncommand = ["x"]\ncpu = 2', "did you mean 'cpus'"),
        ('[[job]]\ncommand = ["x"]\n[topology]\nsockets = ["0", "0"]', "CPU 0 is in"),
    ],
)
def test_what_is_wrong_is_said_in_one_line_with_file_and_key(tmp_path, text, words):
    said = refused(tmp_path, text)

    assert words in said
    assert "some.toml" in said
    assert "\n" not in said


def test_a_file_that_is_not_there_is_not_found(tmp_path):
    with pytest.raises(NotFound, match=r"no workload file .*none\.toml"):
        load_workload(tmp_path / "none.toml")


# -- kernels ---------------------------------------------------------------------------------------


def test_memory_that_is_held_is_in_use():
    before = resident_bytes()
    held = kernel.hold(32 << 20)
    during = resident_bytes()
    held.close()

    assert during - before > 30 << 20


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_what_holds_more_memory_than_is_free_is_refused(tmp_path):
    text = '[[job]]\nkernel = "compute"\nrounds = 1\nhold = "{}"\n'
    check_fit(load(tmp_path, text.format("1 MiB")))
    with pytest.raises(RequestError, match="jobs that run together hold 900 TiB"):
        check_fit(load(tmp_path, text.format("900 TiB")))


@given(st.integers(0, 10_000), st.sampled_from([1, 7, 512, 4096]))
def test_steps_are_whole_blocks_in_order(total, block):
    found = list(kernel.steps(total, block, None))

    assert [n * block for n in range(total // block)] == found


# -- programs with a rate --------------------------------------------------------------------------

BLOCK = 4096


class Clock:
    """Goes on by sleeping, and by what each block takes."""

    def __init__(self, took_s):
        self.now_s = 100.0
        self._took_s = iter(took_s)

    def monotonic(self):
        return self.now_s

    def sleep(self, wait_s):
        self.now_s += wait_s

    def work(self):
        self.now_s += next(self._took_s)


def timed(took_s, rate):
    """When each block of the kernels begins, from the first, s."""
    clock = Clock(took_s)
    begun_s = []
    real, kernel.time = kernel.time, clock
    try:
        for _ in kernel.steps(len(took_s) * BLOCK, BLOCK, rate):
            begun_s.append(clock.now_s - 100.0)
            clock.work()
    finally:
        kernel.time = real
    return begun_s


def test_blocks_come_at_the_rate():
    assert pytest.approx([0.0, 0.5, 1.0, 1.5]) == timed([0.1] * 4, 2.0 * BLOCK)


def test_a_block_that_takes_a_little_longer_is_caught_up():
    assert pytest.approx([0.0, 0.7, 1.0, 1.5]) == timed([0.7, 0.1, 0.1, 0.1], 2.0 * BLOCK)


def test_time_in_which_a_kernel_stood_still_is_lost():
    assert pytest.approx([0.0, 3.0, 3.5, 4.0]) == timed([3.0, 0.1, 0.1, 0.1], 2.0 * BLOCK)


def test_who_is_woken_late_on_a_busy_cpu_keeps_a_high_rate():
    begun_s = timed([0.04] + [0.0] * 99, 1000.0 * BLOCK)

    assert pytest.approx(0.099) == begun_s[-1]


@given(
    st.lists(st.floats(0.0, 5.0), min_size=1, max_size=30),
    st.floats(0.5, 1000.0),
)
def test_a_rate_is_never_passed_by_more_than_a_few_blocks(took_s, per_s):
    begun_s = timed(took_s, per_s * BLOCK)

    slack_s = max(0.05, 2.0 / per_s)
    for first, begin_s in enumerate(begun_s):
        for last in range(first, len(begun_s)):
            assert begun_s[last] - begin_s >= (last - first) / per_s - slack_s - 1e-6
