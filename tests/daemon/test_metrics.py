"""The metrics say what the state says, at the time of the scrape; the documents name no others."""

import asyncio
import json
import re
from pathlib import Path

import msgspec
import pytest
from bench import drive
from builders import MB, counters, exited, hold, job, platform, sampled, suspended
from prometheus_client.parser import text_string_to_metric_families

from iodaemon.config import load_policy
from iodaemon.core import event as ev
from iodaemon.core.decision import Plan, RegulationPlan, Transition
from iodaemon.core.job import IoTotals, JobId, JobState, Prediction, Reason
from iodaemon.core.rule import Mode
from iodaemon.core.sample import DeviceCounters, JobCounters, NodeCounters, Sample
from iodaemon.daemon.metrics.counts import MOST_REASONS, PREFIX, SLOW_READINGS, Counts, Pace
from iodaemon.daemon.metrics.table import Exporter, Scene, markdown_table
from iodaemon.node.linux import LinuxNode
from iodaemon.registry import shipped
from iodaemon.simulator.timeline import VirtualTimeline
from iodaemon.supervisor import anchor

ROOT = Path(__file__).parents[2]
S = JobState


class Page:
    """One scrape, to be asked for values."""

    def __init__(self, driver):
        text = Exporter(Scene(driver)).page().decode()
        self.families = {f.name: f for f in text_string_to_metric_families(text)}
        samples = [sample for family in self.families.values() for sample in family.samples]
        self.samples = {(s.name, tuple(sorted(s.labels.items()))): s.value for s in samples}

    def value(self, name, **labels):
        """None where it is not there."""
        return self.samples.get((PREFIX + name, tuple(sorted(labels.items()))))

    def by(self, label, name, **others):
        """The values of one metric by one of its labels."""
        found = [(dict(labels), v) for (n, labels), v in self.samples.items() if n == PREFIX + name]
        return {
            labels[label]: value
            for labels, value in found
            if label in labels and others.items() <= labels.items()
        }


def look(tmp_path, scenario=None, slots=(2, 2)):
    """The page after a scenario on a driver over a real journal."""
    pages = []

    async def live(bench):
        if scenario is not None:
            await scenario(bench)
        pages.append(Page(bench.driver))
        bench.backend.take()

    drive(tmp_path, live, slots=slots)
    return pages[0]


def device(**fields):
    names = set(DeviceCounters.__struct_fields__)
    return DeviceCounters(**{**dict.fromkeys(names, 0), **fields})


async def measure(bench, seconds, jobs=None, devices=None, **node):
    """A sample, so many seconds later."""
    await bench.after(seconds)
    sample = Sample(
        at_s=bench.now_s, jobs=jobs or {}, devices=devices or {}, node=NodeCounters(**node)
    )
    bench.post(ev.SampleTaken(at_s=bench.now_s, sample=sample))
    await bench.settle()


async def regulate(bench, seconds, jobs, suspends=()):
    """A timeslice ends in which these jobs have moved so many MB in all."""
    await bench.after(seconds)
    bench.regulation.plan = RegulationPlan(suspends=tuple(map(JobId, suspends)))
    bench.post(sampled(bench.now_s, {number: counters(mb * MB) for number, mb in jobs.items()}))
    await bench.settle()


# -- a simulated run -------------------------------------------------------------------------------


def test_after_a_simulated_run_every_value_is_that_of_the_state(served):
    for _ in range(3):
        served.ended("read=1MiB")
    served.ended("exit=3")
    served.client.suspend(served.running("compute=1000s"))
    for _ in range(9):
        served.submit("read=100GiB")
    served.until(lambda: served.state.meter.bandwidth(JobId(6)) is not None)

    state = served.state
    page, jobs, last = served.call(
        lambda: (Page(served.driver), state.by_state(), state.meter.last),
    )

    assert {str(s): n for s, n in jobs.items() if not s.is_final} == page.by("state", "jobs")
    assert (3, 1) == (jobs[S.COMPLETED], jobs[S.FAILED])
    assert 3 == page.value("jobs_finished_total", state="COMPLETED")
    assert 1 == page.value("jobs_finished_total", state="FAILED")
    assert {"0": 4, "1": 4} == page.by("socket", "slots")
    assert 0 == sum(page.by("socket", "slots_free").values())
    assert last.at_s == page.value("last_sample_timestamp_seconds")
    assert 0 == page.value("journal_problem")
    assert page.value("sampling_duration_seconds_count") >= 1
    labels = {label for _, names in page.samples for label, _ in names}
    assert {"job", "id", "uid", "user", "name"}.isdisjoint(labels)
    read = last.devices["sim0"].read_sectors * 512
    assert read == page.value("device_bytes_total", device="sim0", direction="read")
    by_jobs = sum(
        value
        for (name, labels), value in page.samples.items()
        if name == f"{PREFIX}job_bytes_total" and ("direction", "read") in labels
    )
    assert 0 < by_jobs <= read + 512  # a device counts whole sectors
    assert page.value("suspended_seconds_total", reason="Suspended") > 0


