"""Every fault point of the product stands in the campaign's table, under a name of its own."""

import ast
import sys
from collections import Counter
from pathlib import Path

from iodaemon.backend.linux.keeper import Keeper

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "node" / "campaign"))

from points import (  # noqa: E402
    CAP_VERBS,
    DETAILS,
    POINTS,
    SCRATCH_POINTS,
    SCRATCH_VERBS,
    SERVICE_VERBS,
    VERBS,
)


def passages():
    """The name of each point, and whether it has a detail, wherever one is passed.

    The supervisor's have a table of their own: tests/supervisor/test_supervisor_faults.py.
    """
    for path in sorted((ROOT / "iodaemon").rglob("*.py")):
        if path.is_relative_to(ROOT / "iodaemon/supervisor"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "reach":
                assert isinstance(node.args[0], ast.Constant), (
                    f"{path}: a name that is not written out"
                )
                yield node.args[0].value, len(node.args) > 1


def test_the_table_has_every_point_of_the_source_and_no_other():
    expected = set()
    for name, has_detail in passages():
        assert has_detail == (name in DETAILS), name
        expected |= {f"{name}.{detail}" for detail in DETAILS[name]} if has_detail else {name}

    assert expected == {*POINTS, *SCRATCH_POINTS}


def test_no_name_stands_for_two_places():
    assert {} == {name: n for name, n in Counter(name for name, _ in passages()).items() if n > 1}


def test_the_table_has_every_verb_of_the_keeper():
    assert {*VERBS, *SERVICE_VERBS, *CAP_VERBS, *SCRATCH_VERBS} == {
        name[4:] for name in dir(Keeper) if name.startswith("_do_")
    }
