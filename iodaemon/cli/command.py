"""What every verb is made of: a typer app that starts fast and prints plain help.

Typer 0.29 loads pydantic to convert the value of the first option it meets: 57 of the 137 ms that
its smallest program takes. The verbs take words and switches alone and convert them themselves,
with errors that say what to write instead; so the words can pass as they were typed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from iodaemon.cli.failure import ClickException, nearest

Verb = TypeVar("Verb", bound=Callable[..., int])

SETTINGS: Final = {"help_option_names": ["-h", "--help"]}


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
        except ClickException as error:
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
            pointer = self.pointers.get(args[0])
            near = nearest(args[0], self.list_commands(ctx), hint)
            ctx.fail(f"no verb {args[0]!r}{f': {pointer}' if pointer else near}")
        return super().resolve_command(ctx, args)


def new_app(cls: type[TyperGroup] = WordGroup, **settings: Any) -> typer.Typer:
    """An app with plain help (no rich, no boxes) and no completion of its own."""
    return typer.Typer(
        cls=cls,
        add_completion=False,
        rich_markup_mode=None,
        context_settings=dict(SETTINGS),
        **settings,
    )


def verb(app: typer.Typer, name: str, *, takes_command: bool = False) -> Callable[[Verb], Verb]:
    """Decorate a function that is a verb; it returns the exit code.

    Args:
        app: where the verb belongs.
        name: how it is called.
        takes_command: the first word that is no option begins somebody else's command line.
    """
    settings: dict[str, Any] = dict(SETTINGS)
    if takes_command:
        settings["allow_interspersed_args"] = False
    return app.command(name, cls=WordCommand, context_settings=settings)
