"""The examples for Prometheus: alerts fire when they should, panels show what was moved.

A daemon in virtual time over a simulated node is scraped every 15 s; promtool evaluates the panels'
queries on these scrapes at every scrape. A rate that is summed up over the time has to give the
bytes that were moved, of jobs that read for minutes and of jobs that live for a second or two.
"""

import json
import os
import re
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

import msgspec
import pytest
from bench import drive
from prometheus_client.parser import text_string_to_metric_families

from iodaemon.core import event as ev
from iodaemon.core.job import SUSPENDED, JobId
from iodaemon.core.sample import NodeCounters
from iodaemon.daemon.metrics.counts import PREFIX
from iodaemon.daemon.metrics.table import Exporter, Scene
from iodaemon.model.node import Model, SimulatedDisk, SimulatedNode
from iodaemon.model.profile import parse_profile

EXAMPLES = Path(__file__).parents[2] / "examples"
DASHBOARD, ALERTS = EXAMPLES / "grafana-dashboard.json", EXAMPLES / "alerts.yml"
SCRAPE_S = 15
"""As in examples/prometheus.yml."""
RATE_INTERVAL = "1m"
"""What Grafana makes of $__rate_interval: four scrapes."""
BEGIN_S, END_S = 90, 390
"""Jobs come and end in between."""
MB = 10**6
LONG_BYTES, SHORT_BYTES, SHORT_JOBS = 20_000 * MB, 40 * MB, 36
OTHERS_BYTES_PER_S = 30 * MB
NEAR = 0.001
"""Scrapes are evenly spaced, so that the rates add up exactly but for rounding."""


class Machine(SimulatedNode):
    """A simulated node beside which others read from the same disk, and which has pressure."""

    def __init__(self, bench):
        self.bench = bench
        self.by_others = 0
        super().__init__(
            bench.state.platform,
            bench.timeline,
            self.pass_on,
            lambda job_id: parse_profile(bench.state.jobs[JobId(job_id)].spec.command),
            model=Model(disk=SimulatedDisk(capacity_bytes_per_s=200e6)),
        )

    def pass_on(self, event):
        if isinstance(event, ev.SampleTaken):
            since_s = min(max(event.at_s - 1000.0 - BEGIN_S, 0.0), END_S - BEGIN_S)
            self.by_others = int(since_s * OTHERS_BYTES_PER_S) // 512 * 512
            devices = {
                name: msgspec.structs.replace(
                    each, read_sectors=each.read_sectors + self.by_others // 512
                )
                for name, each in event.sample.devices.items()
            }
            node = NodeCounters(io_stall_s=since_s / 4.0)
            sample = msgspec.structs.replace(event.sample, devices=devices, node=node)
            event = ev.SampleTaken(at_s=event.at_s, sample=sample)
        self.bench.driver.post(event)

    def check(self):
        pass


class Scraped:
    """What Prometheus would have: every series, one value a scrape; and what is true."""

    def __init__(self):
        self.page = ""
        self.series = defaultdict(dict)
        self.times = 0
        self.by_socket = defaultdict(int)
        self.device_bytes = 0
        self.by_others = 0
        self.stood_s = 0.0
        self.finished = 0

    def take(self, driver):
        self.page = Exporter(Scene(driver)).page().decode()
        for family in text_string_to_metric_families(self.page):
            for each in family.samples:
                if each.name.startswith(PREFIX):
                    key = (each.name, tuple(sorted(each.labels.items())))
                    self.series[key][self.times] = each.value
        self.times += 1

    def input_series(self):
        for (name, labels), values in self.series.items():
            words = ",".join(f"{k}={json.dumps(v)}" for k, v in (*labels, ("instance", "here")))
            told = " ".join(repr(values[i]) if i in values else "_" for i in range(self.times))
            yield {"series": f"{name}{{{words}}}", "values": told}


