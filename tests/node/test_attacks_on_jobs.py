"""What one user may try against another user's job, or against root, by way of the keeper."""

import json
import os
import random
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from harness import cgroup_trees, until
from keeping import NOBODY, ServiceKeeper

from iodaemon.backend.linux import protocol
from iodaemon.backend.linux.process import children_of, find_state

OTHER = 4_321
"""A uid without an account: the attacker."""
FUZZED = 2_000

pytestmark = [
    pytest.mark.node,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become others"),
]


@pytest.fixture
def tmp(keeper):
    """A directory as /tmp is, and of root's."""
    path = keeper.root / "tmp"
    path.mkdir()
    path.chmod(0o1777)
    return path


@pytest.fixture
def home(keeper):
    """The submitter's own directory, with a file that must not be touched."""
    path = keeper.root / "home"
    path.mkdir(mode=0o755)
    (path / "precious").write_text("before")
    for each in (path, path / "precious"):
        os.chown(each, NOBODY.pw_uid, NOBODY.pw_gid)
    return path


def refusal(keeper, path, name="stdout"):
    _, status = keeper.run("echo after", **{name: str(path)})
    return status.get("never_ran", "")


# -- output files --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_anothers_link_in_a_public_directory_is_not_followed(keeper, tmp, home, name):
    link = tmp / "out"
    link.symlink_to(home / "precious")
    os.chown(link, OTHER, OTHER, follow_symlinks=False)

    assert "somebody else put it there" in refusal(keeper, link, name)
    assert "before" == (home / "precious").read_text()


def test_anothers_dangling_link_makes_nothing(keeper, tmp, home):
    link = tmp / "out"
    link.symlink_to(home / "new")
    os.chown(link, OTHER, OTHER, follow_symlinks=False)

    assert "somebody else put it there" in refusal(keeper, link)
    assert not (home / "new").exists()


def test_an_own_link_is_followed_also_there(keeper, tmp, home):
    link = tmp / "out"
    link.symlink_to(home / "precious")
    os.chown(link, NOBODY.pw_uid, NOBODY.pw_gid, follow_symlinks=False)

    assert "" == refusal(keeper, link)
    assert "after\n" == (home / "precious").read_text()


def test_a_file_of_another_name_is_not_emptied(keeper, tmp, home):
    os.link(home / "precious", tmp / "out")

    assert "other names as well" in refusal(keeper, tmp / "out")
    assert "before" == (home / "precious").read_text()


def test_output_is_not_given_to_who_made_the_file_before(keeper, tmp):
    waiting = tmp / "out"
    waiting.touch()
    os.chown(waiting, OTHER, OTHER)
    waiting.chmod(0o666)

    assert "somebody else put it there" in refusal(keeper, waiting)
    assert "" == waiting.read_text()


def test_an_own_file_is_emptied_and_written_again(keeper, tmp):
    out = tmp / "out"
    out.write_text("a longer text from the last time")
    os.chown(out, NOBODY.pw_uid, NOBODY.pw_gid)

    assert "" == refusal(keeper, out)
    assert "after\n" == out.read_text()


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_a_pipe_without_reader_holds_nothing_up(keeper, home, name):
    os.mkfifo(home / "pipe")
    os.chown(home / "pipe", NOBODY.pw_uid, NOBODY.pw_gid)

    assert "it is a pipe that nobody reads" in refusal(keeper, home / "pipe", name)


