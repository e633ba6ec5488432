"""The metrics say what the state says, at the time of the scrape; the documents name no others."""

import json
import re
import time
from pathlib import Path

import msgspec
import pytest
from bench import drive
from builders import MB, counters, exited, hold, sampled, suspended
from prometheus_client.parser import text_string_to_metric_families
from served import Served

from iodaemon.config import load_policy
from iodaemon.core import event as ev
from iodaemon.core.decision import RegulationPlan
from iodaemon.core.job import JobId, JobState
from iodaemon.core.rule import Mode
from iodaemon.core.sample import DeviceCounters, JobCounters, NodeCounters, Sample
from iodaemon.daemon.metrics.counts import PREFIX
from iodaemon.daemon.metrics.table import Exporter, Scene, markdown_table
from iodaemon.registry import shipped

ROOT = Path(__file__).parents[2]


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


def measured(at_s, jobs=None, devices=None, **node):
    sample = Sample(at_s=at_s, jobs=jobs or {}, devices=devices or {}, node=NodeCounters(**node))
    return ev.SampleTaken(at_s=at_s, sample=sample)


async def regulate(bench, seconds, jobs, suspends=()):
    """A timeslice ends in which these jobs have moved so many MB in all."""
    await bench.after(seconds)
    bench.regulation.plan = RegulationPlan(suspends=tuple(map(JobId, suspends)))
    bench.post(sampled(bench.now_s, {number: counters(mb * MB) for number, mb in jobs.items()}))
    await bench.settle()


# -- a simulated run -------------------------------------------------------------------------------


@pytest.fixture
def served(tmp_path):
    served = Served(tmp_path)
    yield served
    served.close()


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
    assert (3, 1) == (jobs[JobState.COMPLETED], jobs[JobState.FAILED])
    assert 3 == page.value("jobs_finished_total", state="COMPLETED")
    assert 1 == page.value("jobs_finished_total", state="FAILED")
    assert {"0": 4, "1": 4} == page.by("socket", "slots")
    assert last.at_s == page.value("last_sample_timestamp_seconds")
    assert 0 == page.value("journal_problem")
    read = last.devices["sim0"].read_sectors * 512
    assert read == page.value("device_bytes_total", device="sim0", direction="read")
    by_jobs = sum(
        value
        for (name, labels), value in page.samples.items()
        if name == f"{PREFIX}job_bytes_total" and ("direction", "read") in labels
    )
    assert 0 < by_jobs <= read + 512  # a device counts whole sectors
    assert page.value("suspended_seconds_total", reason="Suspended") > 0


def test_how_right_expectations_were_is_told_by_source(served):
    served.ended("read=20MB", "compute=0.2s")
    served.ended("read=20MB", "compute=0.2s")
    served.ended("read=20MB", "compute=0.2s", io_rate_bytes_per_s=20e9)

    page = served.call(lambda: Page(served.driver))
    starts = page.by("source", "job_io_expectations_total")
    assert {"declared": 1, "learned": 1, "imported": 0, "unknown": 1} == starts
    count = page.by("source", "job_io_expected_ratio_count")
    assert {"declared": 1, "learned": 1, "imported": 0} == count
    for number, source in ((2, "learned"), (3, "declared")):
        ratio = served.client.job(number)["expected_ratio"]
        buckets = page.by("le", "job_io_expected_ratio_bucket", source=source)
        assert {le: float(ratio <= float(le)) for le in buckets} == buckets


# -- jobs and sockets ------------------------------------------------------------------------------


def test_the_bound_of_the_policy_in_force_is_shown(tmp_path):
    async def it_is_changed(bench):
        policy = load_policy("dynamic", overrides={}, search=(shipped("policies"),))
        bench.driver.controller.use(policy.rules)

    assert 40 * MB == look(tmp_path, it_is_changed).value("io_bound_bytes_per_second")


def test_a_fresh_daemon_shows_every_state_and_every_total_at_zero(tmp_path):
    page = look(tmp_path)

    unfinished = {str(state) for state in JobState if not state.is_final}
    assert dict.fromkeys(unfinished, 0) == page.by("state", "jobs")
    assert {0} == set(page.by("state", "jobs_finished_total").values())
    none = dict.fromkeys(("Contention", "IoBound", "IoTurn", "Suspended"), 0)
    assert none == page.by("reason", "suspended_seconds_total")
    assert none == page.by("reason", "shadow_suspended_seconds_total")
    assert {"0": 2, "1": 2} == page.by("socket", "slots_free")
    assert 0 == page.value("starts_blocked")


