"""What earlier jobs teach of later ones."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Protocol

from iodaemon.core.job import Job
from iodaemon.core.prediction import Prediction


class Experience(Protocol):
    """What is known of jobs by those that ran before them. No clock but the jobs' own times."""

    def kinds(self, job: Job) -> Collection[Hashable]:
        """By what the job is alike others: what is found of it depends on these alone."""
        ...

    def find(self, job: Job) -> Prediction | None:
        """What is to be expected of the job, at its submission; None: nothing like it has run."""
        ...

    def learn(self, job: Job) -> Collection[Hashable]:
        """The job has come to its end, whatever that was; the kinds now seen in another light."""
        ...
