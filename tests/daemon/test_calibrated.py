"""A daemon goes by what was measured of its disks, and says what does not fit."""

import os

import msgspec
import pytest
from builders import device_load, platform
from calibrating import MB, calibration, leaf, point
from process import daemon, stop

from iodaemon.api.care import reload_config
from iodaemon.calibration.record import SUSTAIN_ABOVE
from iodaemon.calibration.store import keep, kept_file
from iodaemon.core import event as ev
from iodaemon.core.controller import Controller
from iodaemon.core.platform import Device
from iodaemon.core.rule import Rules
from iodaemon.core.state import State
from iodaemon.daemon.calibrating import Measured, device_changes, shown
from iodaemon.node.devices import find_identity, leaf_devices
from iodaemon.policy.admission import fcfs
from iodaemon.policy.placement import least_io
from iodaemon.policy.regulation import adaptive

KERNEL = os.uname().release
SDA = Device(id="sda", model="Disk", rotational=False)


def load(moved):
    return device_load(
        reads_per_s=1000.0,
        read_bytes_per_s=moved,
        read_await_s=0.01,
        queue_length=10.0,
        in_flight=10,
    )


@pytest.fixture
def measured(tmp_path):
    """Of sda, whose calibration is kept."""
    keep(tmp_path, calibration(leaf(identity="serial 1"), kernel=KERNEL))
    return Measured(tmp_path, {"sda": "serial 1", "sdb": "serial 2"})


def test_the_devices_have_what_was_measured_of_them(measured):
    sda, sdb = measured.read([SDA, Device(id="sdb")])

    assert (sda.capacity_bytes_per_s, sdb) == (100 * MB, Device(id="sdb"))
    assert sda.service is not None
    told = {"id": "sda", "model": "Disk", "rotational": False, "capacity_bytes_per_s": 100 * MB}
    assert shown(sda) == told  # without the times of lone requests
    (row,) = measured.report()
    assert (row["device"], row["problem"]) == ("sda", "")
    assert row["io_bound_bytes_per_s"] == 40 * MB


def test_a_file_that_is_none_is_named_with_its_cure_until_one_is_read_that_is_right(tmp_path):
    file = kept_file(tmp_path)
    file.write_text("{")
    measured = Measured(tmp_path, {"sda": "serial 1"})
    left_out = measured.read([SDA])
    before = measured.problem
    file.unlink()
    keep(tmp_path, calibration(leaf(identity="serial 1"), kernel=KERNEL))
    measured.read([SDA])

    assert (SDA,) == left_out
    assert before.startswith(f"{file}: no calibration: ")
    assert before.endswith("; remove it, 'iod calibrate PATH' makes a new one")
    assert measured.problem == ""


def test_what_does_not_fit_is_told_once(measured, caplog):
    measured.read([SDA])
    for _ in range(2 * SUSTAIN_ABOVE):
        measured.watch({"sda": load(400 * MB), "sdb": load(1e12)})

    assert caplog.text.count("400 MB/s") == 1
    assert "'iod calibrate PATH' measures it again" in caplog.text
    assert "400 MB/s" in measured.report()[0]["problem"]
    measured.read([SDA])  # it was measured anew
    assert measured.report()[0]["problem"] == ""


def test_a_change_is_told_by_device(measured):
    before = (SDA, Device(id="sdb"))

    (change,) = device_changes(before, measured.read(before))

    assert change.text == (
        "calibration of sda: none -> 100 MB/s by all readers, lone requests of 1 to 1 ms (1 times)"
    )
    assert device_changes(before, before) == []


def test_a_running_controller_takes_other_devices(measured):
    state = State(msgspec.structs.replace(platform(2, 2), devices=(SDA,)))
    rules = Rules(
        name="test", admission=fcfs.Rule(), placement=least_io.Rule(), regulation=adaptive.Rule()
    )
    controller = Controller(state, rules)
    devices = measured.read([SDA])

    controller.step([ev.Reconfigured(at_s=1.0, by="root", changes=(), devices=devices)])

    assert state.platform.devices == devices
    assert len(state.platform.partitions) == 2
    state.check()


@pytest.mark.node
def test_a_daemon_reads_it_at_its_start_and_when_told_to(tmp_path):
    disks = {device.id: find_identity(device.id) for device in leaf_devices()}
    name, identity = next(iter(disks.items()))
    state, runtime = tmp_path / "state", tmp_path / "run"
    state.mkdir(mode=0o700)
    keep(state, calibration(leaf(name, identity, [point()]), kernel="2.6.32"))

    with daemon(state, runtime, backend="linux") as (client, process):
        (row,) = client.node()["calibration"]
        keep(state, calibration(leaf(name, identity, loaded_bytes_per_s=7 * MB), kernel=KERNEL))
        answer = reload_config(client)
        (after,) = client.node()["calibration"]
        again = reload_config(client)
        kept_file(state).write_text("{")
        told = reload_config(client)["notes"]
        damaged = client.node()
        log = stop(process)

    assert (row["device"], after["device"]) == (name, name)
    assert "kernel 2.6.32" in row["problem"]
    assert after["problem"] == ""
    assert [change["path"] for change in answer["changed"]] == [f"calibration of {name}"]
    assert again["changed"] == []
    assert again["notes"] == []
    assert log.count("measured under kernel 2.6.32") == 1
    assert "calibration" not in damaged
    assert damaged["calibration_problem"].startswith(f"{kept_file(state)}: no calibration: ")
    assert told == [damaged["calibration_problem"]]
    assert log.count("no calibration") == 1
