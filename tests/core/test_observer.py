"""What of a job's slices counts, and against which wait."""

import pytest
from builders import MB, device_load, job

from iodaemon.core.job import JobState
from iodaemon.core.observer import LONGEST_S, Observer
from iodaemon.core.platform import Device, DeviceId, Platform
from iodaemon.core.sample import JobCounters, Sample
from iodaemon.core.service import LoneTimes, ServiceTimes

SDA, SDB = DeviceId("sda"), DeviceId("sdb")
MACHINE = Platform(partitions=(), devices=(Device(id=SDA), Device(id=SDB)))
SIZE = 128 * 1024


def load(wait=1.0, *, queue=1.0, rate=100 * MB):
    """Requests of one size that take so many times a millisecond; the queue as told."""
    requests = rate / SIZE
    queue_length = wait * queue
    return device_load(
        reads_per_s=queue_length / (wait * 1e-3) if rate else 0.0,
        read_bytes_per_s=rate if not rate else queue_length / (wait * 1e-3) * SIZE,
        read_await_s=wait * 1e-3 if requests else None,
        queue_length=queue_length if rate else 0.0,
    )


ALONE, CROWDED, IDLE = load(), load(4.0), load(rate=0.0)


class Watch:
    """One job, a slice a second."""

    def __init__(self, machine=MACHINE):
        self.machine = machine
        self.observer = Observer()
        self.job = job(1, state=JobState.RUNNING, cpus=2)
        self.now_s = self.run_s = self.cpu_s = 0.0
        self.read = 0
        self.on = (SDA,)
        for _ in range(3):  # what a lone request takes is learned
            self.observer.take(
                Sample(at_s=self.now_s),
                {SDA: ALONE, SDB: ALONE},
                jobs=(),
                run_s={},
                platform=machine,
            )
        self.slice(ran_s=0.0, cpu_s=0.0)

    def slice(self, sda=ALONE, sdb=IDLE, *, ran_s=1.0, cpu_s=1.0, read=0, told=()):
        """One more: what the job did in it, and what its devices went through."""
        self.now_s, self.run_s = self.now_s + 1.0, self.run_s + ran_s
        self.cpu_s, self.read = self.cpu_s + cpu_s, self.read + read
        made = {"cpu_s": self.cpu_s, "read_bytes": self.read, "written_bytes": 0}
        counters = JobCounters(**{**made, "devices": self.on, **dict(told)})
        sample = Sample(at_s=self.now_s, jobs={self.job.id: counters})
        loads = {name: each for name, each in ((SDA, sda), (SDB, sdb)) if each is not None}
        self.observer.take(
            sample, loads, jobs=[self.job], run_s={1: self.run_s}, platform=self.machine
        )
        return self

    @property
    def work(self):
        return self.observer.work(self.job.id)

    @property
    def counts(self):
        return self.work.quiet.windows, self.work.hindered.windows


def test_a_slice_beside_nobody_is_quiet_and_one_beside_others_is_hindered():
    watch = Watch().slice(ALONE, read=MB).slice(CROWDED, read=MB)

    assert (1.0, 1.0) == watch.counts
    assert (0.5, MB, 0.0) == watch.work.quiet.done
    assert pytest.approx(3.0, rel=0.01) == watch.work.hindered.excess[1]


def test_cpu_time_counts_by_the_cpus_that_were_asked_for():
    assert (0.25, 0.0, 0.0) == Watch().slice(cpu_s=0.5).work.quiet.done


def test_the_wait_is_that_of_the_devices_that_the_job_has_files_on():
    watch = Watch().slice(ALONE, CROWDED, read=MB)
    watch.on = (SDB,)
    watch.slice(ALONE, CROWDED, read=MB)

    assert (1.0, 1.0) == watch.counts


@pytest.mark.parametrize("on", [None, ()])
def test_of_a_job_without_files_on_a_disk_the_wait_of_all_of_them_counts(on):
    watch = Watch()
    watch.on = on

    assert (0.0, 1.0) == watch.slice(CROWDED, CROWDED).counts


def test_a_measured_device_that_serves_several_at_once_is_held_against_one_request_as_any_other():
    alone = LoneTimes(in_order=((SIZE, 1e-3),), at_random=((SIZE, 1e-3),))
    service = ServiceTimes(reads=alone, writes=alone, width=4.0)
    devices = tuple(Device(id=each, service=service) for each in (SDA, SDB))

    watch = Watch(Platform(partitions=(), devices=devices)).slice(CROWDED, read=MB)

    assert (0.0, 1.0) == watch.counts
    assert pytest.approx(3.0, rel=0.01) == watch.work.hindered.excess[1]


