"""A real Prometheus reads the real daemon; promtool checks the page and the example files."""

import contextlib
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
from process import daemon

pytestmark = pytest.mark.node

EXAMPLES = Path(__file__).parents[2] / "examples"
ALERTS = EXAMPLES / "alerts.yml"
PATIENCE_S = 60.0
"""For Prometheus to be ready (about 2 s) and to have scraped twice (about 8 s)."""
HOST = "127.0.0.1"
TIMESLICE_S = 0.2
"""No page is older."""


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


@pytest.fixture(scope="module")
def daemon_port(tmp_path_factory):
    """A daemon with two running jobs and one that a person holds still: its metrics port."""
    home, port = tmp_path_factory.mktemp("daemon"), free_port()
    config = home / "config.toml"
    text = f'metrics_listen = "{HOST}:{port}"\n[regulation]\ntimeslice = "{TIMESLICE_S} s"\n'
    config.write_text(text)
    with daemon(home / "state", home / "run", "--config", str(config)) as (client, _):
        ids = client.submit([{"command": ["job", "compute=1000s"]}] * 3, {})
        until(lambda: 'iodaemon_jobs{state="RUNNING"} 3.0' in get(port, "/metrics"), "three run")
        client.suspend(ids[0])
        yield port


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
def prometheus(tool, daemon_port, tmp_path_factory):
    made = Prometheus(tmp_path_factory.mktemp("prometheus"), daemon_port)
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


def test_promtool_finds_nothing_to_say_about_the_metrics(tool, daemon_port):
    checked = promtool(tool, "check", "metrics", input=get(daemon_port, "/metrics"))
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


def alerts_after_90_min(tool, tmp_path, series):
    """Which alerts fire when these series, one value a minute, have been there for 90 minutes."""
    given = [dict(zip(("series", "values"), line.split(": "), strict=True)) for line in series]
    fires = "ALERTS{alertstate='firing'}"
    names = [{"labels": "none", "value": 0}]  # what promtool got instead is told in its answer
    test = {"expr": f"count by (alertname) ({fires})", "eval_time": "90m", "exp_samples": names}
    document = {
        "rule_files": [str(ALERTS)],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": given, "promql_expr_test": [test]}],
    }
    path = tmp_path / "test.json"  # JSON is YAML
    path.write_text(json.dumps(document))
    told = promtool(tool, "test", "rules", str(path))
    assert "got:" in told.stdout + told.stderr, told
    return set(re.findall(r'alertname="(\w+)"', told.stdout + told.stderr))


@pytest.mark.parametrize("alert", FIRING)
def test_an_alert_fires_when_it_should(tool, tmp_path, alert):
    fired = alerts_after_90_min(tool, tmp_path, FIRING[alert].splitlines())

    assert {alert} == fired


def test_no_alert_fires_at_a_daemon_that_is_well(tool, tmp_path):
    fired = alerts_after_90_min(tool, tmp_path, QUIET)

    assert set() == fired


def test_every_alert_is_tried():
    assert set(re.findall(r"alert: (\w+)", ALERTS.read_text())) == set(FIRING)
