"""``GET /metrics``: on the daemon's socket, and by TCP for this machine alone."""

import asyncio
import contextlib
import http.client
import re
import socket
import threading

import pytest
from bench import drive
from process import daemon, fails, wait_until

from iodaemon.api.connection import UnixConnection
from iodaemon.config import load_config
from iodaemon.daemon.metrics.page import MetricsPage
from iodaemon.daemon.metrics.table import Scene
from iodaemon.errors import ConfigError

pytestmark = pytest.mark.node

HOME = {"HOME": "/home/ann", "XDG_RUNTIME_DIR": "/run/user/1000"}
HOST = "127.0.0.1"


def free_port():
    with socket.create_server((HOST, 0)) as listener:
        return listener.getsockname()[1]


def load(address):
    return load_config(None, HOME, 1000, {"metrics_listen": address})


def configured(tmp_path, address):
    path = tmp_path / "config.toml"
    path.write_text(f'metrics_listen = "{address}"\n[regulation]\ntimeslice = "0.1 s"\n')
    return "--config", str(path)


def ask(connection, method="GET", path="/metrics"):
    with contextlib.closing(connection):
        connection.request(method, path)
        answer = connection.getresponse()
        return (
            answer.status,
            dict(answer.headers)["Content-Type"].partition(";")[0],
            answer.read().decode(),
        )


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A daemon that serves metrics by TCP as well: its port, its socket, its client."""
    tmp_path, port = tmp_path_factory.mktemp("metrics"), free_port()
    state, runtime = tmp_path / "state", tmp_path / "run"
    with daemon(state, runtime, *configured(tmp_path, f"{HOST}:{port}")) as (client, _):
        yield port, str(runtime / "iod.sock"), client


def by_tcp(served, method="GET", path="/metrics"):
    return ask(http.client.HTTPConnection(HOST, served[0], timeout=20), method, path)


# -- what is served --------------------------------------------------------------------------------


def test_the_daemons_socket_shows_the_metrics(served):
    status, kind, page = ask(UnixConnection(served[1], 20.0))

    assert (200, "text/plain") == (status, kind)
    assert 'iodaemon_jobs{state="RUNNING"}' in page


def test_the_tcp_port_shows_what_the_state_says(served):
    served[2].submit([{"command": ["job", "compute=1000s"]}], {})

    assert wait_until(lambda: 'iodaemon_jobs{state="RUNNING"} 1.0' in by_tcp(served)[2])
    assert "iodaemon_last_sample_timestamp_seconds" in by_tcp(served)[2]


@pytest.mark.parametrize(
    ("status", "method", "path"),
    [
        *((404, "GET", path) for path in ("/", "/v1/jobs", "/v1/node", "/metrics/x")),
        (404, "GET", "/%2e%2e/v1/config"),
        *((405, method, "/metrics") for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS")),
        *((404, method, "/v1/jobs") for method in ("POST", "DELETE")),
    ],
)
def test_the_tcp_port_shows_nothing_else_and_only_reads(served, status, method, path):
    found, _, page = by_tcp(served, method, path)

    assert (status, False) == (found, "iodaemon" in page)


def test_metrics_are_read_while_connections_without_a_request_are_held_open(served):
    with contextlib.ExitStack() as held:
        for _ in range(5):
            held.enter_context(socket.create_connection((HOST, served[0])))
        status, _, _ = by_tcp(served)

    assert 200 == status


# -- what it may cost ------------------------------------------------------------------------------


class Listening:
    """A page on a port, in the loop of a thread; ``call`` runs something there."""

    def __init__(self, tmp_path):
        self.port = free_port()
        self._ready, self._over = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=drive, args=(tmp_path, self._live))
        self._thread.start()
        assert self._ready.wait(20)

    async def _live(self, bench):
        self.loop = asyncio.get_running_loop()
        self.page = MetricsPage(Scene(bench.driver))
        await self.page.open(load(f"{HOST}:{self.port}"))
        self._ready.set()
        await self._over.wait()
        await self.page.close()

    def sweep(self, seen):
        """Sweep now; what is remembered for the next time."""

        async def run():
            self.page._sweeping.cancel()
            self.page._sweep(frozenset(seen))
            return frozenset(self.page._connections())

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(20)

    def connections(self):
        return self.sweep(())

    def close(self):
        self.loop.call_soon_threadsafe(self._over.set)
        self._thread.join(20)
        assert not self._thread.is_alive()


@pytest.fixture
def listening(tmp_path):
    listening = Listening(tmp_path)
    yield listening
    listening.close()


def is_closed(connection):
    connection.settimeout(20)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_one_connection_too_many_is_refused_and_the_others_are_served(listening):
    with contextlib.ExitStack() as opened:
        held = [
            opened.enter_context(socket.create_connection((HOST, listening.port)))
            for _ in range(16)
        ]
        assert wait_until(lambda: len(listening.connections()) == 16)
        refused = opened.enter_context(socket.create_connection((HOST, listening.port)))

        assert is_closed(refused)
        held[0].sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"HTTP/1.1 200" == held[0].recv(12)


def test_a_connection_that_is_held_for_long_is_closed(listening):
    with socket.create_connection((HOST, listening.port)) as old:
        assert wait_until(lambda: len(listening.connections()) == 1)
        seen = listening.connections()
        with socket.create_connection((HOST, listening.port)) as young:
            assert wait_until(lambda: len(listening.connections()) == 2)
            listening.sweep(seen)

            assert is_closed(old)
            young.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            young.settimeout(20)
            assert b"HTTP/1.1 200" == young.recv(12)


# -- where it may listen ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9750", ("127.0.0.1", 9750)),
        ("127.1.2.3:1", ("127.1.2.3", 1)),
        ("[::1]:65535", ("::1", 65535)),
    ],
)
def test_an_address_of_the_loopback_interface_is_accepted(text, address):
    assert load_config(None, HOME, 1000, {}).metrics_address is None
    assert address == load(text).metrics_address


@pytest.mark.parametrize(
    "text",
    [
        *("0.0.0.0:9750", "192.168.1.2:9750", "8.8.8.8:9750", "[::]:9750", "[fe80::1]:9750"),
        *("localhost:9750", "example.org:9750", "127.0.0.1", "127.0.0.1:", ":9750", "9750"),
        *("127.0.0.1:0", "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:٩", "::1:9750"),
        *("", "127.1:9750", "[127.0.0.1]:9750", "127.0.0.1:9750 ", "127.0.0.1:9750\n"),
    ],
)
def test_any_other_address_is_refused_in_one_line(text):
    with pytest.raises(ConfigError) as refused:
        load(text)

    assert re.fullmatch("[^\n]*metrics_listen is [^\n]*'127.0.0.1:9750'", str(refused.value))


def test_a_daemon_does_not_start_on_an_address_that_others_reach_or_that_is_taken(tmp_path):
    with socket.create_server((HOST, 0)) as other:
        taken = f"{HOST}:{other.getsockname()[1]}"
        for address, expected, words in (
            ("0.0.0.0:9750", 78, "metrics_listen is '0.0.0.0:9750'"),
            (taken, 1, f"metrics_listen {taken} cannot be used (Address already in use);"),
        ):
            place = (tmp_path / "state", tmp_path / "run")
            code, told = fails(*place, *configured(tmp_path, address))
            assert (expected, True) == (code, words in told), told
