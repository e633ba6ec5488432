"""What a job finds when it starts, and what is said of one that cannot."""

import json
import subprocess
import sys

import pytest
from harness import MARK

pytestmark = pytest.mark.node


def failure(server, *command, **options):
    """Exit code and reason of a job that cannot be started."""
    job = server.submit(*command, **options)
    found = server.end_of(job)
    assert found["state"] == "FAILED"
    assert found["reason"]["code"] == "StartFailed"
    assert "\n" not in found["reason"]["text"]
    return found["exit_code"], found["reason"]["text"]


def told(server, code, **options):
    """What a Python job prints, as JSON."""
    job = server.submit(sys.executable, "-S", "-c", f"import json, os, signal\n{code}", **options)
    assert server.outcome(job) == [("COMPLETED", 0)], server.output(job)
    return json.loads(server.output(job))


# -- what cannot start -----------------------------------------------------------------------------


def test_a_command_that_does_not_exist(shared):
    exit_code, text = failure(shared, "no-such-command", "1", env={"PATH": "/usr/bin:/bin"})

    assert exit_code == 127
    assert text == "no-such-command: no such command in PATH (/usr/bin:/bin)"


@pytest.mark.parametrize(
    ("content", "mode", "code", "text"),
    [
        ("#!/bin/sh\n", 0o644, 126, "cannot be run (Permission denied)"),
        ("echo hello\n", 0o755, 126, "not a program and without an interpreter line"),
        ("#!/no/shell\n", 0o755, 127, "the interpreter its first line names does not exist"),
    ],
    ids=["not executable", "no interpreter", "no such interpreter"],
)
def test_a_script_that_cannot_be_executed(shared, content, mode, code, text):
    path = shared.place / "script"
    path.write_text(content)
    path.chmod(mode)
    exit_code, told = failure(shared, str(path))

    assert exit_code == code
    assert told.startswith(f"{path}: {text}")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"cwd": "gone"}, "the working directory {} cannot be entered"),
        ({"stdout": "gone/file"}, "the output file {} cannot be written"),
    ],
    ids=["directory", "output"],
)
def test_a_place_that_is_gone(shared, options, text):
    [(name, path)] = options.items()
    path = shared.place / path
    exit_code, told = failure(shared, "true", **{name: str(path)})

    assert exit_code == 126
    assert told == f"{text.format(path)} (No such file or directory)"


# -- what a job finds ------------------------------------------------------------------------------


def test_standard_input_is_empty_and_nothing_else_is_open(shared):
    code = (
        "print(json.dumps([os.read(0, 1).decode(), sorted(map(int, os.listdir('/proc/self/fd')))]))"
    )
    data, descriptors = told(shared, code)

    assert data == ""
    assert descriptors == [0, 1, 2, 3]  # the last is the listing itself


def test_a_signal_that_the_c_library_keeps_is_left_as_whoever_started_us_left_it():
    code = (
        "import ctypes, platform, signal\n"
        "from iodaemon.supervisor.syscalls import ignore_no_signal\n"
        "number = {'x86_64': 13}.get(platform.machine(), 134)  # rt_sigaction\n"
        "ignore = (ctypes.c_ulong * 4)(1, 0, 0, 0)\n"
        "assert ctypes.CDLL(None).syscall(number, 32, ignore, None, 8) == 0\n"
        "ignore_no_signal()\n"
        "assert signal.getsignal(signal.SIGPIPE) is not signal.SIG_IGN\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert (done.returncode, done.stderr) == (0, "")


def test_a_broken_pipe_ends_a_writer_silently(shared):
    job = shared.submit("/bin/bash", "-c", "yes | head -n 1; echo ${PIPESTATUS[0]}")
    shared.end_of(job)

    assert shared.output(job) == "y\n141\n"


def test_its_environment_is_the_submitted_one_and_ours(shared):
    submitted = {"PATH": "/usr/bin:/bin", "LINES": "a\nb=c", "EMPTY": "", MARK: shared.mark}
    [job] = shared.client.submit(
        [{"command": ["env", "-0"], "cwd": str(shared.place), "name": "nightly"}], submitted
    )
    shared.end_of(job)
    words = [word.split("=", 1) for word in shared.output(job).split("\0")[:-1]]

    assert dict(words) == {
        **submitted,
        "IOD_JOB_ID": str(job),
        "IOD_JOB_NAME": "nightly",
        "IOD_ATTEMPT": "1",
        "IOD_CPU_SOCKET": "0",
        "IOD_CPUS": "1",
        "IOD_CPU_LIST": "0",
        "IOD_API_SOCKET": str(shared.runtime / "iod.sock"),
    }


def test_it_leads_a_session_of_its_own(shared):
    code = "print(json.dumps([os.getpid() == os.getsid(0) == os.getpgid(0)]))"

    assert told(shared, code) == [True]


def test_it_may_open_as_many_files_as_the_daemon_might(shared):
    code = "import resource\nprint(json.dumps(resource.getrlimit(resource.RLIMIT_NOFILE)))"
    soft, hard = told(shared, code)
    import resource

    assert [soft, hard] == list(resource.getrlimit(resource.RLIMIT_NOFILE))


def test_both_streams_go_to_one_file_in_the_order_they_were_written(shared):
    job = shared.script("echo 1; echo 2 >&2; echo 3")
    shared.end_of(job)

    assert shared.output(job) == "1\n2\n3\n"


def test_a_long_command_line_and_a_large_environment_arrive(shared):
    words = ["x" * 1000] * 1000
    code = "import sys\nprint(json.dumps([len(sys.argv) - 1, len(os.environ['LARGE'])]))"
    command = [sys.executable, "-S", "-c", f"import json, os\n{code}", *words]
    job = shared.submit(*command, env={"LARGE": "y" * 100_000})
    shared.end_of(job)

    assert json.loads(shared.output(job)) == [1000, 100_000]


def test_many_short_jobs_at_once_all_end_truly(shared):
    specs = [{"command": ["/bin/sh", "-c", f"exit {number % 5}"]} for number in range(60)]
    jobs = shared.submit_many(specs)
    codes = [code for _, code in shared.outcome(*jobs)]

    assert codes == [number % 5 for number in range(60)]
