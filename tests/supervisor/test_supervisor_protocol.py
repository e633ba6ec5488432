"""The line: who may speak, what is no wish, what a daemon finds after it was away."""

import contextlib
import fcntl
import json
import os
import random
import signal
import socket
import subprocess
import termios
from pathlib import Path

import pytest
from harness import until
from root_side import by_either_means

from iodaemon.supervisor.anchor import SOCKET, Config, abstract_address
from iodaemon.supervisor.launch import PROGRAM, pack, parse_launch
from iodaemon.supervisor.protocol import LONGEST_LINE, BadInputError, LineReader, Silence, decode
from iodaemon.supervisor.syscalls import receive

pytestmark = pytest.mark.node
NOBODY = 65534


def test_only_the_daemons_uid_is_heard(make_root):
    if os.geteuid() != 0:
        pytest.skip("needs root")
    root = make_root("cgroup", daemon_uid=65534)
    path = str(root.runtime / SOCKET)
    until(lambda: os.path.exists(path))
    for address in (path, abstract_address(root.config)):  # by root, who is not the daemon
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.settimeout(20)
            until(lambda line=line, address=address: not line.connect_ex(address))
            try:
                line.sendall(b'{"wish":"hello","protocol":1}\n')
                answer = line.recv(100)
            except ConnectionError:
                answer = b""

            assert b"" == answer


@pytest.mark.parametrize("accepts", [True, False])
def test_another_user_who_has_the_second_address_hinders_nobody(accepts, make_root, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("needs root")
    runtime = tmp_path / "run"
    address = abstract_address(Config(str(runtime), NOBODY))
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as taken,
        contextlib.ExitStack() as stack,
    ):
        pid = os.fork()
        if pid == 0:  # whoever listens is the peer that is seen
            os.setuid(NOBODY)
            taken.bind(address)
            taken.listen(16 if accepts else 0)
            os._exit(0)
        os.waitpid(pid, 0)
        for _ in range(0 if accepts else 3):
            line = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            line.setblocking(False)
            line.connect_ex(address)
        root = make_root("processes", runtime=str(runtime))
        path = runtime / SOCKET
        until(path.exists, "the socket")
        daemon = root.connect()

        assert 4 == daemon.code_of("1.1", "exit 4")
        assert "another user has taken" in root.log.read_text()


def test_what_is_no_wish_is_answered_in_one_line_and_hurts_nobody(shared):
    daemon = shared.connect()
    daemon.run("1.1", "sleep", "1000")
    lines = [
        b"", b"{", b"[]", b"nul", b'"x"', b"{}", b'{"wish":1}', b'{"wish":"dance"}', b"\xff\xfe",
        b"[" * 100_000, b'{"wish":"freeze"}', b'{"wish":"freeze","key":7}',
        b'{"wish":"freeze","key":"1.1.1"}', b'{"wish":"freeze","key":"01.1"}',
        b'{"wish":"freeze","key":"../1.1"}', b'{"wish":"freeze","key":"99999999999999999999.1"}',
        b'{"wish":"signal","key":"1.1"}', b'{"wish":"signal","key":"1.1","number":65}',
        b'{"wish":"signal","key":"1.1","number":true}', b'{"wish":"sync","keys":[["1.1"]]}',
        b'{"wish":"sync","keys":[["1.1","dance"]]}', b'{"wish":"forget","key":"1.1"}',
        b'{"wish":"prepare","key":"2.1","launch":7}', b'{"wish":"beat","n":-1}',
        b'{"wish":"prepare","key":"2.1","launch":{"limits":{"memory_bytes":-5}}}',
        b'{"wish":"cap","key":"1.1","io":{"sda":"x"}}',
        b'{"wish":"scratch","do":"make","disk":"/","name":"../x","uid":1,"gid":1}',
        b'{"wish":"beat","n":' + b"9" * 5000 + b"}",
    ]  # fmt: skip
    for line in lines:
        daemon.line.sendall(line + b"\n")
        answer = daemon.read()

        assert "error" in answer, line[:80]
    rng = random.Random(7)
    words = ["prepare", "run", "freeze", "thaw", "signal", "forget", "sync", "scratch", "hello"]
    values = [None, 1, -1, 1e300, "1.2", "3.1", [], {}, [["1.1", "run"]], True, "x" * 300]
    for _ in range(300):
        fields = {name: rng.choice(values) for name in ("key", "number", "keys", "launch", "do")}
        daemon.say(rng.choice(words), **{**fields, "protocol": 1})
        daemon.line.sendall(rng.randbytes(40).replace(b"\n", b" ") + b"\n")
    daemon.sync(**{"1_1": "run"})
    daemon.await_state("1.1", "running")

    assert 0 == daemon.code_of("9.1", "true")


