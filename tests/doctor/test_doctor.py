"""The examination: what it finds on this machine, what it leaves, and how it judges."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from harness import CGROUPS, MARK, marked, until
from leaving import name_of

from iodaemon.cli import main
from iodaemon.core.platform import Device, DeviceId, Partition, PartitionId, Slot, SlotId
from iodaemon.doctor import accounting, control_group, disks, kernel_features, service
from iodaemon.doctor.accounting import MOVED_BYTES, Counted
from iodaemon.doctor.checks import Check, Subject, examine
from iodaemon.doctor.child import a_child
from iodaemon.doctor.report import Finding, Verdict, is_broken, lacking, ok
from iodaemon.doctor.running_daemon import (
    judge_controls,
    judge_daemon,
    judge_sampling,
    judge_supervisor,
)
from iodaemon.doctor.scratch import PREFIX, scratch_cgroup, scratch_directory
from iodaemon.node.devices import MEMORY, NETWORK, PathDevice
from iodaemon.node.feature import (
    AVAILABLE_MEMORY,
    COUNT_PRESSURE,
    IDLE_TIME,
    IO_PRESSURE,
    REFAULTS,
    SOURCES,
    USER_CPU,
    find_sources,
    words_of_sources,
)
from iodaemon.node.sampler.proc_files import find_state

BROKEN, LACKING, OK = Verdict.BROKEN, Verdict.LACKING, Verdict.OK
LONGEST_S = 5.0
ALWAYS_OK = (
    *("kernel", "I/O of processes", "I/O of disks", "freeze by signals"),
    *("pinning", "disk of the state", "diskstats", "runtime directory"),
)
"""What holds wherever these tests run."""


def verdicts(findings):
    return {finding.what: finding.verdict for finding in findings}


def scratches(*directories):
    """What an examination left in these directories."""
    return [path for each in directories for path in Path(each).glob(f"{PREFIX}.*")]


def cgroup_scratches(*pids):
    """Likewise in all cgroups, by these processes: others may be examining the machine."""
    begin = tuple(f"{PREFIX}.{pid}." for pid in pids or [os.getpid()])
    return [name for _, names, _ in os.walk(CGROUPS) for name in names if name.startswith(begin)]


# -- on this machine -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def subject(tmp_path_factory):
    root = tmp_path_factory.mktemp("examined")
    return Subject(state_dir=root / "state", runtime_dir=root / "run", directory=root)


@pytest.fixture(scope="module")
def examined(subject):
    """Findings by name, and what CPU time it took, its processes included."""
    start_s = sum(os.times()[:4])
    findings = {finding.what: finding for finding in examine(subject)}
    return findings, sum(os.times()[:4]) - start_s


@pytest.fixture(scope="module")
def cgroup_home():
    """Where a cgroup can be made."""
    home = control_group.probe_cgroups().usable_home
    if home is None:
        pytest.skip("no writable cgroup v2 here")
    return home


@pytest.mark.node
def test_what_is_known_to_hold_here_is_ok(examined):
    findings, _ = examined

    assert [] == [findings[what] for what in ALWAYS_OK if findings[what].verdict is not OK]


@pytest.mark.node
def test_freezing_by_cgroup_is_ok_where_one_can_be_made(examined, cgroup_home):
    findings, _ = examined

    assert [OK, OK] == [findings[w].verdict for w in ("freeze by cgroup", "cgroup subtree")]


@pytest.mark.node
def test_nothing_is_broken_here_and_each_check_comes_once(examined):
    findings, _ = examined

    assert not is_broken(findings.values())
    assert len(findings) == 35


@pytest.mark.node
def test_an_examination_uses_no_more_cpu_time_than_a_user_waits(examined):
    _, used_s = examined

    assert used_s < LONGEST_S


@pytest.mark.node
def test_what_a_process_moves_is_counted_within_a_percent(examined):
    findings, _ = examined
    of_process, of_disks = (findings[f"I/O of {each}"].values for each in ("processes", "disks"))

    for direction in ("read_bytes", "written_bytes"):
        assert of_process[direction] == pytest.approx(MOVED_BYTES, rel=0.01)
        assert of_disks[direction] >= 0.99 * MOVED_BYTES


@pytest.mark.node
def test_whatever_lacks_says_what_it_costs_and_how_to_get_it(examined):
    findings, _ = examined

    mute = [f.what for f in findings.values() if f.verdict is not OK and not (f.cost and f.remedy)]
    assert [] == mute
    assert [] == [f.what for f in findings.values() if any("\n" in line for line in f.lines)]


@pytest.mark.node
def test_nothing_is_left_after_an_examination(examined, subject):
    assert [] == scratches(subject.state_dir.parent)
    assert [] == cgroup_scratches()
    assert not subject.state_dir.exists()
    assert not subject.runtime_dir.exists()


# -- interrupted -----------------------------------------------------------------------------------


@pytest.fixture
def configured(tmp_path):
    """A configuration whose places are these of the test alone."""
    config = tmp_path / "config.toml"
    places = {"state_dir": tmp_path / "state", "runtime_dir": tmp_path / "run"}
    config.write_text("".join(f"{key} = {json.dumps(str(p))}\n" for key, p in places.items()))
    return config


def run_doctor(config, mark):
    return subprocess.Popen(
        [sys.executable, "-m", "iodaemon.cli", "--config", str(config), "doctor"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, MARK: mark},
        cwd=config.parent,
    )


@pytest.mark.node
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)],
    ids=["Ctrl-C", "SIGTERM"],
)
def test_nothing_is_left_whenever_it_is_interrupted(configured, number, code):
    codes = set()
    for later_s in (0.0, 0.1, 0.4):
        mark = f"doctor-{os.getpid()}-{number}-{later_s}"
        with run_doctor(configured, mark) as process:
            until(lambda p=process, m=mark: p.poll() is not None or len(marked(m)) > 1, "a child")
            time.sleep(later_s)
            process.send_signal(number)
            told = process.stderr.read()
        codes.add(process.returncode)

        assert b"" == told
        until(lambda mark=mark: not marked(mark), "end of its processes")
        assert [] == scratches(configured.parent)
        assert [] == cgroup_scratches(process.pid)
    assert codes <= {code, 0, -number}  # it may have been over, or just ending
    assert code in codes


def fail_in_a_directory(directory, pids):
    with scratch_directory(directory) as place, a_child() as child:
        child.ask("move", path=f"{place}/data", blocks=1)
        child.ask("spin")
        pids.append(child.pid)
        raise ZeroDivisionError


def fail_in_a_cgroup(home, pids):
    with scratch_cgroup(home) as base, a_child() as child:
        child.ask("enter", procs=f"{base}/jobs/cgroup.procs")
        child.ask("spin")
        pids.append(child.pid)
        Path(base, "jobs/cgroup.freeze").write_text("1")
        raise ZeroDivisionError


@pytest.mark.node
def test_a_probe_that_fails_takes_its_place_and_process_with_it(tmp_path):
    pids = []
    with pytest.raises(ZeroDivisionError):
        fail_in_a_directory(str(tmp_path), pids)

    assert [None] == [find_state(pid) for pid in pids]
    assert [] == scratches(tmp_path)


@pytest.mark.node
def test_a_cgroup_goes_with_the_frozen_process_in_it(cgroup_home):
    pids = []
    with pytest.raises(ZeroDivisionError):
        fail_in_a_cgroup(cgroup_home, pids)

    assert [None] == [find_state(pid) for pid in pids]
    assert [] == cgroup_scratches()


# -- the child -------------------------------------------------------------------------------------


@pytest.mark.node
def test_a_child_says_what_it_could_not_do_and_goes_on(tmp_path):
    with a_child() as child:
        with pytest.raises(FileNotFoundError):
            child.ask("move", path=str(tmp_path / "no" / "data"), blocks=1)
        with pytest.raises(OSError, match="Invalid argument"):
            child.ask("pin", cpus=[100_000])
        with pytest.raises(IsADirectoryError):
            child.ask("enter", procs=str(tmp_path))

        assert {} == child.ask("hello")


@pytest.mark.node
def test_the_file_of_a_child_has_no_name(tmp_path):
    with a_child() as child:
        assert "is_direct" in child.ask("move", path=str(tmp_path / "data"), blocks=2)
        assert [] == list(tmp_path.iterdir())


def test_what_is_no_scratch_of_ours_or_belongs_to_the_living_stays(tmp_path):
    kept = [
        name_of(PREFIX, pid=1),
        name_of(PREFIX, is_elsewhere=True),  # another container's, whose process is not seen here
        f"{PREFIX}.x",
        "other",
    ]
    for name in (name_of(PREFIX), *kept):
        (tmp_path / name).mkdir()

    with scratch_directory(str(tmp_path)):
        pass

    assert sorted(kept) == sorted(path.name for path in tmp_path.iterdir())


# -- as a verb -------------------------------------------------------------------------------------


@pytest.mark.node
def test_the_verb_prints_a_line_a_check_and_json_is_the_list(configured, capsys):
    code = main(["--config", str(configured), "doctor"])
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith(" ")]
    code_json = main(["--config", str(configured), "doctor", "--json"])
    findings = json.loads(capsys.readouterr().out)

    assert [0, 0] == [code, code_json]
    assert [line[9:29].strip() for line in lines] == [f["what"] for f in findings]
    assert {line.split()[0] for line in lines} <= {"ok", "lacking"}
    assert all(" — " in line for line in lines)
    keys = {"verdict", "what", "measured", "cost", "remedy", "values"}
    assert [keys] * len(findings) == [set(finding) for finding in findings]


@pytest.mark.node
def test_a_place_that_cannot_be_had_is_broken_and_the_rest_is_told(tmp_path, capsys):
    config = tmp_path / "config.toml"
    config.write_text('state_dir = "/proc/nowhere"\nruntime_dir = "/proc/nowhere"\n')

    code = main(["--config", str(config), "doctor", "--json"])

    found = {f["what"]: f["verdict"] for f in json.loads(capsys.readouterr().out)}
    assert code == 1
    wanted = {"I/O accounting", "journal disk", "runtime directory"}
    assert wanted == {what for what, verdict in found.items() if verdict == "broken"}
    assert found["freeze by signals"] == "ok"


def test_a_check_that_is_refused_is_a_finding_beside_those_it_made_and_the_next_one_comes(subject):
    def refused(_):
        yield ok("first", "there")
        raise PermissionError(errno.EPERM, "Operation not permitted")

    checks = [Check("it", refused), Check("next", lambda _: [ok("next", "there")])]

    found = [(finding.what, finding.verdict) for finding in examine(subject, checks)]

    assert [("first", OK), ("it", BROKEN), ("next", OK)] == found


# -- judging: the lines and the code -------------------------------------------------------------


def test_a_finding_is_one_line_and_what_lacks_has_advice_below_it():
    fine = ok("it", "7 ms")
    lack = lacking("it", "none", cost="it is slow", remedy="buy one")

    assert ["ok       it                   — 7 ms"] == fine.lines
    assert ["lacking  it                   — none", "it is slow; buy one"] == [
        line.strip() for line in lack.lines
    ]


def test_a_supervisor_that_does_not_answer_is_broken():
    problem = "the supervisor (pid 7) is stopped"
    [found] = judge_supervisor({"supervisor_problem": problem, "supervisor_pid": 7})

    assert (BROKEN, 7) == (found.verdict, found.values["pid"])
    assert [] == list(judge_supervisor({"supervisor_problem": "", "supervisor_pid": 7}))


def test_sampling_that_does_not_keep_pace_is_lacking_and_says_what_to_write():
    slow = {"problem": "takes 1.4 s; write timeslice", "last_s": 1.4, "skipped": 2}
    found = judge_sampling(slow)

    assert (LACKING, "takes 1.4 s", "write timeslice") == (
        found.verdict,
        found.measured,
        found.remedy,
    )
    assert {"last_s": 1.4, "skipped": 2} == dict(found.values)


# -- judging: accounting ---------------------------------------------------------------------------


def counted(read=1.0, written=1.0):
    """So many times what was moved."""
    return Counted(read_bytes=int(read * MOVED_BYTES), written_bytes=int(written * MOVED_BYTES))


def counting(**fields):
    made = {
        "means": "O_DIRECT",
        "place": "ext4 on disk sda",
        "disks": ("sda",),
        "process": counted(),
        "disk": counted(),
        "cgroup": counted(),
        **fields,
    }
    return verdicts(accounting.judge_counting(**made))


def test_sources_that_count_all_are_ok():
    assert {"I/O of processes": OK, "I/O of cgroups": OK, "I/O of disks": OK} == counting()


@pytest.mark.parametrize(
    ("what", "fields", "verdict"),
    [
        ("I/O of processes", {"process": counted(read=0.98)}, BROKEN),
        ("I/O of processes", {"process": counted(written=0.0)}, BROKEN),
        ("I/O of processes", {"process": counted(read=1.06)}, BROKEN),
        ("I/O of processes", {"process": counted(read=1.026)}, OK),
        ("I/O of processes", {"process": None}, LACKING),
        ("I/O of processes", {"process": counted(0.0, 0.0), "disks": ()}, LACKING),
        ("I/O of processes", {"process": counted(1.0, 1.0), "disks": ()}, OK),
        ("I/O of cgroups", {"cgroup": None}, LACKING),
        ("I/O of cgroups", {"disks": ()}, LACKING),
        ("I/O of cgroups", {"cgroup": counted(written=0.5)}, BROKEN),
        ("I/O of cgroups", {"cgroup": counted(written=2.0)}, BROKEN),
        ("I/O of cgroups", {"cgroup": counted(written=2.0), "disks": ("sda", "sdb")}, OK),
        ("I/O of disks", {"disk": None}, LACKING),
        ("I/O of disks", {"disk": counted(read=9.0, written=9.0)}, OK),
        ("I/O of disks", {"disk": counted(read=0.0)}, BROKEN),
    ],
)
def test_a_source_is_judged_by_what_it_counts(what, fields, verdict):
    assert verdict == counting(**fields)[what]


# -- judging: cgroups ------------------------------------------------------------------------------

HOME = control_group.Reading(
    mount="/sys/fs/cgroup",
    home="/sys/fs/cgroup/a",
    controllers=("cpuset", "io", "memory", "pids"),
    owner_uid=1000,
)


@pytest.mark.parametrize(
    ("changes", "lacks"),
    [
        ({}, set()),
        ({"undelegated": "x.service"}, {"cgroup delegation"}),
        ({"controllers": ("memory",)}, {"cgroup controllers"}),
        ({"controllers": (), "has_v1": True}, {"cgroup controllers"}),
        ({"problem": "Permission denied"}, {"cgroup subtree"}),
        (
            {"home": None, "problem": "out of sight", "controllers": ()},
            {"cgroup subtree", "cgroup controllers"},
        ),
        (
            {"mount": None, "home": None, "problem": "not mounted", "controllers": ()},
            {"cgroup v2", "cgroup subtree", "cgroup controllers"},
        ),
    ],
)
def test_of_cgroups_each_thing_may_lack_and_none_is_broken(changes, lacks):
    found = verdicts(control_group.judge_cgroups(HOME._replace(**changes)))

    assert lacks == {what for what, verdict in found.items() if verdict is LACKING}
    assert BROKEN not in found.values()


# -- judging --------------------------------------------------------------------------------------

TWO_SOCKETS = [
    Partition(
        id=PartitionId(number),
        slots=tuple(Slot(id=SlotId(cpu), cpus=(cpu,)) for cpu in (2 * number, 2 * number + 1)),
    )
    for number in range(2)
]
SDA = Device(id=DeviceId("sda"), model="", rotational=None)
FREEZE = {"freeze_s": 0.001, "still_cpu_s": 0.0, "thaw_s": 0.002}
JOURNAL = {"commits_s": (0.001,) * 3, "free_bytes": 1 << 40, "filesystem": "ext4"}
CONTROLS = ("cpuset", "io", "memory", "pressure")


def of_supervisor(protected):
    return judge_supervisor({"supervisor_problem": "", "protected": protected})


def of_cpus(cpus):
    return kernel_features.judge_cpus(TWO_SOCKETS, cpus, online=4, nodes=2)


def of_freezing(**fields):
    return control_group.judge_freezing("it", **FREEZE | fields, instead="mend it")


def of_path(kind, *devices):
    below = PathDevice(path="/a", kind=kind, description="x", devices=devices)
    return disks.judge_path("it", below)


def of_journal(**fields):
    return disks.judge_journal_disk(**JOURNAL | fields, state_dir=Path("/x"))


def of_controls(**controls):
    return judge_controls({"controls": controls})


JUDGED = [
    # a daemon that must do with signals, without being told to, lacks a cgroup
    (judge_daemon, [{"suspend": "cgroup v2 at /x", "lack": "", "unit": None}], [OK]),
    (judge_daemon, [{"suspend": "signals, as configured", "lack": "configured"}], [OK]),
    (judge_daemon, [{"suspend": "simulated"}], [OK]),
    (judge_daemon, [{"suspend": "signals: no cgroup", "lack": "unusable"}], [LACKING]),
    (of_supervisor, [True], []),
    (of_supervisor, [False], [LACKING]),
    (of_supervisor, [None], []),
    (kernel_features.judge_kernel, ["6.18.44-fc"], [OK]),
    (kernel_features.judge_kernel, ["5.14.0-503.el9"], [OK]),
    (kernel_features.judge_kernel, ["5.13.19"], [LACKING]),
    (kernel_features.judge_kernel, ["5.3"], [LACKING]),
    (kernel_features.judge_kernel, ["5.2.21"], [BROKEN]),
    (kernel_features.judge_kernel, ["unknown"], [BROKEN]),
    (kernel_features.judge_files, [1024, 4096], [OK]),
    (kernel_features.judge_files, [1024, -1], [OK]),
    (kernel_features.judge_files, [1024, 4095], [LACKING]),
    (partial(accounting.judge_others, is_readable=True), [7], [OK]),
    (partial(accounting.judge_others, is_readable=False), [7], [LACKING]),
    (partial(accounting.judge_others, is_readable=False), [None], [LACKING]),
    # a standstill must be one, and must end
    (of_freezing, [], [OK]),
    (partial(of_freezing, still_cpu_s=0.002), [], [BROKEN]),
    (partial(of_freezing, freeze_s=None), [], [BROKEN]),
    (partial(of_freezing, thaw_s=None), [], [BROKEN]),
    (of_cpus, [4], [OK]),
    (of_cpus, [2], [LACKING]),
    (kernel_features.judge_pinning, [[[0, 1], [2, 3]], [[0, 1], [2, 3]]], [OK]),
    (kernel_features.judge_pinning, [[[0, 1], [2, 3]], [[0, 1], [2]]], [BROKEN]),
    (kernel_features.judge_memory, [(0,), ("prefer (many):0",), 2], [OK]),
    (kernel_features.judge_memory, [(0,), (), 2], [OK]),
    (kernel_features.judge_memory, [None, (), 2], [LACKING]),
    (of_path, ["block", SDA], [OK]),
    (of_path, ["nfs"], [LACKING]),
    (disks.judge_disks, [("sda",), (), 17], [OK, OK]),
    (disks.judge_disks, [("sda",), (), 20], [OK, OK]),
    (disks.judge_disks, [("sda",), ("sda",), 15], [LACKING, OK]),
    (disks.judge_disks, [("sda",), (), 11], [OK, LACKING]),
    (disks.judge_disks, [(), (), 0], [LACKING, LACKING]),
    (kernel_features.judge_pressure, [1.0, 0.0], [OK]),
    (kernel_features.judge_pressure, [0.0, 0.0], [LACKING]),
    (kernel_features.judge_pressure, [None, 0.0], [LACKING]),
    (kernel_features.judge_pressure, [1.0, None], [LACKING]),
    (kernel_features.judge_progress, [frozenset(SOURCES)], [OK] * 5),
    (kernel_features.judge_progress, [frozenset()], [LACKING] * 5),
    (of_journal, [], [OK, OK, OK]),
    (partial(of_journal, commits_s=(0.06, 0.06, 0.001)), [], [LACKING, OK, OK]),
    (partial(of_journal, commits_s=(0.001, 0.001, 0.6)), [], [LACKING, OK, OK]),
    (partial(of_journal, free_bytes=100 << 20), [], [OK, LACKING, OK]),
    (partial(of_journal, free_bytes=1 << 20), [], [OK, BROKEN, OK]),
    *(
        (partial(of_journal, filesystem=each), [], [OK, OK, LACKING])
        for each in sorted(MEMORY | NETWORK)
    ),
    (partial(of_journal, filesystem=""), [], [OK, OK, OK]),
    (service.judge_runtime, ["/run/x/supervisor.sock", 7, 7], [OK]),
    (service.judge_runtime, ["/run/x/supervisor.sock", 7, 0], [BROKEN]),
    # what jobs have is judged by the daemon's word
    (partial(of_controls, **dict.fromkeys(CONTROLS, True)), [], [OK] * 4),
    (partial(of_controls, **dict.fromkeys(CONTROLS, False)), [], [LACKING] * 4),
    (partial(of_controls, io=True, cap=True), [], [OK] * 2),
    (partial(of_controls, io=True, cap=False), [], [OK, LACKING]),
    (of_controls, [], []),
]


@pytest.mark.parametrize(("judge", "words", "expected"), JUDGED)
def test_what_was_found_is_judged_and_what_lacks_has_a_cure(judge, words, expected):
    found = judge(*words)
    found = [found] if isinstance(found, Finding) else list(found)

    assert expected == [finding.verdict for finding in found]
    for finding in found:
        assert bool(finding.cost and finding.remedy) == (finding.verdict is not OK)
        assert not any("\n" in line for line in finding.lines)


def test_the_sockets_of_a_machine_are_told():
    sockets = "2 sockets (0: CPUs 0-1, 1: CPUs 2-3), 4 slots of up to 1 thread, 2 NUMA nodes"

    assert f"{sockets}, 2 of 4 CPUs allowed" == of_cpus(2).measured


# -- the counters of progress ----------------------------------------------------------------------


def test_the_counters_of_a_machine_are_found_each_by_itself(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/vmstat").write_text("workingset_refault 3\n")
    (tmp_path / "cg").mkdir()
    (tmp_path / "cg/cpu.stat").write_text("usage_usec 3\nuser_usec 1\nsystem_usec 2\n")

    assert {REFAULTS} == find_sources(tmp_path, None)
    assert {REFAULTS, USER_CPU} == find_sources(tmp_path, "/cg")
    words = words_of_sources(find_sources(tmp_path, None))
    lost = "not counted: the rule cannot see that jobs wait for I/O"
    assert f"{lost}; {COUNT_PRESSURE}" == words["io_pressure"]
    assert {"idle_time", "available_memory"} <= words.keys()


@pytest.mark.parametrize(
    ("file", "text", "source"),
    [
        ("stat", "cpu  1 0 1 5 1\ncpu0 1 0 1 5 1\n", IDLE_TIME),
        (
            "meminfo",
            "MemTotal: 9 kB\nMemAvailable: 3 kB\nDirty: 0 kB\nWriteback: 0 kB\n",
            AVAILABLE_MEMORY,
        ),
        ("meminfo", "MemTotal: 9 kB\nDirty: 0 kB\nWriteback: 0 kB\n", None),
        ("pressure/io", "some avg10=0.00 avg60=0.00 avg300=0.00 total=12\n", IO_PRESSURE),
        ("pressure/io", "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n", None),
    ],
)
def test_a_counter_is_there_only_if_it_tells_something(file, text, source, tmp_path):
    path = tmp_path / "proc" / file
    path.parent.mkdir(parents=True)
    path.write_text(text)

    assert ({source} if source else set()) == find_sources(tmp_path, None)
