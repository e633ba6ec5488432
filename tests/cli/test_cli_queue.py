"""``iod queue``, ``show``, ``node``: what is asked for, and how it looks."""

from __future__ import annotations

import json
import os
import time

import pytest
from fake_daemon import FakeDaemon, expected, job, on_a_terminal, reason, sum_of

from iodaemon.cli import main
from iodaemon.cli.failure import UsageError
from iodaemon.cli.selector import parse_moment_s

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
    first, second = (" ".join(row.split()) for row in rows)
    assert first == "7 job7 ann R 0 1 1:05 0:00 3 MB 5 MB/s l sleep 10"
    assert second == "8 job8 ann PD - 1 0:00 0:00 - 5 MB/s l waits for 4 slots sleep 10"
    assert iod("queue").out == iod("ls").out
    assert 2 == len(iod("queue", "--no-header").out.splitlines())


@pytest.mark.parametrize(
    ("state", "changes", "cells"),
    [
        ("PENDING", {"expected": expected(4e7, "declared")}, "40 MB/s d sleep"),
        ("PENDING", {"expected": expected(4e5, "learned")}, "400 kB/s l sleep"),
        ("PENDING", {"expected": expected(0.0, "imported")}, "0 B/s i sleep"),
        ("PENDING", {"expected": expected(1e9, "measured")}, "1 GB/s m sleep"),
        ("PENDING", {"expected": expected(None, "unknown")}, "0:00 - ? sleep"),
        ("RUNNING", {"bandwidth": None}, "0:00 ? 5 MB/s"),  # unknown I/O is no zero
        (
            "RUNNING",
            {"bandwidth": {"read_bytes_per_s": None, "written_bytes_per_s": None}},
            "0:00 ? 5 MB/s",
        ),
        ("RUNNING", {"state_shown": "SUSPENDED_IO..."}, "ann SI... 0"),
        ("RUNNING", {"name": "a\x1b[2Jb\nc"}, "7 a\\x1b[2Jb\\nc ann"),
        ("RUNNING", {"reason": reason("x\ry")}, "l x\\ry sleep"),
    ],
)
def test_a_cell_of_a_row_says_what_is_known_and_gives_no_orders(iod, daemon, state, changes, cells):
    daemon.add(job(7, state, **changes))

    [row] = iod("queue", "--no-header").out.splitlines()
    assert cells in " ".join(row.split())


@pytest.mark.parametrize(
    ("words", "ids"),
    [
        ([], [2, 3, 4]),
        (["-a"], [1, 2, 3, 4]),
        (["1"], [1]),
        (["last"], [4]),
        (["all"], [2, 3, 4]),
        (["-s", "r,Pending", "--state", "SU"], [2, 3]),
        (["-u", "ann"], [2, 3]),
        (["-u", "bob"], [4]),
        (["-u", "12345"], [4]),
        (["-u", "me"], [2, 3]),
    ],
)
def test_jobs_are_chosen_by_number_state_and_user(iod, daemon, words, ids):
    daemon.add(
        job(1, "COMPLETED"),
        job(2),
        job(3, "PENDING"),
        job(4, "SUSPENDED_IO", user="bob", uid=12345),
    )

    assert ids == [made["id"] for made in iod("queue", "--json", *words).json["jobs"]]


def test_a_queue_is_cut_to_its_newest_jobs_and_a_row_in_a_pipe_has_an_end(iod, daemon):
    daemon.add(job(1, command=["x" * 600_000]))
    shown = iod("queue", "--limit", "2")

    assert ["2"] == daemon.seen[-1][2]["limit"]
    assert max(map(len, shown.out.splitlines())) < 2000
    assert 600_000 == len(iod("queue", "--json").json["jobs"][0]["command"][0])
    assert (2, True) == ((told := iod.fails("queue", "--limit", "0"))[0], "no number" in told[1])


# -- a terminal ------------------------------------------------------------------------------------


def lines_on_a_terminal(socket_path, *words, columns):
    shown = on_a_terminal(*words, COLUMNS=str(columns), IOD_API_SOCKET=socket_path, NO_COLOR="")
    return shown.decode().replace("\r\n", "\n").splitlines()


LONG = reason("waits for the storage, which carries more than it can by far " * 3)