# -- what a page shows -----------------------------------------------------------------------------


def test_a_fresh_daemon_shows_every_state_and_total_at_zero_and_nothing_that_was_not_measured(
    tmp_path,
):
    page = look(tmp_path)

    unfinished = {str(state) for state in JobState if not state.is_final}
    assert dict.fromkeys(unfinished, 0) == page.by("state", "jobs")
    assert {0} == set(page.by("state", "jobs_finished_total").values())
    none = dict.fromkeys(("Contention", "IoBound", "IoTurn", "Suspended"), 0)
    assert none == page.by("reason", "suspended_seconds_total")
    assert none == page.by("reason", "shadow_suspended_seconds_total")
    assert {"0": 2, "1": 2} == page.by("socket", "slots_free")
    assert 0 == page.value("starts_blocked")
    assert {} == page.by("device", "device_busy_seconds_total")
    assert {} == page.by("source", "sampler_success")
    assert page.value("last_sample_timestamp_seconds") is None
    assert page.value("io_bound_bytes_per_second") is None


def test_suspensions_and_their_seconds_are_told_by_reason(tmp_path):
    async def two_stand_still(bench):
        await bench.run(3)
        await regulate(bench, 1.0, {1: 0, 2: 0, 3: 0})
        await regulate(bench, 1.0, {1: 9, 2: 1, 3: 1}, suspends=[1])
        bench.post(suspended(bench.now_s, 1))
        await bench.after(4.0)
        bench.post(hold(bench.now_s, 2))
        await bench.settle()
        bench.post(suspended(bench.now_s, 2))
        await bench.after(3.0)

    page = look(tmp_path, two_stand_still)

    others = dict.fromkeys(("Contention", "IoTurn"), 0)
    assert {"IoBound": 7, "Suspended": 3} | others == page.by("reason", "suspended_seconds_total")
    longest = page.by("state", "longest_suspension_seconds")
    assert {"SUSPENDED_IO": 7, "SUSPENDED_USER": 3} == longest


def test_what_shadow_would_have_done_is_told_apart_from_what_was_done(tmp_path):
    async def in_shadow(bench):
        await bench.run(2)
        bench.post(ev.ModeChanged(at_s=bench.now_s, mode=Mode.SHADOW, by="ann"))
        await regulate(bench, 1.0, {1: 0, 2: 0})
        await regulate(bench, 1.0, {1: 9, 2: 1}, suspends=[1])
        await bench.after(4.0)

    page = look(tmp_path, in_shadow)

    assert 4 == page.value("shadow_suspended_seconds_total", reason="IoBound")
    assert {0} == set(page.by("reason", "suspended_seconds_total").values())


def test_what_jobs_moved_is_told_by_disk_and_that_it_cannot_be_read(tmp_path):
    async def two_move(bench):
        await bench.run(2)
        on_disk = msgspec.structs.replace(counters(5 * MB, 2 * MB), devices=("sda",))
        await measure(bench, 1.0, {JobId(1): on_disk, JobId(2): counters(MB)})
        await measure(bench, 2.0, {JobId(1): on_disk, JobId(2): JobCounters()})

    page = look(tmp_path, two_move)

    on_sda = {"socket": "0", "device": "sda"}
    assert 5 * MB == page.value("job_bytes_total", **on_sda, direction="read")
    assert 2 * MB == page.value("job_bytes_total", **on_sda, direction="write")
    unknown = {"socket": "0", "device": "unknown"}
    assert MB == page.value("job_bytes_total", **unknown, direction="read")
    assert 0 == page.value("sampler_success", source="job_io")
    assert 0 == page.value("silent_processes")


