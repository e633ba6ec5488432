"""``GET /metrics``: on the daemon's socket, and by TCP for this machine alone."""

import asyncio
import contextlib
import http.client
import re
import socket

import pytest
from bench import drive
from process import daemon, fails, wait_until

from iodaemon.api.connection import UnixConnection
from iodaemon.config import load_config
from iodaemon.daemon.metrics.page import MetricsPage
from iodaemon.daemon.metrics.table import Scene
from iodaemon.errors import ConfigError

pytestmark = pytest.mark.node


HOST = "127.0.0.1"


def free_port():
    with socket.create_server((HOST, 0)) as listener:
        return listener.getsockname()[1]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A daemon with two running jobs: its metrics port, its socket."""
    home, port = tmp_path_factory.mktemp("metrics"), free_port()
    options = configured(home, f"{HOST}:{port}")
    with daemon(home / "state", home / "run", *options) as (client, _):
        client.submit([{"command": ["job", "compute=1000s"]}] * 2, {})
        yield port, str(home / "run" / "iod.sock")


HOME = {"HOME": "/home/ann", "XDG_RUNTIME_DIR": "/run/user/1000"}


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


# -- what is served --------------------------------------------------------------------------------


def test_the_daemons_socket_shows_the_metrics(served):
    status, kind, page = ask(UnixConnection(served[1], 20.0))

    assert (200, "text/plain") == (status, kind)
    assert 'iodaemon_jobs{state="RUNNING"}' in page


def by_tcp(served, method="GET", path="/metrics"):
    return ask(http.client.HTTPConnection(HOST, served[0], timeout=20), method, path)


def test_the_tcp_port_shows_what_the_state_says(served):
    assert wait_until(lambda: 'iodaemon_jobs{state="RUNNING"} 2.0' in by_tcp(served)[2])
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


def test_one_connection_too_many_and_one_that_is_held_for_long_are_closed(tmp_path):
    async def scene(bench):
        port = free_port()
        page = MetricsPage(Scene(bench.driver))
        await page.open(load(f"{HOST}:{port}"))
        opened = [await asyncio.open_connection(HOST, port) for _ in range(16)]
        await answered(opened)
        refused, writer = await asyncio.open_connection(HOST, port)
        assert b"" == await refused.read()

        page._sweep(frozenset())
        seen = frozenset(page._connections())
        opened[0][1].close()
        await opened[0][1].wait_closed()
        while len(page._connections()) == 16:  # noqa: ASYNC110 - the other end hears of it
            await asyncio.sleep(0)
        young = await asyncio.open_connection(HOST, port)
        await answered([young])
        page._sweep(seen)
        assert b"" == await opened[1][0].read()
        await answered([young])
        for _, each in (*opened, young, (refused, writer)):
            each.close()
        await page.close()

    async def answered(connections):
        for reader, writer in connections:
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")
            length = re.search(rb"(?i)content-length: (\d+)", head)[1]
            await reader.readexactly(int(length))

    drive(tmp_path, scene)


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


def test_a_daemon_does_not_start_on_an_address_that_is_taken(tmp_path):
    with socket.create_server((HOST, 0)) as other:
        taken = f"{HOST}:{other.getsockname()[1]}"
        options = configured(tmp_path, taken)
        code, told = fails(tmp_path / "state", tmp_path / "run", *options)

    assert (1, True) == (code, f"{taken} cannot be used (Address already in use);" in told), told