@pytest.mark.parametrize("columns", [80, 100, 120])
def test_on_a_terminal_every_line_fits_and_states_have_colour(daemon, columns):
    daemon.add(
        job(1, "SUSPENDED_IO", name="a-name-that-is-far-too-long-for-a-column", reason=LONG),
        job(123456, "PENDING", user="somebody-long", reason=LONG, run_s=300_000.0),
    )

    lines = lines_on_a_terminal(daemon.path, "queue", columns=columns)

    assert any("\x1b[33mSI\x1b[0m" in line for line in lines)
    rows = [line.replace("\x1b[33m", "").replace("\x1b[0m", "") for line in lines[1:]]
    assert len(rows) == 3
    assert max(map(len, rows)) == columns
    reasons = rows[1][rows[0].index("REASON") :].partition("  ")[0]
    assert reasons.partition("…")[0] in LONG["text"]
    assert len(reasons) > 30


@pytest.mark.parametrize("columns", [60, 80, 100])
def test_a_narrow_terminal_shows_how_each_job_ended(daemon, columns):
    daemon.add(
        job(7, "FAILED", name="a-name-that-is-far-too-long", signal=9, run_s=300_000.0),
        job(123456, "TIMEOUT", user="somebody-long", exit_code=143),
    )

    titles, *rows = lines_on_a_terminal(daemon.path, "history", columns=columns)

    end = titles.index("EXIT") + len("EXIT")
    assert ["SIGKILL", "143"] == [row[:end].split()[-1] for row in rows]
    assert max(map(len, rows)) <= columns


def test_on_a_terminal_long_values_of_a_job_go_on_below_each_other(daemon):
    daemon.add(job(7, "RUNNING", slots=[65536], shares_cores=True, reason=LONG))

    lines = lines_on_a_terminal(daemon.path, "show", "7", columns=80)

    assert max(map(len, lines)) <= 80
    assert any(line.startswith("Placed") and "socket 0, any of its CPUs" in line for line in lines)
    state = next(place for place, line in enumerate(lines) if line.startswith("State"))
    assert lines[state + 1].startswith("     ")


@pytest.mark.parametrize("restarts", [False, True])
def test_watch_shows_again_until_ctrl_c_and_outlives_the_daemon(iod, daemon, monkeypatch, restarts):
    daemon.add(job(7))
    naps = []

    def nap(seconds):
        naps.append(seconds)
        if len(naps) == 3:
            raise KeyboardInterrupt
        if restarts:
            (daemon.stop if len(naps) == 1 else daemon.start)()

    monkeypatch.setattr("iodaemon.cli.queue.time.sleep", nap)
    result = iod("queue", "--no-header", "-w", "0.5")

    assert (130, [0.5] * 3) == (result.code, naps)
    assert (2 if restarts else 3) == len(result.out.splitlines())
    assert restarts == ("no daemon answers" in result.err)


# -- show -----------------------------------------------------------------------------------------


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
            output_kept_s=7776000.0,
        )
    )

    lines = (line.split("  ", 1) for line in iod("show", "7").out.splitlines() if line[0] != " ")
    told = {label: value.strip() for label, value in lines}

    average = "5 MB/s on average (learned by name:lu, 3 runs, confidence 0.5)"
    kept = "/out/7 (removed 90d after its end; -o writes to a file of yours)"
    assert {
        "Job": "7  job7",
        "State": "FAILED (F): exit code 3",
        "Command": "solve 'a b'",
        "Asked for": "1 CPU, 2 GiB memory, 1h run time",
        "Placed": "socket 0, CPUs 1-3,7, attempt 1",
        "Exit": "code 3",
        "I/O so far": "1000 B read, unknown written",
        "I/O next": "3 MB/s (history, confidence 0.5)",
        "I/O expected": f"{average}; 1.2 times what it moved",
        "Errors": "with the output",
        "Processes": "4711",
        "Output": kept,
    }.items() <= told.items()


@pytest.mark.parametrize(
    ("state", "changes", "line"),
    [
        (
            "PENDING",
            {"expected": expected(4e7, "declared", io_share=0.2, operations_per_s=500.0)},
            (
                "I/O expected  40 MB/s on average, 200 MB/s in I/O for 20% of its run time, "
                "500 requests/s (declared, confidence 0.5)"
            ),
        ),
        (
            "PENDING",
            {"expected": expected(1e6, "imported", io_share=1.0, by="program:a b", runs=1)},
            (
                "I/O expected  1 MB/s on average, 1 MB/s in I/O for 100% of its run time "
                "(imported by program:a b, 1 run, confidence 0.5)"
            ),
        ),
        (
            "PENDING",
            {"io_rate_bytes_per_s": 4e7, "io_share": 0.2},
            "Asked for     1 CPU, 40 MB/s I/O in 20% of its run time",
        ),
        *(
            ("PENDING", {}, f"{label:14}not yet")
            for label in ("Placed", "Started", "Ended", "Exit")
        ),
        *(
            ("CANCELLED", {"started_s": None, "socket": None}, f"{label:14}never")
            for label in ("Placed", "Started")
        ),
        ("FAILED", {"signal": 9, "shell_code": 137}, "Exit          signal 9 (SIGKILL)"),
    ],
)
def test_show_tells_in_words(iod, daemon, state, changes, line):
    daemon.add(job(7, state, **changes))

    assert line in iod("inspect", "7").out.splitlines()


