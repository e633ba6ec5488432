"""What a trial found, for programs: the JSON that is printed and kept."""

from __future__ import annotations

from typing import Any, Final

import msgspec

import iodaemon
from iodaemon.trial.comparing import Outcome
from iodaemon.trial.stacking import Stacked, summarise
from iodaemon.trial.summary import MEASURES, changes, spread_of, values_of

VERSION: Final = 1
"""Of both documents; raised when a key changes its meaning."""
_NOT_SHOWN: Final = ("slices", "alone", "failure")


def comparison_document(outcome: Outcome) -> dict[str, Any]:
    """All runs with each job's times, medians with ranges, and every comparison made of them."""
    return {
        **_head("compare", outcome),
        "summary": {
            policy: {
                measure.key: msgspec.to_builtins(
                    spread_of(
                        values_of([r for r in outcome.runs if r.policy == policy], measure.key)
                    )
                )
                for measure in MEASURES
            }
            for policy in outcome.policies
        },
        "changes": msgspec.to_builtins(
            changes(outcome.runs, outcome.policies) if outcome.runs else ()
        ),
    }


def stack_document(stacked: Stacked) -> dict[str, Any]:
    """All runs, and the points of the curves."""
    return {
        **_head("stack", stacked),
        "summary": msgspec.to_builtins(summarise(stacked.runs)),
    }


def _head(kind: str, made: Outcome | Stacked) -> dict[str, Any]:
    fields = {
        name: msgspec.to_builtins(getattr(made, name))
        for name in made.__struct_fields__
        if name not in _NOT_SHOWN
    }
    return {
        "kind": kind,
        "version": VERSION,
        "iodaemon": iodaemon.__version__,
        **fields,
        "failure": None if made.failure is None else str(made.failure),
    }
