"""Space of tiers on two real disks, from ``iod submit`` to the last file that is removed."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from harness import find_state, until
from mounting import mount
from scratching import MIB, both_disks, disks, left, needs_root
from tiering import SLOW, Tiered, _lasting_tiered, either_means, make_tiered, tables

__all__ = ["_lasting_tiered", "both_disks", "disks", "make_tiered"]

pytestmark = [pytest.mark.node, needs_root]

VICTIMS = ("kill", "kill_keeper", "kill_both")
any_victim = pytest.mark.parametrize(
    ("make_tiered", "victim"),
    [("cgroup", "kill_keeper"), *(("signals", victim) for victim in VICTIMS)],
    indirect=["make_tiered"],
)
"""A keeper's death matters most: the next one finds the cgroups again."""


def strike(server, victim):
    """Kill, and have a daemon again."""
    getattr(server, victim)()
    server.revive()


# -- placing ---------------------------------------------------------------------------------------


@either_means
def test_space_is_placed_split_shown_waited_for_and_given_back(make_tiered, disks):
    server = make_tiered()
    small = server.held("small", "--scratch", "3M")
    server.paths("small")
    large = server.held("large", "--scratch", "14M")
    paths = {name: server.paths(name) for name in ("small", "large")}
    late = server.held("late", "--scratch", "9M")
    server.await_state(late, "PENDING")

    assert {small: 3 * MIB, large: 14 * MIB} == server.taken()
    assert 1 == len(paths["small"])
    assert {str(disk) for disk in disks} == {str(Path(p).parents[1]) for p in paths["large"]}
    for path in (*paths["small"], *paths["large"]):
        assert (0o700, os.getuid()) == (os.stat(path).st_mode & 0o777, os.stat(path).st_uid)
    node = server.says("node")
    for word in ("fast", *map(str, disks), f"{small}", f"{large}"):
        assert word in node
    why = server.says("why", str(late))
    assert "needs 9 MiB of tier fast" in why
    assert f"job {large} has 14 MiB" in why
    assert "of tier fast" in server.says("queue")
    server.open_gate("small", "large")
    server.paths("late")
    server.open_gate("late")

    assert [("COMPLETED", 0)] * 3 == server.outcome(small, large, late)
    server.await_nothing()
    assert "given back" in server.says("show", str(large))


@any_victim
def test_space_outlives_whoever_is_killed_and_goes_with_its_job(make_tiered, victim):
    server = make_tiered()
    job = server.held("a", "--scratch", "12M")
    paths = server.paths("a")
    Path(paths[0], "file").write_bytes(b"x" * 1000)
    strike(server, victim)
    server.goes_on("a")

    assert {job: 12 * MIB} == server.taken()
    assert all(map(os.path.isdir, paths))
    server.open_gate("a")
    assert [("COMPLETED", 0)] == server.outcome(job)
    server.await_nothing()


@either_means
def test_space_goes_with_its_job_also_where_that_loses_its_shim(make_tiered):
    server = make_tiered()
    job = server.held("a", "--scratch", "12M")
    paths = server.paths("a")
    server.kill_shim(job)
    server.goes_on("a")

    assert all(map(os.path.isdir, paths))
    server.open_gate("a")
    assert "done a" in until(lambda: [x for x in server.lines() if x == "done a"], "its end")
    server.end_of(job)
    server.await_nothing()


@pytest.mark.parametrize("victim", VICTIMS)
def test_what_ended_while_nobody_looked_is_cleared(make_tiered, victim):
    """Of a job that ends with nobody there the next daemon clears the space."""
    server = make_tiered()
    job = server.held("a", "--scratch", "12M")
    server.paths("a")
    getattr(server, victim)()
    server.open_gate("a")
    until(lambda: "done a" in server.lines(), "the end of its command")
    server.revive()
    server.end_of(job)

    server.await_nothing()


# -- what can never be -----------------------------------------------------------------------------


def test_more_than_every_disk_is_refused_or_runs_on_the_slow_tier(make_tiered, disks):
    server = make_tiered()
    code, told = server.iod("submit", "--scratch", "64M", "--", "true")
    job = server.sent(
        "--scratch", "64M", "--scratch-fallback", "slow", text='echo "<$IOD_SCRATCH>"'
    )

    assert (1, 1) == (code, told.count("\n"))
    assert "asks for 64 MiB of tier fast" in told
    assert [("COMPLETED", 0)] == server.outcome(job)
    assert "<>" in server.output(job)
    assert [] == left(disks)


