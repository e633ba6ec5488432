"""Records in job directories: whatever stands in one, it is a checked record or a named error."""

import asyncio
import copy
import errno
import json
import os
import resource
import signal
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from iodaemon.backend.linux import attempt_record, outcome, protocol, scratch
from iodaemon.backend.linux.attempt_record import NO_PID, RecordError
from iodaemon.backend.linux.directory import JobDirectories
from iodaemon.backend.linux.process import Identity, identify, read_boot_id
from iodaemon.backend.linux.track import Track
from iodaemon.core.job import JobId

ME = identify(os.getpid())
IDENTITY = ME._asdict()
TIMES = {"started_s": 5.0, "started_monotonic_s": 1.0}
SHIM = {
    **IDENTITY,
    **TIMES,
    "main_pid": 7,
    "main_start_ticks": 8,
    "freezer": "cgroup",
    "cgroup": "/sys/fs/cgroup/x/jobs/1.1",
    "baseline": [1, 2, 3],
    "baseline_logical_bytes": 4,
}
ENDED = {
    **TIMES,
    "boot_id": ME.boot_id,
    "ended_s": 6.0,
    "ended_monotonic_s": 2.0,
    "exit": {"code": 3, "signal": None},
    "io": {"read_bytes": 1, "written_bytes": 2, "operations": 3},
    "memory_end": {"killed": 1, "at_limit": 1, "limit_bytes": 9, "nodes": "0"},
    "staged": {"came_bytes": 1, "went_bytes": 2, "moved_bytes": 3, "has_come": True},
    "stopped_from_outside": True,
    "stage_failed": {"step": "out", "program": "cp", "code": 1, "signal": None, "line": "x"},
    "note": "so",
}
NEVER_RAN = {"never_ran": "no", "exit_code": 127, "ended_s": 3.0, "holds": True, "disk": "/d"}
SHARE = {"path": "/d", "size": 4096, "name": "1-1-ab", "filesystem": "7", "tier": "t"}
OUTPUT = {"path": "/o", "on": "success"}
RECORDS = {
    protocol.SHIM_FILE: (attempt_record.read_shim, SHIM),
    protocol.STATUS_FILE: (attempt_record.read_status, ENDED),
    protocol.STAGE_FILE: (attempt_record.read_stage, {"step": "out"}),
    protocol.SCRATCH_FILE: (
        attempt_record.read_scratch,
        {"uid": 1000, "shares": [SHARE], "output": OUTPUT, "boot_id": "b"},
    ),
    protocol.STOPPED_FILE: (attempt_record.read_stopped, {"processes": [list(ME)]}),
    protocol.KEEPER_FILE: (attempt_record.read_keeper, {**IDENTITY, "base": "/sys/fs/cgroup/x"}),
}

WORDS = st.sampled_from(
    ["pid", "exit", "io", "code", "", "\ud800", "../..", "/", "x" * 300, "never_ran", "given_up"]
)
NUMBERS = st.one_of(
    st.integers(),
    st.floats(),
    st.sampled_from([-1, 0, 2**31, 2**63 - 1, 2**63, 2**64, 10**400, 1e308, float("inf")]),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, WORDS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(WORDS, inner, max_size=4)),
    max_leaves=6,
)


def places_in(value, path=()):
    """The way to each field, list item and object of a record."""
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from places_in(value[key], (*path, key))
    if isinstance(value, list):
        for at in range(len(value)):
            yield from places_in(value[at], (*path, at))


def put(record, path, value):
    *way, last = path
    for key in way:
        record = record[key]
    record[last] = value


@st.composite
def damaged(draw, record):
    """The bytes of a record that is nearly right: fields changed or missing, or cut, or mixed."""
    record = copy.deepcopy(record)
    for _ in range(draw(st.integers(0, 2))):
        path = draw(st.sampled_from(sorted(places_in(record), key=repr)))
        if not path:
            record = draw(VALUES)
            break
        put(record, path, draw(VALUES))
    if isinstance(record, dict) and record and draw(st.booleans()):
        del record[draw(st.sampled_from(sorted(record)))]
    data = json.dumps(record).encode()
    if draw(st.booleans()):
        data = data[: draw(st.integers(0, len(data)))]
    if draw(st.booleans()):
        at = draw(st.integers(0, len(data)))
        data = data[:at] + draw(st.binary(max_size=4)) + data[at:]
    return data


def use_status(status):
    outcome.ended(JobId(1), 1, status, 10.0)
    outcome.is_of_the_machine(status)


def use_shim(record):
    if not record.get("given_up"):
        outcome.began(JobId(1), 1, record, 10.0)
        Track(JobId(1), 1, record).close()


USES = {
    protocol.SHIM_FILE: use_shim,
    protocol.STATUS_FILE: use_status,
    protocol.STAGE_FILE: lambda stage: stage["step"] + "",
    protocol.SCRATCH_FILE: lambda record: scratch.paths_of(record["shares"]),
    protocol.STOPPED_FILE: lambda record: [Identity(*each) for each in record["processes"]],
    protocol.KEEPER_FILE: lambda record: os.path.join(record.get("base") or "/", "jobs"),
}


