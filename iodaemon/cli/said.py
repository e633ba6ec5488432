"""What is said of a job besides its command: by options, and by ``#IOD`` lines of its script.

    #!/bin/sh
    #IOD name=solver cpus=4 time=90m
    #IOD io=40M,20%

Lines ``#SBATCH`` are read as well, as far as they mean something here (``cli.sbatch``); what an
``#IOD`` line says goes before them. Lines below the first command are not read, which is told.

A line has the options of ``iod submit`` by their long names, with or without dashes; ``io`` is
``io-rate`` and, behind a comma, ``io-share``. What an option says goes before what a script says;
so does one of ``stdout`` and ``output`` before the other where both name the same file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from iodaemon.api.model import JobOptions
from iodaemon.cli import sbatch
from iodaemon.cli.command import Parameter, option
from iodaemon.cli.failure import UsageError, nearest
from iodaemon.cli.request import Place, output_options, parse_limits
from iodaemon.cli.scratch_option import (
    check_words,
    has_space,
    scratch_options,
)
from iodaemon.core.launcher import Script, script_of
from iodaemon.errors import ConfigError

MARK: Final = "#IOD"
OPTIONS: Final = tuple(
    Parameter(declared.names[-1][2:].replace("-", "_"), declared, is_switch=not declared.metavar)
    for declared in (
        option("-J", "--name", metavar="NAME", text="Shown in the queue."),
        option(
            *("-n", "--cpus"),
            metavar="N",
            text="CPUs that no other such job gets, all of one socket [none: it runs on the idle "
            "CPUs of its socket, also on those of such jobs].",
        ),
        option("--mem", metavar="SIZE", text="Memory limit: 16G; bare number: MiB."),
        option(
            *("-t", "--time"),
            metavar="TIME",
            text="Longest run time, suspensions not counted: 90m, HH:MM:SS; bare number: minutes.",
        ),
        option(
            "--io-rate",
            metavar="RATE",
            text="Its rate while it does I/O: 40 MB/s; bare number: MB/s.",
        ),
        option(
            "--io-share",
            metavar="SHARE",
            text="Part of its run time in I/O: 0.2 or 20% [all].",
        ),
        option("--io-ops", metavar="RATE", text="Requests a second while in I/O: 500 or 2k."),
        option("--no-suspend", text="The regulation never suspends it."),
        option(
            "--max-suspend",
            metavar="TIME",
            text="Longest suspension in a row by the regulation; bare number: minutes.",
        ),
        option("--requeue", text="Run it again if the machine is restarted while it runs."),
        option(
            *("-o", "--stdout"),
            metavar="FILE",
            text="Standard output [a file of the daemon; 'iod show' says when it is removed]; "
            "%j: the job's number, %x: its name, %u: the user, %N: the machine.",
        ),
        option(
            "--output",
            metavar="PATH",
            text="With --scratch or --fast: the directory its space is copied to. Else as -o.",
        ),
        option("-e", "--error", metavar="FILE", text="Standard error [as the output]."),
        option("--scratch", metavar="SIZE", text="Space of a storage tier, in $IOD_SCRATCH: 200G."),
        option("--tier", metavar="NAME", text="The tier of --scratch [the fastest]."),
        option(
            "--scratch-fallback",
            metavar="slow|wait|fail",
            text="Where the tier has no room: run on the slowest, wait, or fail [wait].",
        ),
        option("--fast", metavar="SIZE", text="As --scratch; the policy chooses the tier."),
        option("--input", metavar="DIR", text="Copied into its space before it starts."),
        option(
            "--output-on",
            metavar="success|always",
            text="When its space is copied to --output [success].",
        ),
        option("--output-size", metavar="SIZE", text="What it is expected to leave."),
        option(
            "--data-size",
            metavar="SIZE",
            text="Bytes that it moves there while it runs.",
        ),
        option("--hold", text="Hold it until 'iod resume'."),
    )
)
"""What may be said of a job, on the command line, in ``#IOD`` lines and in lines of ``--from``."""
HINTS: Final = ("io-rate", "io-share", "io-ops")
SWITCHES: Final = frozenset(each.name.replace("_", "-") for each in OPTIONS if each.is_switch)
_WORDS: Final = (*(each.name.replace("_", "-") for each in OPTIONS), "io")
_ENDS_EARLY: Final = frozenset(" \t\n")
_MOST_BYTES: Final = 64 * 1024
_FILES: Final = ("stdout", "output")
"""Of a job without space both name the file of its standard output."""
_NONE: Final[Mapping[str, str]] = MappingProxyType({})


class Said(NamedTuple):
    """Words by option; a switch has an empty one.

    Attributes:
        options: of all but the I/O.
        hints: of the I/O.
        where: what the hints stand in; empty: the command line.
    """

    options: Mapping[str, str] = _NONE
    hints: Mapping[str, str] = _NONE
    where: str = ""