def test_a_line_that_is_too_long_ends_the_connection(shared):
    daemon = shared.connect()
    daemon.run("1.1", "sleep", "1000")
    with contextlib.suppress(ConnectionError):
        daemon.start("2.1", "true", environment={"X": "x" * LONGEST_LINE})
    with pytest.raises(ConnectionError):
        daemon.await_message(lambda m: "key" in m)
    daemon = shared.find("1.1", "2.1")

    assert ("running", "absent") == tuple(daemon.states[key]["state"] for key in ("1.1", "2.1"))


def test_a_daemon_of_another_protocol_is_told_so_and_can_only_have_it_replaced(shared):
    daemon = shared.connect(says_hello=False)
    daemon.say("freeze", key="1.1")
    assert "error" in daemon.read()
    daemon.say("hello", protocol=99)
    assert 1 == daemon.read()["hello"]["protocol"]
    daemon.say("freeze", key="1.1")
    assert "error" in daemon.read()
    daemon.say("reexec")
    daemon.await_end()

    assert 1 == shared.connect().hello["protocol"]


def test_a_daemon_with_another_state_is_refused_while_jobs_of_the_first_are_known(root):
    daemon = root.connect(says_hello=False)
    daemon.say("hello", protocol=1, state="/first")
    assert "hello" in daemon.read()
    daemon.run("1.1", "sh", "-c", "exit 5")
    daemon.await_state("1.1", "ended")
    root.kill("iod-supervisor")
    other = root.connect(says_hello=False)
    other.say("hello", protocol=1, state="/second")
    refusal = other.read()

    assert ("hello", True) == (refusal["wish"], "directory /first;" in refusal["error"])

    other.say("sync", keys=[])
    assert "error" in other.read()
    daemon = root.connect(says_hello=False)
    daemon.say("hello", protocol=1, state="/first")
    daemon.sync(**{"1_1": "run"})

    assert 5 == daemon.states["1.1"]["exit"]["code"]

    daemon.say("forget", key="1.1")
    daemon.beat()
    other = root.connect(says_hello=False)
    other.say("hello", protocol=1, state="/second")

    assert "hello" in other.read()


@by_either_means
def test_hello_says_by_what_means_jobs_are_held(shared):
    daemon = shared.connect()
    report = daemon.run("1.1", "sleep", "1000")
    hello = daemon.hello
    if hello["means"] == "processes":
        assert (None, None, "configured", []) == (
            hello["base"], hello["unit"], hello["lack"], hello["controls"],
        )  # fmt: skip
        assert ("signals, as configured", shared.role("iod-holder")) == (
            hello["detail"], report["holder"],
        )  # fmt: skip
    else:
        members = Path(hello["base"], "jobs", "1.1", "cgroup.procs").read_text().split()

        assert [str(report["pid"])] == members
        assert ("", None) == (hello["lack"], report["holder"])
        assert f"cgroup v2 at {hello['base']}" == hello["detail"]
        assert (shared.cgroup / "jobs" / "io.pressure").exists() == (
            "pressure" in hello["controls"]
        )


