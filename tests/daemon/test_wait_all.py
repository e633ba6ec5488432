"""What ``iod wait all`` means: no failure is passed over, and none is told twice."""

import contextlib
import time

from served import Served

from iodaemon.cli import main
from iodaemon.daemon.http.context import LONGEST_BACK_S, WaitMarks

ANN, BOB = 1000, 1001


def wait_all(served, *words):
    return main(["--api", served.socket_path, "wait", "all", *words])


# -- the command ---------------------------------------------------------------------------------


def test_a_failure_is_counted_and_told_once_whenever_it_came(served, capsys):
    failed = served.ended("exit=3")
    served.ended("exit=0")

    assert 3 == wait_all(served)
    assert f"job {failed} FAILED" in capsys.readouterr().err
    assert 0 == wait_all(served)
    served.submit("compute=0.3s", "exit=4")  # it ends while it is waited for
    assert [4, 0] == [wait_all(served), wait_all(served)]
    served.client.requeue(failed)
    assert served.client.wait([failed], timeout_s=20)["finished"]
    assert 3 == wait_all(served)


def test_a_wait_for_some_leaves_the_mark(served):
    served.ended("exit=3", name="sim-1")
    served.ended("exit=5", name="other")

    assert 3 == main(["--api", served.socket_path, "wait", "-J", "sim-*"])
    assert 5 == wait_all(served, "--since", "1h")
    assert 5 == wait_all(served)
    assert 0 == wait_all(served)
    assert 5 == wait_all(served, "--since", "1h")


def test_an_age_is_judged_by_the_clock_of_the_daemon(tmp_path, monkeypatch, capsys):
    """Which a suspended machine, or one whose clock was set, has left behind."""
    wall = time.time
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: wall() - 3 * 3600.0)
        behind = Served(tmp_path)
    with contextlib.closing(behind):
        behind.ended("exit=3")

        assert 3 == wait_all(behind, "--since", "1h")
        for verb, shown in (("history", "exit=3"), ("events", "exit code 3")):
            capsys.readouterr()
            assert 0 == main(["--api", behind.socket_path, verb, "--since", "1h"])
            assert shown in capsys.readouterr().out


# -- the marks -----------------------------------------------------------------------------------


def test_each_session_has_its_mark_and_others_go_by_their_users_last_wait():
    marks = WaitMarks()
    marks.submitted(ANN, 7, 100.0)
    marks.submitted(ANN, 7, 105.0)
    marks.submitted(ANN, 8, 110.0)
    marks.told(ANN, 8, 120.0)
    marks.told(BOB, 9, 125.0)

    asked = [(ANN, 7, 130.0), (ANN, 8, 130.0), (ANN, 10, 130.0), (BOB, 10, 1e6)]
    assert [100.0, 120.0, 120.0, 1e6 - LONGEST_BACK_S] == [marks.since_s(*each) for each in asked]
    assert 1e6 - LONGEST_BACK_S == WaitMarks().since_s(ANN, 10, 1e6)


def test_marks_are_bounded():
    marks = WaitMarks()
    for session in range(30_000):
        marks.submitted(ANN, session, float(session))

    assert len(marks._marks) <= 10_000
