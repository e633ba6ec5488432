"""The errors of rules: which rule, in which file and line. A rule may be a user's own code."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Final

import msgspec

from iodaemon.core.error import IodaemonError
from iodaemon.core.job import TierName
from iodaemon.core.words import rule_failed


class RuleTimeout(BaseException):
    """A rule did not return in time. No ``except Exception`` of the rule catches it."""


FROM_A_RULE: Final = (Exception, SystemExit, RuleTimeout)
"""What may come out of a rule. Not an interrupt of the whole program."""


class RuleFault(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong in which rule.

    Attributes:
        kind: of the rule: admission, placement, regulation or allocation.
        rule: its module and class.
        place: file and line, ``/home/ann/mine.py:12``.
        problem: in one line.
        trace: the whole traceback; empty where the rule returned, but nothing of use.
        tier: of an allocation rule: the tier whose rule it is.
        at_s: when it was set aside; 0 before that.
    """

    kind: str
    rule: str
    place: str
    problem: str
    trace: str = ""
    tier: TierName | None = None
    at_s: float = 0.0

    @property
    def part(self) -> str:
        return f"tier {self.tier}" if self.tier else "policy"

    @property
    def text(self) -> str:
        return rule_failed(self.kind, self.rule, self.part, self.place, self.problem)


class RuleError(IodaemonError):
    """A rule raised, took too long, or returned what cannot be carried out."""

    def __init__(self, fault: RuleFault) -> None:
        super().__init__(fault)
        self.fault = fault

    def __str__(self) -> str:
        return self.fault.text


class BadAnswer(ValueError):
    """An answer that is not one: the rule returned, so that no traceback leads to it."""


def answer_and_memory(answer: object) -> tuple[Any, Any]:
    """The two parts of what a rule with a memory returns.

    Raises:
        BadAnswer: it has not two.
    """
    if not isinstance(answer, tuple) or len(answer) != _PAIR:
        raise BadAnswer(f"returned {type(answer).__name__}, not a pair of answer and memory")
    return answer


def rule_error(
    kind: str, rule: object, method: object, error: BaseException, *, tier: TierName | None = None
) -> RuleError:
    """The error of a rule with file and line; an inner rule's error stays as it is."""
    if isinstance(error, RuleError):
        return error
    is_answer = isinstance(error, BadAnswer)
    if is_answer:
        problem = str(error)
    else:
        problem = f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")
    return RuleError(
        RuleFault(
            kind=kind,
            rule=name_of(rule),
            place=defined_at(method) if is_answer else raised_at(error),
            problem=problem,
            trace="" if is_answer else "".join(traceback.format_exception(error)),
            tier=tier,
        )
    )


def name_of(rule: object) -> str:
    type_ = type(rule)
    return f"{type_.__module__}:{type_.__qualname__}"


def defined_at(method: object) -> str:
    code = getattr(method, "__code__", None)
    return "?" if code is None else f"{code.co_filename}:{code.co_firstlineno}"


def raised_at(error: BaseException) -> str:
    """File and line of the innermost frame that is neither this package's nor a library's.

    Where there is none, of the innermost one outside the core.
    """
    frames = list(_frames(error.__traceback__))
    own = [frame for frame in frames if _is_own(*frame)]
    outside = [frame for frame in frames if not frame[1].startswith(_CORE)]
    chosen = (own or outside or frames or [("?", "", 0)])[-1]
    return f"{chosen[0]}:{chosen[2]}"


_PAIR: Final = 2
_PACKAGE: Final = __name__.partition(".")[0]
_CORE: Final = __name__.rpartition(".")[0]
_LIBRARIES: Final = ("site-packages", "dist-packages")


def _frames(trace: TracebackType | None) -> Iterable[tuple[str, str, int]]:
    while trace is not None:
        code, names = trace.tb_frame.f_code, trace.tb_frame.f_globals
        yield code.co_filename, str(names.get("__name__", "")), trace.tb_lineno
        trace = trace.tb_next


def _is_own(file: str, module: str, _: int) -> bool:
    """Whether a user wrote it: neither of this package, nor of Python, nor installed."""
    top = module.partition(".")[0]
    if top == _PACKAGE or top in sys.stdlib_module_names:
        return False
    return not any(folder in file for folder in _LIBRARIES)
