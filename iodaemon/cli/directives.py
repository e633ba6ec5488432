"""What is said of a job besides its command: by options, and by lines of its script.

    #!/bin/sh
    #IOD name=solver cpus=4 time=90m
    #IOD io=40M,20%

An ``#IOD`` line has the options of ``iod submit`` by their long names, with or without dashes;
``io`` is ``io-rate`` and, behind a comma, ``io-share``. What an option says goes before what a
script says; so does one of ``stdout`` and ``output`` before the other where both name one file.

``#SBATCH`` lines, what Slurm's sbatch would read (sbatch(1)), are read as far as they mean
something here; what an ``#IOD`` line says goes before them. No option is passed over in silence:
what means the same on one machine is honoured, what would make another job of it is refused, and
all others are told. Lines below the first command are not read, which is told.

Space: ``--fast`` leaves the choice of the tier to the admission rule. The size of what is copied in
is measured here and now, with the submitter's own rights. ``--output`` is the directory that the
space is copied to; for a job without space, the file of its standard output, as ``--stdout``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from iodaemon.api.model import JobOptions, ScratchOptions
from iodaemon.cli.command import option
from iodaemon.cli.failure import UsageError, count, nearest, size_bytes
from iodaemon.cli.request import Place, above_nothing, absolute, output_options, parse_limits
from iodaemon.core.program import Script, script_of
from iodaemon.errors import ConfigError, RequestError

MARK: Final = "#IOD"
OPTIONS: Final = (
    option("-J", "--name", metavar="NAME", text="Shown in the queue."),
    option(
        "-n",
        "--cpus",
        metavar="N",
        text="CPUs that no other such job gets, all of one socket [none: it runs on the idle "
        "CPUs of its socket, also on those of such jobs].",
    ),
    option("--mem", metavar="SIZE", text="Memory limit: 16G; bare number: MiB."),
    option(
        "-t",
        "--time",
        metavar="TIME",
        text="Longest run time, suspensions not counted: 90m, HH:MM:SS; bare number: minutes.",
    ),
    option(
        "--io-rate", metavar="RATE", text="Its rate while it does I/O: 40 MB/s; bare number: MB/s."
    ),
    option("--io-share", metavar="SHARE", text="Part of its run time in I/O: 0.2 or 20% [all]."),
    option("--io-ops", metavar="RATE", text="Requests a second while in I/O: 500 or 2k."),
    option("--no-suspend", text="The regulation never suspends it."),
    option(
        "--max-suspend",
        metavar="TIME",
        text="Longest suspension in a row by the regulation; bare number: minutes.",
    ),
    option("--requeue", text="Run it again if the machine is restarted while it runs."),
    option(
        "-o",
        "--stdout",
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
    option("--data-size", metavar="SIZE", text="Bytes that it moves there while it runs."),
    option("--hold", text="Hold it until 'iod resume'."),
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
    """
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
        if name.startswith("-"):
            raise UsageError(f"no option {name!r}: write NAME=VALUE, for example name=big time=5m")
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
    """Refuse what means nothing; the I/O is judged later, and refuses no job."""
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
    """Refuse what is wrong with the options, whatever a script adds to them."""
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
        """What the script of this command says; nothing where it is none."""
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
        """What a script says that begins so."""
        if MARK not in head and SBATCH_MARK not in head:
            return NOTHING
        lines = list(enumerate(head.splitlines(), start=1))
        first = next((at for at, (_, line) in enumerate(lines) if _is_command(line)), len(lines))
        self._warn_of_late(lines[first:], shown)
        directives = read_directives(lines[:first], shown)
        if directives.told:
            self.warnings[directives.told] = None
        return merge(parse_lines(lines[:first], shown), Said(directives.words))

    def _warn_of_late(self, lines: Sequence[tuple[int, str]], shown: str) -> None:
        """Say which lines for us stand below the first command, the first of these lines."""
        for mark, is_ours in ((MARK, is_said), (SBATCH_MARK, is_directive)):
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
    """Where a job runs that asks for this directory, and its command as seen from there."""
    there = place.moved(folder)
    script = script_of(command)
    path = os.path.join(place.cwd, script.word)
    is_here = bool(script.word) and (not script.is_program or "/" in script.word)
    if not is_here or not os.path.exists(path):
        return there, list(command)
    at = list(command).index(script.word)
    return there, [*command[:at], path, *command[at + 1 :]]


SBATCH_MARK: Final = "#SBATCH"

