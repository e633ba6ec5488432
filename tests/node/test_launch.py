"""What a job finds when it starts, and what is said of one that cannot."""

import json
import resource
import subprocess
import sys

import pytest
from harness import MARK

pytestmark = pytest.mark.node


def test_what_cannot_start_is_told_in_one_line_with_the_code_of_a_shell(shared):
    def script(name, content, mode):
        path = shared.place / name
        path.write_text(content)
        path.chmod(mode)
        return str(path)

    closed = script("closed", "#!/bin/sh\n", 0o644)
    bare = script("bare", "echo hello\n", 0o755)
    lost = script("lost", "#!/no/shell\n", 0o755)
    gone = str(shared.place / "gone")
    no_command = "no-such-command: no such command in PATH (/usr/bin:/bin)"
    cases = [
        (["no-such-command", "1"], {}, 127, no_command),
        ([closed], {}, 126, f"{closed}: cannot be run (Permission denied)"),
        ([bare], {}, 126, f"{bare}: not a program and without an interpreter line"),
        ([lost], {}, 127, f"{lost}: the interpreter its first line names does not exist"),
        (["true"], {"cwd": gone}, 126, f"the working directory {gone} cannot be entered"),
        (["true"], {"stdout": f"{gone}/x"}, 126, f"the output file {gone}/x cannot be written"),
    ]
    for command, options, code, text in cases:
        job = shared.submit(*command, env={"PATH": "/usr/bin:/bin"}, **options)
        found = shared.end_of(job)
        reason = found["reason"]

        assert ("FAILED", code) == (found["state"], found["exit_code"])
        assert ("StartFailed", True) == (reason["code"], reason["text"].startswith(text)), reason
        assert "\n" not in reason["text"]


FINDS = """
import json, os, resource, sys
print(json.dumps({
    "input": os.read(0, 1).decode(),
    "open": sorted(map(int, os.listdir("/proc/self/fd"))),
    "cpus": sorted(os.sched_getaffinity(0)),
    "leads": os.getpid() == os.getsid(0) == os.getpgid(0),
    "files": resource.getrlimit(resource.RLIMIT_NOFILE),
    "words": len(sys.argv) - 1,
    "large": len(os.environ["LARGE"]),
}))
"""


def test_what_a_job_finds_when_it_starts(shared):
    """A long command line and a large environment arrive as they are."""
    words = ["x" * 1000] * 1000
    job = shared.submit(sys.executable, "-S", "-c", FINDS, *words, env={"LARGE": "y" * 100_000})

    assert [("COMPLETED", 0)] == shared.outcome(job), shared.output(job)
    assert json.loads(shared.output(job)) == {
        "input": "",
        "open": [0, 1, 2, 3],  # the last is the listing itself
        "cpus": [0],  # of the only socket
        "leads": True,
        "files": list(resource.getrlimit(resource.RLIMIT_NOFILE)),
        "words": 1000,
        "large": 100_000,
    }


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
