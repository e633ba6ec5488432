"""The metrics say what the state says, at the time of the scrape; the documents name no others."""

import json
import re
from pathlib import Path

import msgspec
import pytest
from bench import drive
from builders import MB, counters, exited, hold, sampled, suspended
from prometheus_client.parser import text_string_to_metric_families
from served import Served

from iodaemon import __version__
from iodaemon.config import load_policy
from iodaemon.core import event as ev
from iodaemon.core.decision import AdmissionPlan, LimitState, RegulationPlan, TrialStep
from iodaemon.core.job import JobId, JobState, Reason
from iodaemon.core.rule import Mode
from iodaemon.core.sample import DeviceCounters, JobCounters, NodeCounters, Sample
from iodaemon.core.state import CONTENTION
from iodaemon.daemon.exporter import METRICS, Exporter
from iodaemon.daemon.metric import PREFIX, Metric, Scene, markdown_table
from iodaemon.registry import shipped

ROOT = Path(__file__).parents[2]


class Page:
    """One scrape, to be asked for values."""

    def __init__(self, driver, samples_skipped=0):
        text = Exporter(Scene(driver, lambda: samples_skipped)).page().decode()
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


def look(tmp_path, scenario=None, samples_skipped=0):
    """The page after a scenario on a driver over a real journal."""
    pages = []

    async def live(bench):
        if scenario is not None:
            await scenario(bench)
        pages.append(Page(bench.driver, samples_skipped))
        bench.backend.take()

    drive(tmp_path, live)
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
    served.until(lambda: len(served.state.meter.devices) == 1)
    served.until(lambda: served.state.meter.bandwidth(JobId(6)) is not None)

    state = served.state
    page, jobs, reads, load, last = served.call(
        lambda: (
            Page(served.driver),
            state.by_state(),
            [(job.partition, state.meter.bandwidth(job.id)) for job in state.live],
            state.meter.devices["sim0"],
            state.meter.last,
        )
    )
    by_socket = {"0": 0.0, "1": 0.0}
    for partition, rate in reads:
        by_socket[str(partition)] += 0.0 if rate is None else rate.read_bytes_per_s

    assert {str(s): n for s, n in jobs.items() if not s.is_final} == page.by("state", "jobs")
    assert (3, 1) == (jobs[JobState.COMPLETED], jobs[JobState.FAILED])
    assert 3 == page.value("jobs_finished_total", state="COMPLETED")
    assert 1 == page.value("jobs_finished_total", state="FAILED")
    assert {"0": 4, "1": 4} == page.by("socket", "slots")
    assert by_socket == page.by("socket", "job_bandwidth_bytes_per_second", direction="read")
    assert sum(by_socket.values()) > 0
    assert load.read_bytes_per_s == page.value("device_read_bytes_per_second", device="sim0")
    assert load.busy_ratio == page.value("device_busy_ratio", device="sim0")
    assert last.at_s == page.value("last_sample_timestamp_seconds")
    assert 0 == page.value("journal_problem")
    assert 12 == page.value("decisions_total", decision="start")
    assert 1 == page.value("job_suspensions_total", reason="Suspended")


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


# -- policy ------------------------------------------------------------------------------------


def test_the_policy_in_force_is_told_with_its_bound_and_mode(tmp_path):
    async def it_is_changed(bench):
        policy = load_policy("dynamic", overrides={}, search=(shipped("policies"),))
        bench.driver.controller.use(policy.rules)
        bench.post(ev.ModeChanged(at_s=bench.now_s, mode=Mode.SHADOW, by="ann"))
        await bench.settle()

    page = look(tmp_path, it_is_changed)

    assert 1 == page.value("policy_info", policy="dynamic", regulation="dynamic", mode="shadow")
    assert 40 * MB == page.value("io_bound_bytes_per_second")


def test_the_version_that_answers_is_told(tmp_path):
    page = look(tmp_path)

    assert {__version__: 1} == page.by("version", "build_info")


# -- jobs and sockets ------------------------------------------------------------------------------