def test_a_pipe_with_a_reader_takes_the_output(keeper, home):
    os.mkfifo(home / "pipe")
    os.chown(home / "pipe", NOBODY.pw_uid, NOBODY.pw_gid)
    reader = os.open(home / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    code = "import os; print(os.get_blocking(1))"
    try:
        keeper.run(f'exec python3 -I -S -c "{code}"', stdout=str(home / "pipe"))
        heard = os.read(reader, 100)
    finally:
        os.close(reader)

    assert b"True\n" == heard


@pytest.mark.parametrize("device", ["/dev/null", "/dev/full", "/dev/zero"])
def test_a_device_is_written_as_the_user_may(keeper, device):
    assert "" == refusal(keeper, device)


OF_ROOT = ("/dev/mem", "/dev/tty", "/dev/kmsg", "/dev/port", "/proc/sysrq-trigger")


@pytest.mark.parametrize("path", [path for path in OF_ROOT if Path(path).exists()])
def test_what_only_root_may_write_is_not_written(keeper, path):
    assert f"the output file {path} cannot be written" in refusal(keeper, path)


@pytest.mark.parametrize(
    "path",
    [
        "../../../../etc/iodaemon-was-here",
        "/proc/1/mem",
        "/etc/shadow",
        "/",
        "x" * 300,
        "/tmp/\udcff/x",
    ],
)
def test_paths_outside_are_refused_with_the_reason(keeper, path):
    told = refusal(keeper, path)

    assert "cannot be written" in told
    assert not Path("/etc/iodaemon-was-here").exists()


def test_the_jobs_directories_take_nothing_of_a_user(keeper):
    told = refusal(keeper, keeper.state / "jobs" / "1.1" / "status.json")

    assert "cannot be written (Permission denied)" in told


# -- environment ---------------------------------------------------------------------------------

LOADER = ("LD_PRELOAD", "LD_AUDIT", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONSTARTUP", "BASH_ENV")


@pytest.fixture
def poison(keeper):
    """A library that says which user it was loaded as."""
    source, library = keeper.root / "poison.c", keeper.root / "poison.so"
    source.write_text(
        "#include <stdio.h>\n#include <unistd.h>\n"
        "__attribute__((constructor)) static void say(void) {"
        f' FILE *f = fopen("{keeper.root}/loaded", "a");'
        ' if (f) { fprintf(f, "%d\\n", geteuid()); fclose(f); } }\n'
    )
    try:
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    except FileNotFoundError:
        pytest.skip("no C compiler")
    loaded = keeper.root / "loaded"
    loaded.touch()
    loaded.chmod(0o666)
    return library


def test_a_library_of_the_users_is_loaded_by_the_job_alone(keeper, poison):
    environment = {"LD_PRELOAD": str(poison), "IOD_TEST_MARK": keeper.mark}
    keeper.run("true; /bin/true", environment=environment)

    uids = (keeper.root / "loaded").read_text().split()
    assert uids
    assert {str(NOBODY.pw_uid)} == set(uids)


def test_loader_variables_reach_the_job_and_nobody_of_root(keeper):
    environment = {name: f"/nowhere/{name}" for name in LOADER} | {"IOD_TEST_MARK": keeper.mark}

    printed, _ = keeper.run("/usr/bin/env", environment=environment)

    for name in LOADER:
        assert f"{name}=/nowhere/{name}" in printed
    shims = [keeper.process.pid, *_children(keeper.process.pid)]
    for pid in shims:
        assert "/nowhere/" not in Path(f"/proc/{pid}/environ").read_text()


def _children(pid):
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


# -- other jobs, keeper, cgroups ------------------------------------------------------------------


def test_a_job_reaches_neither_shim_nor_keeper_nor_their_memory(keeper):
    keeper.begin()
    pid = keeper.process.pid
    script = "; ".join(
        f"({attempt}) 2>/dev/null && echo reached {number}"
        for number, attempt in enumerate(
            [
                f"kill -9 {pid}",
                "kill -9 $PPID",
                f"kill -STOP {pid}",
                f"cat /proc/{pid}/environ",
                "cat /proc/$PPID/mem",
                "ls /proc/$PPID/fd",
                f"ls {keeper.state}/jobs",
                f"cat {keeper.state}/jobs/1.1/shim.json",
                f"touch {keeper.state}/jobs/1.1/told",
                f"rm {keeper.state}/keeper.lock",
                f"ln -s /etc/shadow {keeper.state}/jobs/1.2",
                "renice -n -5 -p $PPID",
            ]
        )
    )

    printed, status = keeper.run(f"{script}; echo done")

    assert "done\n" == printed
    assert keeper.process.poll() is None
    assert 0 == status["exit"]["code"]


@pytest.fixture
def either(means):
    """The keeper as the service has it, by signals and by cgroups."""
    if means == "cgroup" and Path("/run/systemd/system").exists():
        pytest.skip("its jobs would be in the scope that systemd has for the service's own")
    with ServiceKeeper(means) as keeper:
        yield keeper


def test_a_job_moves_into_no_cgroup_and_freezes_and_kills_none(either):
    line = either.begin()
    beside = either.launch("exec sleep 600", uid=NOBODY.pw_uid)
    line.ask("start", job=2, attempt=1, launch=beside)
    trees = " ".join(map(str, cgroup_trees(either.state)))
    assert bool(trees) == (either.means == "cgroup")
    script = (
        "before=$(grep ^0:: /proc/self/cgroup); "
        f"all=$(find {trees or '/nowhere'} 2>/dev/null; find /sys/fs/cgroup 2>/dev/null | "
        "grep -E '/(cgroup.(procs|threads|freeze|kill)|tasks)$' | head -200); "
        "for f in $all; do case $f in *.procs|*.threads|*/tasks) word=$$;; *) word=1;; esac; "
        "[ -d $f ] && mkdir $f/mine 2>/dev/null && echo made $f/mine; "
        "[ -f $f ] && (echo $word > $f) 2>/dev/null && echo wrote $f; done; "
        '[ "$before" = "$(grep ^0:: /proc/self/cgroup)" ] && echo "$before"; '
        "echo $all | wc -w; echo done"
    )

    printed, status = either.run(script)
    *found, where, tried, done = printed.splitlines()

    assert ([], "done", 0) == (found, done, status["exit"]["code"])
    if either.means == "cgroup":
        assert where.endswith("/jobs/1.1")
        assert int(tried) > 20
        [main] = (int(word) for word in _procs(either, 2).split())
        assert find_state(main) == "S"
    line.ask("kill", job=2, attempt=1, signal=9)
    assert 9 == either.status(2)["exit"]["signal"]


def _procs(keeper, job):
    [tree] = cgroup_trees(keeper.state)
    return (tree / "jobs" / f"{job}.1" / "cgroup.procs").read_text()


def test_a_job_reads_no_output_but_its_own(keeper):
    line = keeper.begin()
    line.ask("start", job=2, attempt=1, launch=keeper.launch("echo secret", uid=NOBODY.pw_uid))
    keeper.status(2)
    path = keeper.directory(2) / "output"

    printed, _ = keeper.run(f"cat {path} 2>&1")

    assert "Permission denied" in printed
    assert "secret" not in printed


# -- requests to the keeper, from a daemon that has been taken over --------------------------------


@pytest.mark.parametrize(
    ("job", "attempt"),
    [
        ("../../x", 1),
        (-1, 1),
        (1, -1),
        (10**400, 1),
        (None, 1),
        ([], 1),
        ("1/2", 1),
        (float("inf"), 1),
    ],
)
def test_a_forged_number_is_no_path(keeper, job, attempt):
    line = keeper.begin()
    before = sorted(keeper.root.rglob("*"))

    told = line.ask("start", job=job, attempt=attempt, launch=keeper.launch("true"))

    assert "malformed request" in told["error"]
    assert before == sorted(keeper.root.rglob("*"))


@pytest.mark.parametrize("launch", [None, "x", [], 3, {}, {"command": "x"}, {"command": [1]}])
def test_a_launch_that_is_none_runs_nothing_and_ends(keeper, launch):
    line = keeper.begin()
    line.say(("start", {"job": 1, "attempt": 1, "launch": launch}))
    line.hear()

    described = line.ask("list", jobs=[[1, 1]])["jobs"][0]
    if "absent" not in described:
        assert 0 != keeper.status()["exit"]["code"]
    assert keeper.process.poll() is None


def word(generator):
    """Something that JSON can say, and a keeper does not expect."""
    numbers = [0, -1, 1, 2**63, 10**40, 1e308, float("inf"), float("nan"), True]
    plain = [None, "", "../..", "\0", "start", "\u202e", {}, [], *numbers]
    kind = generator.random()
    if kind < 0.8:
        return generator.choice(plain)
    if kind < 0.9:
        return [word(generator) for _ in range(generator.randrange(3))]
    return {str(word(generator)): word(generator) for _ in range(generator.randrange(3))}


def request(generator):
    verbs = ["hello", "freeze", "thaw", "kill", "list", "tidy", "retire", "start", "leave", "x"]
    fields = ["job", "attempt", "signal", "jobs", "before_s", "most", "version", "state"]
    asked = {name: word(generator) for name in fields if generator.random() < 0.6}
    return {"id": word(generator), "verb": generator.choice([*verbs, word(generator)]), **asked}


def test_a_keeper_outlives_whatever_it_is_asked(keeper):
    generator = random.Random(20)
    line = keeper.begin()
    for _ in range(FUZZED // 50):
        line.say(*[(made.pop("verb"), made) for made in (request(generator) for _ in range(50))])
        for _ in range(50):
            line.hear()

    assert "pid" in line.ask("hello", version=1, state=str(keeper.state.resolve()))


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 200_000 + b"\n",
        b'{"verb":' * 100_000 + b"\n",
        b"\xff\xfe\n",
        b"nothing\n",
        b"[]\n",
        b"\n" * 1000,
        b'{"verb":"hello"',
        b"x" * (protocol.LARGEST_LINE_BYTES + 2),
    ],
    ids=["deep", "deep objects", "bytes", "word", "list", "empty", "cut", "long"],
)
def test_what_is_no_message_ends_that_connection_and_nothing_else(keeper, data):
    line = keeper.begin()
    with socket.socket(socket.AF_UNIX) as attacker:
        attacker.settimeout(20)
        attacker.connect(str(keeper.path))
        try:
            attacker.sendall(data)
            attacker.shutdown(socket.SHUT_WR)
            assert b"" == attacker.recv(10)
        except (BrokenPipeError, ConnectionResetError):
            pass

    assert "pid" in line.ask("hello", version=1, state=str(keeper.state.resolve()))


def test_a_job_is_not_left_starting_by_a_pipe(keeper, home):
    """Its place is given back: the next job starts."""
    os.mkfifo(home / "pipe")
    os.chown(home / "pipe", NOBODY.pw_uid, NOBODY.pw_gid)
    refusal(keeper, home / "pipe")
    line = keeper.lines_open[-1]
    line.ask("start", job=2, attempt=1, launch=keeper.launch("exit 5"))

    until(lambda: (keeper.directory(2) / "status.json").exists(), "the second job's end")
    assert 5 == json.loads((keeper.directory(2) / "status.json").read_text())["exit"]["code"]


# -- ends ----------------------------------------------------------------------------------------

SEIZES = """
import ctypes, sys, time
number = int(sys.argv[1])
print(ctypes.CDLL(None).ptrace(0x4206, number, 0, 0), flush=True)  # PTRACE_SEIZE
time.sleep(600)
"""


@pytest.mark.parametrize("text", ["exec sleep 600", "sleep 600 & wait"])
def test_a_job_ends_though_its_tracer_takes_no_notice(keeper, text):
    """Its end is the tracer's to hear of first, and a tracer outside of the job may sleep."""
    line = keeper.begin()
    launch = keeper.launch(text)
    main = line.ask("start", job=1, attempt=1, launch=launch)["shim"]["main_pid"]
    traced = until(lambda: main if "exec" in text else (children_of(main) or [0])[0], "a process")
    who = ["setpriv", f"--reuid={NOBODY.pw_uid}", f"--regid={NOBODY.pw_gid}", "--clear-groups"]
    cmdline = Path(f"/proc/{traced}/cmdline")
    until(lambda: cmdline.read_bytes().startswith(b"sleep\0"), "exec")
    command = [*who, sys.executable, "-c", SEIZES, str(traced)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as tracer:
        try:
            seized = tracer.stdout.readline()
            line.ask("kill", job=1, attempt=1, signal=9)
            status = keeper.status()
        finally:
            tracer.kill()

    assert b"0\n" == seized
    assert {"code": None, "signal": 9} == status["exit"]
