"""The shapes of what is said of a job's space on tiers of storage."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict, cast

if TYPE_CHECKING:
    from iodaemon.api.client import Client
    from iodaemon.api.model import Job, Reason


class ScratchOptions(TypedDict, total=False):
    """The space that a job wants, and what is copied into it and out of it."""

    size_bytes: int
    tier: str | None
    fallback: str
    input_path: str | None
    output_path: str | None
    output_on: str
    input_bytes: int
    output_bytes: int
    data_bytes: int


class Share(TypedDict):
    """Space on one disk that a job holds."""

    tier: str
    disk: str
    size_bytes: int


class Stage(TypedDict):
    """Which step of staging is under way: ``in`` or ``out``."""

    step: str


class Scratch(TypedDict):
    """The space of a job: what it asked for, the tier that it is on, and its shares of disks.

    ``kept`` says why what an ended job has there is not removed, ``kept_until_s`` when it will be
    (null: never), ``unwanted`` why it was, or is being, ``unwanted_by`` who
    asked for that (empty: nobody); ``over`` that it has more than it asked for, ``most_bytes`` how
    much that was at most (0: it never had).
    ``copied_in``, ``copied_out``: whether that was done, null while it may be, and where it is not
    known. ``charged_s``: what its run is charged. ``had_space``: whether it has or had directories
    of its own, null where it is not known.
    """

    size_bytes: int
    asked_tier: str | None
    fallback: str
    input_path: str | None
    output_path: str | None
    output_on: str
    input_bytes: int
    output_bytes: int
    data_bytes: int
    tier: str | None
    had_space: bool | None
    shares: list[Share]
    kept: Reason | None
    kept_until_s: float | None
    unwanted: Reason | None
    unwanted_by: str
    over: Reason | None
    most_bytes: int
    copied_in: bool | None
    copied_out: bool | None
    stage: Stage | None
    charged_s: float | None


class RemoveAnswer(TypedDict):
    """The job, and whether nothing is left in its space."""

    job: Job
    removed: bool


def remove_scratch(client: Client, job_id: int) -> RemoveAnswer:
    """Have what was kept of an ended job removed; answers when it is gone, or after a while."""
    answer = client.ask("POST", f"/v1/jobs/{job_id}/scratch/remove", {}, {"job", "removed"})
    return cast("RemoveAnswer", answer)