def test_a_device_that_does_nothing_lets_nobody_wait():
    assert (1.0, 0.0) == Watch().slice(IDLE).counts


def test_a_wait_that_the_job_made_itself_is_nobodys():
    alone = round(CROWDED.read_bytes_per_s)

    assert (0.0, 0.0) == Watch().slice(CROWDED, read=alone).counts
    assert (0.0, 1.0) == Watch().slice(CROWDED, read=alone // 2).counts


@pytest.mark.parametrize(
    "told",
    [
        {"cpu_s": None},
        {"read_bytes": None},
        {"read_bytes": -5},
    ],
)
def test_a_job_whose_counters_are_not_known_or_went_back_teaches_nothing(told):
    watch = Watch()
    counted = watch.counts
    for _ in range(2):
        watch.slice(read=MB, told=told)

    assert 1.0 >= watch.counts[0] - counted[0]
    assert 0.0 == watch.work.quiet.done[1]


def test_a_slice_in_which_it_stood_still_for_most_of_the_time_does_not_count():
    assert (0.0, 0.0) == Watch().slice(ran_s=0.4, read=MB).counts
    assert (1.0, 0.0) == Watch().slice(ran_s=0.6, read=MB).counts


def test_a_device_whose_lone_requests_were_never_seen_says_nothing():
    watch = Watch()
    watch.observer = Observer()
    watch.slice(load(4.0, queue=2.0)).slice(load(4.0, queue=2.0), read=MB)

    assert (0.0, 0.0) == watch.counts


def test_a_device_without_counters_says_nothing():
    assert (0.0, 0.0) == Watch().slice(None, None, read=MB).counts


def test_a_window_lasts_until_something_was_done():
    watch = Watch()
    for _ in range(3):
        watch.slice(CROWDED, cpu_s=0.0)
    watch.slice(CROWDED, cpu_s=0.0, read=MB)

    assert (0.0, 1.0) == watch.counts
    assert pytest.approx(4.0) == watch.work.hindered.seconds


def test_a_job_that_sleeps_teaches_nothing():
    watch = Watch()
    for _ in range(3 * int(LONGEST_S)):
        watch.slice(cpu_s=0.001)

    assert (0.0, 0.0) == watch.counts


def test_a_job_that_wakes_counts_from_the_slice_after_that():
    watch = Watch()
    asleep = JobCounters(cpu_s=0.0, read_bytes=0, written_bytes=0, devices=(SDA,))
    for _ in range(2 + 2 * int(LONGEST_S)):
        watch.now_s, watch.run_s = watch.now_s + 1.0, watch.run_s + 1.0
        sample = Sample(at_s=watch.now_s, jobs={watch.job.id: asleep})
        run_s = {watch.job.id: watch.run_s}
        watch.observer.take(sample, {SDA: ALONE}, jobs=[watch.job], run_s=run_s, platform=MACHINE)
    watch.slice(cpu_s=0.7).slice(cpu_s=0.5)

    assert (1.0, 0.0) == watch.counts
    assert (1.0, 0.25) == (watch.work.quiet.seconds, watch.work.quiet.done[0])


def test_what_was_not_read_again_because_the_job_did_not_run_is_time_without_work():
    watch = Watch().slice(CROWDED, cpu_s=0.0)
    counters = JobCounters(cpu_s=0.0, read_bytes=0, written_bytes=0, devices=(SDA,))
    for _ in range(2):
        watch.now_s, watch.run_s = watch.now_s + 1.0, watch.run_s + 1.0
        sample = Sample(at_s=watch.now_s, jobs={watch.job.id: counters})
        watch.observer.take(
            sample, {SDA: CROWDED}, jobs=[watch.job], run_s={1: watch.run_s}, platform=MACHINE
        )
    watch.slice(CROWDED, read=MB)

    assert pytest.approx(4.0) == watch.work.hindered.seconds


def test_a_job_that_ended_is_forgotten_and_one_that_vanished_as_well():
    watch = Watch().slice(read=MB)
    watch.observer.forget(watch.job.id)
    assert watch.work is None

    watch.slice()
    watch.observer.take(Sample(at_s=99.0), {}, jobs=(), run_s={}, platform=MACHINE)
    assert watch.work is None
