"""``GET /metrics``: by the socket, by TCP for this machine alone, and for a real Prometheus."""

import asyncio
import contextlib
import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
from bench import drive
from process import daemon, fails, wait_until

from iodaemon.api.connection import UnixConnection
from iodaemon.config import load_config
from iodaemon.daemon.metrics.page import MetricsPage
from iodaemon.daemon.metrics.table import Scene
from iodaemon.errors import ConfigError

pytestmark = pytest.mark.node


EXAMPLES = Path(__file__).parents[2] / "examples"
ALERTS = EXAMPLES / "alerts.yml"
PATIENCE_S = 60.0
"""For Prometheus to be ready (about 2 s) and to have scraped twice (about 8 s)."""
HOST = "127.0.0.1"


@pytest.fixture(scope="module")
def tool():
    """The paths of prometheus and promtool; skips without them, unless IOD_REQUIRE names them."""
    paths = {name: shutil.which(name) for name in ("prometheus", "promtool")}
    if None in paths.values() and "prometheus" in os.environ.get("IOD_REQUIRE", ""):
        pytest.fail("IOD_REQUIRE names prometheus, and there is none; apt-get install prometheus")
    if None in paths.values():
        pytest.skip("no prometheus; apt-get install prometheus")
    return paths


def free_port():
    with socket.create_server((HOST, 0)) as listener:
        return listener.getsockname()[1]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A daemon with two running jobs and one that a person holds: its metrics port, its socket."""
    home, port = tmp_path_factory.mktemp("metrics"), free_port()
    options = configured(home, f"{HOST}:{port}")
    with daemon(home / "state", home / "run", *options) as (client, _):
        ids = client.submit([{"command": ["job", "compute=1000s"]}] * 3, {})
        until(lambda: 'iodaemon_jobs{state="RUNNING"} 3.0' in get(port, "/metrics"), "three run")
        client.suspend(ids[0])
        yield port, str(home / "run" / "iod.sock")


def get(port, path):
    with urllib.request.urlopen(f"http://{HOST}:{port}{path}", timeout=10) as answer:
        return answer.read().decode()


def until(look, what):
    """The first answer that is not None and not empty."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not (found := look()):
        assert time.monotonic() < deadline_s, f"{what} not within {PATIENCE_S:g} s"
        time.sleep(0.1)
    return found


class Prometheus:
    """A server on the example configuration, with ports of its own and a shorter interval."""

    def __init__(self, directory, target):
        self.directory = directory
        self.port = free_port()
        text = (EXAMPLES / "prometheus.yml").read_text()
        assert "127.0.0.1:9750" in text
        text = text.replace("127.0.0.1:9750", f"{HOST}:{target}").replace(": 15s", ": 1s")
        (directory / "prometheus.yml").write_text(text)
        shutil.copy(ALERTS, directory)

    @contextlib.contextmanager
    def run(self, program):
        words = [
            program,
            f"--config.file={self.directory / 'prometheus.yml'}",
            f"--storage.tsdb.path={self.directory / 'data'}",
            f"--web.listen-address={HOST}:{self.port}",
        ]
        with open(self.directory / "log", "wb") as log:
            process = subprocess.Popen(words, cwd=self.directory, stdout=log, stderr=log)
        try:
            until(lambda: self._is_ready(process), "Prometheus ready")
            yield self
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _is_ready(self, process):
        assert process.poll() is None, (self.directory / "log").read_text()
        with contextlib.suppress(OSError):
            return get(self.port, "/-/ready")

    def query(self, expression):
        """Labels and value of each series."""
        words = urllib.parse.urlencode({"query": expression})
        answer = json.loads(get(self.port, f"/api/v1/query?{words}"))
        return [(each["metric"], each["value"][1]) for each in answer["data"]["result"]]


@pytest.fixture(scope="module")
def prometheus(tool, served, tmp_path_factory):
    made = Prometheus(tmp_path_factory.mktemp("prometheus"), served[0])
    with made.run(tool["prometheus"]) as running:
        until(lambda: running.query("iodaemon_jobs"), "the first scrape")
        yield running


# -- a real server -------------------------------------------------------------------------------


def test_prometheus_scrapes_the_daemon_and_answers_with_what_the_state_says(prometheus):
    [(labels, value)] = prometheus.query('iodaemon_jobs{state="RUNNING"}')

    assert ("2", "iodaemon") == (value, labels["job"])
    assert ["1"] == [v for _, v in prometheus.query('iodaemon_jobs{state="SUSPENDED_USER"}')]
    assert ["1"] == [v for _, v in prometheus.query("up")]


def test_the_example_alerts_are_loaded_and_none_fires_at_a_daemon_that_is_well(prometheus):
    def groups():
        loaded = json.loads(get(prometheus.port, "/api/v1/rules"))["data"]["groups"]
        rules = [rule for group in loaded for rule in group["rules"]]
        return rules if rules and all(r["health"] != "unknown" for r in rules) else None

    rules = until(groups, "the first evaluation")

    assert {"ok"} == {rule["health"] for rule in rules}
    assert {"inactive"} == {rule["state"] for rule in rules}


