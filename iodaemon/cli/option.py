"""How a verb declares its words: a type carries an option's names and help, the verb lists them.

Every value is a word or a switch; the verb itself reads what the word says.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

import typer

OFF: Final = False
"""A switch that was not given."""

Word: TypeAlias = str | None
Words: TypeAlias = list[str] | None


def option(*names: str, metavar: str | None = None, text: str) -> Any:
    """An option with a value, or a switch where the type is bool.

    Args:
        names: as they are typed.
        metavar: what the help calls its value.
        text: what the help says.
    """
    return typer.Option(*names, metavar=metavar, help=text)


def argument(metavar: str) -> Any:
    """A word that is no option; the verb's own text explains it."""
    return typer.Argument(metavar=metavar, hidden=True)


Named = Annotated[Word, option("-J", "--name", metavar="GLOB", text="Only such names: sim-*.")]
OfUser = Annotated[Word, option("-u", "--user", metavar="USER", text="Only this user's; or me.")]
InState = Annotated[
    Words, option("-s", "--state", metavar="STATE", text="Only these: RUNNING, SI, r,pd.")
]
"""What a verb that takes jobs selects them by, beside or in place of their numbers."""
Jobs = Annotated[Words, argument("JOB")]
AsJson = Annotated[bool, option("--json", text="The API's JSON.")]
