"""What a trial found, for programs: the JSON that is printed and kept."""

from __future__ import annotations

from typing import Any, Final

import msgspec

import iodaemon
from iodaemon.trial.comparing import Outcome
from iodaemon.trial.summary import MEASURES, changes, spread_of, values_of

VERSION: Final = 1
"""Raised when a key changes its meaning."""
_NOT_SHOWN: Final = ("slices", "alone", "failure")


def comparison_document(outcome: Outcome) -> dict[str, Any]:
    """All runs with each job's times, medians with ranges, and every comparison made of them."""
    fields = {
        name: msgspec.to_builtins(getattr(outcome, name))
        for name in outcome.__struct_fields__
        if name not in _NOT_SHOWN
    }
    return {
        "kind": "compare",
        "version": VERSION,
        "iodaemon": iodaemon.__version__,
        **fields,
        "failure": None if outcome.failure is None else str(outcome.failure),
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
