"""What jobs read and wrote, to the byte or nearly, whatever they fork and orphan."""

import pytest
from harness import Server, direct_reads, until

pytestmark = pytest.mark.node

MIB = 1 << 20
TOLERANCE = 0.01
DATA = "dd if={data} of=/dev/null bs=2M count=1 iflag=direct 2>/dev/null"
MANY = "i=0; while [ $i -lt {count} ]; do {dd}; i=$((i+1)); done"


@pytest.fixture(scope="module")
def busy_server(means):
    """A daemon that samples often, and a file to read."""
    with Server(means, regulation={"timeslice": "100 ms"}) as server:
        direct_reads(server.root, 2)
        yield server.start()


@pytest.fixture
def server(busy_server):
    yield busy_server.new_page()
    busy_server.end_all()


def reads(server, count):
    """A shell command: so many children, each of which reads 2 MiB past the page cache."""
    return MANY.format(count=count, dd=DATA.format(data=server.root / "data"))


def watched(server, job, until_bytes):
    """All totals that are shown while the job runs, until it has read so much."""
    seen = [0]

    def look():
        seen.append(server.job(job)["read_bytes"] or 0)
        return seen[-1] >= until_bytes * (1 - TOLERANCE / 2)

    until(look, f"{until_bytes} bytes, {seen[-1]} seen")
    return seen


def test_short_lived_children_are_counted_while_it_runs_and_at_the_end(server):
    whole = 600 * MIB
    job = server.script(f"{reads(server, 300)}; until [ -e gate-it ]; do sleep 0.02; done")
    seen = watched(server, job, whole)
    server.open_gate("it")
    total = server.end_of(job)["read_bytes"]

    assert seen == sorted(seen)
    assert whole == pytest.approx(seen[-1], rel=TOLERANCE)
    assert whole == pytest.approx(total, rel=TOLERANCE)
    assert total >= seen[-1]


def test_orphans_that_outlive_the_first_process_belong_to_the_job(server):
    orphan = f"{reads(server, 20)}; touch half; until [ -e gate-it ]; do sleep 0.02; done"
    orphan += f"; {reads(server, 20)}"
    job = server.script(f"(setsid sh -c '{orphan}' &) ; {reads(server, 10)}; exit 5")
    until((server.place / "half").exists, "the first half")
    until(lambda: not_among(server, job), "end of the first process")
    state = server.states(job)
    server.open_gate("it")
    found = server.end_of(job)

    assert state == ["RUNNING"]
    assert ["FAILED", 5] == [found["state"], found["exit_code"]]
    assert found["read_bytes"] == pytest.approx(100 * MIB, rel=TOLERANCE)


def not_among(server, job):
    return server.shim_of(job)["main_pid"] not in server.job(job)["pids"]


def test_two_jobs_at_once_are_not_mixed(server):
    jobs = [server.script(reads(server, count)) for count in (60, 15)]
    totals = [server.end_of(job)["read_bytes"] for job in jobs]

    assert totals == [pytest.approx(120 * MIB, rel=TOLERANCE), pytest.approx(30 * MIB, rel=0.02)]


def test_what_is_written_counts_as_written_and_not_as_read(server):
    job = server.script("dd if=/dev/zero of=out bs=2M count=10 oflag=direct 2>/dev/null")
    found = server.end_of(job)

    assert found["written_bytes"] == pytest.approx(20 * MIB, rel=TOLERANCE)
    assert found["read_bytes"] < MIB


def test_a_job_that_only_counts_moves_nothing(server):
    job = server.script("i=0; while [ $i -lt 2000 ]; do i=$((i+1)); done")
    found = server.end_of(job)

    assert found["read_bytes"] + found["written_bytes"] < 256 * 1024


def test_totals_go_on_where_they_were_when_the_daemon_is_killed_in_between(server):
    job = server.script(
        f"{reads(server, 20)}; until [ -e gate-it ]; do sleep 0.02; done; {reads(server, 20)}"
    )
    watched(server, job, 40 * MIB)
    server.kill()
    server.restart()
    seen = watched(server, job, 40 * MIB)
    server.open_gate("it")
    total = server.end_of(job)["read_bytes"]

    assert seen[-1] == pytest.approx(40 * MIB, rel=TOLERANCE)
    assert total == pytest.approx(80 * MIB, rel=TOLERANCE)
