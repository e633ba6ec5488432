"""``iod history``: what is asked for, and how it looks."""

from __future__ import annotations

import os
import time

import pytest
from fake_daemon import job, sum_of

from iodaemon.cli.failure import UsageError
from iodaemon.cli.selector import parse_moment_s

HEADER = ["ID", "NAME", "USER", "ST", "ENDED", "RUN", "SUSP"]
HEADER += ["READ", "WRITTEN", "EXPECTED", "EXIT", "COMMAND"]
NOON_S = time.mktime((2026, 6, 15, 12, 0, 0, 0, 0, -1))
HOUR_S = 3600.0


def asked(daemon):
    """The last query."""
    return daemon.seen[-1][2]


def sums(daemon, *rows, **total):
    daemon.sums = {"sums": [sum_of(**row) for row in rows], "total": sum_of(**total)}


# -- jobs --------------------------------------------------------------------------------------


def test_the_history_has_titles_and_a_row_for_each_ended_job(iod, daemon):
    daemon.add(
        job(6, "FAILED", exit_code=3, suspended_io_s=60.0, suspended_user_s=1.0),
        job(
            7,
            "COMPLETED",
            read_bytes=3 << 30,
            written_bytes=0,
            io_at_least=True,
            expected_ratio=0.0423,
        ),
        job(8),
    )

    titles, *rows = iod("history").out.splitlines()

    assert titles.split() == HEADER
    first, second = (row.split() for row in rows)
    assert first[:4] == ["6", "job6", "ann", "F"]
    assert first[6:] == ["1:05", "1:01", "1000", "B", "?", "1.2x", "3", "sleep", "10"]
    assert second[6:] == ["1:05", "0:00", "3", "GiB+", "0", "B+", "0.042x", "0", "sleep", "10"]


def test_no_header_leaves_rows_alone(iod, daemon):
    daemon.add(job(7, "COMPLETED"))

    assert len(iod("history", "--no-header").out.splitlines()) == 1
    assert iod("history", "--no-header", "8-9").out == ""


@pytest.mark.parametrize(
    ("word", "state", "changes"),
    [
        ("SIGKILL", "FAILED", {"signal": 9}),
        ("?", "LOST", {}),
        ("-", "CANCELLED", {"started_s": None}),
    ],
)
def test_an_exit_that_is_no_code_is_told(iod, daemon, word, state, changes):
    daemon.add(job(7, state, **changes))

    assert iod("history", "--no-header").out.split()[-3] == word


def test_a_job_that_never_ran_has_moved_nothing_known(iod, daemon):
    daemon.add(job(7, "CANCELLED", started_s=None, read_bytes=None, expected_ratio=None))

    assert iod("history", "--no-header").out.split()[-6:-2] == ["-", "-", "-", "-"]


def test_the_last_hundred_are_asked_for_unless_it_is_said_otherwise(iod, daemon):
    daemon.add(job(7, "COMPLETED"))

    iod("history")
    assert asked(daemon) == {"limit": ["100"]}
    iod("history", "--limit", "5")
    assert asked(daemon) == {"limit": ["5"]}
    iod("history", "7")
    assert asked(daemon) == {"select": ["7"]}
    iod("history", "--by", "user")
    assert asked(daemon) == {"by": ["user"]}


def test_every_filter_reaches_the_daemon(iod, daemon):
    words = "-u bob -J sim-* -s f,to --since 2026-06-15 --until"
    iod("history", *words.split(), "2026-06-15 12:00", "3-9", "last")

    assert asked(daemon) == {
        "user": ["bob"],
        "name": ["sim-*"],
        "state": ["FAILED", "TIMEOUT"],
        "since_s": [repr(NOON_S - 12 * HOUR_S)],
        "until_s": [repr(NOON_S)],
        "select": ["3-9,last"],
    }


def test_me_is_the_callers_number(iod, daemon):
    iod("history", "-u", "me")

    assert asked(daemon)["user"] == [str(os.geteuid())]


def test_all_selects_everything(iod, daemon):
    daemon.add(job(6, "COMPLETED"), job(7, "FAILED"))

    assert [made["id"] for made in iod("history", "--json", "all").json["jobs"]] == [6, 7]
    assert asked(daemon) == {}


def test_json_is_the_answer_of_the_api(iod, daemon):
    daemon.add(job(7, "COMPLETED"))

    answer = iod("history", "--json").json

    assert [answer["version"], answer["jobs"][0]["id"]] == [1, 7]