_LETTERS: Final[Mapping[str, str]] = {
    "a": "array",
    "c": "cpus-per-task",
    "d": "dependency",
    "D": "chdir",
    "e": "error",
    "H": "hold",
    "J": "job-name",
    "n": "ntasks",
    "N": "nodes",
    "o": "output",
    "t": "time",
    "A": "account",
    "b": "begin",
    "B": "extra-node-info",
    "C": "constraint",
    "F": "nodefile",
    "G": "gpus",
    "i": "input",
    "L": "licenses",
    "M": "clusters",
    "p": "partition",
    "q": "qos",
    "S": "core-spec",
    "w": "nodelist",
    "x": "exclude",
}
"""Short options with a value, and ``-H``."""
_SAME: Final[Mapping[str, str]] = {
    "job-name": "name",
    "time": "time",
    "output": "stdout",
    "error": "error",
    "chdir": "chdir",
}
"""Options that only have another name here."""
_COUNTS: Final = ("ntasks", "cpus-per-task", "ntasks-per-node")
_SWITCHES: Final = frozenset({"requeue", "hold"})
_FLAGS: Final = frozenset(
    {"hold", "requeue", "no-requeue", "exclusive", "parsable", "quiet", "verbose", "wait"}
    | {"overcommit", "oversubscribe", "contiguous", "reboot", "spread-job", "use-min-nodes"}
    | {"ignore-pbs", "test-only", "get-user-env", "kill-on-invalid-dep", "propagate"}
)
"""Options that need no value; one may follow behind an equals sign."""
_REFUSED: Final[Mapping[str, str]] = {
    "array": "there are no job arrays: submit one command a line with --from",
    "dependency": "a job cannot wait for another one: 'iod wait ID && iod submit ...'",
    "begin": "a job cannot wait for a time: submit it then, or --hold it and 'iod resume' it",
    "nodes": "jobs run on this one machine: leave it out",
}
_MEANT: Final = frozenset({("export", "ALL"), ("open-mode", "append"), ("no-requeue", "")})
"""What is done here in any case."""
_NO_LIMIT: Final = frozenset({"0", "infinite", "unlimited"})
_MEMORY: Final = re.compile(r"(\d+)([KMGT]?)B?", re.IGNORECASE)


def why_not(option: str) -> str:
    """Why there is nothing like this option of sbatch, and what to do; empty: there may be."""
    name = option.lstrip("-")
    return _REFUSED.get(_LETTERS.get(name, name), "")


class Directives(NamedTuple):
    """What the lines of one script come to.

    Attributes:
        words: options of 'iod submit' by their long names; a switch has an empty word.
        told: one line on all that is not honoured; empty: all of it is.
    """

    words: dict[str, str]
    told: str


def is_directive(line: str) -> bool:
    """True for a line that sbatch reads."""
    return line.startswith(SBATCH_MARK) and line[len(SBATCH_MARK) :][:1].isspace()


def read_directives(lines: Iterable[tuple[int, str]], shown: str) -> Directives:
    """What the ``#SBATCH`` lines among these say together; of one option the last counts.

    Args:
        lines: with their numbers.
    """
    found: dict[str, str] = {}
    ignored: dict[str, None] = {}
    first = 0
    for number, line in lines:
        if not is_directive(line):
            continue
        try:
            for option, value in _options(split_words(line[len(SBATCH_MARK) :])):
                if _is_honoured(option, value):
                    found[option] = value
                elif (option, value) not in _MEANT:
                    first = first or number
                    ignored[f"--{option}"] = None
            words = _words(found)
            parse_limits(cpus=words.get("cpus"), mem=words.get("mem"), time=words.get("time"))
        except (ValueError, UsageError) as error:
            raise UsageError(f"{shown}:{number}: {SBATCH_MARK}: {error}") from error
    told = ""
    if ignored:
        told = f"{shown}:{first}: {SBATCH_MARK} {' '.join(ignored)} without effect here"
    return Directives(_words(found), told)


def _options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Options by their long names, each with its value; behind a # is a comment."""
    rest = list(words)
    while rest and not rest[0].startswith("#"):
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if name.startswith("--"):
            name = name[2:]
        elif name.startswith("-") and (letter := word[1:2]) in _LETTERS:
            name, value = _LETTERS[letter], word[2:]
            equals = value
        else:
            name = name.lstrip("-")
        if not equals and name not in _FLAGS and rest and not rest[0].startswith("-"):
            value = rest.pop(0)
        yield name, value


def _is_honoured(option: str, value: str) -> bool:
    """Whether it has a meaning here."""
    if option in _REFUSED and not (option == "nodes" and value in ("1", "1-1")):
        raise UsageError(f"--{option}: {_REFUSED[option]}")
    return option in (*_SAME, *_COUNTS, *_SWITCHES, "nodes", "mem", "mem-per-cpu")


def _words(found: Mapping[str, str]) -> dict[str, str]:
    """The same in options of 'iod submit'."""
    words = {ours: found[name] for name, ours in _SAME.items() if name in found}
    if words.get("time", "").lower() in _NO_LIMIT:
        del words["time"]
    words |= {name: "" for name in _SWITCHES if name in found}
    counts = {
        name: count(f"--{name}", found[name], "tasks or CPUs", "4")
        for name in _COUNTS
        if name in found
    }
    tasks = counts.get("ntasks", counts.get("ntasks-per-node", 1))
    cpus = tasks * counts.get("cpus-per-task", 1)
    if counts:
        words["cpus"] = str(cpus)
    if "mem" in found:
        words |= _memory("mem", found["mem"], 1)
    elif "mem-per-cpu" in found:
        words |= _memory("mem-per-cpu", found["mem-per-cpu"], cpus)
    return words


