"""Every fault point of the product stands in one of two tables, under a name of its own."""

import ast
import re
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "node" / "campaign"))

from points import DETAILS, ELSEWHERE, POINTS, SUPERVISOR_POINTS  # noqa: E402


def passages(*, of_supervisor):
    """The name of each point of ``supervisor.failpoint``, and whether it has a detail.

    Args:
        of_supervisor: those of the root side instead.
    """
    for path in sorted((ROOT / "iodaemon").rglob("*.py")):
        if path.is_relative_to(ROOT / "iodaemon/supervisor") != of_supervisor:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "reach":
                assert isinstance(node.args[0], ast.Constant), (
                    f"{path}: a name that is not written out"
                )
                yield node.args[0].value, len(node.args) > 1


def test_the_table_has_every_point_of_the_daemons_side_and_no_other():
    expected = set()
    for name, has_detail in passages(of_supervisor=False):
        assert has_detail == (name in DETAILS), name
        expected |= {f"{name}.{detail}" for detail in DETAILS[name]} if has_detail else {name}

    assert expected == {*POINTS, *ELSEWHERE} - {*SUPERVISOR_POINTS}


def test_what_is_played_of_the_root_side_is_passed_there():
    """All of its points are tried by tests/supervisor/test_supervisor_faults.py."""
    assert {*SUPERVISOR_POINTS} <= {name for name, _ in passages(of_supervisor=True)}


def test_both_launchers_pass_the_same_points():
    in_python, in_c = (
        re.findall(r'reach\("([a-z_.]+)"\)', (ROOT / "iodaemon/supervisor" / name).read_text())
        for name in ("launcher.py", "launcher.c")
    )

    assert sorted(in_python) == sorted(in_c)


def test_no_name_stands_for_two_places():
    names = [name for of in (True, False) for name, _ in passages(of_supervisor=of)]

    assert {} == {name: n for name, n in Counter(names).items() if n > 1}
