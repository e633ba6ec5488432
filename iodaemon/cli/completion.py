"""``iod completion``: what a shell needs to complete words; and the manual page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final

from iodaemon.cli.command import App, Word, argument, verb
from iodaemon.cli.failure import UsageError
from iodaemon.cli.program import COMPLETE

app = App()

SHELLS: Final = ("bash", "zsh", "fish")
INSTALLED: Final = {
    "bash": "/usr/local/share/bash-completion/completions/iod",
    "zsh": "/usr/local/share/zsh/site-functions/_iod",
    "fish": "/usr/local/share/fish/vendor_completions.d/iod.fish",
}
"""Where 'iod install' puts the completion of each shell."""
MANUAL: Final = "/usr/local/share/man/man1/iod.1"
_WIDTH: Final = 72
"""man(1) moves it to the right by 7, and 80 columns are to be enough."""


@verb(app, "completion")
def completion(shell: Annotated[Word, argument("SHELL")] = None) -> int:
    """Print the completion for a shell: bash, zsh, fish.

    'iod install' sets it up for all users. For yourself: 'iod completion bash >
    ~/.local/share/bash-completion/completions/iod'.
    """
    if shell not in SHELLS:
        raise UsageError(f"completion of which shell? Write one of: {', '.join(SHELLS)}")
    print(completion_script(shell), end="")
    return 0


def completion_script(shell: str) -> str:
    """What this shell reads."""
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    script: str = get_completion_script(prog_name="iod", complete_var=COMPLETE, shell=shell)
    return f"{script.strip()}\n"


def manual() -> str:
    """The manual page, in roff: the help of every verb."""
    from iodaemon import __version__
    from iodaemon.cli.typer_app import root

    lines = [
        f'.TH IOD 1 "" "iodaemon {__version__}" "User Commands"',
        ".SH NAME",
        r"iod \- I/O-aware batch jobs on one Linux server",
    ]
    for title, help_text in _helps(root(), "iod", None):
        lines += [f".SH {title.upper()}", ".nf", *map(_escaped, help_text.splitlines()), ".fi"]
    return "\n".join(lines) + "\n"


def _helps(command: Any, name: str, parent: Any) -> Iterator[tuple[str, str]]:
    """The help of a command and of all below it, each with its name."""
    settings = {**command.context_settings, "terminal_width": _WIDTH}
    short = name.rpartition(" ")[2]
    context = command.context_class(command, info_name=short, parent=parent, **settings)
    yield name, command.get_help(context)
    if hasattr(command, "list_commands"):
        for verb_name in command.list_commands(context):
            below = command.get_command(context, verb_name)
            yield from _helps(below, f"{name} {verb_name}", context)


def _escaped(line: str) -> str:
    text = line.replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{text}" if text.startswith((".", "'")) else text