async def live(bench, scraped):
    """Two jobs read for minutes, a short one comes every few seconds; one is held for a minute."""
    submitted, held = [], []
    await bench.after(1.0)  # the first sample is there
    for second in range(END_S + 90):
        if second % SCRAPE_S == 0:
            scraped.take(bench.driver)
        if second == BEGIN_S:
            long = bench.submitting(2, command=("read=20GB",))
            await bench.settle()
            submitted += await long
        if BEGIN_S <= second < BEGIN_S + 3 * SHORT_JOBS and second % 3 == 0:
            short = bench.submitting(command=("read=40MB",))
            await bench.settle()
            submitted += await short
        if second == BEGIN_S + 60:
            held = [submitted[0]]
            bench.post(ev.SuspendRequested(at_s=bench.now_s, job_id=held[0], by="ann"))
        if second == BEGIN_S + 120:
            bench.post(ev.ResumeRequested(at_s=bench.now_s, job_id=held[0], by="ann"))
        await bench.after(1.0)
    jobs = [bench.state.jobs[job_id] for job_id in submitted]
    assert all(job.state.is_final and job.state not in SUSPENDED for job in jobs)
    for job in jobs:
        scraped.by_socket[str(job.partition)] += job.io.read_bytes
    scraped.by_others = bench.backend.by_others
    scraped.finished = len(jobs)
    scraped.stood_s = sum(job.suspended_user_s for job in jobs)


@pytest.fixture(scope="module")
def scraped(tmp_path_factory):
    found = Scraped()
    drive(
        tmp_path_factory.mktemp("dashboard"),
        lambda bench: live(bench, found),
        slots=(2, 8),
        backend=Machine,
    )
    return found


@pytest.fixture(scope="module")
def promtool():
    """Calls it; skips without it, unless IOD_REQUIRE names it."""
    path = shutil.which("promtool")
    if path is None and "prometheus" in os.environ.get("IOD_REQUIRE", ""):
        pytest.fail("IOD_REQUIRE names prometheus, and there is none; apt-get install prometheus")
    if path is None:
        pytest.skip("no promtool; apt-get install prometheus")

    def call(*words, **options):
        options |= {"capture_output": True, "text": True, "timeout": 120, "check": False}
        return subprocess.run([path, *words], **options)

    return call


def evaluated(promtool, directory, document):
    """What it got in place of what the document expects, in order."""
    path = directory / "test.json"  # JSON is YAML
    path.write_text(json.dumps(document))
    told = promtool("test", "rules", str(path))
    return re.findall(r"^\s+got:\s?(.*)$", told.stdout + told.stderr, re.MULTILINE)


@pytest.fixture(scope="module")
def shown(scraped, promtool, tmp_path_factory):
    """By panel and query of it: labels -> the values at every scrape."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    queries = [(panel["title"], each["expr"]) for panel in panels for each in panel["targets"]]
    asked = [(title, expr, time) for title, expr in queries for time in range(1, scraped.times)]
    tests = [
        {
            "expr": expr.replace("$__rate_interval", RATE_INTERVAL).replace("$instance", "here"),
            "eval_time": f"{time * SCRAPE_S}s",
            "exp_samples": [{"labels": "not_this", "value": 0}],  # the answer is in the complaint
        }
        for _, expr, time in asked
    ]
    document = {
        "evaluation_interval": f"{SCRAPE_S}s",
        "tests": [
            {
                "interval": f"{SCRAPE_S}s",
                "input_series": list(scraped.input_series()),
                "promql_expr_test": tests,
            }
        ],
    }
    answers = evaluated(promtool, tmp_path_factory.mktemp("promtool"), document)
    found = defaultdict(lambda: defaultdict(list))
    for (title, expr, _), answer in zip(asked, answers, strict=True):
        for labels, value in re.findall(r"{([^}]*)} (\S+?)(?:,|$)", answer):
            pairs = dict(re.findall(r'(\w+)="([^"]*)"', labels))
            pairs.pop("instance", None)
            found[title, expr][tuple(sorted(pairs.items()))].append(float(value))
    return found


def total(shown, title, **labels):
    """What the panel's rates come to over the whole time, of series with these labels."""
    [series] = [each for (name, expr), each in shown.items() if name == title and "rate(" in expr]
    return SCRAPE_S * sum(
        sum(values) for key, values in series.items() if labels.items() <= dict(key).items()
    )


