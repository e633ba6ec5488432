"""What a job finds when it starts, and what is said of one that cannot."""

import json
import subprocess
import sys

import pytest
from harness import MARK

pytestmark = pytest.mark.node

OF_THE_C_LIBRARY = 1 << 31 | 1 << 32
"""Signals 32 and 33 in a mask of /proc/PID/status."""


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


def test_a_file_that_is_not_executable(shared):
    path = shared.place / "script"
    path.write_text("#!/bin/sh\n")
    exit_code, text = failure(shared, str(path))

    assert exit_code == 126
    assert text == f"{path}: cannot be run (Permission denied)"


def test_a_script_without_an_interpreter_line(shared):
    path = shared.place / "script"
    path.write_text("echo hello\n")
    path.chmod(0o755)
    exit_code, text = failure(shared, str(path))

    assert exit_code == 126
    assert text.startswith(f"{path}: not a program and without an interpreter line")


def test_a_script_whose_interpreter_does_not_exist(shared):
    path = shared.place / "script"
    path.write_text("#!/no/such/shell\n")
    path.chmod(0o755)
    exit_code, text = failure(shared, str(path))

    assert exit_code == 127
    assert text == f"{path}: the interpreter its first line names does not exist"


def test_a_working_directory_that_is_gone(shared):
    path = shared.place / "gone"
    exit_code, text = failure(shared, "true", cwd=str(path))

    assert exit_code == 126
    assert text == f"the working directory {path} cannot be entered (No such file or directory)"


def test_an_output_file_that_cannot_be_written(shared):
    path = shared.place / "no" / "file"
    exit_code, text = failure(shared, "true", stdout=str(path))

    assert exit_code == 126
    assert text == f"the output file {path} cannot be written (No such file or directory)"


# -- what a job finds ------------------------------------------------------------------------------


def test_standard_input_is_empty_and_nothing_else_is_open(shared):
    code = (
        "print(json.dumps([os.read(0, 1).decode(), sorted(map(int, os.listdir('/proc/self/fd')))]))"
    )
    data, descriptors = told(shared, code)

    assert data == ""
    assert descriptors == [0, 1, 2, 3]  # the last is the listing itself


def test_no_signal_is_ignored_or_blocked(shared):
    lines = shared.script("grep -E '^Sig(Ign|Blk)' /proc/self/status")
    shared.end_of(lines)

    _, blocked, _, ignored = shared.output(lines).split()
    assert (int(blocked, 16), int(ignored, 16) & ~OF_THE_C_LIBRARY) == (0, 0)


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


def test_it_has_the_mask_it_was_submitted_with(shared):
    job = shared.script("touch file", umask=0o027)
    shared.end_of(job)

    assert (shared.place / "file").stat().st_mode & 0o777 == 0o640


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


def test_output_goes_where_it_was_asked_for(shared):
    text = "echo out; echo err >&2"
    job = shared.script(text, stdout="out-%j.txt", stderr="err-%j.txt")
    shared.end_of(job)

    assert (shared.place / f"out-{job}.txt").read_text() == "out\n"
    assert (shared.place / f"err-{job}.txt").read_text() == "err\n"
    assert shared.output(job) == "out\n"


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
