"""Keeps the rows of a run in a folder: one CSV a kind of row, and a manifest that says what of.

``run.log`` alone tells of time; all else is the same bytes for the same seeds.
"""

from __future__ import annotations

import csv
import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from iodaemon import __version__
from iodaemon.errors import NotFound, RequestError
from iodaemon.simulator.catalogue import Trial
from iodaemon.simulator.experiment import Row

MANIFEST: Final = "manifest.json"
RESULTS: Final = "results.json"
RUN_LOG: Final = "run.log"
SEED_SETS: Final = "seed-sets.json"
_OURS: Final = frozenset({".csv", ".svg", ".png"})
_KIND: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_READERS: Final[Mapping[str, type[str | int | float]]] = {
    "str": str,
    "int": int,
    "float": float,
}
ColumnType = Literal["str", "int", "float"]


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of one kind: how many, and the type of each column, ``kind`` left out."""

    rows: int
    columns: dict[str, ColumnType]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What the rows in a folder are of.

    Attributes:
        experiment: its name.
        version: of iodaemon.
        study: what computed them.
        seeds: one whole repetition each.
        is_quick: whether in the quick mode.
        has_other_policies: whether with other policies than the file's.
        parameters: of the study, as a file has them.
        tables: by kind of row.
    """

    experiment: str
    version: str
    study: str
    seeds: tuple[int, ...]
    is_quick: bool
    has_other_policies: bool
    parameters: dict[str, Any]
    tables: dict[str, Table] = {}


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """When a run ended, how long it took, and on what."""

    ended: str
    elapsed_s: float
    tasks: int
    processes: int


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """How often a band holds on other seeds.

    Attributes:
        held: on so many sets.
        values: one a set; None where there is no finite number.
        low: of the band.
        high: of the band.
    """

    held: int
    values: tuple[float | None, ...]
    low: float | None = None
    high: float | None = None

    def words(self) -> str:
        """``3 of 12``."""
        return f"{self.held} of {len(self.values)}"


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """What came of other sets of seeds.

    Attributes:
        experiment: its name.
        version: of iodaemon.
        parameters: of the study, as a file has them.
        sets: the seeds of each.
        rates: by id of target.
    """

    experiment: str
    version: str
    parameters: dict[str, Any]
    sets: tuple[tuple[int, ...], ...]
    rates: dict[str, Rate]


def manifest_of(trial: Trial) -> Manifest:
    """What rows of this trial, by this version, are of."""
    return Manifest(
        experiment=trial.experiment.name,
        version=__version__,
        study=trial.experiment.study,
        seeds=trial.seeds,
        is_quick=trial.is_quick,
        has_other_policies=trial.has_other_policies,
        parameters=trial.parameters,
    )


def differences(kept: Manifest, now: Manifest) -> tuple[str, ...]:
    """Where what is kept is not what would be run now, in words; empty: it fits.

    Versions are not looked at.
    """
    found = []
    if kept.experiment != now.experiment or kept.study != now.study:
        found.append(f"they are of experiment {kept.experiment}, study {kept.study}")
    if kept.seeds != now.seeds:
        found.append(f"seeds {seed_words(kept.seeds)} instead of {seed_words(now.seeds)}")
    keys = sorted({*kept.parameters, *now.parameters})
    other = [key for key in keys if kept.parameters.get(key) != now.parameters.get(key)]
    if other:
        found.append(f"other parameters: {', '.join(other)}")
    return tuple(found)


def seed_words(seeds: Sequence[int]) -> str:
    """Seeds in short: ``1-5``, ``1,2,7``."""
    if len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[0] + len(seeds))):
        return f"{seeds[0]}-{seeds[-1]}"
    return ",".join(map(str, seeds))


def arranged(rows: Iterable[Row]) -> tuple[Row, ...]:
    """The rows as they will be read back: kind by kind, each column of one type.

    Raises:
        RequestError: rows of one kind have different columns, or a column text and numbers.
    """
    kinds: dict[str, list[Row]] = {}
    for row in rows:
        kinds.setdefault(str(row["kind"]), []).append(row)
    found: list[Row] = []
    for kind, alike in sorted(kinds.items()):
        columns = _column_types(kind, alike)
        for row in alike:
            values = {key: _READERS[type_](row[key]) for key, type_ in columns.items()}
            found.append({"kind": kind, **values})
    return tuple(found)


def check_folder(folder: Path, manifest: Manifest) -> tuple[str, ...]:
    """How what is kept there differs from what comes; empty: nothing is, or it is the same.

    Raises:
        RequestError: the folder is somebody else's, or a newer version wrote it.
    """
    _check_can_write(folder)
    if not folder.exists():
        return ()
    if not (folder / MANIFEST).exists():
        if any(folder.iterdir()):
            raise RequestError(
                f"{folder} is not empty and holds no results of 'iod sim': name another folder "
                "with --output"
            )
        return ()
    kept = read_manifest(folder)
    if kept.experiment != manifest.experiment:
        raise RequestError(
            f"{folder} holds results of experiment {kept.experiment}: name another folder "
            "with --output"
        )
    if _version_key(kept.version) > _version_key(manifest.version):
        raise RequestError(
            f"{folder} holds results of iodaemon {kept.version}, newer than this "
            f"{manifest.version}: name another folder with --output, or remove it"
        )
    return differences(kept, manifest)


