"""Finds rules and shipped data by name. The file name is the registry; ``FORMER`` has old names.

``iodaemon/policy/<kind>/<name>.py`` is the rule ``<name>``; ``my.module:Rule`` is one of the
user's own. A policy in ``policies/``, an experiment in ``sim/`` is found by its file likewise.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Final, Literal

import msgspec

import iodaemon
from iodaemon.errors import ConfigError

Kind = Literal["admission", "placement", "regulation"]
"""The kinds of rules that a policy file composes."""
AnyKind = Kind | Literal["allocation"]
"""All kinds of rules."""

_READ: Final = "__iodaemon_read__"
"""The name under which a user's module keeps what its file was when it was imported."""
_METHODS: Final[dict[AnyKind, str]] = {
    "admission": "decide",
    "allocation": "choose",
    "placement": "choose",
    "regulation": "decide",
}
"""What a rule of each kind answers to (iodaemon.core.rule, iodaemon.core.view)."""
FORMER: Final[Mapping[tuple[str, str], tuple[str, Mapping[str, str]]]] = {
    ("admission", "io_budget"): ("easy", {"demand": "mean"}),
}
"""Rules that are parameters of others now, by kind and name: the rule, and the parameters."""


def rule_names(kind: AnyKind) -> tuple[str, ...]:
    """The shipped rules of this kind, sorted."""
    package = importlib.import_module(f"iodaemon.policy.{_known(kind)}")
    modules = pkgutil.iter_modules(package.__path__)
    return tuple(sorted(module.name for module in modules if not module.name.startswith("_")))


def find_rule(kind: AnyKind, name: str) -> type[msgspec.Struct]:
    """The rule with this name.

    Args:
        kind: what it decides.
        name: a shipped one, such as ``fcfs``, a former one, or ``my.module:Rule`` for one's own.

    Raises:
        ConfigError: there is none, it cannot be imported, or it is no rule of this kind.
    """
    if ":" in name:
        return _checked(kind, name, find_own(f"{kind} rule", name))
    name, _ = FORMER.get((kind, name), (name, {}))
    names = rule_names(kind)
    if name not in names:
        raise ConfigError(
            f"unknown {kind} rule {name!r}; {nearest(name, names)}; "
            f"your own is written my.module:Rule"
        )
    module = importlib.import_module(f"iodaemon.policy.{kind}.{name}")
    return _checked(kind, name, vars(module)["Rule"])


def rule_name(rule: object) -> str:
    """The name under which ``find_rule`` finds this rule's type."""
    type_ = type(rule)
    package, _, module = type_.__module__.rpartition(".")
    if package.startswith("iodaemon.policy."):
        return module
    return f"{type_.__module__}:{type_.__qualname__}"


def shipped(folder: str) -> Path:
    """The folder of shipped data: inside the installed package, or at the top of the checkout.

    Args:
        folder: for example ``policies``.

    Raises:
        ConfigError: it is in neither place (a broken installation).
    """
    package = Path(iodaemon.__file__).parent
    for place in (package / "data" / folder, package.parent / folder):
        if place.is_dir():
            return place
    raise ConfigError(f"shipped folder {folder!r} is missing from {package}; reinstall iodaemon")


def nearest(word: str, known: Sequence[str]) -> str:
    """A hint for an unknown word: the nearest known one, or all of them when none is near."""
    close = get_close_matches(word, known, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known: {', '.join(known)}" if known else "none is known"


def _known(kind: AnyKind) -> AnyKind:
    if kind not in _METHODS:
        raise ConfigError(f"unknown kind of rule {kind!r}; known: {', '.join(_METHODS)}")
    return kind


def find_own(what: str, name: str) -> object:
    """What the user's own module has under this name.

    Args:
        what: for messages, for example ``admission rule``.
        name: ``my.module:Rule``.

    Raises:
        ConfigError: the module cannot be imported, or has no such thing.
    """
    module_name, _, class_name = name.partition(":")
    module = _imported(f"{what} {name!r}", module_name)
    if not hasattr(module, class_name):
        raise ConfigError(f"{what} {name!r}: module {module_name} has no {class_name!r}")
    return getattr(module, class_name)


@contextmanager
def import_again() -> Iterator[None]:
    """Inside, users' modules whose files have changed are imported anew when they are asked for.

    With them all loaded modules of the same package. After an error all are as they were.
    """
    changed = [each for each in _own_modules() if getattr(each, _READ) != _stamp_of(each)]
    tops = {each.__name__.partition(".")[0] for each in changed}
    before = {name: m for name, m in sys.modules.items() if name.partition(".")[0] in tops}
    for name in before:
        del sys.modules[name]
    importlib.invalidate_caches()
    try:
        yield
    except BaseException:
        sys.modules.update(before)
        raise


def _own_modules() -> list[ModuleType]:
    return [each for each in list(sys.modules.values()) if _READ in vars(each)]


def _stamp_of(module: ModuleType) -> tuple[int, int] | None:
    """Time and size of the file; None: it has none now."""
    try:
        found = os.stat(str(module.__file__))
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _imported(what: str, module_name: str) -> ModuleType:
    """The user's module; whatever goes wrong in it is the user's to read, in one line."""
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as e:
        if e.name is not None and f"{module_name}.".startswith(f"{e.name}."):
            hint = "put its folder on PYTHONPATH"
            raise ConfigError(f"{what}: no module {e.name!r}; {hint}") from e
        raise ConfigError(f"{what}: {_one_line(e)}") from e
    except Exception as e:  # the module is foreign code
        raise ConfigError(f"{what} fails to import: {_one_line(e)}") from e
    if _READ not in vars(module):
        setattr(module, _READ, _stamp_of(module))
    return module


def _checked(kind: AnyKind, name: str, found: object) -> type[msgspec.Struct]:
    method = _METHODS[kind]
    if isinstance(found, type) and issubclass(found, msgspec.Struct):
        if kind == "regulation" and not hasattr(found, "timeslice_s"):
            raise ConfigError(f"regulation rule {name!r} must have a field timeslice_s")
        if callable(getattr(found, method, None)):
            return found
    raise ConfigError(
        f"{kind} rule {name!r} is no rule of this kind; it must be a msgspec.Struct with a "
        f"method {method}"
    )


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