def test_a_fresh_daemon_shows_every_state_and_every_total_at_zero(tmp_path):
    page = look(tmp_path)

    unfinished = {str(state) for state in JobState if not state.is_final}
    assert dict.fromkeys(unfinished, 0) == page.by("state", "jobs")
    assert {0} == set(page.by("state", "jobs_finished_total").values())
    assert {0} == set(page.by("decision", "decisions_total").values())
    assert {"0": 2, "1": 2} == page.by("socket", "slots_free")
    assert 0 == page.value("starts_blocked")


def test_slots_are_free_or_held_by_jobs_of_their_socket(tmp_path):
    async def three_run(bench):
        await bench.run(3)

    page = look(tmp_path, three_run)

    assert {"0": 2, "1": 2} == page.by("socket", "slots")
    assert {"0": 0, "1": 1} == page.by("socket", "slots_free")


def test_the_bandwidth_of_a_socket_is_the_sum_of_its_jobs(tmp_path):
    async def three_read_and_write(bench):
        await bench.run(3)
        for seconds, factor in ((1.0, 0), (2.0, 1)):
            await bench.after(seconds)
            moved = {JobId(i): counters(i * 10 * factor * MB, i * factor * MB) for i in (1, 2, 3)}
            bench.post(measured(bench.now_s, moved))
            await bench.settle()

    page = look(tmp_path, three_read_and_write)

    read = page.by("socket", "job_bandwidth_bytes_per_second", direction="read")
    write = page.by("socket", "job_bandwidth_bytes_per_second", direction="write")
    assert {"0": 15 * MB, "1": 15 * MB} == read
    assert {"0": 1.5 * MB, "1": 1.5 * MB} == write
    assert {"0": 0, "1": 0} == page.by("socket", "jobs_io_unknown")


def test_a_job_whose_io_is_unknown_is_counted_as_unknown_and_not_as_zero(tmp_path):
    async def one_cannot_be_read(bench):
        await bench.run(2)
        for seconds in (1.0, 2.0):
            await bench.after(seconds)
            bench.post(measured(bench.now_s, {JobId(1): counters(5 * MB), JobId(2): JobCounters()}))
            await bench.settle()

    page = look(tmp_path, one_cannot_be_read)

    assert {"0": 1, "1": 0} == page.by("socket", "jobs_io_unknown")
    assert 0 == page.value("sampler_success", source="job_io")


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
    assert {"IoBound": 1, "Suspended": 1} | others == page.by("reason", "job_suspensions_total")
    assert {"IoBound": 7, "Suspended": 3} | others == page.by("reason", "suspended_seconds_total")
    longest = page.by("state", "longest_suspension_seconds")
    assert {"SUSPENDED_IO": 7, "SUSPENDED_USER": 3} == longest
    assert 2 == page.value("decisions_total", decision="suspend")


def test_what_shadow_would_have_done_is_told_apart_from_what_was_done(tmp_path):
    async def in_shadow(bench):
        await bench.run(2)
        bench.post(ev.ModeChanged(at_s=bench.now_s, mode=Mode.SHADOW, by="ann"))
        await regulate(bench, 1.0, {1: 0, 2: 0})
        await regulate(bench, 1.0, {1: 9, 2: 1}, suspends=[1])
        await bench.after(4.0)

    page = look(tmp_path, in_shadow)

    assert 1 == page.value("shadow_suspensions_total", reason="IoBound")
    assert 4 == page.value("shadow_suspended_seconds_total", reason="IoBound")
    assert {0} == set(page.by("reason", "job_suspensions_total").values())
    assert 0 == page.value("decisions_total", decision="suspend")


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
    labels = {label for metric in METRICS for label in metric.labels}
    assert {"job", "id", "uid", "user", "name"}.isdisjoint(labels)


# -- devices and sampling --------------------------------------------------------------------------