def test_slots_are_free_or_held_by_jobs_of_their_socket(tmp_path):
    async def three_run(bench):
        await bench.run(3)

    page = look(tmp_path, three_run)

    assert {"0": 2, "1": 2} == page.by("socket", "slots")
    assert {"0": 0, "1": 1} == page.by("socket", "slots_free")


def test_that_the_io_of_a_job_cannot_be_read_is_shown(tmp_path):
    async def one_cannot_be_read(bench):
        await bench.run(2)
        for seconds in (1.0, 2.0):
            await bench.after(seconds)
            bench.post(measured(bench.now_s, {JobId(1): counters(5 * MB), JobId(2): JobCounters()}))
            await bench.settle()

    page = look(tmp_path, one_cannot_be_read)

    assert 0 == page.value("sampler_success", source="job_io")
    assert 0 == page.value("silent_processes")


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


def test_what_jobs_moved_is_told_by_disk(tmp_path):
    async def two_move(bench):
        await bench.run(2)
        on_disk = msgspec.structs.replace(counters(5 * MB, 2 * MB), devices=("sda",))
        await bench.after(1.0)
        bench.post(measured(bench.now_s, {JobId(1): on_disk, JobId(2): counters(MB)}))
        await bench.settle()

    page = look(tmp_path, two_move)

    on_sda = {"socket": "0", "device": "sda"}
    assert 5 * MB == page.value("job_bytes_total", **on_sda, direction="read")
    assert 2 * MB == page.value("job_bytes_total", **on_sda, direction="write")
    unknown = {"socket": "0", "device": "unknown"}
    assert MB == page.value("job_bytes_total", **unknown, direction="read")


def test_ended_jobs_leave_the_gauge_and_enter_the_total(tmp_path):
    async def one_ends(bench):
        await bench.run(2)
        bench.post(exited(bench.now_s, 1))
        await bench.settle()

    page = look(tmp_path, one_ends)

    assert 1 == page.value("jobs", state="RUNNING")
    assert 1 == page.value("jobs_finished_total", state="COMPLETED")
    assert "COMPLETED" not in page.by("state", "jobs")


def test_no_label_names_a_job_or_a_user(tmp_path):
    async def many_run(bench):
        await bench.run(4)

    one, many = look(tmp_path), look(tmp_path, many_run)

    series = {key for key in many.samples if key[0].startswith(PREFIX)}
    assert {key for key in one.samples if key[0].startswith(PREFIX)} == series
    labels = {label for _, names in series for label, _ in names}
    assert {"job", "id", "uid", "user", "name"}.isdisjoint(labels)


def test_a_page_with_1000_running_jobs_holds_the_loop_for_less_than_10_ms(tmp_path):
    """The quickest of 20, because other work shares the cores."""
    took_s = []

    async def they_move(bench):
        await bench.run(1000)
        bench.post(measured(bench.now_s, {job.id: counters(MB) for job in bench.state.live}))
        await bench.settle()
        for _ in range(20):
            began_s = time.perf_counter()
            Exporter(Scene(bench.driver)).page()
            took_s.append(time.perf_counter() - began_s)

    page = look(tmp_path, they_move, slots=(500, 500))

    assert 1000 == page.value("jobs", state="RUNNING")
    assert min(took_s) < 0.010


# -- devices and sampling --------------------------------------------------------------------------