def test_under_a_policy_that_chooses_it_runs_on_the_slow_tier(make_tiered):
    server = make_tiered(policy="storage-aware")
    job = server.sent("--fast", "64M", "--data-size", "1G", text='echo "<$IOD_SCRATCH> $IOD_TIER"')

    assert [("COMPLETED", 0)] == server.outcome(job)
    assert "<> slow" in server.output(job)


def test_a_job_that_could_never_gain_by_a_fast_tier_is_told_so_at_submission(make_tiered, disks):
    by_default = tables(disks).replace('staging = "100 MB/s"\n', "")
    server = make_tiered(text=by_default, policy="storage-aware")
    code, told = server.iod("submit", "--wait", "--fast", "2M", "--output-size", "1M", "--", "true")

    assert (0, 1) == (code, told.count("it always runs on tier slow under this policy: copying"))
    assert "slow" == server.job(1)["scratch"]["tier"]


def refused(disks, text):
    """The line with which a daemon of this configuration does not start."""
    server = Tiered(disks, text)
    try:
        ended = subprocess.run(
            server.command(), env=server.environment, capture_output=True, text=True, timeout=60
        )
    finally:
        shutil.rmtree(server.root)
    assert ended.returncode
    [line] = [line for line in ended.stderr.splitlines() if line.startswith("iod: ")]
    return line


def test_a_disk_that_cannot_be_used_keeps_the_daemon_from_starting(disks):
    first, second = map(str, disks)
    inner = Path(first, "inner")
    inner.mkdir()
    try:
        lines = [
            refused(disks, tables([first, f"{second}/none"])),
            refused(disks, tables([first, inner])),
            refused(disks, tables([first]) + f"[[tier.slow.disk]]\npath = '{inner}'\n"),
            refused(disks, tables([first]).replace(SLOW, "capacity = '1 TB'\n" + SLOW)),
        ]
        mount("-o", "remount,ro", second)
        lines.append(refused(disks, tables([first, second])))
    finally:
        subprocess.run(["mount", "-o", "remount,rw", second], check=True)
        inner.rmdir()

    assert ["does not exist", "filesystem", "filesystem", "capacity", "read-only"] == [
        next((w for w in ("does not exist", "read-only", "capacity", "filesystem") if w in x), x)
        for x in lines
    ]


def test_space_that_others_take_is_warned_of_at_the_start_and_shown_at_the_disk(disks):
    filler = disks[0] / "of-somebody-else"
    filler.write_bytes(bytes(6 * MIB))
    try:
        with Tiered(disks, tables(disks)) as server:
            server.start()
            until(lambda: "others' files take" in server.log.read_text(), "the warning")
            log, node = server.log.read_text(), server.says("node")
            [first, second] = server.client.node()["disks"]
            doctor = server.iod("--config", str(server.config), "doctor")[1]
    finally:
        filler.unlink()

    [line] = [line for line in log.splitlines() if "others' files take" in line]
    assert "WARNING event=warned" in line
    assert f"tier fast: {disks[0]}: " in line
    cost = "jobs are promised space that others' files take"
    remedy = line.partition(f"{cost}; ")[2].rstrip('"')
    assert remedy.startswith("remove them, or set capacity to what is left of ")
    assert (cost in doctor, remedy in doctor) == (True, True)
    assert "TAKEN BY OTHERS" in node
    assert 5 * MIB < first["taken_by_others_bytes"] <= 7 * MIB
    assert 0 == second["taken_by_others_bytes"]


# -- how large -------------------------------------------------------------------------------------

TOO_MUCH = 'fallocate -l 5000000 "$IOD_SCRATCH/f"; while [ ! -e gate ]; do sleep 0.05; done'
"""At once: a file that grows would be found at any size."""


@either_means
def test_who_has_more_than_it_asked_for_is_shown_with_it(make_tiered):
    server = make_tiered()
    job = server.sent("--scratch", "2M", text=TOO_MUCH)
    until(lambda: server.job(job)["scratch"]["over"], "the word that it is too much")

    assert "has 4.8 MiB in its scratch space and asked for 2 MiB" in server.says("why", str(job))
    assert "Too much" in server.says("show", str(job))
    (server.place / "gate").touch()
    assert [("COMPLETED", 0)] == server.outcome(job)
    server.await_nothing()


@either_means
def test_who_has_more_than_it_asked_for_is_ended_where_that_is_configured(make_tiered):
    server = make_tiered(scratch_over="end")
    job = server.sent("--scratch", "2M", text=TOO_MUCH)
    ended = server.end_of(job)

    assert "CANCELLED" == ended["state"]
    assert "has 4.8 MiB in its scratch space and asked for 2 MiB" in ended["reason"]["text"]
    server.await_nothing()