def _check_can_write(folder: Path) -> None:
    """Before anything is computed: that the folder is one, or could be made."""
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not there.is_dir():
        raise RequestError(f"{there} is no folder: name another with --output")
    if not os.access(there, os.W_OK):
        raise RequestError(f"{there} cannot be written: name another folder with --output")


def keep(folder: Path, manifest: Manifest, rows: Sequence[Row]) -> None:
    """Write the rows, ``arranged``, in place of what was there; the manifest comes first."""
    kinds: dict[str, list[Row]] = {}
    for row in rows:
        kinds.setdefault(str(row["kind"]), []).append(row)
    tables = {
        kind: Table(rows=len(alike), columns=_column_types(kind, alike))
        for kind, alike in kinds.items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(folder.iterdir()):
        if path.suffix in _OURS or path.name in (RESULTS, RUN_LOG):
            path.unlink()
    whole = msgspec.structs.replace(manifest, tables=tables)
    write_json(folder / MANIFEST, msgspec.to_builtins(whole))
    for kind, alike in kinds.items():
        _write_rows(folder / f"{kind}.csv", tuple(tables[kind].columns), alike)


def read_manifest(folder: Path) -> Manifest:
    """What the rows in the folder are of.

    Raises:
        NotFound: nothing is kept there.
        RequestError: it cannot be read.
    """
    path = folder / MANIFEST
    try:
        return msgspec.convert(json.loads(path.read_text()), Manifest)
    except FileNotFoundError as error:
        raise NotFound(f"{folder} holds no results: make them with 'iod sim run'") from error
    except (ValueError, msgspec.ValidationError) as error:
        raise RequestError(
            f"{path} is of another version or damaged ({error}): remove {folder} and run again"
        ) from error


def read_rows(folder: Path, manifest: Manifest) -> tuple[Row, ...]:
    """The rows as they were kept.

    Raises:
        RequestError: a file is missing, cut short or changed.
    """
    rows: list[Row] = []
    for kind, table in sorted(manifest.tables.items()):
        path = folder / f"{kind}.csv"
        try:
            with path.open(newline="", encoding="utf-8") as file:
                alike = [_read_row(kind, table, cells) for cells in csv.DictReader(file)]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RequestError(f"{path} cannot be read ({error}): run again") from error
        if len(alike) != table.rows:
            raise RequestError(f"{path} has {len(alike)} of {table.rows} rows: run again")
        rows += alike
    return tuple(rows)


def write_json(path: Path, document: object) -> None:
    """One document, indented, with a line end."""
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def write_run(folder: Path, run: Run) -> None:
    """Note when the run ended and how long it took."""
    words = (f"{key}={value}" for key, value in msgspec.structs.asdict(run).items())
    (folder / RUN_LOG).write_text(" ".join(words) + "\n", encoding="utf-8")


def find_run(folder: Path) -> Run | None:
    """The last run whose results are in the folder; None where that is not known."""
    try:
        text = (folder / RUN_LOG).read_text(encoding="utf-8")
        return msgspec.convert(dict(word.split("=") for word in text.split()), Run, strict=False)
    except (OSError, ValueError):
        return None


def write_rates(folder: Path, rates: Rates) -> None:
    """Keep what came of other sets of seeds beside the results, if there are any."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / SEED_SETS, msgspec.to_builtins(rates))


def find_rates(folder: Path) -> Rates | None:
    """What came of other sets of seeds; None: nothing is kept.

    Raises:
        RequestError: it cannot be read.
    """
    path = folder / SEED_SETS
    try:
        return msgspec.json.decode(path.read_bytes(), type=Rates)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise RequestError(f"{path} cannot be read ({error}): remove it") from error


def _column_types(kind: str, rows: Sequence[Row]) -> dict[str, ColumnType]:
    if not _KIND.fullmatch(kind):
        raise RequestError(f"kind {kind!r} of rows is no file name: letters, digits, - and _")
    keys = [key for key in rows[0] if key != "kind"]
    types: dict[str, set[type]] = {key: set() for key in keys}
    for row in rows:
        if row.keys() != rows[0].keys():
            other = sorted(row.keys() ^ rows[0].keys())
            raise RequestError(f"rows of kind {kind!r} differ in columns {', '.join(other)}")
        for key in keys:
            types[key].add(type(row[key]))
    return {key: _column_type(kind, key, found) for key, found in types.items()}


def _column_type(kind: str, key: str, types: set[type]) -> ColumnType:
    if types == {str}:
        return "str"
    if str in types:
        raise RequestError(f"column {key!r} of rows of kind {kind!r} mixes text and numbers")
    return "int" if types == {int} else "float"


def _write_rows(path: Path, columns: Sequence[str], rows: Iterable[Row]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([row[column] for column in columns] for row in rows)


def _read_row(kind: str, table: Table, cells: Mapping[str, str]) -> Row:
    return {
        "kind": kind,
        **{key: _READERS[type_](cells[key]) for key, type_ in table.columns.items()},
    }


def _version_key(version: str) -> tuple[int, ...]:
    """Numbers of a version, for comparison; what is no number counts nothing."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


def finite(value: float | None) -> float | None:
    """The value, or None for what JSON has no number for."""
    return value if value is None or math.isfinite(value) else None
