"""``#SBATCH`` lines of a script: what Slurm's sbatch would read, as far as it has a meaning here.

An option is honoured, or told, or refused; none is passed over in silence:

- honoured: what means the same on one machine (``--ntasks``, ``--time``, ``--output``, ...);
- refused: what would make another job of it (``--array``, ``--dependency``, more than one node);
- told: all others; the job runs without them.

Source: sbatch(1).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from iodaemon.cli.failure import UsageError, count
from iodaemon.cli.request import parse_limits

MARK: Final = "#SBATCH"

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
    "nodes": "jobs run on this one machine: write --nodes=1",
}
_MEANT: Final = frozenset({("export", "ALL"), ("open-mode", "append"), ("no-requeue", "")})
"""What is done here in any case."""
_NO_LIMIT: Final = frozenset({"0", "infinite", "unlimited"})
_MEMORY: Final = re.compile(r"(\d+)([KMGT]?)B?", re.IGNORECASE)


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
    return line.startswith(MARK) and line[len(MARK) :][:1].isspace()


def read_directives(lines: Iterable[tuple[int, str]], shown: str) -> Directives:
    """What the ``#SBATCH`` lines among these say together; of one option the last counts.

    Args:
        lines: with their numbers.

    Raises:
        UsageError: one is refused, or has a value that means nothing; names the line.
    """
    from iodaemon.cli.commands import split_words

    found: dict[str, str] = {}
    ignored: dict[str, None] = {}
    first = 0
    for number, line in lines:
        if not is_directive(line):
            continue
        try:
            for option, value in _options(split_words(line[len(MARK) :])):
                if _is_honoured(option, value):
                    found[option] = value
                elif (option, value) not in _MEANT:
                    first = first or number
                    ignored[f"--{option}"] = None
            words = _words(found)
            parse_limits(cpus=words.get("cpus"), mem=words.get("mem"), time=words.get("time"))
        except (ValueError, UsageError) as error:
            raise UsageError(f"{shown}:{number}: {MARK}: {error}") from error
    told = ""
    if ignored:
        told = f"{shown}:{first}: {MARK} {' '.join(ignored)} without effect here"
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
    """Whether it has a meaning here.

    Raises:
        UsageError: it would make another job of this one.
    """
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