# -- staging ---------------------------------------------------------------------------------------

RESULT = 'cat "$IOD_SCRATCH"/a "$IOD_SCRATCH"/b > "$IOD_SCRATCH/result"; echo ran >> ledger'
FILES = {"a": b"a" * 2_000_000, "b": b"b" * 1_000_000}


def staged(server, *words, text=RESULT):
    source = server.input(**FILES)
    return server.sent(
        "--fast", "12M", "--input", source, "--output", str(server.place / "out"), *words, text=text
    )


def came_out(server):
    return {path.name: path.read_bytes() for path in (server.place / "out").iterdir()}


@either_means
def test_data_is_copied_in_and_out_and_charged_by_what_was_copied(make_tiered, disks):
    server = make_tiered(text=tables(disks, slow=SLOW.replace("50 MB/s", "1 MB/s")))
    job = staged(server)

    assert [("COMPLETED", 0)] == server.outcome(job)
    assert {"result": FILES["a"] + FILES["b"]} == came_out(server)
    status = server.directory(job) / "status.json"
    word = json.loads(status.read_text())["staged"]
    assert (3_000_000, 3_000_000) == (word["came_bytes"], word["went_bytes"])
    ended = server.job(job)
    own = ended["read_bytes"] + ended["written_bytes"] - word["moved_bytes"]
    assert 6_000_000 <= word["moved_bytes"]
    assert 3_000_000 <= own < 7_000_000
    fast = server.client.node()["tiers"][0]["bandwidth_bytes_per_s"]
    # In place it reads 3 MB and writes 3 MB at 1 MB/s, and does little else.
    rest_s = ended["run_s"] - word["took_s"] - 6e6 / fast
    assert pytest.approx(6.0 + rest_s, abs=0.2) == ended["scratch"]["charged_s"]
    show = server.says("show", str(job))
    assert f"Copied out    to {server.place / 'out'}" in show
    assert "Copied in     from " in show
    server.await_nothing()


def test_who_has_many_small_files_copied_is_not_charged_for_that(make_tiered, disks):
    server = make_tiered(text=tables(disks))
    source = server.input(**{f"f{number}": b"12345" for number in range(1000)})
    os.mkfifo(Path(source) / "pipe")
    words = ("--fast", "12M", "--input", source, "--data-size", "1M")
    job = server.sent(*words, text="sleep 0.2")

    assert [("COMPLETED", 0)] == server.outcome(job)
    word = json.loads((server.directory(job) / "status.json").read_text())["staged"]
    ended = server.job(job)
    assert 0.0 < word["took_s"] < ended["run_s"]
    own_s = ended["run_s"] - word["took_s"]
    assert pytest.approx(own_s, abs=0.2) == ended["scratch"]["charged_s"]
    assert "1 socket, pipe or device was not copied" in server.says("show", str(job))
    server.await_nothing()


@pytest.mark.parametrize("point", ["stage.copied", "stage.part"])
@any_victim
def test_copying_goes_on_while_daemon_and_keeper_are_killed(make_tiered, disks, victim, point):
    server = make_tiered(text=tables(disks))
    server.arm(point, number=signal.SIGSTOP)
    job = staged(server)
    step = server.stopped_at(point)
    said = server.says("why", str(job)), server.says("queue")
    strike(server, victim)
    with contextlib.suppress(ProcessLookupError):  # a keeper that takes over lets all go on
        os.kill(step, signal.SIGCONT)

    assert ["copies its " in each for each in said] == [True, True]
    assert [("COMPLETED", 0)] == server.outcome(job)
    assert ["ran"] == server.lines()
    assert {"result": FILES["a"] + FILES["b"]} == came_out(server)
    server.await_nothing()


@either_means
def test_a_result_whose_shim_is_killed_is_kept_until_it_is_removed(make_tiered, disks):
    server = make_tiered(text=tables(disks))
    server.arm("stage.part", number=signal.SIGSTOP)
    job = staged(server)
    step = server.stopped_at("stage.part")
    server.kill_shim(job)
    os.kill(step, signal.SIGCONT)
    ended = server.end_of(job)
    until(lambda: find_state(step) is None, "the end of the step, which still uses the space")
    kept = until(lambda: server.job(job)["scratch"]["kept"], "the word that it is kept")
    [name] = left(disks)
    [place] = [disk / ".iodaemon" / name for disk in disks if (disk / ".iodaemon" / name).exists()]

    assert (ended["state"], ended["exit_code"]) in (("FAILED", 74), ("LOST", None))
    assert str(place) in kept["text"]
    assert FILES["a"] + FILES["b"] == (place / "result").read_bytes()
    assert str(place) in server.says("why", str(job))
    assert {job: 12 * MIB} == server.taken()
    server.says("scratch", "remove", str(job))
    server.await_nothing()


