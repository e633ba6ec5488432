"""A line for a shell, taken apart into its simple commands, as far as that goes without a shell."""

from __future__ import annotations

import re
import shlex
from typing import Final

from iodaemon.core.launcher import is_variable, launcher_of, without_launchers

LONGEST: Final = 4096
"""Characters of a line that are looked at, its last ones."""
_CONTROL: Final = frozenset({"do", "then", "else", "elif", "if", "while", "until", "!", "{"})
"""Words of a shell before a command."""
NO_WORK: Final = frozenset(
    {"cd", "pushd", "popd", "set", "shopt", "export", "unset", "source", ".", "ulimit", "umask"}
    | {"module", "ml", "spack", "conda", "mamba", "alias", "declare", "local", "readonly", "read"}
    | {"for", "case", "esac", "done", "fi", "}", "trap", "wait", "exit", "return", "shift", "kill"}
    | {"echo", "printf", "test", "[", "[[", "true", "false", ":", "date", "sleep", "mkdir"}
)
"""What begins a command that is not what the line is for."""
LITTLE_WORK: Final = frozenset(
    {"tee", "grep", "head", "tail", "sed", "awk", "cut", "wc", "less", "cat", "rm", "mv", "cp"}
    | {"ls", "touch", "chmod", "ln", "sync", "mail", "gzip", "xz", "zstd", "sort", "uniq"}
)
"""What goes before or after the work, or takes its output; the work where there is nothing else."""
_SUBSTITUTION: Final = re.compile(r"\$\(\([^()]*\)\)|\$\([^()]*\)|`[^`]*`|\$\{[^{}]*\}")
_SIGNS: Final = ";&|()<>\n"
_APART: Final = re.compile(r"[;&|()\n]+")


def simple_commands(line: str) -> list[list[str]]:
    """The words of each, without control words, assignments and redirections; none is empty.

    Launchers are left out as well, and a command that is nothing else.
    """
    commands: list[list[str]] = [[]]
    is_target = False
    for word in _words(_SUBSTITUTION.sub("$", line[-LONGEST:])):
        is_sign = word != "" and not word.strip(_SIGNS)
        if is_sign:
            is_target = "<" in word or ">" in word
            if not is_target or _APART.search(word.replace("&", "")):
                commands.append([])
        elif is_target:
            is_target = False
        elif commands[-1] or word not in _CONTROL:
            commands[-1].append(word)
    found = [list(without_launchers(words)) for words in commands]
    return [words for words in found if words and words[0] and not _is_nothing(words[0])]


def _is_nothing(word: str) -> bool:
    """Whether what begins so is a launcher without a command, or assignments alone."""
    return is_variable(word) or launcher_of(word) is not None


def _words(line: str) -> list[str]:
    """As a shell takes them apart; where quotes do not match by blanks and signs alone."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=_SIGNS)
    lexer.whitespace = " \t\r"
    lexer.commenters = ""
    lexer.whitespace_split = True
    try:
        return list(lexer)
    except ValueError:
        return [word for word in re.split(rf"\s+|([{re.escape(_SIGNS)}]+)", line) if word]
