"""The verbs over typer, for help and for what is typed otherwise than declared.

Typer 0.29 loads pydantic to convert the value of the first option it meets: 57 of the 137 ms that
its smallest program takes. The verbs take words and switches alone and convert them themselves,
with errors that say what to write instead; so the words can pass as they were typed.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Annotated, Any, Final, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from iodaemon.cli.command import App, Parameter, Verb, Word, Words
from iodaemon.cli.directives import why_not
from iodaemon.cli.failure import UsageError, find_near, nearest
from iodaemon.cli.program import GLOBALS, GROUPS, POINTERS, VERBS, begin, find_top
from iodaemon.cli.session import Session

_SETTINGS: Final = {"help_option_names": ["-h", "--help"]}
Complaint: Final[Any] = next(
    each for each in typer.BadParameter.__mro__ if each.__name__ == "ClickException"
)
"""About a command line. Typer 0.29 brings its own copy of click, older ones use click itself."""


class AsTyped:
    """Stands in for typer's own conversion: every word stays the string it was."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:  # noqa: ARG002 - typer's signature
        """The value itself; for a parameter that may be repeated, a list of words."""
        is_many = param.multiple or param.nargs == -1
        return list(value or ()) if is_many else value


_AS_TYPED: Final = AsTyped()


def keep_words(params: Iterable[Any]) -> list[Any]:
    """The same parameters, to pass values as typed; nothing to do where typer loads no pydantic."""
    kept = list(params)
    for param in kept:
        if hasattr(param, "get_runtime_param"):
            param.get_runtime_param = lambda: _AS_TYPED
    return kept