def _memory(name: str, text: str, times: int) -> dict[str, str]:
    """Slurm's K, M, G and T are powers of 1024, also before a B; 0 is all there is: no limit."""
    size = _MEMORY.fullmatch(text)
    if size is None:
        raise UsageError(f"--{name}: {text!r} is no size; write for example --{name}=4G")
    amount = int(size[1]) * times
    return {"mem": f"{amount}{(size[2] or 'M').upper()}"} if amount else {}


SCRATCH_WORDS: Final = (
    *("scratch", "fast", "tier", "scratch-fallback", "input", "output-on"),
    *("output-size", "data-size"),
)
_FALLBACKS: Final = ("slow", "wait", "fail")
_WHEN: Final = ("success", "always")
_NOTHING_DONE: Final = "nothing was submitted"


def check_words(words: Mapping[str, str]) -> None:
    """Refuse what means nothing; nothing is looked at on any disk."""
    for name in ("scratch", "fast", "output-size", "data-size"):
        if name in words:
            _size(f"--{name}", words[name])
    for name, choices in (("scratch-fallback", _FALLBACKS), ("output-on", _WHEN)):
        if name in words and words[name] not in choices:
            hint = ", ".join(choices)
            raise UsageError(f"--{name}: no {words[name]!r}{nearest(words[name], choices, hint)}")
    if "scratch" in words and "fast" in words:
        raise UsageError("--scratch and --fast both ask for space: write one of them")
    if "fast" in words and "tier" in words:
        raise UsageError("--fast leaves the tier to iodaemon: write --scratch with --tier")


def scratch_options(words: Mapping[str, str], cwd: str) -> JobOptions:
    """What was said of space, in base units; nothing where nothing was.

    Args:
        words: by option, without dashes.
        cwd: where the job starts; paths are relative to it.
    """
    said = [name for name in SCRATCH_WORDS if name in words]
    if not said:
        return JobOptions()
    check_words(words)
    size = words.get("scratch", words.get("fast"))
    if size is None:
        raise UsageError(f"--{said[0]} needs space to go with: write --scratch SIZE or --fast SIZE")
    asked = ScratchOptions(size_bytes=_size("--scratch", size))
    if "tier" in words:
        asked["tier"] = words["tier"]
    if "scratch-fallback" in words:
        asked["fallback"] = words["scratch-fallback"]
    if "input" in words:
        asked["input_path"] = path = _path("--input", words["input"], cwd)
        asked["input_bytes"] = measure(path)
    if (results := results_path(words, cwd)) is not None:
        asked["output_path"] = results
    elif "output-on" in words:
        raise UsageError("--output-on needs a directory of results: write --output DIR")
    if "output-on" in words:
        asked["output_on"] = words["output-on"]
    if "output-size" in words:
        asked["output_bytes"] = _size("--output-size", words["output-size"])
    if "data-size" in words:
        asked["data_bytes"] = _size("--data-size", words["data-size"])
    return JobOptions(scratch=asked)


def has_space(words: Mapping[str, str]) -> bool:
    """Whether space is asked for: then ``--output`` is a directory."""
    return "fast" in words or "scratch" in words


def results_path(words: Mapping[str, str], cwd: str) -> str | None:
    """The directory that results are copied to; None: there is none, ``--output`` is a file."""
    text = words.get("output")
    if text is None or not has_space(words):
        return None
    if "%j" in text:
        raise UsageError(
            "--output: with --scratch or --fast it is a directory, in whose name %j is nothing; "
            "-o FILE names the file of standard output"
        )
    path = _path("--output", text, cwd)
    _check_output(path)
    return path


def _check_output(path: str) -> None:
    """Refuse where a directory could never be made: a file is there, or on the way."""
    place = path
    while not os.path.lexists(place) and place != "/":
        place = os.path.dirname(place)
    if os.path.lexists(place) and not os.path.isdir(place):
        raise RequestError(f"--output: {place} is no directory; {_NOTHING_DONE}")


def measure(path: str) -> int:
    """Add up the bytes of the files in a directory; links have none."""
    total, waiting = 0, [path]
    try:
        while waiting:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    elif entry.is_file(follow_symlinks=False):
                        total += entry.stat(follow_symlinks=False).st_size
    except OSError as error:
        where = error.filename or path
        raise RequestError(f"--input: {where}: {error.strerror}; {_NOTHING_DONE}") from error
    return total


def _path(option: str, text: str, cwd: str) -> str:
    if not text:
        raise UsageError(f"{option}: an empty path; name a directory")
    return absolute(cwd, text)


def _size(option: str, text: str) -> int:
    return int(above_nothing(option, text, size_bytes(option, text)))


_NEEDS_SHLEX: Final = frozenset("'\"\\")


def split_words(text: str) -> list[str]:
    """The words of a line. Most lines have no quotes, and shlex takes 20 times longer."""
    if _NEEDS_SHLEX.isdisjoint(text):
        return text.split()
    import shlex

    try:
        return shlex.split(text)
    except ValueError as error:
        raise ValueError(f"{str(error).lower()}, close it or write \\ before it") from error