def test_a_journal_that_cannot_be_written_or_is_slow_is_told_until_it_can(tmp_path):
    pages = []

    async def it_fails_and_is_mended(bench):
        await bench.run(1)
        bench.spoil()
        bench.post(exited(bench.now_s, 1))
        await bench.settle()
        pages.append(Page(bench.driver))
        bench.mend()
        await bench.after(5.0)
        with bench.stuck():
            submitting = bench.submitting()
            await bench.breathe()
            pages.append(Page(bench.driver))
        await submitting
        bench.driver.journal.flush()  # what came after it
        policy = load_policy("dynamic", overrides={}, search=(shipped("policies"),))
        bench.driver.controller.use(policy.rules)

    pages.append(look(tmp_path, it_fails_and_is_mended))

    names = ("journal_problem", "starts_blocked")
    told = [tuple(page.value(name) for name in names) for page in pages]
    assert [(1, 1), (0, 0), (0, 0)] == told
    assert [True, False] == [page.value("journal_lag_seconds") > 0 for page in pages[1:]]
    assert 40 * MB == pages[2].value("io_bound_bytes_per_second")


def test_a_device_is_shown_with_its_totals_and_samples_are_counted(tmp_path):
    async def it_reads(bench):
        await measure(bench, 0.0, devices={"sim0": device()})
        after = device(reads=10, read_sectors=4000, read_ms=500, busy_ms=1000, queue_ms=6000)
        await measure(bench, 2.0, devices={"sim0": after}, io_stall_s=1.0)

    page = look(tmp_path, it_reads)

    way = {"device": "sim0", "direction": "read"}
    assert 4000 * 512 == page.value("device_bytes_total", **way)
    assert 4000 * 512 == page.value("device_other_bytes_total", **way)
    assert 10 == page.value("device_requests_total", **way)
    assert 0.5 == page.value("device_request_seconds_total", **way)
    assert 6.0 == page.value("device_queue_seconds_total", device="sim0")
    assert 1.0 == page.value("device_busy_seconds_total", device="sim0")
    assert {"io": 1.0} == page.by("resource", "pressure_stall_seconds_total")
    read = {"diskstats", "io_pressure"}
    success = page.by("source", "sampler_success")
    assert {source: source in read for source in success if source != "job_io"} == {
        source: bool(value) for source, value in success.items() if source != "job_io"
    }
    assert {"vmstat", "meminfo", "memory_pressure", *read} <= set(success)
    assert page.value("step_duration_seconds_count") >= 2
    assert page.value("step_duration_seconds_sum") > 0


# -- totals that exist nowhere else: they say what happened, and never fall ------------------------

BOUND = Reason(code="IoBound", text="too much")
BY_HAND = Reason(code="Suspended", text="by a person")


def step(job_id, at_s, after, reason=None):
    return Transition(job_id=job_id, at_s=at_s, before=S.RUNNING, after=after, reason=reason)


def told(*steps):
    counts = Counts()
    counts.take(Plan(transitions=steps), {})
    return counts


def value(counts, name, **labels):
    return counts.registry.get_sample_value(PREFIX + name, labels)


def stood_s(counts, now_s, name="suspended_seconds_total"):
    """By reason, without those that are at 0."""
    counts.count_until(now_s)
    samples = [sample for family in counts.registry.collect() for sample in family.samples]
    found = {s.labels["reason"]: s.value for s in samples if s.name == PREFIX + name}
    return {code: seconds for code, seconds in found.items() if seconds}


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (
            (
                step(2, 12.0, S.SUSPENDED_IO, BOUND),
                step(1, 15.0, S.RUNNING),
                step(3, 16.0, S.SUSPENDED_USER, BY_HAND),
            ),
            {"IoBound": 5.0 + 38.0, "Suspended": 34.0},
        ),
        (  # a person takes over a hold
            (step(1, 13.0, S.SUSPENDED_USER, BY_HAND), step(1, 20.0, S.RUNNING)),
            {"IoBound": 3.0, "Suspended": 7.0},
        ),
        ((step(1, 14.0, S.OUT_OF_MEMORY),), {"IoBound": 4.0}),
    ],
)
def test_suspended_time_is_summed_by_reason_until_its_end_or_the_present(steps, expected):
    counts = told(step(1, 10.0, S.SUSPENDED_IO, BOUND), *steps)

    assert expected == stood_s(counts, 50.0)