class WordCommand(TyperCommand):
    """A verb whose parameters are words and switches."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, --help among them; their values stay as typed."""
        return keep_words(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words; a complaint about one says of which verb it was."""
        try:
            return list(super().parse_args(ctx, args))
        except Complaint as error:
            if getattr(error, "ctx", None) is None:
                vars(error)["ctx"] = ctx
            raise


class WordGroup(TyperGroup):
    """A verb with verbs of its own, such as ``iod policy show``.

    Attributes:
        pointers: what to type in place of words that are no verbs.
    """

    pointers: Mapping[str, str] = MappingProxyType({})

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, --help among them; their values stay as typed."""
        return keep_words(super().get_params(ctx))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The verb that the first word names; else the nearest one is named."""
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            hint = f"'{ctx.command_path} --help' lists them"
            word = find_near(args[0], [*self.list_commands(ctx), *self.pointers])
            pointer = self.pointers.get(args[0]) or self.pointers.get(word or "")
            near = nearest(args[0], self.list_commands(ctx), hint)
            ctx.fail(f"no verb {args[0]!r}{f': {pointer}' if pointer else near}")
        return super().resolve_command(ctx, args)


def typer_of(app: App, cls: type[TyperGroup] = WordGroup) -> typer.Typer:
    """The app with all its verbs, with plain help (no rich, no boxes)."""
    made = typer.Typer(
        cls=cls,
        add_completion=False,
        rich_markup_mode=None,
        subcommand_metavar="VERB [ARGS]...",
        context_settings=dict(_SETTINGS),
        help=app.help or None,
    )
    for name, each in app.verbs.items():
        if isinstance(each, App):
            made.add_typer(typer_of(each), name=name)
            continue
        settings: dict[str, Any] = dict(_SETTINGS)
        if each.takes_command:
            settings["allow_interspersed_args"] = False
        made.command(name, cls=WordCommand, context_settings=settings)(_callback(each))
    return made


def command_of(name: str, found: Verb | App) -> Any:
    """Typer's command for this verb."""
    app = App()
    app.verbs[name] = found
    return get_group(typer_of(app)).get_command(None, name)  # type: ignore[arg-type]


def _callback(found: Verb) -> Callable[..., int]:
    def call(ctx: Any, **values: Any) -> int:
        return found.call(ctx.obj, values)

    _dress(call, found.parameters, found.function)
    return call


def _dress(
    call: Callable[..., Any], parameters: Sequence[Parameter], described: Callable[..., Any]
) -> None:
    """Give a function the signature from which typer makes its command."""
    kind = inspect.Parameter.KEYWORD_ONLY
    signature = [inspect.Parameter("ctx", kind, annotation=typer.Context)]
    for each in parameters:
        value: Any = bool if each.is_switch else Words if each.is_many else Word
        default = False if each.is_switch else None
        annotation = Annotated[value, _declared(each)]
        signature.append(inspect.Parameter(each.name, kind, default=default, annotation=annotation))
    vars(call)["__signature__"] = inspect.Signature(signature)
    call.__annotations__ = {}
    call.__name__, call.__doc__ = described.__name__, described.__doc__


def _declared(each: Parameter) -> Any:
    def offer(incomplete: str) -> list[str]:
        before = incomplete[: incomplete.rfind(",") + 1]  # of several in one word
        values = _values_of(each.metavar)
        if incomplete[len(before) :].islower():
            values = map(str.lower, values)  # of states either is taken
        return [before + value for value in values]

    shown: dict[str, Any] = {"metavar": each.metavar or None, "autocompletion": offer}
    if each.typed:
        return typer.Option(*each.typed, help=each.text, **shown)
    return typer.Argument(hidden=True, **shown)


def _values_of(metavar: str) -> Iterable[str]:
    """What a value may be that the help calls so; nothing where it may be anything."""
    match metavar:
        case "STATE":
            from iodaemon.api.model import STATE_CODES

            return STATE_CODES
        case "JOB":
            return ("last", "all")
        case "USER":
            return ("me",)
        case "KIND":
            from iodaemon.cli.history import KINDS

            return KINDS
        case "SHELL":
            from iodaemon.cli.completion import SHELLS

            return SHELLS
        case "POLICY|FILE":
            from iodaemon.config import find_policies, policy_search

            return find_policies(policy_search(os.environ))
        case _:
            return metavar.split("|") if "|" in metavar and metavar.islower() else ()


class VerbGroup(WordGroup):
    """All verbs; one is imported when it is asked for."""

    pointers = POINTERS

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - click's signature
        """All verbs that are shown, in the order of the help."""
        return [name for name in VERBS if name not in GROUPS[""]]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - click's signature
        """The verb of this name, or None."""
        found = find_top(cmd_name)
        return None if found is None else command_of(cmd_name, found)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The verbs in groups."""
        width = max(map(len, VERBS))
        for title, verbs in GROUPS.items():
            if not title:
                continue
            commands = [(name, self.get_command(ctx, name)) for name in verbs]
            rows = [
                (name.ljust(width), command.get_short_help_str(formatter.width - 6 - width))
                for name, command in commands
            ]
            with formatter.section(title):
                formatter.write_dl(rows)


def root() -> Any:
    """Typer's command for ``iod``."""
    made = typer_of(App("I/O-aware batch jobs on one Linux server."), VerbGroup)

    def call(ctx: Any, **values: Any) -> None:
        begin(ctx.obj, **values)

    _dress(call, GLOBALS, begin)
    made.callback()(call)
    return get_group(made)


def complete(session: Session) -> NoReturn:
    """Print the words that a shell may go on with, as typer's scripts ask for them."""
    from typer.completion import completion_init  # type: ignore[attr-defined]

    if "COMP_CWORD" in os.environ:
        _join_equals()
    completion_init()
    _keep_help()
    try:
        root().main(prog_name="iod", obj=session)
    except Complaint as error:  # of a line that is wrong already nothing is offered
        raise SystemExit from error
    raise SystemExit


def _keep_help() -> None:
    """Have typer 0.29 offer its help as it is: where rich is installed it takes ``[...]`` for
    markup, and for zsh it doubles an apostrophe between apostrophes, which leaves none.
    """
    from typer import _completion_classes as shells

    vars(shells)["_sanitize_help_text"] = lambda text: text.replace("''", "'\\''")


def _join_equals() -> None:
    """Make ``--option = value``, as bash has it, what typer reads: ``--option value``."""
    words, at = os.environ["COMP_WORDS"].split("\n"), int(os.environ["COMP_CWORD"])
    is_sign = [word == "=" and before[:2] == "--" for before, word in pairwise(["", *words])]
    kept = [word for word, sign in zip(words, is_sign, strict=True) if not sign]
    os.environ["COMP_WORDS"] = "\n".join(kept)
    os.environ["COMP_CWORD"] = str(at - sum(is_sign[:at]))


def run_by_typer(words: list[str], session: Session) -> int:
    """Run a command line; its exit code.

    Raises:
        KeyboardInterrupt: as typer's ``Abort``.
        UsageError: as typer's complaint, in our words.
    """
    command = root()
    try:
        with command.make_context("iod", words, obj=session) as ctx:
            return int(command.invoke(ctx) or 0)
    except typer.Exit as end:
        return end.exit_code
    except typer.Abort as end:
        raise KeyboardInterrupt from end
    except Complaint as error:
        raise UsageError(_usage_line(error)) from error


def _usage_line(error: Any) -> str:
    path = error.ctx.command_path if getattr(error, "ctx", None) else "iod"
    if hasattr(error, "possibilities"):
        return _unknown_option(error, path)
    text: str = error.format_message().rstrip(".")
    if text.startswith(("no verb", "No verb")):
        return text
    if text == "Missing command":
        return f"no verb given: '{path} --help' lists them"
    text = text[:1].lower() + text[1:]
    return f"{text}: '{path} --help' shows how"


def _unknown_option(error: Any, path: str) -> str:
    name: str = error.option_name
    if error.ctx is None:
        return f"no option {name}: '{path} --help' lists them"
    if path == "iod submit" and (why := why_not(name)):
        return f"no option {name}: {why}"
    if name in _options(error.ctx.find_root()):
        return f"{name} goes before the verb, as in 'iod {name} ... {path.partition(' ')[2]}'"
    hint = f"'{path} --help' lists them"
    return f"no option {name} in '{path}'{nearest(name, _options(error.ctx), hint)}"


def _options(ctx: Any) -> list[str]:
    params = ctx.command.get_params(ctx)
    return [opt for param in params for opt in param.opts if opt.startswith("--")]