def test_show_json_is_the_job_for_one_and_a_list_for_several(iod, daemon):
    daemon.add(job(1, "COMPLETED"), job(2))

    assert iod("show", "--json", "1").json["id"] == 1
    assert [made["id"] for made in iod("show", "--json", "1-2").json] == [1, 2]
    assert [made["id"] for made in iod("show", "--json", "2", "1").json] == [2, 1]
    assert iod.fails("show", "5-9") == (3, "no job in 5-9: 'iod queue -a' lists them")


# -- node -----------------------------------------------------------------------------------------


def test_node_shows_whatever_the_daemon_tells(iod, daemon):
    result = iod("node")

    assert (0, ["name", "node"]) == (result.code, result.out.splitlines()[0].split())
    assert "io bound  unknown" in result.out
    assert iod("node", "--json").json["slots"] == 16


def node(daemon, **fields):
    answer = {"backend": "linux", **fields, "host": {"load": 1}}
    daemon.answers["/v1/node"] = (200, json.dumps(answer).encode())


def test_node_has_a_line_for_each_resource_that_jobs_contend_for(iod, daemon):
    memory = {"resource": "memory", "contending": 2, "limit": 2, "text": "6 got less done"}
    disk = {"resource": "sda", "contending": 4, "limit": None, "text": "not tried yet"}
    node(daemon, limits=[memory, disk])
    shown = [" ".join(line.split()) for line in iod("node").out.splitlines()]
    node(daemon, limits=[])

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


# -- iod history -----------------------------------------------------------------------------------

TITLES = "ID NAME USER ST ENDED RUN SUSP READ WRITTEN EXPECTED EXIT COMMAND"
NOON_S = time.mktime((2026, 6, 15, 12, 0, 0, 0, 0, -1))
HOUR_S = 3600.0


def asked(daemon):
    """The last query."""
    return daemon.seen[-1][2]


def sums(daemon, *rows, **total):
    daemon.sums = {"sums": [sum_of(**row) for row in rows], "total": sum_of(**total)}


def shown(iod, *words):
    """The lines, each with one blank between its cells."""
    return [" ".join(line.split()) for line in iod("history", *words).out.splitlines()]


# -- jobs --------------------------------------------------------------------------------------


def test_the_history_has_titles_and_a_row_for_each_ended_job(iod, daemon):
    moved = {"read_bytes": 3 << 30, "written_bytes": 0, "io_at_least": True}
    daemon.add(
        job(6, "FAILED", exit_code=3, suspended_io_s=60.0, suspended_user_s=1.0),
        job(7, "COMPLETED", expected_ratio=0.0423, **moved),
        job(8),
    )

    titles, first, second = shown(iod)

    assert titles == TITLES
    assert first.startswith("6 job6 ann F ")
    assert first.endswith(" 1:05 1:01 1000 B ? 1.2x 3 sleep 10")
    assert second.endswith(" 1:05 0:00 3 GiB+ 0 B+ 0.042x 0 sleep 10")
    assert [first, second] == shown(iod, "--no-header")
    assert [] == shown(iod, "--no-header", "8-9")


@pytest.mark.parametrize(
    ("words", "query"),
    [
        ([], {"limit": ["100"]}),
        (["--limit", "5"], {"limit": ["5"]}),
        (["7"], {"select": ["7"]}),
        (["all"], {}),
        (["--by", "user"], {"by": ["user"]}),
        (["-u", "me"], {"user": [str(os.geteuid())], "limit": ["100"]}),
        (
            [
                *("-u", "bob", "-J", "sim-*", "-s", "f,to", "--since", "2026-06-15"),
                *("--until", "2026-06-15 12:00", "3-9", "last"),
            ],
            {
                "user": ["bob"],
                "name": ["sim-*"],
                "state": ["FAILED", "TIMEOUT"],
                "since_s": [repr(NOON_S - 12 * HOUR_S)],
                "until_s": [repr(NOON_S)],
                "select": ["3-9,last"],
            },
        ),
        *(
            (["--since", text], {"since_s": [number], "limit": ["100"]})
            for text, number in (
                # An age is left to the daemon, whatever the clock of the place shows.
                ("now", "-0.0"),
                ("2d", "-172800.0"),
                ("1h30m", "-5400.0"),
                ("2 hours ago", "-7200.0"),
                ("1 day ago", "-86400.0"),
            )
        ),
    ],
)
def test_every_filter_reaches_the_daemon(iod, daemon, words, query):
    daemon.add(job(7, "COMPLETED"))
    iod("history", *words)

    assert query == asked(daemon)