def test_a_device_is_shown_with_the_figures_of_its_last_slice(tmp_path):
    async def it_reads(bench):
        bench.post(measured(bench.now_s, devices={"sim0": device()}))
        await bench.settle()
        await bench.after(2.0)
        after = device(reads=10, read_sectors=4000, read_ms=500, busy_ms=1000, queue_ms=6000)
        bench.post(measured(bench.now_s, devices={"sim0": after}, io_stall_s=1.0))
        await bench.settle()

    page = look(tmp_path, it_reads)

    assert 4000 * 512 / 2.0 == page.value("device_read_bytes_per_second", device="sim0")
    assert 0 == page.value("device_written_bytes_per_second", device="sim0")
    assert 0.05 == page.value("device_wait_seconds", device="sim0", direction="read")
    assert page.value("device_wait_seconds", device="sim0", direction="write") is None
    assert 3.0 == page.value("device_queue_length", device="sim0")
    assert 0.5 == page.value("device_busy_ratio", device="sim0")
    way = {"device": "sim0", "direction": "read"}
    assert 4000 * 512 == page.value("device_bytes_total", **way)
    assert 4000 * 512 == page.value("device_other_bytes_total", **way)
    assert 10 == page.value("device_requests_total", **way)
    assert 0.5 == page.value("device_request_seconds_total", **way)
    assert 6.0 == page.value("device_queue_seconds_total", device="sim0")
    assert 1.0 == page.value("device_busy_seconds_total", device="sim0")
    assert {"io": 1.0} == page.by("resource", "pressure_stall_seconds_total")
    assert page.value("refault_bytes_total") is None
    assert 0 == page.value("sampler_success", source="vmstat")
    assert 1 == page.value("sampler_success", source="diskstats")
    assert 1 == page.value("sampler_success", source="io_pressure")
    assert 0 == page.value("sampler_success", source="memory_pressure")


def test_nothing_is_said_of_what_was_never_measured(tmp_path):
    page = look(tmp_path)

    assert {} == page.by("device", "device_busy_ratio")
    assert {} == page.by("source", "sampler_success")
    assert page.value("last_sample_timestamp_seconds") is None
    assert page.value("io_bound_bytes_per_second") is None


def test_skipped_samples_and_durations_are_told(tmp_path):
    async def some_steps(bench):
        await bench.run(1)
        await bench.after(2.0)
        bench.post(sampled(bench.now_s))
        await bench.settle()

    page = look(tmp_path, some_steps, samples_skipped=4)

    assert 4 == page.value("samples_skipped_total")
    assert 1 == page.value("sampling_duration_seconds_count")
    assert page.value("step_duration_seconds_count") >= 3
    assert page.value("step_duration_seconds_sum") > 0


# -- how many contend ------------------------------------------------------------------------------


def trial(verdict="kept", resource="memory"):
    return TrialStep(resource=resource, verdict=verdict, before=6, tried=2, text="so it is")


async def contend(bench, **fields):
    """A timeslice ends in which the rule says this."""
    await bench.after(1.0)
    bench.regulation.plan = RegulationPlan(**fields)
    bench.post(sampled(bench.now_s, {}))
    await bench.settle()


def test_limits_and_those_who_contend_are_told_while_they_are_known(tmp_path):
    memory = LimitState(resource="memory", contending=3, limit=2, text="")
    disk = LimitState(resource="sim0", contending=4, limit=None, text="")
    pages = []

    async def they_contend(bench):
        await contend(bench, limits=(memory, disk))
        pages.append(Page(bench.driver))
        await contend(bench)

    after = look(tmp_path, they_contend)

    assert {"memory": 2} == pages[0].by("resource", "limit_jobs")
    assert {"memory": 3, "sim0": 4} == pages[0].by("resource", "contending_jobs")
    assert {} == after.by("resource", "limit_jobs") | after.by("resource", "contending_jobs")


