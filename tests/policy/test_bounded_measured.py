"""Rule ``bounded`` on devices that were measured at rest, beside those that were not."""

import msgspec
from test_bounded import ARM, PARALLEL, readers, run, suspensions

from iodaemon.backend.simulated import SimulatedDisk, default_platform
from iodaemon.core.measure import makespan_s
from iodaemon.core.platform import Device, DeviceId
from iodaemon.core.service import LoneTimes, ServiceTimes
from iodaemon.policy.regulation import bounded


def measured(bytes_per_s):
    """A machine whose disk was seen to serve a lone reader so fast."""
    size = float(SimulatedDisk().request_bytes)
    times = LoneTimes(in_order=((size, size / bytes_per_s),))
    disk = Device(id=DeviceId("sim0"), service=ServiceTimes(reads=times))
    return msgspec.structs.replace(default_platform(2, 4), devices=(disk,))


def test_a_congested_disk_is_known_at_once_without_a_guess():
    known = run(bounded.Rule(), readers(8, 600), ARM, machine=measured(120e6))
    guessed = run(bounded.Rule(), readers(8, 600), ARM)

    assert [2.0] * 7 == [step.at_s for step in suspensions(known)]
    assert makespan_s(known.jobs) <= makespan_s(guessed.jobs)
    assert round(makespan_s(known.jobs)) == 42


def test_a_fast_parallel_disk_is_left_alone_as_before():
    known = run(bounded.Rule(), readers(8, 5000), PARALLEL, machine=measured(600e6))

    assert suspensions(known) == []
