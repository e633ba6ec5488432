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


class Context(NamedTuple):
    """What a verb is called with."""

    obj: Session


class Verb(NamedTuple):
    """A function that does what is asked; it returns the exit code.

    Attributes:
        function: takes its words, and a ``Context`` as ``ctx`` where it needs one.
        takes_command: the first word that is no option begins somebody else's command line.
        options: further ones, which the function takes by their names.
    """

    function: Callable[..., int]
    takes_command: bool = False
    options: tuple[Parameter, ...] = ()

    def call(self, session: Session, values: Mapping[str, Any]) -> int:
        """Do it; the exit code."""
        context = {"ctx": Context(session)} if "ctx" in self.function.__annotations__ else {}
        return int(self.function(**context, **values) or 0)


class App:
    """Verbs by name; one may have verbs of its own, such as ``iod policy show``.

    Args:
        help: what it does, in a line; empty: it is no verb itself.
    """

    def __init__(self, help: str = "") -> None:  # noqa: A002 - as typer has it
        self.help = help
        self.verbs: dict[str, Verb | App] = {}

    def find(self, words: Sequence[str]) -> tuple[Verb, Sequence[str]] | None:
        """The verb that these words begin with, and its words; None: typer will say what is."""
        found = self.verbs.get(words[0]) if words else None
        return found.find(words[1:]) if isinstance(found, App) else found and (found, words[1:])


def verb(
    app: App, name: str, *, takes_command: bool = False, options: tuple[Parameter, ...] = ()
) -> Callable[[Function], Function]:
    """Decorate a function that is a verb; it returns the exit code.

    Args:
        takes_command: the first word that is no option begins somebody else's command line.
        options: further ones, which the function takes by their names.
    """

    def register(function: Function) -> Function:
        app.verbs[name] = Verb(function, takes_command, options)
        return function

    return register


class Parameter(NamedTuple):
    """One parameter of a verb.

    Attributes:
        is_switch: an option without a value.
        is_many: it may be repeated; its value is a list.
    """

    name: str
    declared: Option | Argument
    is_switch: bool = False
    is_many: bool = False


def parameters_of(found_verb: Verb) -> list[Parameter]:
    """What a verb takes, in the order of its help."""
    found = list(found_verb.options)
    for name, hint in get_type_hints(found_verb.function, include_extras=True).items():
        for declared in getattr(hint, "__metadata__", ()):
            kind = hint.__origin__
            found.append(Parameter(name, declared, is_switch=kind is bool, is_many=kind == Words))
    return found


def parse(
    parameters: Sequence[Parameter], words: Sequence[str], *, takes_command: bool = False
) -> tuple[dict[str, Any], list[str]] | None:
    """The values of the parameters that are given, and the words that are no options.

    None: a word is not as declared, or a value begins like an option.
    """
    options = {
        name: each
        for each in parameters
        if isinstance(each.declared, Option)
        for name in each.declared.names
    }
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
    parameters = parameters_of(found)
    parsed = parse(parameters, words, takes_command=found.takes_command)
    if parsed is None:
        return None
    values, rest = parsed
    for parameter in parameters:
        if isinstance(parameter.declared, Argument) and rest:
            values[parameter.name] = rest if parameter.is_many else rest[0]
            rest = [] if parameter.is_many else rest[1:]
    return None if rest else values


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


_NAMED: Final = option("-J", "--name", metavar="GLOB", text="Only such names: sim-*.")
_OF_USER: Final = option("-u", "--user", metavar="USER", text="Only this user's; or me.")
Named = Annotated[Word, _NAMED]
OfUser = Annotated[Word, _OF_USER]
Jobs = Annotated[Words, argument("JOB")]
AsJson = Annotated[bool, option("--json", text="The API's JSON.")]
NoHeader = Annotated[bool, option("--no-header", text="Print only the rows.")]


SELECTED: Final = (
    Parameter("jobs", argument("JOB"), is_many=True),
    Parameter("name", _NAMED),
    Parameter("user", _OF_USER),
    Parameter(
        "state",
        option("-s", "--state", metavar="STATE", text="Only these: RUNNING, SI, r,pd."),
        is_many=True,
    ),
)
"""What a verb selects jobs by, for ``selector.parse_selectors``."""