def test_a_number_that_no_ended_job_has_is_not_found(iod, daemon):
    daemon.add(job(7, "COMPLETED"), job(8))

    result = iod("history", "7", "8")

    told = "iod: no ended job 8: 'iod queue -a' lists all that are known\n"
    assert (3, told) == (result.code, result.err)
    assert result.out.splitlines()[1].split()[0] == "7"


# -- sums --------------------------------------------------------------------------------------


def test_sums_have_a_row_a_key_and_a_total(iod, daemon):
    ann = {"key": "ann", "jobs": 3, "failed": 1, "cancelled": 1, "run_s": 65.0}
    moved = {"read_bytes": 1 << 30, "written_bytes": 0, "bandwidth_bytes_per_s": 2e6}
    held = {"suspended_io_s": 60.0, "suspended_user_s": 1.0}
    spread = {"mean_slowdown": 2.5, "jain_index": 0.8712}
    part = {"key": "bob", "jobs": 1, "read_bytes": 1024, "unknown_io_jobs": 1}
    sums(daemon, ann | moved | held | spread, part, jobs=4, failed=1)

    titles, first, second, total = shown(iod, "--by", "user")

    names = "USER JOBS FAILED CANC RUN SUSP-IO SUSP-USER READ WRITTEN IO/s SLOWDOWN FAIR"
    assert names == titles
    assert first == "ann 3 1 1 1:05 1:00 0:01 1 GiB 0 B 2 MB 2.50 0.87"
    assert second == "bob 1 0 0 0:00 0:00 0:00 1 KiB+ ? ? - -"
    assert total.startswith("(total) 4 1 ")


def test_what_is_charged_is_shown_where_it_is_another_time_and_one_row_needs_no_total(iod, daemon):
    sums(daemon, {"key": "ann", "run_s": 65.0, "charged_s": 130.0}, run_s=65.0, charged_s=130.0)
    titles, row = shown(iod, "--by", "user")

    assert ("CHARGED", "2:10") == (titles.split()[-1], row.split()[-1])


# -- words that mean nothing -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("--by", "day"), "write --by user or --by name"),
        (("--limit", "0"), "is no number of jobs"),
        (("--limit", "x"), "is no number of jobs"),
        (("-s", "RUNNING"), "have not ended: 'iod queue -s RUNNING' has them"),
        (("-s", "FALED"), "did you mean FAILED?"),
        (("--since", "noon"), "write 2d, '2 hours ago', 12:00"),
        (("x",), "selects no job"),
    ],
)
def test_a_word_that_means_nothing_is_refused_with_what_to_write(iod, words, part):
    code, line = iod.fails("history", *words)

    assert (2, True) == (code, part in line), line


# -- points in time ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "hours"),
    [
        ("12:00", 0.0),
        ("11:30", -0.5),
        ("11:30:36", -0.49),
        ("12:01", -24.0 + 1 / 60),
        ("today", -12.0),
        ("yesterday", -36.0),
        ("2026-06-15", -12.0),
        ("2026-6-15 13:00", 1.0),
        ("2026-06-15T13:00:36", 1.01),
        (" 2026-06-16 ", 12.0),
    ],
)
def test_a_point_in_time_goes_by_the_clock_of_the_place(text, hours):
    moment_s = parse_moment_s(text, NOON_S, "--since")

    assert moment_s == pytest.approx(NOON_S + hours * HOUR_S, abs=0.01)


@pytest.mark.parametrize(
    "text",
    ["", " ", "12", "24:00", "12:60", "2026-02-30", "2026-13-01", "2d3", "-1d", "12:00 2026-06-15"],
)
def test_what_is_no_point_in_time_is_refused(text):
    with pytest.raises(UsageError, match=r"--until: .* is no point in time: write"):
        parse_moment_s(text, NOON_S, "--until")
