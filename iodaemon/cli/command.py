"""Verbs, and the plain command lines: those that need no typer.

A verb is a function whose parameters carry their options (``option``). ``parse`` reads a command
line in which all is as declared; help, errors and whatever else is typer's (``typer_app``), which
takes 40 of the 60 ms that a verb may take to load.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple, TypeAlias, TypeVar, get_type_hints

from iodaemon.cli.session import Session

Function = TypeVar("Function", bound=Callable[..., int])

OFF: Final = False
"""A switch that was not given."""
Word: TypeAlias = str | None
Words: TypeAlias = list[str] | None


class Parameter(NamedTuple):
    """What may be typed.

    Attributes:
        name: of the function's parameter.
        typed: an option's names; empty: it is a word that is no option.
        metavar: what the help calls its value; empty: it is a switch.
        text: what the help says.
        is_many: it may be repeated; its value is a list.
    """

    name: str
    typed: tuple[str, ...]
    metavar: str
    text: str = ""
    is_many: bool = False

    @property
    def is_switch(self) -> bool:
        return not self.metavar


def option(*typed: str, metavar: str = "", text: str) -> Parameter:
    """An option of these names."""
    return Parameter(typed[-1].lstrip("-").replace("-", "_"), typed, metavar, text)


def argument(metavar: str) -> Parameter:
    """A word that is no option; the verb's own text explains it."""
    return Parameter(metavar.lower(), (), metavar)


class Verb(NamedTuple):
    """A function that does what is asked; it returns the exit code.

    Attributes:
        function: takes its words by name, and the ``session`` where it needs one.
        options: further ones than its parameters carry.
        takes_command: the first word that is no option begins somebody else's command line.
    """

    function: Callable[..., int]
    options: tuple[Parameter, ...] = ()
    takes_command: bool = False

    @property
    def parameters(self) -> list[Parameter]:
        """What it takes, in the order of its help."""
        carried = (
            declared._replace(name=name, is_many=hint.__origin__ == Words)
            for name, hint in get_type_hints(self.function, include_extras=True).items()
            for declared in getattr(hint, "__metadata__", ())
        )
        return [*self.options, *carried]

    def call(self, session: Session, values: Mapping[str, Any]) -> int:
        context = {"session": session} if "session" in self.function.__annotations__ else {}
        return int(self.function(**context, **values) or 0)


class App:
    """Verbs by name; one may have verbs of its own, such as ``iod policy show``.

    Args:
        help: what it does, in a line; empty: it is no verb itself.
    """

    def __init__(self, help: str = "") -> None:  # noqa: A002 - as typer has it
        self.help = help
        self.verbs: dict[str, Verb | App] = {}


def verb(
    app: App, name: str, options: tuple[Parameter, ...] = (), *, takes_command: bool = False
) -> Callable[[Function], Function]:
    """Decorate a function that is a verb; the arguments are those of ``Verb``."""

    def register(function: Function) -> Function:
        app.verbs[name] = Verb(function, options, takes_command)
        return function

    return register


def parse(
    parameters: Sequence[Parameter], words: Sequence[str], *, takes_command: bool = False
) -> tuple[dict[str, Any], list[str]] | None:
    """The values of the options that are given, and the words that are no options.

    None: a word is not as declared, or a value begins like an option.
    """
    options = {typed: each for each in parameters for typed in each.typed}
    values: dict[str, Any] = {}
    arguments: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--":
            return values, arguments + rest
        if not word.startswith("-") or word == "-":
            if takes_command:
                return values, [word, *rest]
            arguments.append(word)
            continue
        name, equals, value = word.partition("=")
        if not word.startswith("--") and len(word) > 2 and word[:2] in options:
            name, equals, value = word[:2], "=", word[2:]
        parameter = options.get(name)
        if parameter is None or (equals and parameter.is_switch):
            return None
        if parameter.is_switch:
            values[parameter.name] = True
            continue
        if not equals:
            if not rest or rest[0].startswith("-"):
                return None
            value = rest.pop(0)
        if parameter.is_many:
            values.setdefault(parameter.name, []).append(value)
        else:
            values[parameter.name] = value
    return values, arguments


def read(found: Verb, words: Sequence[str]) -> dict[str, Any] | None:
    """The arguments to call the verb with; None: the words are not plain."""
    parameters = found.parameters
    parsed = parse(parameters, words, takes_command=found.takes_command)
    if parsed is None:
        return None
    values, rest = parsed
    for parameter in parameters:
        if not parameter.typed and rest:
            values[parameter.name] = rest if parameter.is_many else rest[0]
            rest = [] if parameter.is_many else rest[1:]
    return None if rest else values


_NAMED: Final = option("-J", "--name", metavar="GLOB", text="Only such names: sim-*.")
_OF_USER: Final = option("-u", "--user", metavar="USER", text="Only this user's; or me.")
_IN_STATE: Final = option("-s", "--state", metavar="STATE", text="Only these: RUNNING, SI, r,pd.")
Named = Annotated[Word, _NAMED]
OfUser = Annotated[Word, _OF_USER]
AsJson = Annotated[bool, option("--json", text="The API's JSON.")]
NoHeader = Annotated[bool, option("--no-header", text="Print only the rows.")]

SELECTED: Final = (
    argument("JOB")._replace(name="jobs", is_many=True),
    _NAMED,
    _OF_USER,
    _IN_STATE._replace(is_many=True),
)
"""What a verb selects jobs by, for ``selector.parse_selectors``."""