def test_trials_are_counted_and_all_are_there_from_the_start(tmp_path):
    async def they_are_tried(bench):
        await contend(bench, trials=(trial("began"), trial("kept")))
        await contend(bench, trials=(trial("began"), trial("undone", "md0")))
        bench.post(ev.ModeChanged(at_s=bench.now_s, mode=Mode.SHADOW, by="ann"))
        await contend(bench, trials=(trial("learned"),))

    page = look(tmp_path, they_are_tried)

    none = {"began": 0, "kept": 0, "undone": 0, "learned": 0}
    by = {name: page.by("verdict", "trials_total", resource=name) for name in ("memory", "sim0")}
    assert {"memory": {**none, "began": 2, "kept": 1}, "sim0": none} == by
    assert {"undone": 1} == page.by("verdict", "trials_total", resource="md0")


@pytest.mark.parametrize(("named", "rest", "expected"), [(1, False, 1), (0, True, 3), (1, True, 3)])
def test_jobs_that_wait_for_a_limit_are_counted(tmp_path, named, rest, expected):
    why = Reason(code=CONTENTION, text="enough contend")

    class Waiting:
        def decide(self, view, memory):
            ids = [job.id for job in view.pending]
            other = Reason(code="Slots", text="no room")
            plan = AdmissionPlan(
                reasons=dict.fromkeys(ids[:named], why), rest=why if rest else other
            )
            return plan, memory

    async def they_wait(bench):
        controller = bench.driver.controller
        controller.use(msgspec.structs.replace(controller.rules, admission=Waiting()))
        await bench.submitting(3)

    assert expected == look(tmp_path, they_wait).value("limit_waiting_jobs")


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
    assert (1, 1) == (failed.value("journal_problem"), failed.value("journal_failures_total"))
    assert 1 == failed.value("starts_blocked")
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

    assert pages[0].value("journal_queued") >= 1
    assert pages[0].value("journal_lag_seconds") > 0
    assert (0, 0) == (written.value("journal_queued"), written.value("journal_lag_seconds"))


# -- the documents ---------------------------------------------------------------------------------


def test_every_metric_is_on_the_page_with_its_help_and_type(tmp_path):
    page = look(tmp_path)

    shown = {n: (f.type, f.documentation) for n, f in page.families.items() if PREFIX in n}
    declared = {
        PREFIX + metric.name.removesuffix("_total"): (metric.kind, metric.help)
        for metric in METRICS
    }
    assert declared == shown
    assert "process_resident_memory_bytes" in page.families


def test_no_two_metrics_have_one_name():
    names = [metric.name for metric in METRICS]

    assert len(names) == len(set(names))


def test_a_histogram_that_is_not_read_from_durations_is_a_bug(tmp_path):
    wrong = Metric("x_seconds", "histogram", (), "Wrong.", lambda _: [])

    with pytest.raises(TypeError, match="x_seconds: a histogram is read from Durations"):
        wrong.family(None)


def test_the_documentation_lists_all_metrics_as_they_are():
    text = (ROOT / "docs" / "metrics.md").read_text()

    assert text.endswith(f"\n\n{markdown_table(METRICS)}\n"), (
        "python -m iodaemon.daemon.exporter prints the table"
    )


def names_in(text):
    return set(re.findall(rf"{PREFIX}\w+", text))


def exported():
    names = {PREFIX + metric.name for metric in METRICS}
    histograms = {PREFIX + metric.name for metric in METRICS if metric.kind == "histogram"}
    return names | {f"{name}_{part}" for name in histograms for part in ("bucket", "sum", "count")}


def test_the_alerts_ask_for_metrics_that_exist():
    used = names_in((ROOT / "examples" / "alerts.yml").read_text())

    assert used
    assert set() == used - exported()


def test_the_dashboard_is_valid_and_asks_for_metrics_that_exist():
    dashboard = json.loads((ROOT / "examples" / "grafana-dashboard.json").read_text())

    targets = [target for panel in dashboard["panels"] for target in panel["targets"]]
    used = {name for target in targets for name in names_in(target["expr"])}
    labels = {label for metric in METRICS for label in metric.labels}
    shown = {name for t in targets for name in re.findall(r"{{(\w+)}}", t["legendFormat"])}
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert used
    assert set() == used - exported()
    assert set() == shown - labels
    assert len(ids) == len(set(ids))