def test_a_number_that_no_ended_job_has_is_not_found(iod, daemon):
    daemon.add(job(7, "COMPLETED"), job(8))

    result = iod("history", "7", "8")

    assert (3, "iod: no ended job 8: 'iod queue -a' lists all that are known\n") == (
        result.code,
        result.err,
    )
    assert result.out.splitlines()[1].split()[0] == "7"


# -- sums --------------------------------------------------------------------------------------


def test_sums_have_a_row_a_key_and_a_total(iod, daemon):
    ann = {"key": "ann", "jobs": 3, "failed": 1, "cancelled": 1, "run_s": 65.0}
    moved = {"read_bytes": 1 << 30, "written_bytes": 0, "bandwidth_bytes_per_s": 2e6}
    held = {"suspended_io_s": 60.0, "suspended_user_s": 1.0}
    spread = {"mean_slowdown": 2.5, "jain_index": 0.8712}
    sums(daemon, ann | moved | held | spread, {"key": "bob", "jobs": 1}, jobs=4, failed=1)

    titles, first, second, total = iod("history", "--by", "user").out.splitlines()

    assert titles.split() == [
        *("USER", "JOBS", "FAILED", "CANC", "RUN", "SUSP-IO", "SUSP-USER", "READ", "WRITTEN"),
        *("IO/s", "SLOWDOWN", "FAIR"),
    ]
    assert " ".join(first.split()) == "ann 3 1 1 1:05 1:00 0:01 1 GiB 0 B 2 MB 2.50 0.87"
    zeros, unknown = ["0:00"] * 3, ["?"] * 3
    assert second.split() == ["bob", "1", "0", "0", *zeros, *unknown, "-", "-"]
    assert total.split()[:3] == ["(total)", "4", "1"]


def test_bytes_that_are_not_all_known_carry_a_plus(iod, daemon):
    sums(daemon, {"key": "a", "read_bytes": 1024, "written_bytes": 0, "unknown_io_jobs": 1})

    assert iod("history", "--by", "name", "--no-header").out.split()[-7:-2] == [
        *("1", "KiB+", "0", "B+"),
        "?",
    ]


def test_what_is_charged_is_shown_where_it_is_another_time_than_the_run(iod, daemon):
    sums(daemon, {"key": "ann", "run_s": 65.0, "charged_s": 130.0}, run_s=65.0, charged_s=130.0)
    lines = iod("history", "--by", "user").out.splitlines()

    assert "CHARGED" == lines[0].split()[-1]
    assert "2:10" == lines[1].split()[-1]


def test_one_row_needs_no_total(iod, daemon):
    sums(daemon, {"key": "ann"})

    assert len(iod("history", "--by", "user").out.splitlines()) == 2


def test_sums_are_json_as_well(iod, daemon):
    sums(daemon, {"key": "ann", "jobs": 1}, jobs=1)

    answer = iod("history", "--by", "name", "--json").json

    assert ["name", "ann", 1] == [
        answer["by"],
        answer["sums"][0]["key"],
        answer["total"]["jobs"],
    ]


def test_sums_of_another_shape_are_not_ours(iod, daemon):
    daemon.sums = {"sums": [{"key": "ann"}], "total": {}}

    code, line = iod.fails("history", "--by", "user")

    assert code == 1
    assert "is not an iodaemon" in line


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

    assert code == 2
    assert part in line


def test_without_a_daemon_the_exit_code_is_seven(iod):
    assert iod.fails("history")[0] == 7


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
    ("text", "number"),
    [
        ("now", "-0.0"),
        ("2d", "-172800.0"),
        ("90m", "-5400.0"),
        ("1h30m", "-5400.0"),
        ("2 hours ago", "-7200.0"),
        ("1 day ago", "-86400.0"),
    ],
)
def test_an_age_is_left_to_the_daemon_whatever_the_clock_of_the_place_shows(
    iod, daemon, text, number
):
    iod("history", "--since", text)

    assert [number] == asked(daemon)["since_s"]


@pytest.mark.parametrize(
    "text",
    ["", " ", "12", "24:00", "12:60", "2026-02-30", "2026-13-01", "2d3", "-1d", "12:00 2026-06-15"],
)
def test_what_is_no_point_in_time_is_refused(text):
    with pytest.raises(UsageError, match=r"--until: .* is no point in time: write"):
        parse_moment_s(text, NOON_S, "--until")