def fails_at_copying_in(server, job, words):
    ended = server.end_of(job)

    assert ("FAILED", 74) == (ended["state"], ended["exit_code"])
    for word in ("stage-in: ", *words):
        assert word in ended["reason"]["text"]
    assert [] == server.lines()
    assert not (server.place / "out").exists()
    server.await_nothing()


@pytest.mark.parametrize("space", ["--scratch", "--fast"])
def test_the_words_go_to_their_file_and_the_results_to_their_directory(make_tiered, disks, space):
    server = make_tiered(text=tables(disks))
    words = ("--input", server.input(**FILES), "--output", "results", "-o", "log.txt")
    job = server.sent(space, "4M", *words, text='echo precious > "$IOD_SCRATCH/r"; echo printed')

    assert [("COMPLETED", 0)] == server.outcome(job)
    assert "precious\n" == (server.place / "results" / "r").read_text()
    assert "printed\n" == (server.place / "log.txt").read_text()
    server.await_nothing()


def test_a_file_larger_than_any_directory_is_refused_before_the_job_is_queued(make_tiered, disks):
    server = make_tiered(text=tables(disks, split="1 MiB"))
    source = ("--input", server.input(a=bytes(2_500_000)))
    code, told = server.iod("submit", *source, "--scratch", "4M", "--tier", "fast", "true")
    small = (*source, "--scratch", "4M", "--scratch-fallback", "slow")
    slow = server.sent(*small, text='echo "tier=$IOD_TIER"')
    large = server.sent(*source, "--scratch", "5M", text='echo "tier=$IOD_TIER"')

    assert 0 != code
    assert "its input has a file of 2.4 MiB, and of 4 MiB on tier fast" in told
    assert "parts of 1 MiB, one directory may have no more than 2 MiB; ask for a tier" in told
    assert [("COMPLETED", 0), ("COMPLETED", 0)] == server.outcome(slow, large)
    assert ["tier=slow\n", "tier=fast\n"] == [server.output(job) for job in (slow, large)]
    server.await_nothing()


@either_means
def test_a_job_that_is_cancelled_while_its_input_is_copied_leaves_nothing(make_tiered, disks):
    server = make_tiered(text=tables(disks))
    server.arm("stage.copied", number=signal.SIGSTOP)
    job = staged(server)
    server.stopped_at("stage.copied")
    server.says("cancel", str(job))

    assert "CANCELLED" == server.end_of(job)["state"]
    assert [] == server.lines()
    assert not (server.place / "out").exists()
    assert FILES == {path.name: path.read_bytes() for path in (server.place / "in").iterdir()}
    server.await_nothing()


def write_over(path):
    with path.open("r+b") as file:
        file.write(b"other")


@pytest.mark.parametrize(
    ("point", "name", "spoil", "word"),
    [
        ("stage.copied", "b", Path.unlink, "vanished"),
        ("stage.piece", "a", write_over, "changed while it was copied"),
        ("stage.piece", "a", lambda path: os.truncate(path, 5), "changed while it was copied"),
    ],
    ids=["vanishes", "changes", "shrinks"],
)
def test_a_source_that_is_not_what_it_was_ends_the_job_with_a_reason(
    make_tiered, disks, point, name, spoil, word
):
    server = make_tiered(text=tables(disks))
    source = server.place / "in"
    server.arm(point, number=signal.SIGSTOP)
    job = staged(server)
    step = server.stopped_at(point)
    spoil(source / name)
    before = {path.name: path.read_bytes() for path in source.iterdir()}
    os.kill(step, signal.SIGCONT)

    fails_at_copying_in(server, job, [word, str(source / name)])
    assert before == {path.name: path.read_bytes() for path in source.iterdir()}


def test_a_disk_that_is_full_in_mid_staging_ends_the_job_with_a_reason(make_tiered, disks):
    server = make_tiered(text=tables(disks))
    fillers = [disk / "of-somebody-else" for disk in disks]
    try:
        for filler in fillers:
            room = os.statvfs(filler.parent)
            filler.write_bytes(bytes(room.f_bfree * room.f_frsize - 2_500_000))
        job = staged(server)
        fails_at_copying_in(server, job, ["no space is left after 1.9 MiB of 2.9 MiB in all"])
    finally:
        for filler in fillers:
            filler.unlink()