NOTHING: Final = Said()


def said_by(given: Mapping[str, Any]) -> Said:
    """What options say, by the names in ``OPTIONS``."""
    words = {name.replace("_", "-"): "" if word is True else word for name, word in given.items()}
    hints: dict[str, str] = {name: words.pop(name) for name in HINTS if name in words}
    return Said(words, hints)


def merge(*layers: Said) -> Said:
    """What they say together, the earlier where they differ; of the I/O all is said by one."""
    options: dict[str, str] = {}
    for layer in reversed(layers):
        options |= layer.options
    if not has_space(options):
        first = next((each.options for each in layers if _names_file(each.options)), _NONE)
        for name in _FILES:
            if name not in first:
                options.pop(name, None)
    hints = next((layer for layer in layers if layer.hints), NOTHING)
    return Said(options, hints.hints, hints.where)


def _names_file(words: Mapping[str, str]) -> bool:
    return any(name in words for name in _FILES)


def parse_lines(lines: Iterable[tuple[int, str]], shown: str) -> Said:
    """What the ``#IOD`` lines among these say together.

    Args:
        lines: with their numbers.

    Raises:
        UsageError: one says nothing that is known, or no such quantity; names the line.
    """
    from iodaemon.cli.commands import split_words

    options: dict[str, str] = {}
    hints: dict[str, str] = {}
    for number, line in lines:
        if not is_said(line):
            continue
        try:
            found = dict(_parse_words(split_words(line[len(MARK) :])))
            _check_words(found)
        except (ValueError, UsageError) as error:
            raise UsageError(f"{shown}:{number}: {MARK}: {error}") from error
        hints |= {word: found.pop(word) for word in HINTS if word in found}
        options |= found
    return Said(options, hints, shown)


def is_said(line: str) -> bool:
    """True for a line that is for us."""
    return line.startswith(MARK) and (line[len(MARK) : len(MARK) + 1] or " ") in _ENDS_EARLY


def _parse_words(words: Sequence[str]) -> Iterable[tuple[str, str]]:
    for word in words:
        name, equals, value = word.removeprefix("--").partition("=")
        if name not in _WORDS:
            raise UsageError(f"no option {name!r}{nearest(name, _WORDS, ', '.join(_WORDS))}")
        if (name in SWITCHES) == bool(equals):
            what = "has no value" if equals else f"needs a value: {name}=..."
            raise UsageError(f"{name} {what}")
        if name == "io":
            rate, comma, share = value.partition(",")
            yield "io-rate", rate
            if comma:
                yield "io-share", share
        else:
            yield name, value


def check_said(said: Said) -> None:
    """Refuse what means nothing; the I/O is judged later, and refuses no job.

    Raises:
        UsageError: names the option.
    """
    _check_words(said.options)


def _check_words(words: Mapping[str, str]) -> None:
    parse_limits(**_limits(words))
    check_words(words)


def _limits(words: Mapping[str, str]) -> dict[str, str | None]:
    names = ("cpus", "mem", "time", "max-suspend")
    return {name.replace("-", "_"): words.get(name) for name in names}


def options_of(said: Said, place: Place, called: str) -> tuple[JobOptions, str]:
    """What was said, in base units, and one line on what of it makes no sense, or nothing.

    What was not said is not in it: the daemon has the defaults.

    Args:
        called: the job's name, for files that are named after it.

    Raises:
        UsageError: one of them is no such quantity; names the option.
        RequestError: an output file cannot be written.
    """
    words = said.options
    options = parse_limits(**_limits(words)) | place.options
    options |= _files(words, place.cwd, called)
    options |= scratch_options(words, place.cwd)
    if "name" in words:
        options["name"] = words["name"]
    if "no-suspend" in words:
        options["no_suspend"] = True
    if "requeue" in words:
        options["requeue"] = True
    if "hold" in words:
        options["hold"] = True
    hints, problem = _hints_of(said) if said.hints else (JobOptions(), "")
    return options | hints, problem


def check_options(said: Said, place: Place) -> None:
    """Refuse what is wrong with the options, whatever a script adds to them.

    Raises:
        UsageError: one of them is no such quantity; names the option.
        RequestError: an output file cannot be written.
    """
    check_said(said)
    output_options(place.cwd, said.options.get("stdout"), said.options.get("error"))


def _files(words: Mapping[str, str], cwd: str, called: str) -> JobOptions:
    """Of standard output and error."""
    if has_space(words) or "output" not in words:
        return output_options(cwd, words.get("stdout"), words.get("error"), called=called)
    if "stdout" in words:
        raise UsageError(
            "--stdout and --output both name the file of standard output without --scratch or "
            "--fast: write one of them"
        )
    return output_options(
        cwd, words["output"], words.get("error"), option="--output", called=called
    )


