"""``iod queue``, ``show``, ``node``: what is asked for, and how it looks."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys

import pytest
from fake_daemon import FakeDaemon, expected, job, reason

from iodaemon.cli import main

HEADER = ["ID", "NAME", "USER", "ST", "SOCK", "CPUS", "RUN", "SUSP"]
HEADER += ["IO/s", "EXPECTED", "REASON", "COMMAND"]


def test_the_queue_has_a_load_line_titles_and_a_row_for_each_job(iod, daemon):
    daemon.add(job(7), job(8, "PENDING", reason=reason("waits for 4 slots")))

    load, titles, *rows = iod("queue").out.splitlines()

    assert (
        load
        == "policy default | I/O 150 MB/s of 400 MB/s | 12 of 16 CPUs free | 1 pending, 2 running"
    )
    assert titles.split() == HEADER
    assert " ".join(rows[0].split()) == "7 job7 ann R 0 1 1:05 0:00 3 MB 5 MB/s l sleep 10"
    waiting = "8 job8 ann PD - 1 0:00 0:00 - 5 MB/s l waits for 4 slots sleep 10"
    assert " ".join(rows[1].split()) == waiting


def test_ls_is_the_queue(iod, daemon):
    assert iod("queue").out == iod("ls").out


def test_no_header_leaves_rows_alone(iod, daemon):
    daemon.add(job(7))

    assert len(iod("queue", "--no-header").out.splitlines()) == 1


def test_unknown_io_is_no_zero(iod, daemon):
    daemon.add(job(7, bandwidth={"read_bytes_per_s": None, "written_bytes_per_s": None}))
    daemon.add(job(8, bandwidth=None))

    rows = iod("queue", "--no-header").out.splitlines()

    assert [row.split()[8] for row in rows] == ["?", "?"]


@pytest.mark.parametrize(
    ("told", "cell"),
    [
        (expected(4e7, "declared"), "40 MB/s d"),
        (expected(4e5, "learned"), "400 kB/s l"),
        (expected(0.0, "imported"), "0 B/s i"),
        (expected(1e9, "measured"), "1 GB/s m"),
        (expected(None, "unknown"), "?"),
    ],
)
def test_what_is_expected_is_shown_with_its_source(iod, daemon, told, cell):
    daemon.add(job(7, "PENDING", expected=told))

    assert " ".join(iod("queue", "--no-header").out.split()[9:-2]) == cell


def test_the_letters_are_explained(iod):
    assert "d declared, l learned" in " ".join(iod("queue", "--help").out.split())


def test_a_suspend_on_its_way_carries_dots(iod, daemon):
    daemon.add(job(7, state_shown="SUSPENDED_IO..."))

    assert iod("queue", "--no-header").out.split()[3] == "SI..."


def test_finished_jobs_show_with_a_or_by_number(iod, daemon):
    daemon.add(job(1, "COMPLETED"), job(2))

    def ids(*words):
        return [made["id"] for made in iod("queue", "--json", *words).json["jobs"]]

    assert ids() == [2]
    assert ids("-a") == [1, 2]
    assert ids("1") == [1]
    assert ids("1-5") == [1, 2]
    assert ids("last") == [2]
    assert ids("all") == [2]
    assert ids("all", "-a") == [1, 2]


def test_states_go_by_word_or_code_in_any_case(iod, daemon):
    daemon.add(job(1), job(2, "PENDING"), job(3, "SUSPENDED_IO"))

    result = iod("queue", "--json", "-s", "r,Pending", "--state", "SU")

    assert [made["id"] for made in result.json["jobs"]] == [1, 2]
    assert daemon.seen[-1][2]["state"] == ["RUNNING", "PENDING", "SUSPENDED_USER"]


def test_users_go_by_name_or_number(iod, daemon):
    daemon.add(job(1), job(2, user="bob", uid=12345))

    def ids(user):
        return [made["id"] for made in iod("queue", "--json", "-u", user).json["jobs"]]

    assert (ids("ann"), ids("bob"), ids("12345"), ids("carl")) == ([1], [2], [2], [])
    assert ids("me") == [1]


def test_names_cannot_write_to_the_terminal(iod, daemon):
    daemon.add(job(7, name="a\x1b[2Jb\nc", reason=reason("x\ry")))

    out = iod("queue", "--no-header").out

    assert len(out.splitlines()) == 1
    assert "a\\x1b[2Jb\\nc" in out
    assert "x\\ry" in out


def test_json_is_the_apis_own(iod, daemon):
    daemon.add(job(7))

    answer = iod("queue", "--json").json

    assert [job(7)] == answer["jobs"]
    assert answer["version"] == 1


@pytest.mark.parametrize("columns", [80, 100, 120])
def test_on_a_terminal_every_line_fits_and_states_have_colour(daemon, columns):
    long = reason("waits for the storage, which carries more than it can by far " * 3)
    daemon.add(
        job(1, "SUSPENDED_IO", name="a-name-that-is-far-too-long-for-a-column", reason=long),
        job(123456, "PENDING", user="somebody-long", reason=long, run_s=300_000.0),
    )

    out = on_a_terminal(daemon.path, "queue", columns=columns)

    assert "\x1b[33mSI\x1b[0m" in out
    rows = out.replace("\x1b[33m", "").replace("\x1b[0m", "").splitlines()[1:]
    assert len(rows) == 3
    assert max(map(len, rows)) == columns
    reasons = rows[1][rows[0].index("REASON") :].partition("  ")[0]
    assert reasons.partition("…")[0] in long["text"]
    assert len(reasons) > 30


def test_what_is_left_of_a_terminals_width_shows_the_commands(daemon):
    daemon.add(
        job(1, command=["python", "a b.py", "--x=$Y"], reason=reason("waits for 4 slots")),
        job(2, command=["./solve", "*.dat"]),
    )

    def lines(columns):
        return on_a_terminal(daemon.path, "queue", "--no-header", columns=columns).splitlines()

    first, second = lines(200)
    assert first.endswith("waits for 4 slots python 'a b.py' '--x=$Y'")
    assert second.endswith("   ./solve '*.dat'")
    assert all("slots" in lines(columns)[0] for columns in (60, 80, 200))


@pytest.mark.parametrize("columns", [60, 80, 100])
def test_a_narrow_terminal_shows_how_each_job_ended(daemon, columns):
    daemon.add(
        job(7, "FAILED", name="a-name-that-is-far-too-long", signal=9, run_s=300_000.0),
        job(123456, "TIMEOUT", user="somebody-long", exit_code=143),
    )

    titles, *rows = on_a_terminal(daemon.path, "history", columns=columns).splitlines()

    end = titles.index("EXIT") + len("EXIT")
    assert ["SIGKILL", "143"] == [row[:end].split()[-1] for row in rows]
    assert max(map(len, rows)) <= columns


def test_on_a_terminal_long_values_of_a_job_go_on_below_each_other(daemon):
    long = reason("waits for the storage, which carries more than it can by far " * 3)
    daemon.add(job(7, "RUNNING", slots=[65536], shares_cores=True, reason=long))

    lines = on_a_terminal(daemon.path, "show", "7", columns=80).splitlines()

    assert max(map(len, lines)) <= 80
    assert any(line.startswith("Placed") and "socket 0, any of its CPUs" in line for line in lines)
    state = next(place for place, line in enumerate(lines) if line.startswith("State"))
    assert lines[state + 1].startswith("     ")


def on_a_terminal(socket_path, *words, columns):
    """What ``iod`` prints when its standard output is a terminal."""
    reader, writer = pty.openpty()
    environ = {**os.environ, "COLUMNS": str(columns), "IOD_API_SOCKET": socket_path}
    environ.pop("NO_COLOR", None)
    command = [sys.executable, "-m", "iodaemon.cli", *words]
    subprocess.run(command, stdout=writer, env=environ, check=True, timeout=60)
    os.close(writer)
    pieces = []
    while True:
        try:
            pieces.append(os.read(reader, 65536))
        except OSError:
            break
    os.close(reader)
    return b"".join(pieces).decode().replace("\r\n", "\n")


def test_watch_shows_again_until_ctrl_c(iod, daemon, monkeypatch):
    daemon.add(job(7))
    naps = []

    def nap(seconds):
        naps.append(seconds)
        if len(naps) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("iodaemon.cli.queue.time.sleep", nap)
    result = iod("queue", "--no-header", "-w", "0.5")

    assert (result.code, len(result.out.splitlines()), naps) == (130, 3, [0.5] * 3)


def test_watch_outlives_the_daemon(iod, daemon, monkeypatch):
    daemon.add(job(7))
    naps = []

    def nap(seconds):
        naps.append(seconds)
        if len(naps) == 1:
            daemon.stop()
        elif len(naps) == 2:
            daemon.start()
        else:
            raise KeyboardInterrupt

    monkeypatch.setattr("iodaemon.cli.queue.time.sleep", nap)
    result = iod("queue", "--no-header", "-w", "1")

    assert (result.code, len(result.out.splitlines())) == (130, 2)
    assert "no daemon answers" in result.err


# -- show, node -----------------------------------------------------------------------------------


def test_a_job_that_ended_before_it_began_never_started(iod, daemon):
    daemon.add(job(7, "CANCELLED", started_s=None, socket=None))

    out = iod("show", "7").out

    assert ["never", "never"] == re.findall(r"^(?:Started|Placed) +(.*)$", out, re.MULTILINE)
    assert "not yet" not in out


def test_show_tells_all_of_a_job(iod, daemon):
    daemon.add(
        job(
            7,
            "FAILED",
            command=["solve", "a b"],
            exit_code=3,
            walltime_s=3600.0,
            memory_bytes=2 * 1024**3,
            slots=[1, 2, 3, 7],
            reason=reason("exit code 3"),
        )
    )

    lines = dict(
        line.split("  ", 1) for line in iod("show", "7").out.splitlines() if line[0] != " "
    )
    told = {label: value.strip() for label, value in lines.items()}

    assert told["Job"] == "7  job7"
    assert told["State"] == "FAILED (F): exit code 3"
    assert told["Command"] == "solve 'a b'"
    assert told["Asked for"] == "1 CPU, 2 GiB memory, 1h run time"
    assert told["Placed"] == "socket 0, CPUs 1-3,7, attempt 1"
    assert told["Exit"] == "code 3"
    assert told["I/O so far"] == "1000 B read, unknown written"
    assert told["I/O next"] == "3 MB/s (history, confidence 0.5)"
    assert told["I/O expected"] == (
        "5 MB/s on average (learned by name:lu, 3 runs, confidence 0.5); 1.2 times what it moved"
    )
    assert told["Errors"] == "with the output"
    assert told["Processes"] == "4711"
    assert told["Output"] == "/out/7"


def test_show_tells_how_long_the_daemon_keeps_an_output(iod, daemon):
    daemon.add(job(7, output_kept_s=7776000.0))

    assert "/out/7 (removed 90d after its end; " in iod("show", "7").out


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (
            expected(4e7, "declared", io_share=0.2, operations_per_s=500.0),
            (
                "40 MB/s on average, 200 MB/s in I/O for 20% of its run time, 500 requests/s "
                "(declared, confidence 0.5)"
            ),
        ),
        (
            expected(1e6, "imported", io_share=1.0, by="program:a b", runs=1),
            (
                "1 MB/s on average, 1 MB/s in I/O for 100% of its run time "
                "(imported by program:a b, 1 run, confidence 0.5)"
            ),
        ),
        (expected(None, "unknown"), "unknown"),
    ],
)
def test_show_tells_in_words_what_is_expected(iod, daemon, told, words):
    daemon.add(job(7, "PENDING", expected=told))

    assert f"I/O expected  {words}\n" in iod("show", "7").out


def test_show_tells_what_was_declared(iod, daemon):
    daemon.add(job(7, "PENDING", io_rate_bytes_per_s=4e7, io_share=0.2))

    assert "1 CPU, 40 MB/s I/O in 20% of its run time" in iod("show", "7").out


def test_show_says_not_yet_for_what_has_not_been(iod, daemon):
    daemon.add(job(7, "PENDING", stdout=None))

    out = iod("inspect", "7").out

    assert out.count("not yet") == 4
    assert "Output        unknown" in out


def test_show_names_the_signal(iod, daemon):
    daemon.add(job(7, "FAILED", signal=9, shell_code=137))

    assert "signal 9 (SIGKILL)" in iod("show", "7").out


def test_show_json_is_the_job_for_one_and_a_list_for_several(iod, daemon):
    daemon.add(job(1, "COMPLETED"), job(2))

    assert iod("show", "--json", "1").json["id"] == 1
    assert [made["id"] for made in iod("show", "--json", "1-2").json] == [1, 2]
    assert [made["id"] for made in iod("show", "--json", "2", "1").json] == [2, 1]


def test_an_empty_range_is_not_found(iod, daemon):
    daemon.add(job(1))

    assert iod.fails("show", "5-9") == (3, "no job in 5-9: 'iod queue -a' lists them")


def test_node_shows_whatever_the_daemon_tells(iod, daemon):
    result = iod("node")

    assert (result.code, result.out.splitlines()[0].split()) == (0, ["name", "node"])
    assert "io bound  unknown" in result.out
    assert iod("node", "--json").json["slots"] == 16


def test_a_calibration_that_cannot_be_read_is_told_where_it_would_stand(iod, daemon):
    told = "/state/calibration.json: cut off; remove it, 'iod calibrate PATH' makes a new one"
    node = {"backend": "linux", "devices": [{"id": "sda"}], "calibration_problem": told}
    daemon.answers["/v1/node"] = (200, json.dumps({**node, "host": {"load": 1}}).encode())

    lines = iod("node").out.splitlines()
    at = lines.index("calibration")

    assert (lines[at - 3], lines[at + 1], lines[at + 2]) == (
        "devices",
        f"  problem  {told}",
        "host",
    )
    assert told == iod("node", "--json").json["calibration_problem"]


def test_node_has_a_line_for_each_resource_that_jobs_contend_for(iod, daemon):
    limits = [
        {"resource": "memory", "contending": 2, "limit": 2, "text": "6 got less done"},
        {"resource": "sda", "contending": 4, "limit": None, "text": "not tried yet"},
    ]
    node = {"backend": "linux", "limits": limits, "host": {"load": 1}}
    daemon.answers["/v1/node"] = (200, json.dumps(node).encode())
    shown = [" ".join(line.split()) for line in iod("node").out.splitlines()]
    daemon.answers["/v1/node"] = (200, json.dumps({**node, "limits": []}).encode())

    assert [
        "limits",
        "RESOURCE CONTENDING LIMIT TEXT",
        "memory 2 2 6 got less done",
        "sda 4 none not tried yet",
    ] == shown[shown.index("limits") :][:4]
    assert "limits" not in iod("node").out


def test_a_simulated_node_that_answers_in_place_of_a_daemon_is_named(tmp_path, monkeypatch, capsys):
    place = tmp_path / "iodaemon-simulated"
    place.mkdir()
    fake = FakeDaemon(str(place / "iod.sock"))
    fake.start()
    try:
        monkeypatch.delenv("IOD_API_SOCKET", raising=False)
        monkeypatch.setattr("iodaemon.cli.session.find_socket", lambda *_: str(place / "iod.sock"))
        assert 0 == main(["queue"])
        _, second, *_ = capsys.readouterr().out.splitlines()
    finally:
        fake.stop()

    assert "simulated" in second


def test_a_queue_is_cut_to_its_newest_jobs(iod, daemon):
    for number in range(1, 6):
        daemon.add(job(number))

    iod("queue", "--limit", "2")

    assert ["2"] == daemon.seen[-1][2]["limit"]
    assert (2, True) == (
        iod("queue", "--limit", "0").code,
        "no number of jobs" in iod("queue", "--limit", "0").err,
    )


def test_a_row_in_a_pipe_has_an_end(iod, daemon):
    daemon.add(job(1, command=["x" * 600_000]))

    assert max(map(len, iod("queue").out.splitlines())) < 2000
    assert 600_000 == len(iod("queue", "--json").json["jobs"][0]["command"][0])