@pytest.mark.parametrize("name", RECORDS)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_record_is_refused_by_its_name_or_can_be_used(tmp_path, name, data):
    read, record = RECORDS[name]
    (tmp_path / name).write_bytes(data.draw(damaged(record)))
    refusal = ""
    try:
        USES[name](read(str(tmp_path)))
    except RecordError as error:
        refusal = str(error)

    assert not refusal or str(tmp_path / name) in refusal


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), which=st.sampled_from([protocol.SHIM_FILE, protocol.STATUS_FILE]))
def test_an_attempt_with_damaged_records_is_described_and_never_as_one_that_never_ran(
    tmp_path, data, which
):
    directories = JobDirectories(str(tmp_path))
    place = tmp_path / "1.1"
    place.mkdir(exist_ok=True)
    for name in (protocol.SHIM_FILE, protocol.STATUS_FILE):
        (place / name).unlink(missing_ok=True)
    protocol.write_json(str(place / protocol.SHIM_FILE), {**SHIM, "pid": NO_PID}, durable=False)
    (place / which).write_bytes(data.draw(damaged(RECORDS[which][1])))
    there = directories.describe("1.1", ME)
    directories.unfinished()

    if "status" in there:
        use_status(attempt_record.check_status(there["status"], "it"))
    elif "lost" in there:
        assert str(place / protocol.SHIM_FILE) in there["lost"]
    elif "never_ran" not in there:
        use_shim(attempt_record.check_shim(there["shim"], "it"))
    else:
        assert json.loads((place / protocol.SHIM_FILE).read_text())["given_up"] is True


@pytest.mark.parametrize("name", RECORDS)
def test_every_record_that_is_written_is_read(tmp_path, name):
    read, record = RECORDS[name]
    protocol.write_json(str(tmp_path / name), record, durable=False)

    assert record == read(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "record"),
    [
        (protocol.STATUS_FILE, NEVER_RAN),
        (protocol.STATUS_FILE, {"never_ran": "fork: no memory", "exit_code": None}),
        (protocol.STATUS_FILE, attempt_record.lost_status("gone", 3.0)),
        (protocol.SHIM_FILE, {"given_up": True, **IDENTITY}),
        (protocol.SHIM_FILE, {**SHIM, "main_pid": None, "cgroup": None, "freezer": "signals"}),
        (protocol.SCRATCH_FILE, {"uid": 0, "shares": [], "output": None}),
        (protocol.KEEPER_FILE, IDENTITY),
    ],
)
def test_the_other_forms_of_records_are_read_as_well(tmp_path, name, record):
    protocol.write_json(str(tmp_path / name), record, durable=False)

    assert record == RECORDS[name][0](str(tmp_path))


def put_a_directory(path):
    path.mkdir()


def put_a_link(path):
    target = path.with_name("elsewhere")
    target.write_text(json.dumps(ENDED))
    path.symlink_to(target)


def put_a_device(path):
    os.mknod(path, 0o600 | 0o020000, os.makedev(1, 5))


def put_too_much(path):
    path.write_bytes(b" " * (attempt_record.LARGEST_BYTES + 1))


def put_too_deep(path):
    path.write_text("[" * 100_000)


@pytest.mark.parametrize(
    "make", [os.mkfifo, put_a_directory, put_a_link, put_a_device, put_too_much, put_too_deep]
)
@pytest.mark.parametrize("name", RECORDS)
def test_what_is_no_regular_file_is_named_and_not_waited_for(tmp_path, name, make):
    try:
        make(tmp_path / name)
    except PermissionError:
        pytest.skip("devices need root")

    with pytest.raises(RecordError, match=name):
        RECORDS[name][0](str(tmp_path))


@pytest.mark.parametrize("name", RECORDS)
def test_no_record_is_no_error(tmp_path, name):
    assert None is RECORDS[name][0](str(tmp_path))


def test_a_claim_that_the_disk_does_not_take_leaves_no_file(tmp_path):
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        try:
            protocol.claim(str(tmp_path / "it"), {"a": 1})
        except OSError as error:
            os._exit(error.errno)
        os._exit(0)

    assert errno.EFBIG == os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert [] == os.listdir(tmp_path)


def test_an_unreadable_shim_record_leaves_the_process_that_holds_its_lock(tmp_path):
    place = tmp_path / "1.1"
    place.mkdir()
    (place / protocol.SHIM_FILE).write_text("{}")
    directories = JobDirectories(str(tmp_path))

    async def held():
        code = (
            f"import sys, time; sys.path[:] = {sys.path!r}\n"
            "from iodaemon.backend.linux.holder import hold\n"
            f"fd = hold({str(place / protocol.SHIM_LOCK_FILE)!r}); print(fd, flush=True)\n"
            "time.sleep(1000)"
        )
        shim = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE
        )
        await shim.stdout.readline()
        found = directories.find_shim("1.1")
        there = directories.describe("1.1", ME)
        shim.kill()
        await shim.wait()
        return shim.pid, found, there

    pid, found, there = asyncio.run(held())
    left = directories.describe("1.1", ME)

    assert pid == found.pid == there["shim"]["pid"]
    assert there["alive"]
    assert read_boot_id() == there["shim"]["boot_id"]
    assert str(place / protocol.SHIM_FILE) in left["lost"]


def test_a_shim_of_an_older_package_noted_no_logical_bytes():
    older = {name: value for name, value in SHIM.items() if name != "baseline_logical_bytes"}
    baselines = []
    for record in (SHIM, older):
        track = Track(JobId(1), 1, record)
        baselines.append(track.baseline)
        track.close()

    assert [(1, 2, 3, 4), (1, 2, 3, 0)] == baselines
