"""Finds experiments and studies by name, and reads them with errors that name file and key.

The file name is the registry, as for policies: ``sim/experiments/<name>.toml`` is an experiment,
``iodaemon/simulator/study/<name>.py`` a study, ``my.module:Study`` one of the user's own,
``sim/published/<name>.csv`` a table of targets, one a line.
"""

from __future__ import annotations

import csv
import importlib
import math
import pkgutil
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from iodaemon.config.policy import config_home_of
from iodaemon.config.table import decode_table, read_toml
from iodaemon.errors import ConfigError, NotFound
from iodaemon.registry import find_own, nearest, shipped
from iodaemon.simulator.experiment import Choice, Experiment, SeedSets, Study, Target
from iodaemon.units import key_of

SYSTEM_EXPERIMENTS: Final = Path("/etc/iodaemon/experiments")
SEED_SET_STEP: Final = 1000
"""The seeds of set k are those of the file and k times this, so that no set shares one."""
_NUMBERS: Final = ("published", "low", "high")
"""Columns of a table of targets."""
_METHODS: Final = ("tasks", "run", "measure", "figures")
"""What a study answers to (``iodaemon.simulator.experiment.Study``)."""


class ExperimentFile(msgspec.Struct, frozen=True, kw_only=True):
    """An experiment as loaded, and where it was found."""

    path: Path
    experiment: Experiment


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """An experiment made ready to run.

    Attributes:
        file: the experiment.
        study: what computes it, with its parameters.
        parameters: those of the study as a file has them.
        seeds: at least one.
        is_quick: the quick mode's parameters and seeds.
        has_other_policies: policies or parameters are not those of the file, so that targets
            which speak of others have no value.
    """

    file: ExperimentFile
    study: Any
    parameters: dict[str, Any]
    seeds: tuple[int, ...]
    is_quick: bool = False
    has_other_policies: bool = False

    @property
    def experiment(self) -> Experiment:
        """What is compared, and with what."""
        return self.file.experiment


class _Document(msgspec.Struct, frozen=True, kw_only=True):
    """The tables of an experiment file. A study's parameters are decoded by the study itself."""

    title: str
    source: str
    study: str
    seeds: tuple[int, ...]
    published: str = ""
    parameters: dict[str, Any] = {}
    quick: dict[str, Any] = {}
    seed_sets: SeedSets | None = None
    target: tuple[Target, ...] = ()
    choice: tuple[Choice, ...] = ()