def test_sync_reports_every_key_and_forgets_what_is_not_named(shared):
    daemon = shared.connect()
    for key in ("1.1", "2.1"):
        daemon.run(key, "true")
        daemon.await_state(key, "ended")
    daemon.run("3.1", "sleep", "1000")
    daemon.run("4.1", "sleep", "1000")
    daemon.close()
    daemon = shared.connect()
    daemon.sync(**{"1_1": "run", "3_1": "freeze", "9_1": "run"})
    daemon.await_state("3.1", "running", frozen=True)
    states = {key: report["state"] for key, report in daemon.states.items()}

    assert {"1.1": "ended", "3.1": "running", "4.1": "running", "9.1": "absent"} == states

    daemon.sync(**{"2_1": "run", "3_1": "run", "4_1": "run"})
    daemon.await_state("3.1", "running", frozen=False)

    assert "absent" == daemon.states["2.1"]["state"]


def test_a_new_line_takes_the_place_of_the_old_one(shared):
    first = shared.connect()
    second = shared.connect()
    with pytest.raises(ConnectionError):
        first.read()

    assert 0 == second.code_of("1.1", "true")


def test_a_daemon_that_reads_nothing_is_hung_up_on_and_hurts_nobody(shared):
    daemon = shared.connect()
    wishes = json.dumps({"wish": "hello", "protocol": 1}).encode() + b"\n"
    with contextlib.suppress(ConnectionError):
        while True:
            daemon.line.sendall(wishes * 10_000)
    other = shared.connect()

    assert 0 == other.code_of("1.1", "true")


def test_lines_are_cut_wherever_they_are_split():
    text = b'{"a":1}\n\n{"b":2}\n{"c"'
    for size in range(1, len(text)):
        reader = LineReader()
        found = [
            line for at in range(0, len(text), size) for line in reader.feed(text[at : at + size])
        ]

        assert ([b'{"a":1}', b"", b'{"b":2}'], b'{"c"') == (found, reader.unread)
    with pytest.raises(BadInputError):
        decode(b"1")


def test_a_silence_begins_once_each_time():
    now_s = [0.0]
    silence = Silence(10.0, clock=lambda: now_s[0])

    def begins_at(time_s):
        now_s[0] = time_s
        return silence.begins()

    assert [False, True, False, False] == [begins_at(time_s) for time_s in (5, 10, 11, 30)]

    silence.heard()

    assert [False, True] == [begins_at(time_s) for time_s in (39, 41)]


def test_what_was_said_before_an_end_is_heard_also_where_words_of_ours_were_not():
    """The kernel tells of the words that were not read before it gives those that were said."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        ours.setblocking(False)
        assert receive(ours, 64) is None
        ours.send(b"frozen 1")
        theirs.send(b"thaw")
        theirs.close()

        assert [b"thaw", b""] == [receive(ours, 64), receive(ours, 64)]


def test_a_signal_while_a_long_launch_is_read_does_no_harm(tmp_path):
    """Of the compiled launcher: recv(2) returns what there is then, in spite of MSG_WAITALL."""
    launch = {"command": ["true"], "environment": {str(n): "x" * 100_000 for n in range(3)}}
    record = pack(parse_launch({"launch": launch}))
    ours, theirs = socket.socketpair()
    with ours, theirs, (tmp_path / "ledger").open("wb") as ledger:
        fds = (theirs.fileno(), ledger.fileno())
        child = subprocess.Popen([PROGRAM, *map(str, fds), "-1", "1.1"], pass_fds=fds)
        theirs.close()
        ours.sendall(record[:50_000])
        until(lambda: fcntl.ioctl(ours, termios.TIOCOUTQ, bytes(4)) == bytes(4))
        child.send_signal(signal.SIGTERM)
        ours.sendall(record[50_000:])

        assert child.pid == json.loads(ours.recv(100))["pid"]
    assert 0 == child.wait()
