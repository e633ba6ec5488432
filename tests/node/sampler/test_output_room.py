"""A job whose own output takes more than it may is ended with the reason; all others go on."""

import pytest
from harness import Server, until
from sampling import Reading

from iodaemon.api.care import reload_config

MIB = 1 << 20
FLOOD = "head -c 4000000 /dev/zero"
LAST = "until [ -e gate-it ]; do sleep 0.02; done; exit 5"


@pytest.fixture(scope="module")
def capped(means):
    """A daemon that lets a job print 1 MiB."""
    settings = {"output_max": "1 MiB", "regulation": {"timeslice": "100 ms"}}
    with Server(means, **settings) as server:
        yield server.start()


@pytest.fixture
def server(capped):
    yield capped.new_page()
    capped.end_all()


@pytest.mark.node
def test_who_prints_too_much_is_ended_and_others_go_on(server):
    beside = server.script(f"head -c 500000 /dev/zero; {LAST}")
    server.await_state(beside, "RUNNING")

    job = server.script(f"{FLOOD}; while :; do sleep 0.02; done")
    ended = server.end_of(job)
    server.open_gate("it")

    assert "FAILED" == ended["state"]
    assert "OutputMax" == ended["reason"]["code"]
    assert "more than the 1 MiB of output_max" in ended["reason"]["text"]
    assert 15 == ended["signal"]
    assert MIB < server.output_file(job).stat().st_size <= 4_000_000  # it stays
    assert [("FAILED", 5)] == server.outcome(beside)
    assert "ExitCode" == server.job(beside)["reason"]["code"]


@pytest.mark.node
def test_what_takes_room_without_being_written_counts_too(server):
    code = f"import os; os.posix_fallocate(1, 0, {4 * MIB})"
    job = server.script(f'python3 -I -S -c "{code}"; while :; do sleep 0.02; done')

    assert "OutputMax" == server.end_of(job)["reason"]["code"]


def let_samples_go_by(server):
    seen = set()
    until(lambda: seen.add(server.client.node()["sampling"]["last_s"]) or len(seen) > 3, "samples")


@pytest.mark.node
def test_what_takes_no_room_beside_the_journal_is_not_counted(server):
    """A hole, and what goes into a file that the submitter named."""
    code = "import os; os.ftruncate(1, 1 << 40)"
    hole = server.script(f'python3 -I -S -c "{code}"; touch made; {LAST}')
    named = server.script(f"{FLOOD}; touch written; {LAST}", stdout="mine")
    until((server.place / "made").exists, "the hole")
    until((server.place / "written").exists, "the file")
    let_samples_go_by(server)

    assert ["RUNNING"] * 2 == server.states(hole, named)
    server.open_gate("it")
    assert [("FAILED", 5)] * 2 == server.outcome(hole, named)


@pytest.mark.node
def test_a_cap_that_is_read_again_counts_for_who_runs(server):
    def reload(before, after):
        server.config.write_text(server.config.read_text().replace(before, after, 1))
        return {each["path"]: each["after"] for each in reload_config(server.client)["changed"]}

    assert {"output_max": '"none"'} == reload('"1 MiB"', '"none"')
    job = server.script(f"{FLOOD}; touch done; while :; do sleep 0.02; done")
    until((server.place / "done").exists, "its output")
    let_samples_go_by(server)
    state = server.states(job)

    assert "output_max" in reload('"none"', '"1 MiB"')
    assert ["RUNNING"] == state
    assert "OutputMax" == server.end_of(job)["reason"]["code"]


def taken_bytes(outputs):
    """What is said of an attempt whose first process holds it itself."""
    return Reading("/", (3, 2), holder=1 << 30, outputs=outputs).sweep().output_bytes


def test_a_link_in_its_place_is_not_followed(tmp_path):
    """Only root could lay one there; the sampler reads as nobody who is asked."""
    (tmp_path / "large").write_bytes(bytes(MIB))
    (tmp_path / "3.2").symlink_to(tmp_path / "large")

    assert taken_bytes(tmp_path) < MIB


@pytest.mark.parametrize("outputs", [None, "/nowhere"])
def test_without_a_file_nothing_is_known(outputs):
    assert taken_bytes(outputs) is None


def test_what_a_job_puts_into_its_report_counts_too(tmp_path):
    """It lies beside the output, and its user may write to it by /proc/PID/fd/3."""
    for name in ("3.2", "3.2.report"):
        (tmp_path / name).write_bytes(bytes(MIB))

    assert taken_bytes(tmp_path) == 2 * MIB