def test_a_device_is_shown_with_its_totals(tmp_path):
    async def it_reads(bench):
        bench.post(measured(bench.now_s, devices={"sim0": device()}))
        await bench.settle()
        await bench.after(2.0)
        after = device(reads=10, read_sectors=4000, read_ms=500, busy_ms=1000, queue_ms=6000)
        bench.post(measured(bench.now_s, devices={"sim0": after}, io_stall_s=1.0))
        await bench.settle()

    page = look(tmp_path, it_reads)

    way = {"device": "sim0", "direction": "read"}
    assert 4000 * 512 == page.value("device_bytes_total", **way)
    assert 4000 * 512 == page.value("device_other_bytes_total", **way)
    assert 10 == page.value("device_requests_total", **way)
    assert 0.5 == page.value("device_request_seconds_total", **way)
    assert 6.0 == page.value("device_queue_seconds_total", device="sim0")
    assert 1.0 == page.value("device_busy_seconds_total", device="sim0")
    assert {"io": 1.0} == page.by("resource", "pressure_stall_seconds_total")
    assert 0 == page.value("sampler_success", source="vmstat")
    assert 1 == page.value("sampler_success", source="diskstats")
    assert 1 == page.value("sampler_success", source="io_pressure")
    assert 0 == page.value("sampler_success", source="memory_pressure")


def test_nothing_is_said_of_what_was_never_measured(tmp_path):
    page = look(tmp_path)

    assert {} == page.by("device", "device_busy_seconds_total")
    assert {} == page.by("source", "sampler_success")
    assert page.value("last_sample_timestamp_seconds") is None
    assert page.value("io_bound_bytes_per_second") is None


def test_durations_are_counted(tmp_path):
    async def some_steps(bench):
        await bench.run(1)
        await bench.after(2.0)
        bench.post(sampled(bench.now_s))
        await bench.settle()

    page = look(tmp_path, some_steps)

    assert 1 == page.value("sampling_duration_seconds_count")
    assert page.value("step_duration_seconds_count") >= 3
    assert page.value("step_duration_seconds_sum") > 0


# -- journal ---------------------------------------------------------------------------------------


def test_a_journal_that_cannot_be_written_is_told_until_it_can(tmp_path):
    pages = []

    async def it_fails_and_is_mended(bench):
        await bench.run(1)
        bench.spoil()
        bench.post(exited(bench.now_s, 1))
        await bench.settle()
        pages.append(Page(bench.driver))
        bench.mend()
        await bench.after(5.0)

    mended = look(tmp_path, it_fails_and_is_mended)

    failed = pages[0]
    assert (1, 1) == (failed.value("journal_problem"), failed.value("starts_blocked"))
    assert (0, 0) == (mended.value("journal_problem"), mended.value("starts_blocked"))


def test_what_waits_for_the_disk_is_told_with_its_age(tmp_path):
    pages = []

    async def it_is_stuck(bench):
        with bench.stuck():
            submitting = bench.submitting()
            await bench.breathe()
            pages.append(Page(bench.driver))
        await submitting
        bench.driver.journal.flush()  # what came after it

    written = look(tmp_path, it_is_stuck)

    assert pages[0].value("journal_lag_seconds") > 0
    assert 0 == written.value("journal_lag_seconds")


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
        moved = {JobId(1): counters(MB)}
        bench.post(measured(bench.now_s, moved, {"sim0": device()}, io_stall_s=1.0))
        await bench.settle()

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


def exported():
    histograms = {name for name, (kind, *_) in documented().items() if kind == "histogram"}
    parts = {f"{name}_{part}" for name in histograms for part in ("bucket", "sum", "count")}
    return {*documented(), *parts}


def test_the_alerts_ask_for_metrics_that_exist():
    used = names_in((ROOT / "examples" / "alerts.yml").read_text())

    assert used
    assert set() == used - exported()


def test_the_dashboard_is_valid_and_asks_for_metrics_that_exist():
    dashboard = json.loads((ROOT / "examples" / "grafana-dashboard.json").read_text())

    targets = [target for panel in dashboard["panels"] for target in panel["targets"]]
    used = {name for target in targets for name in names_in(target["expr"])}
    labels = {label for _, names, _ in documented().values() for label in names}
    shown = {name for t in targets for name in re.findall(r"{{(\w+)}}", t["legendFormat"])}
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert used
    assert set() == used - exported()
    assert set() == shown - labels
    assert len(ids) == len(set(ids))


def test_every_metric_is_used_by_a_panel_an_alert_or_a_document():
    files = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").iterdir()]
    texts = [path.read_text() for path in files if path.name != "metrics.md"]
    used = {name.removesuffix("_bucket") for text in texts for name in names_in(text)}

    assert set() == set(documented()) - used
