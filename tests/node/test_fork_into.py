"""A child that is in its cgroup from its first instruction, and one that has to move itself."""

import json
import os
import subprocess
import sys

import pytest

SCRIPT = """
import json, os, sys
from iodaemon.backend.linux.freezer import CgroupFreezer
from iodaemon.backend.linux.means import choose_freezer
from iodaemon.backend.linux.process import fork_into

freezer = choose_freezer(sys.argv[1])
if not isinstance(freezer, CgroupFreezer):
    print(json.dumps(None))
    sys.exit()
freezer.make("1.1")
path = freezer.path("1.1") if sys.argv[2] == "there" else "/nonexistent"
read, write = os.pipe()
pid, is_inside = fork_into(path)
if pid == 0:
    os.write(write, open("/proc/self/cgroup").read().encode())
    os._exit(3)
os.close(write)
_, status = os.waitpid(pid, 0)
lines = os.read(read, 10000).decode()
freezer.remove("1.1")
freezer.leave()
print(json.dumps([os.waitstatus_to_exitcode(status), is_inside, "/jobs/1.1" in lines]))
"""

pytestmark = pytest.mark.node


def fork(tmp_path, where):
    """Exit code of the child, whether it was said to be inside, whether it was."""
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), where]
    found = json.loads(subprocess.check_output(command, cwd=os.getcwd(), timeout=30))
    if found is None:
        pytest.skip("no cgroup is writable")
    return found


def test_a_child_is_born_into_its_cgroup(tmp_path):
    code, said, inside = fork(tmp_path, "there")

    assert (3, said) == (code, inside)


def test_where_that_cannot_be_it_is_forked_all_the_same(tmp_path):
    assert fork(tmp_path, "elsewhere") == [3, False, False]
