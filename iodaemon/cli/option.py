"""How a verb declares its words: a type carries an option's names and help, the verb lists them.

Every value is a word or a switch; the verb itself reads what the word says.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple, TypeAlias

OFF: Final = False
"""A switch that was not given."""

Word: TypeAlias = str | None
Words: TypeAlias = list[str] | None


class Option(NamedTuple):
    """An option with a value, or a switch where the type is bool.

    Attributes:
        names: as they are typed.
        metavar: what the help calls its value.
        text: what the help says.
    """

    names: tuple[str, ...]
    metavar: str | None
    text: str


class Argument(NamedTuple):
    """A word that is no option; the verb's own text explains it."""

    metavar: str


def option(*names: str, metavar: str | None = None, text: str) -> Option:
    """An option of these names."""
    return Option(names, metavar, text)


def argument(metavar: str) -> Argument:
    """A word that is no option."""
    return Argument(metavar)


Named = Annotated[Word, option("-J", "--name", metavar="GLOB", text="Only such names: sim-*.")]
OfUser = Annotated[Word, option("-u", "--user", metavar="USER", text="Only this user's; or me.")]
InState = Annotated[
    Words, option("-s", "--state", metavar="STATE", text="Only these: RUNNING, SI, r,pd.")
]
"""What a verb that takes jobs selects them by, beside or in place of their numbers."""
Jobs = Annotated[Words, argument("JOB")]
AsJson = Annotated[bool, option("--json", text="The API's JSON.")]
