"""No regulation: jobs run as they like. Sampling goes on, so that everything is still shown.

1. Nothing is suspended.
2. Jobs that another rule left suspended run again at once.

Needs: nothing.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from iodaemon.core.decision import RegulationPlan
from iodaemon.core.view import View


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """Regulate nothing.

    Attributes:
        timeslice_s: the sampling period, s, above 0. 1 s is the shortest of Lv et al., JCST
            2014, section 3.4.
    """

    needs: ClassVar[frozenset[type]] = frozenset()

    timeslice_s: float = 1.0

    def __post_init__(self) -> None:
        if not self.timeslice_s > 0.0:
            raise ValueError(f"timeslice_s is {self.timeslice_s:g}; it must be above 0")

    def decide(self, view: View, memory: None) -> tuple[RegulationPlan, None]:
        """Let go whatever is still held."""
        return RegulationPlan(resumes=tuple(job.id for job in view.suspended)), memory
