"""``iod history``: what is asked for, and how it looks; points in time."""

from __future__ import annotations

import os
import time

import pytest
from fake_daemon import job, sum_of

from iodaemon.cli.failure import UsageError
from iodaemon.cli.selector import parse_moment_s

HEADER = "ID NAME USER ST ENDED RUN SUSP READ WRITTEN EXPECTED EXIT COMMAND"
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

    assert titles == HEADER
    assert first.startswith("6 job6 ann F ")
    assert first.endswith(" 1:05 1:01 1000 B ? 1.2x 3 sleep 10")
    assert second.endswith(" 1:05 0:00 3 GiB+ 0 B+ 0.042x 0 sleep 10")
    assert [first, second] == shown(iod, "--no-header")
    assert [] == shown(iod, "--no-header", "8-9")


@pytest.mark.parametrize(
    ("state", "changes", "cells"),
    [
        ("FAILED", {"signal": 9}, "SIGKILL sleep 10"),
        ("LOST", {}, "? sleep 10"),
        (
            "CANCELLED",
            {"started_s": None, "read_bytes": None, "expected_ratio": None},
            "- - - - sleep 10",
        ),
    ],
)
def test_an_exit_that_is_no_code_and_what_never_ran_are_told(iod, daemon, state, changes, cells):
    daemon.add(job(7, state, **changes))

    [row] = shown(iod, "--no-header")
    assert row.endswith(f" {cells}")


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