def test_a_total_does_not_fall_when_an_end_is_told_after_a_later_scrape():
    counts = told(step(1, 10.0, S.SUSPENDED_IO, BOUND))
    at_scrape = stood_s(counts, 20.0)

    counts.take(Plan(transitions=(step(1, 19.0, S.RUNNING),)), {})

    assert at_scrape == stood_s(counts, 21.0)


def test_jobs_that_stand_still_when_the_daemon_starts_count_from_then():
    held = job(7, state=S.SUSPENDED_USER, at_s=1.0, reason=BY_HAND)

    assert {"Suspended": 3.0} == stood_s(Counts([held, job(8)], 100.0), 103.0)


def test_a_rule_whose_reasons_have_ever_new_codes_makes_a_bounded_number_of_series():
    reasons = [Reason(code=f"Mine{i}", text="so") for i in range(100)]
    found = stood_s(told(*(step(i, 1.0, S.SUSPENDED_IO, reasons[i]) for i in range(1, 100))), 2.0)

    assert len(found) <= MOST_REASONS + 1
    assert (1.0, 99.0) == (found["Mine1"], sum(found.values()))
    assert found["other"] > 1.0


def foretold(source, ratio, **fields):
    """A job that was expected to move so many times what it moved."""
    expected = Prediction(rate_bytes_per_s=ratio * 1e6, confidence=0.5, source=source)
    io = IoTotals(read_bytes=10_000_000, written_bytes=0)
    return job(1, state=S.COMPLETED, run_s=10.0, **({"io": io, "expected": expected} | fields))


def test_what_was_expected_is_held_against_what_came_by_its_source():
    counts = Counts()
    for made in (
        foretold("learned", 1.0),
        foretold("learned", 3.0),
        foretold("declared", 0.3),
        foretold("declared", 5.0, io=IoTotals()),
        foretold("learned", 1.0, expected=None),
    ):
        counts.take(Plan(transitions=(step(1, 1.0, S.COMPLETED),)), {1: made})
        counts.take(Plan(transitions=(step(1, 1.0, S.STARTING),)), {1: made})

    def bucket(source, le):
        return value(counts, "job_io_expected_ratio_bucket", source=source, le=le)

    assert [2, 1, 0] == [bucket(each, "+Inf") for each in ("learned", "declared", "imported")]
    assert [0, 1, 1, 2] == [bucket("learned", le) for le in ("0.8", "1.25", "2.0", "4.0")]
    assert [0, 1] == [bucket("declared", le) for le in ("0.25", "0.5")]
    ratios = value(counts, "job_io_expected_ratio_sum", source="learned")
    assert 4.0 == pytest.approx(ratios, abs=0.01)
    assert 5 == value(counts, "jobs_finished_total", state="COMPLETED")
    sources = ("declared", "learned", "imported", "unknown")
    started = [value(counts, "job_io_expectations_total", source=each) for each in sources]
    assert [2, 2, 0, 1] == started


# -- the documents ---------------------------------------------------------------------------------


def documented():
    """Name -> (type, labels, help), by docs/metrics.md."""
    text = (ROOT / "docs" / "metrics.md").read_text()
    assert text.endswith(f"\n\n{markdown_table()}\n"), (
        "python -m iodaemon.daemon.metrics.table prints the table"
    )
    rows = (line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `"))
    return {
        name.strip("`"): (kind, frozenset(re.findall(r"`(\w+)`", labels)), meaning)
        for name, kind, labels, meaning in rows
    }


def test_the_page_has_every_metric_of_the_documentation_and_no_other(tmp_path):
    async def a_job_moves(bench):
        await bench.run(1)
        await measure(bench, 0.0, {JobId(1): counters(MB)}, {"sim0": device()}, io_stall_s=1.0)

    page, known = look(tmp_path, a_job_moves), documented()

    assert "process_resident_memory_bytes" in page.families
    shown = {}
    for name, family in page.families.items():
        if name.startswith(PREFIX):
            full = name + "_total" * (family.type == "counter")
            labels = {label for sample in family.samples for label in sample.labels} - {"le"}
            if not family.samples:
                labels = known[full][1]
            shown[full] = (family.type, frozenset(labels), family.documentation)
    assert known == shown