# -- promtool ------------------------------------------------------------------------------------


def promtool(tool, *words, **options):
    return subprocess.run(
        [tool["promtool"], *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **options,
    )


def test_promtool_finds_nothing_to_say_about_the_metrics(tool, served):
    checked = promtool(tool, "check", "metrics", input=get(served[0], "/metrics"))
    bad = promtool(tool, "check", "metrics", input="# TYPE badName counter\nbadName 1\n")

    assert (0, "", "") == (checked.returncode, checked.stdout, checked.stderr)
    assert 0 != bad.returncode


def test_promtool_accepts_the_example_configuration_and_its_rules(tool):
    checked = promtool(tool, "check", "config", str(EXAMPLES / "prometheus.yml"))

    assert (0, "") == (checked.returncode, checked.stderr)
    assert "13 rules found" in checked.stdout


FIRING = {
    "IodaemonDown": 'up{job="iodaemon"}: 0x90',
    "IodaemonJournalProblem": "iodaemon_journal_problem: 1x90",
    "IodaemonRuleSetAside": "iodaemon_rules_set_aside: 1x90",
    "IodaemonFrozenTooLong": 'iodaemon_longest_suspension_seconds{state="SUSPENDED_IO"}: 0+60x90',
    "IodaemonSamplerFailing": 'iodaemon_sampler_success{source="job_io"}: 0x90',
    "IodaemonNotSampling": "iodaemon_last_sample_timestamp_seconds: 1x90",
    "IodaemonSamplingTooSlow": "iodaemon_sampling_too_slow: 1x90",
    "IodaemonSupervisorSilent": "iodaemon_supervisor_problem: 1x90",
    "IodaemonProcessSilent": "iodaemon_silent_processes: 1x90",
    "IodaemonLogLinesLost": "iodaemon_log_lines_lost_total: 0+9x90",
    "IodaemonStartsBlocked": "iodaemon_starts_blocked: 1x90",
    "IodaemonDraining": "iodaemon_draining: 1x90",
    "IodaemonDeviceWaitHigh": "\n".join(
        (
            "iodaemon_device_request_seconds_total: 0+18x90",
            "iodaemon_device_requests_total: 0+60x90",
        )
    ),
}
QUIET = """
up{job="iodaemon"}: 1x90
iodaemon_journal_problem: 0x90
iodaemon_rules_set_aside: 0x90
iodaemon_log_lines_lost_total: 7x90
iodaemon_longest_suspension_seconds{state="SUSPENDED_IO"}: 600x90
iodaemon_longest_suspension_seconds{state="SUSPENDED_USER"}: 90000x90
iodaemon_sampler_success{source="job_io"}: 1x90
iodaemon_sampler_success{source="memory_pressure"}: 0x90
iodaemon_last_sample_timestamp_seconds: 0+60x90
iodaemon_device_request_seconds_total: 0+0.06x90
iodaemon_device_requests_total: 0+60x90
iodaemon_sampling_too_slow: 0x90
iodaemon_starts_blocked: 0x90
iodaemon_supervisor_problem: 0x90
iodaemon_silent_processes: 0x90
iodaemon_draining: 0x90
""".strip().splitlines()


def alerts_after_90_min(tool, tmp_path, cases):
    """Which alerts fire when a case's series, one value a minute, were there for 90 minutes."""
    fires = "ALERTS{alertstate='firing'}"
    names = [{"labels": "none", "value": 0}]  # what promtool got instead is told in its answer
    test = {"expr": f"count by (alertname) ({fires})", "eval_time": "90m", "exp_samples": names}
    tests = []
    for series in cases:
        given = [dict(zip(("series", "values"), line.split(": "), strict=True)) for line in series]
        tests.append({"interval": "1m", "input_series": given, "promql_expr_test": [test]})
    path = tmp_path / "test.json"  # JSON is YAML
    document = {"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": tests}
    path.write_text(json.dumps(document))
    told = promtool(tool, "test", "rules", str(path))
    answers = re.findall(r"^\s+got:(.*)$", told.stdout + told.stderr, re.MULTILINE)
    assert len(tests) == len(answers), told
    return [set(re.findall(r'alertname="(\w+)"', answer)) for answer in answers]


def test_an_alert_fires_when_it_should_and_none_at_a_daemon_that_is_well(tool, tmp_path):
    cases = [series.splitlines() for series in FIRING.values()]
    fired = alerts_after_90_min(tool, tmp_path, [*cases, QUIET])

    assert [*({alert} for alert in FIRING), set()] == fired
    assert set(re.findall(r"alert: (\w+)", ALERTS.read_text())) == set(FIRING)


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