def experiment_search(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """The folders in which experiments are looked up by name, the first hit counts."""
    folders = [SYSTEM_EXPERIMENTS, shipped("sim") / "experiments"]
    if config_home := config_home_of(environ):
        folders.insert(0, config_home / "iodaemon" / "experiments")
    return tuple(folders)


def find_experiments(search: Sequence[Path]) -> dict[str, Path]:
    """Every experiment by name, sorted; of two with one name the one found first."""
    found: dict[str, Path] = {}
    for folder in reversed(search):
        if folder.is_dir():
            found |= {path.stem: path for path in folder.glob("*.toml")}
    return dict(sorted(found.items()))


def study_names() -> tuple[str, ...]:
    """The shipped studies, sorted."""
    package = importlib.import_module("iodaemon.simulator.study")
    modules = pkgutil.iter_modules(package.__path__)
    return tuple(sorted(module.name for module in modules if not module.name.startswith("_")))


def find_study(name: str) -> type[msgspec.Struct]:
    """The study with this name; its fields are the parameters that a file may set.

    Args:
        name: a shipped one, or ``my.module:Study`` for one's own.

    Raises:
        ConfigError: there is none, it cannot be imported, or it is no study.
    """
    if ":" in name:
        found: Any = find_own("study", name)
    elif name in (names := study_names()):
        found = vars(importlib.import_module(f"iodaemon.simulator.study.{name}"))["Study"]
    else:
        hint = nearest(name, names)
        raise ConfigError(f"unknown study {name!r}; {hint}; your own is written my.module:Study")
    is_struct = isinstance(found, type) and issubclass(found, msgspec.Struct)
    if is_struct and all(callable(getattr(found, method, None)) for method in _METHODS):
        study: type[msgspec.Struct] = found
        return study
    raise ConfigError(
        f"study {name!r} is no study; it must be a msgspec.Struct with the methods "
        f"{', '.join(_METHODS)}"
    )


def load_experiment(name_or_path: str, *, search: Sequence[Path]) -> ExperimentFile:
    """The experiment with this name, or in this file; wholly checked.

    Args:
        name_or_path: a name to look up; with a ``/`` or ``.toml`` in it a file.
        search: folders for names, in this order (``experiment_search``).

    Raises:
        NotFound: there is none of this name, or no such file.
        ConfigError: it is wrong; one line with file, table and key.
    """
    path = _find(name_or_path, search)
    try:
        table = read_toml(path)
    except FileNotFoundError as e:
        raise NotFound(f"experiment file {path} does not exist") from e
    where = str(path)
    document = decode_table(table, _Document, where=where)
    targets = document.target
    places = [f"{where} [[target]] {number}" for number in range(1, len(targets) + 1)]
    if document.published:
        if targets:
            raise ConfigError(f"{where}: published and [[target]]: give one of the two")
        targets, places = _read_published(document.published, path)
    experiment = Experiment(
        name=path.stem,
        title=_said(document.title, "title", where),
        source=_said(document.source, "source", where),
        study=document.study,
        seeds=document.seeds,
        parameters=document.parameters,
        quick=document.quick,
        seed_sets=document.seed_sets,
        targets=targets,
        choices=document.choice,
    )
    _check_targets(targets, places)
    file = ExperimentFile(path=path, experiment=experiment)
    _check_choices(experiment.choices, type(prepare(file).study), where)
    prepare(file, is_quick=True)
    _check_seed_sets(file)
    return file


def prepare(
    file: ExperimentFile,
    *,
    is_quick: bool = False,
    seeds: Sequence[int] | None = None,
    policies: Sequence[str] = (),
    settings: Sequence[str] = (),
) -> Trial:
    """The experiment, ready to run.

    Args:
        file: what was loaded.
        is_quick: with the parameters and seeds of the quick mode.
        seeds: other ones. None: those of the file.
        policies: names or files that replace the study's parameter ``policies``; empty: as in
            the file.
        settings: parameters that replace the file's, ``KEY=VALUE`` each (``parse_setting``).

    Raises:
        ConfigError: a parameter, a seed, or ``policies`` where the study has none.
    """
    experiment, where = file.experiment, str(file.path)
    type_ = _study_of(experiment, where)
    parameters, own_seeds = dict(experiment.parameters), experiment.seeds
    if is_quick:
        where = f"{where} [quick]"
        quick = dict(experiment.quick)
        own_seeds = _quick_seeds(quick.pop("seeds", list(own_seeds)), where)
        parameters = _merged(parameters, quick)
    else:
        where = f"{where} [parameters]"
    if policies:
        if "policies" not in _keys(type_):
            raise ConfigError(
                f"--policy: experiment {experiment.name!r} compares no policies: its study "
                f"{experiment.study!r} has no parameter 'policies'; leave the option out"
            )
        parameters["policies"] = list(policies)
    for setting in settings:
        parameters = _merged(parameters, parse_setting(setting))
        where = f"{file.path} with --set"
    return Trial(
        file=file,
        study=decode_table(parameters, type_, where=where),
        parameters=parameters,
        seeds=check_seeds(own_seeds if seeds is None else seeds, str(file.path)),
        is_quick=is_quick,
        has_other_policies=bool(policies or settings),
    )


def prepare_seed_sets(file: ExperimentFile, count: int) -> tuple[Trial, ...]:
    """The experiment on so many other sets of seeds, with what its ``seed_sets`` changes.

    Raises:
        ConfigError: it names none, or a parameter is wrong.
    """
    experiment = file.experiment
    if experiment.seed_sets is None:
        raise ConfigError(
            f"--seed-sets: experiment {experiment.name!r} names no targets for it: add a table "
            f"[seed_sets] to {file.path}"
        )
    parameters = _merged(experiment.parameters, experiment.seed_sets.parameters)
    type_ = _study_of(experiment, str(file.path))
    study = decode_table(parameters, type_, where=f"{file.path} [seed_sets]")
    return tuple(
        Trial(
            file=file,
            study=study,
            parameters=parameters,
            seeds=tuple(seed + number * SEED_SET_STEP for seed in experiment.seeds),
            has_other_policies=True,
        )
        for number in range(1, count + 1)
    )


def parse_setting(text: str) -> dict[str, Any]:
    """The parameter that ``KEY=VALUE`` sets: ``mix.load=1.2`` is ``{"mix": {"load": 1.2}}``.

    A value is written as in a file; a word without quotes stands for itself.

    Raises:
        ConfigError: it is none.
    """
    key, found, value = text.partition("=")
    names = key.strip().split(".")
    if not found or not all(names):
        raise ConfigError(f"--set {text}: write KEY=VALUE, for example mix.load=1.2")
    try:
        parsed: Any = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()
    for name in reversed(names):
        parsed = {name: parsed}
    made: dict[str, Any] = parsed
    return made


def with_parameters(file: ExperimentFile, parameters: Mapping[str, Any]) -> Study:
    """The study of an experiment with parameters that are not the file's, as a file has them.

    Raises:
        ConfigError: the study does not take them.
    """
    type_ = _study_of(file.experiment, str(file.path))
    made: Any = decode_table(parameters, type_, where="kept parameters")
    study: Study = made
    return study


def check_seeds(seeds: Sequence[int], where: str) -> tuple[int, ...]:
    """The seeds, of which there is at least one, none twice, none negative.

    Raises:
        ConfigError: otherwise.
    """
    if not seeds:
        raise ConfigError(f"{where}: seeds is empty; write for example seeds = [1, 2, 3, 4, 5]")
    for seed, count in Counter(seeds).items():
        if count > 1:
            raise ConfigError(f"{where}: seeds: {seed} is there {count} times; each counts once")
        if seed < 0:
            raise ConfigError(f"{where}: seeds: {seed} is negative; seeds count from 0")
    return tuple(seeds)


def _find(name_or_path: str, search: Sequence[Path]) -> Path:
    if "/" in name_or_path or name_or_path.endswith(".toml"):
        return Path(name_or_path)
    known = find_experiments(search)
    if name_or_path not in known:
        raise NotFound(f"no experiment {name_or_path!r}; {nearest(name_or_path, tuple(known))}")
    return known[name_or_path]


def _said(text: str, key: str, where: str) -> str:
    if not text.strip():
        raise ConfigError(f"{where}: {key} is empty; say it in a few words")
    return text


def _study_of(experiment: Experiment, where: str) -> type[msgspec.Struct]:
    try:
        return find_study(experiment.study)
    except ConfigError as e:
        raise ConfigError(f"{where}: study: {e}") from e


def _keys(type_: type[msgspec.Struct]) -> tuple[str, ...]:
    return tuple(key_of(field.name) for field in msgspec.structs.fields(type_))


def _quick_seeds(value: object, where: str) -> tuple[int, ...]:
    try:
        return msgspec.convert(value, tuple[int, ...])
    except msgspec.ValidationError as e:
        raise ConfigError(f"{where}: seeds: must be a list of whole numbers, is {value!r}") from e


def _merged(table: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The table with the changed values; a table within it is changed likewise."""
    merged = dict(table)
    for key, value in changes.items():
        before = merged.get(key)
        is_table = isinstance(value, Mapping) and isinstance(before, Mapping)
        merged[key] = _merged(before, value) if is_table else value  # type: ignore[arg-type]
    return merged


def _read_published(name: str, path: Path) -> tuple[tuple[Target, ...], list[str]]:
    """The targets of a table beside the experiment's folder, else of a shipped one, and where."""
    folders = (path.parent.parent / "published", shipped("sim") / "published")
    file = next((at for each in folders if (at := each / f"{name}.csv").is_file()), None)
    if file is None:
        raise ConfigError(f"{path}: published: there is no {name}.csv in {folders[0]}")
    targets, places = [], []
    try:
        with file.open(newline="", encoding="utf-8") as lines:
            rows = csv.DictReader(lines, strict=True)
            for row in rows:
                places.append(f"{file}:{rows.line_num}")
                cells = {str(key): _cell(key, text) for key, text in row.items() if text}
                targets.append(decode_table(cells, Target, where=places[-1]))
    except (OSError, ValueError, csv.Error) as error:
        raise ConfigError(f"{file}: cannot be read: {error}") from error
    return tuple(targets), places


def _cell(key: str, text: str) -> str | float:
    """A number where the column may have one."""
    try:
        return float(text) if key in _NUMBERS else text
    except ValueError:
        return text


def _check_targets(targets: Sequence[Target], places: Sequence[str]) -> None:
    seen: set[str] = set()
    for target, place in zip(targets, places, strict=True):
        at = place
        _said(target.id, "id", at)
        at = f"{at} ({target.id})"
        if target.id in seen:
            raise ConfigError(f"{at}: id {target.id!r} is there twice; each target has its own")
        seen.add(target.id)
        _said(target.quantity, "quantity", at)
        if not target.source.strip():
            raise ConfigError(
                f"{at}: source is empty; say where {target.published!r} is printed (section, "
                "figure or table)"
            )
        _check_band(target, at)


def _check_band(target: Target, at: str) -> None:
    low, high = target.low, target.high
    for key, value in (("low", low), ("high", high), ("published", target.published)):
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{at}: {key} is {value}; write a finite number or leave it out")
    if target.means is not None and not target.has_band:
        raise ConfigError(f"{at}: means is {target.means!r}, but there is no band to pass")
    if low is not None and high is not None and low > high:
        raise ConfigError(f"{at}: low {low:g} is above high {high:g}; nothing would pass")


def _check_seed_sets(file: ExperimentFile) -> None:
    sets = file.experiment.seed_sets
    if sets is None:
        return
    bands = [target.id for target in file.experiment.targets if target.has_band]
    for id_ in sets.targets:
        if id_ not in bands:
            hint = nearest(id_, bands)
            raise ConfigError(f"{file.path} [seed_sets]: targets: {id_!r} has no band; {hint}")
    prepare_seed_sets(file, 1)


def _check_choices(choices: Sequence[Choice], type_: type[msgspec.Struct], where: str) -> None:
    known = _keys(type_)
    for number, choice in enumerate(choices, start=1):
        at = f"{where} [[choice]] {number}"
        _said(choice.silent, "silent", at)
        _said(choice.chosen, "chosen", at)
        if choice.option and choice.option.partition(".")[0] not in known:
            hint = nearest(choice.option, known)
            raise ConfigError(f"{at}: option: the study has no {choice.option!r}; {hint}")