def names_in(text):
    return set(re.findall(rf"{PREFIX}\w+", text))


def test_alerts_and_dashboard_ask_for_metrics_that_exist_and_every_one_is_used_somewhere():
    known = documented()
    histograms = {name for name, (kind, *_) in known.items() if kind == "histogram"}
    parts = {f"{name}_{part}" for name in histograms for part in ("bucket", "sum", "count")}
    dashboard = json.loads((ROOT / "examples" / "grafana-dashboard.json").read_text())
    targets = [target for panel in dashboard["panels"] for target in panel["targets"]]
    alerts = names_in((ROOT / "examples" / "alerts.yml").read_text())
    panels = {name for target in targets for name in names_in(target["expr"])}
    shown = {name for t in targets for name in re.findall(r"{{(\w+)}}", t["legendFormat"])}
    files = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*.*")]
    texts = [path.read_text() for path in files if path.name != "metrics.md"]
    used = {name.removesuffix("_bucket") for text in texts for name in names_in(text)}

    assert alerts
    assert panels
    assert set() == (alerts | panels) - {*known, *parts}
    assert set() == shown - {label for _, names, _ in known.values() for label in names}
    assert len(dashboard["panels"]) == len({panel["id"] for panel in dashboard["panels"]})
    assert set() == set(known) - used


PROBLEM = (
    "reading the counters takes 1.4 s, longer than the timeslice of 1 s; "
    'write timeslice = "3 s" under [regulation]'
)


class TimedPace(Pace):
    """A pace over readings that took so long, by a clock of its own."""

    def __init__(self):
        self.now_s = 0.0
        self.counts = Counts()
        super().__init__(self.counts.sampling, lambda: self.now_s)

    def read(self, *durations_s):
        for duration_s in durations_s:
            self.begin()
            self.now_s += duration_s
            self.end(1.0)


def test_slow_readings_one_after_the_other_are_said_once_with_what_to_do(caplog):
    pace, hiccup = TimedPace(), [5.0] * (SLOW_READINGS - 1)
    pace.read(0.001, 1.0, 0.9, *hiccup, 0.1, *hiccup, 0.1)
    assert ("", []) == (pace.problem, caplog.messages)

    pace.read(*[1.4] * 9)
    report = {"timeslice_s": 1.0, "last_s": pytest.approx(1.4), "skipped": 7, "problem": PROBLEM}
    assert report == pace.report(7)
    pace.read(0.1)
    assert "" == pace.problem
    pace.read(1.4, 1.4, 1.4)
    assert PROBLEM == pace.problem
    assert [f'event=sampling_too_slow text="{PROBLEM}"'] == caplog.messages


def test_asking_again_before_the_answer_does_not_make_it_shorter():
    pace = TimedPace()
    pace.begin()
    pace.now_s += 2.0
    pace.read(1.0)
    pace.end(1.0)

    names = [f"iodaemon_sampling_duration_seconds_{part}" for part in ("count", "sum")]
    assert [1.0, 3.0] == [pace.counts.registry.get_sample_value(name) for name in names]


class StuckReader:
    """Reads when it is let; has the interface of the client as far as sampling uses it."""

    def __init__(self):
        self.may_read = asyncio.Event()
        self.readings = 0

    async def read(self, at_s):
        self.readings += 1
        await self.may_read.wait()
        return Sample(at_s=at_s)


def test_instants_that_come_during_a_reading_are_skipped_and_not_queued_up(tmp_path):
    async def scenario():
        events = []
        node = LinuxNode(
            platform=platform(1),
            timeline=VirtualTimeline(),
            post=events.append,
            launch_of=lambda _: {},
            job_of=lambda _: None,
            supervisor=anchor.Config(
                runtime=str(tmp_path), daemon_uid=0, outputs=str(tmp_path / "output")
            ),
            state_dir=tmp_path,
        )
        real, node.sampler = node.sampler, StuckReader()
        for _ in range(5):
            node.sample()
            await asyncio.sleep(0)
        assert (1, 4, 0) == (node.sampler.readings, node.samples_skipped, len(events))

        node.sampler.may_read.set()
        await node._reading
        assert 1 == len(events)
        node.sample()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

        assert (2, 4) == (node.sampler.readings, node.samples_skipped)
        node.sampler = real
        real.close()

    asyncio.run(scenario())