def test_the_bytes_of_jobs_and_of_others_are_right(scraped, shown):
    """Long readers have socket 0 for themselves, those that live for a second find room on 1."""
    known = {"0": 2 * LONG_BYTES, "1": SHORT_JOBS * SHORT_BYTES}
    others = (END_S - BEGIN_S) * OTHERS_BYTES_PER_S
    for socket, moved in known.items():
        found = total(shown, "What jobs move", socket=socket, direction="read")
        assert moved == near(scraped.by_socket[socket]) == near(found)
    by_disk = total(shown, "What jobs move, by disk", direction="read", device="sim0")
    assert sum(known.values()) == near(total(shown, "What jobs move, by disk", direction="read"))
    assert by_disk >= known["0"] * (1 - NEAR)  # the disk of a short one may be unknown
    assert others == near(scraped.by_others)
    assert others == near(
        total(shown, "What others than jobs move", direction="read", device="sim0")
    )
    assert sum(known.values()) + others == near(total(shown, "What devices move", direction="read"))
    for title in ("What jobs move", "What others than jobs move"):
        assert 0 == total(shown, title, direction="write")


def near(value):
    return pytest.approx(value, rel=NEAR)


def last(scraped, name, **labels):
    """The value of a series at the last scrape."""
    values = scraped.series[PREFIX + name, tuple(sorted(labels.items()))]
    return values[max(values)]


def test_times_and_counts_are_right(scraped, shown):
    stood_s = total(shown, "Jobs standing still, by reason", reason="Suspended")
    assert 60.0 == pytest.approx(scraped.stood_s, abs=1.0)
    assert scraped.stood_s == near(stood_s)
    assert scraped.finished == near(total(shown, "Ended jobs a minute", state="COMPLETED") / 60.0)
    pressed_s = total(shown, "Share of time under pressure", resource="io")
    assert (END_S - BEGIN_S) / 4.0 == near(pressed_s)
    busy_s = last(scraped, "device_busy_seconds_total", device="sim0")
    assert busy_s == near(total(shown, "Share of time busy"))
    queue_s = last(scraped, "device_queue_seconds_total", device="sim0")
    assert queue_s == near(total(shown, "Requests in flight"))
    read = {"device": "sim0", "direction": "read"}
    requests = last(scraped, "device_requests_total", **read)
    mean_s = last(scraped, "device_request_seconds_total", **read) / requests
    waits = [
        value
        for (title, _), series in shown.items()
        for key, values in series.items()
        for value in values
        if title == "Wait of a request" and ("direction", "read") in key and value == value
    ]
    assert min(waits) <= mean_s <= max(waits)
    totals = {key: 0 in at for key, at in scraped.series.items() if key[0].endswith("_total")}
    assert [] == [name for (name, _), is_first in totals.items() if not is_first]


# -- alerts and the page ---------------------------------------------------------------------------


def test_promtool_finds_nothing_to_say_about_page_and_examples(scraped, promtool):
    checked = promtool("check", "metrics", input=scraped.page)
    bad = promtool("check", "metrics", input="# TYPE badName counter\nbadName 1\n")
    config = promtool("check", "config", str(EXAMPLES / "prometheus.yml"))

    assert (0, "", "") == (checked.returncode, checked.stdout, checked.stderr)
    assert 0 != bad.returncode
    assert (0, "") == (config.returncode, config.stderr)
    assert "13 rules found" in config.stdout


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


def test_an_alert_fires_when_it_should_and_none_at_a_daemon_that_is_well(promtool, tmp_path):
    """When its series, one value a minute, were there for 90 minutes."""
    fires = "ALERTS{alertstate='firing'}"
    names = [{"labels": "none", "value": 0}]  # what promtool got instead is told in its answer
    test = {"expr": f"count by (alertname) ({fires})", "eval_time": "90m", "exp_samples": names}
    tests = []
    for series in (*(lines.splitlines() for lines in FIRING.values()), QUIET):
        given = [dict(zip(("series", "values"), line.split(": "), strict=True)) for line in series]
        tests.append({"interval": "1m", "input_series": given, "promql_expr_test": [test]})
    document = {"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": tests}
    answers = evaluated(promtool, tmp_path, document)

    fired = [set(re.findall(r'alertname="(\w+)"', answer)) for answer in answers]
    assert [*({alert} for alert in FIRING), set()] == fired
    assert set(re.findall(r"alert: (\w+)", ALERTS.read_text())) == set(FIRING)
