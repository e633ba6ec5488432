"""The rows of all experiments, in their quick form, by checksum.

``rows.toml`` has a table for each experiment: how many rows, one checksum of all, and one of each
part, so that a difference can be located. Numbers count with nine significant digits, and the
order of rows does not count: neither the order of a sum, nor the number of cores, nor whether the
sweeps are compiled makes a difference.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterable, Sequence
from typing import Any, Final

import toml
from reference import DIGITS, HERE, head_of

from iodaemon.registry import shipped
from iodaemon.simulator.catalogue import find_experiments, load_experiment, prepare
from iodaemon.simulator.experiment import Row
from iodaemon.simulator.pool import Pool, run_study

FILE: Final = HERE / "rows.toml"
LONG: Final = frozenset(
    {
        *("carretero-packs", "equilibrio-alpha"),
        *("equilibrio-auto", "together-cluster", "together-server"),
        *("equilibrio-operations",),
        *("storalloc-feedback", "storalloc-hetero"),
    }
)
"""For `make references`, not for the gate: they take long, or are much like others."""
_MOST_PARTS: Final = 40
_HEX_DIGITS: Final = 16


def names() -> list[str]:
    """Of all shipped experiments."""
    return list(find_experiments([shipped("sim") / "experiments"]))


def known() -> dict[str, Any]:
    """The stored checksums, by experiment."""
    return tomllib.loads(FILE.read_text()) if FILE.exists() else {}


def compute(name: str, pool: Pool) -> dict[str, Any]:
    """Run an experiment's quick form; its table."""
    file = load_experiment(name, search=[shipped("sim") / "experiments"])
    trial = prepare(file, is_quick=True)
    rows = run_study(trial.study, trial.seeds, pool=pool)
    lines = [(_part(row, _columns(rows)), _line(row)) for row in rows]
    parts = sorted({part for part, _ in lines})
    return {
        "rows": len(rows),
        "all": _checksum(line for _, line in lines),
        "parts": {part: _checksum(line for of, line in lines if of == part) for part in parts},
    }


def compare(name: str, found: dict[str, Any]) -> list[str]:
    """What is different from the stored table; the parts of it where it is."""
    expected = known().get(name)
    if expected is None:
        return [f"{name}: no stored checksum"]
    if expected["all"] == found["all"]:
        return []
    told = [f"{name}: other rows ({found['rows']}; expected {expected['rows']}), in these parts:"]
    parts = sorted({*expected["parts"], *found["parts"]})
    return told + [
        f"  {part}" for part in parts if expected["parts"].get(part) != found["parts"].get(part)
    ]


def write(tables: dict[str, dict[str, Any]]) -> None:
    """Write all checksums anew."""
    FILE.write_text(f"{head_of(__doc__)}\n{toml.dumps(tables)}")


def _columns(rows: Sequence[Row]) -> tuple[str, ...]:
    """The columns of words that together make at most so many parts, as they come in a row."""
    columns: tuple[str, ...] = ("kind",)
    words = dict.fromkeys(key for row in rows for key, each in row.items() if isinstance(each, str))
    for key in words:
        more = (*columns, key) if key not in columns else columns
        if len({_part(row, more) for row in rows}) <= _MOST_PARTS:
            columns = more
    return columns


def _part(row: Row, columns: Sequence[str]) -> str:
    return " ".join(f"{key}={row[key]}" for key in columns if key in row)


def _line(row: Row) -> str:
    return json.dumps(
        {
            key: f"{float(each):.{DIGITS}g}" if isinstance(each, int | float) else each
            for key, each in row.items()
        },
        sort_keys=True,
    )


def _checksum(lines: Iterable[str]) -> str:
    text = "\n".join(sorted(lines))
    return hashlib.sha256(text.encode()).hexdigest()[:_HEX_DIGITS]