def names_files_by_name(said: Said) -> bool:
    """Whether the job's name is part of a file's name."""
    return any("%x" in said.options.get(name, "") for name in (*_FILES, "error"))


def _hints_of(said: Said) -> tuple[JobOptions, str]:
    """The hints in base units; where they make no sense none, and why."""
    from iodaemon.hint import DROPPED, check_hint, parse_operations, parse_rate, parse_share

    dashes = "" if said.where else "--"
    values: dict[str, float] = {}
    parsers = zip(HINTS, (parse_rate, parse_share, parse_operations), strict=True)
    try:
        for word, parse in parsers:
            if word in said.hints:
                values[word] = _parsed(parse, said.hints[word], f"{dashes}{word}")
        rate, share, operations = (values.get(word) for word in HINTS)
        names = (f"{dashes}io-rate", f"{dashes}io-share", f"{dashes}io-ops")
        check_hint(rate=rate, share=share, operations=operations, names=names)
    except ConfigError as error:
        where = f"{said.where}: " if said.where else ""
        return JobOptions(), f"{where}{error}; {DROPPED}"
    hints = JobOptions()
    if rate is not None:
        hints["io_rate_bytes_per_s"] = rate
    if share is not None:
        hints["io_share"] = share
    if operations is not None:
        hints["io_operations_per_s"] = operations
    return hints, ""


def _parsed(parse: Callable[[str], float], text: str, name: str) -> float:
    try:
        return parse(text)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error


class Scripts:
    """What the scripts among commands say; each is read once.

    Attributes:
        warnings: one line on each thing that they say in vain.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._said: dict[Script, Said] = {}
        self.warnings: dict[str, None] = {}

    def said(self, words: Sequence[str]) -> Said:
        """What the script of this command says; nothing where it is none.

        Raises:
            UsageError: one of its lines means nothing; names it.
        """
        script = script_of(words)
        if script not in self._said:
            self._said[script] = self._read(script)
        return self._said[script]

    def _read(self, script: Script) -> Said:
        head = _read_head(self._find(script)) if script.word else ""
        if script.is_program and not head.startswith("#!"):
            return NOTHING
        return self.read(head, script.word)

    def read(self, head: str, shown: str) -> Said:
        """What a script says that begins so.

        Raises:
            UsageError: one of its lines means nothing; names it.
        """
        if MARK not in head and sbatch.MARK not in head:
            return NOTHING
        lines = list(enumerate(head.splitlines(), start=1))
        first = next((at for at, (_, line) in enumerate(lines) if _is_command(line)), len(lines))
        self._warn_of_late(lines[first:], shown)
        directives = sbatch.read_directives(lines[:first], shown)
        if directives.told:
            self.warnings[directives.told] = None
        return merge(parse_lines(lines[:first], shown), Said(directives.words))

    def _warn_of_late(self, lines: Sequence[tuple[int, str]], shown: str) -> None:
        """Say which lines for us stand below the first command, the first of these lines."""
        for mark, is_ours in ((MARK, is_said), (sbatch.MARK, sbatch.is_directive)):
            late = [number for number, line in lines if is_ours(line)]
            if late:
                many = f", nor are {len(late) - 1} more" if len(late) > 1 else ""
                self.warnings[
                    f"{shown}:{late[0]}: {mark} below the first command (line {lines[0][0]}) is "
                    f"not read{many}: move it up"
                ] = None

    def _find(self, script: Script) -> str:
        """Its path; a program without a path is looked for in PATH."""
        cwd, name = self._place.cwd, script.word
        if not script.is_program or "/" in name:
            return os.path.join(cwd, name)
        folders = self._place.environment.get("PATH", os.defpath).split(os.pathsep)
        candidates = (os.path.join(cwd, folder, name) for folder in folders)
        return next((path for path in candidates if os.access(path, os.X_OK)), "")


def _read_head(path: str) -> str:
    """The beginning of a file; empty where it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(_MOST_BYTES).decode(errors="replace")
    except (OSError, ValueError):
        return ""


def _is_command(line: str) -> bool:
    """True for what is neither blank nor a comment: a docstring is one too."""
    return bool(line.strip()) and not line.lstrip().startswith("#")


def moved_to(folder: str, command: Sequence[str], place: Place) -> tuple[Place, list[str]]:
    """Where a job runs that asks for this directory, and its command as seen from there.

    Raises:
        RequestError: the directory is missing or may not be entered.
    """
    there = place.moved(folder)
    script = script_of(command)
    path = os.path.join(place.cwd, script.word)
    is_here = bool(script.word) and (not script.is_program or "/" in script.word)
    if not is_here or not os.path.exists(path):
        return there, list(command)
    at = list(command).index(script.word)
    return there, [*command[:at], path, *command[at + 1 :]]
