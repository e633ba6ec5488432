"""The line: who may speak, what is no wish, what a daemon finds after it was away."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
from collections.abc import Callable

import pytest
from root_side import RootSide, wait_until

from iodaemon.supervisor.anchor import SOCKET, abstract_address
from iodaemon.supervisor.protocol import LONGEST_LINE, BadInputError, LineReader, Silence, decode

pytestmark = [pytest.mark.node, pytest.mark.slow]


def test_only_the_daemons_uid_is_heard(make_root: Callable[..., RootSide]) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    root = make_root("cgroup", daemon_uid=65534)
    path = str(root.runtime / SOCKET)
    wait_until(lambda: os.path.exists(path))
    for address in (path, abstract_address(str(root.runtime))):  # by root, who is not the daemon
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.settimeout(20)
            wait_until(lambda line=line, address=address: not line.connect_ex(address))
            try:
                line.sendall(b'{"wish":"hello","protocol":1}\n')
                answer = line.recv(100)
            except ConnectionError:
                answer = b""

            assert b"" == answer


def test_what_is_no_wish_is_answered_in_one_line_and_hurts_nobody(root: RootSide) -> None:
    daemon = root.connect()
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
        b'{"wish":"prepare","key":"2.1","launch":{"limits":{"io":{"sda":"x"}}}}',
        b'{"wish":"scratch","do":"make","disk":"/","name":"../x","uid":1,"gid":1}',
        b'{"wish":"beat","n":' + b"9" * 5000 + b"}", b"x" * (LONGEST_LINE + 10),
    ]  # fmt: skip
    for line in lines:
        daemon.line.sendall(line + b"\n")
        answer = daemon.read()

        assert "error" in answer, line[:80]
    daemon.sync(**{"1_1": "run"})

    assert "running" == daemon.states["1.1"]["state"]


def test_random_bytes_hurt_nobody(root: RootSide) -> None:
    daemon = root.connect()
    daemon.run("1.1", "sleep", "1000")
    rng = random.Random(7)
    words = ["prepare", "run", "freeze", "thaw", "signal", "forget", "sync", "scratch", "hello"]
    values = [None, 1, -1, 1e300, "1.2", "3.1", [], {}, [["1.1", "run"]], True, "x" * 300]
    for _ in range(300):
        fields = {name: rng.choice(values) for name in ("key", "number", "keys", "launch", "do")}
        daemon.say(rng.choice(words), **{**fields, "protocol": 1})
        daemon.line.sendall(rng.randbytes(40).replace(b"\n", b" ") + b"\n")
    daemon.sync(**{"1_1": "run"})
    daemon.await_state("1.1", "running")
    daemon.run("9.1", "true")

    assert 0 == daemon.await_state("9.1", "ended")["exit"]["code"]


def test_a_daemon_of_another_protocol_is_told_so_and_can_only_have_it_replaced(
    root: RootSide,
) -> None:
    daemon = root.connect(says_hello=False)
    daemon.say("freeze", key="1.1")
    assert "error" in daemon.read()
    daemon.say("hello", protocol=99)
    assert 1 == daemon.read()["hello"]["protocol"]
    daemon.say("freeze", key="1.1")
    assert "error" in daemon.read()
    daemon.say("reexec")

    assert 1 == daemon.read()["hello"]["protocol"]


def test_sync_reports_every_key_and_forgets_what_is_not_named(root: RootSide) -> None:
    daemon = root.connect()
    for key in ("1.1", "2.1"):
        daemon.run(key, "true")
        daemon.await_state(key, "ended")
    daemon.run("3.1", "sleep", "1000")
    daemon.run("4.1", "sleep", "1000")
    daemon.close()
    daemon = root.connect()
    daemon.sync(**{"1_1": "run", "3_1": "freeze", "9_1": "run"})
    daemon.await_state("3.1", "running", frozen=True)
    states = {key: report["state"] for key, report in daemon.states.items()}

    assert {"1.1": "ended", "3.1": "running", "4.1": "running", "9.1": "absent"} == states

    daemon.sync(**{"2_1": "run", "3_1": "run", "4_1": "run"})
    daemon.await_state("3.1", "running", frozen=False)

    assert "absent" == daemon.states["2.1"]["state"]


def test_a_new_line_takes_the_place_of_the_old_one(root: RootSide) -> None:
    first = root.connect()
    second = root.connect()
    with pytest.raises(ConnectionError):
        first.read()
    second.run("1.1", "true")

    assert 0 == second.await_state("1.1", "ended")["exit"]["code"]


def test_a_daemon_that_reads_nothing_is_hung_up_on_and_hurts_nobody(
    make_root: Callable[..., RootSide],
) -> None:
    root = make_root("cgroup")
    daemon = root.connect()
    wishes = json.dumps({"wish": "hello", "protocol": 1}).encode() + b"\n"
    with contextlib.suppress(ConnectionError):
        while True:
            daemon.line.sendall(wishes * 10_000)
    other = root.connect()
    other.run("1.1", "true")

    assert 0 == other.await_state("1.1", "ended")["exit"]["code"]


def test_lines_are_cut_wherever_they_are_split() -> None:
    text = b'{"a":1}\n\n{"b":2}\n{"c"'
    for size in range(1, len(text)):
        reader = LineReader()
        found = [
            line for at in range(0, len(text), size) for line in reader.feed(text[at : at + size])
        ]

        assert ([b'{"a":1}', b"", b'{"b":2}'], b'{"c"') == (found, reader.unread)
    with pytest.raises(BadInputError):
        decode(b"1")


def test_a_silence_begins_once_each_time() -> None:
    now_s = [0.0]
    silence = Silence(10.0, clock=lambda: now_s[0])

    def begins_at(time_s: float) -> bool:
        now_s[0] = time_s
        return silence.begins()

    assert [False, True, False, False] == [begins_at(time_s) for time_s in (5, 10, 11, 30)]

    silence.heard()

    assert [False, True] == [begins_at(time_s) for time_s in (39, 41)]
