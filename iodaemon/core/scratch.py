"""Space of storage tiers that a job asks for, and what it holds of them while it runs."""

from __future__ import annotations

from typing import Annotated, Final, Literal, NewType

import msgspec

TierName = NewType("TierName", str)
DiskId = NewType("DiskId", str)
"""Unique among all disks of a storage."""
KEPT: Final = "ScratchKept"
"""The word for what an ended job still has in its space."""
Fallback = Literal["slow", "wait", "fail"]
"""What becomes of a request that no disk can hold now: the slowest tier, later, or its end."""


_Size = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Path = Annotated[str, msgspec.Meta(pattern="^/")]


class ScratchRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Space that a job wants for its run: SCRATCH of docs/api.md.

    Attributes:
        size_bytes: above 0.
        tier: which one. None: the admission rule chooses (``--fast``); rules that do not, take
            the fastest.
        fallback: if that has no room.
        input_path: what is copied in before the command runs. None: nothing.
        output_path: where what it leaves is copied after. None: nothing is kept.
        output_on: whether that is done also where the command failed.
        input_bytes: how much is copied in; 0: nobody knows.
        output_bytes: how much is expected to be copied out; 0: nobody knows.
        data_bytes: what the job moves in between and does not keep; 0: nobody knows.
    """

    size_bytes: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
    tier: Annotated[TierName, msgspec.Meta(max_length=32)] | None = None
    fallback: Fallback = "wait"
    input_path: _Path | None = None
    output_path: _Path | None = None
    output_on: Literal["success", "always"] = "success"
    input_bytes: _Size = 0
    output_bytes: _Size = 0
    data_bytes: _Size = 0

    @property
    def whole_bytes(self) -> int:
        """What has to fit one directory: the prolog copies all of the input there."""
        return 0 if self.input_path is None else self.input_bytes

    def __post_init__(self) -> None:
        """Refuse a request for nothing."""
        if self.size_bytes < 1:
            raise ValueError("scratch space must be at least one byte")
        if min(self.input_bytes, self.output_bytes, self.data_bytes) < 0:
            raise ValueError("input, output and data are 0 bytes or more")


class Staged(msgspec.Struct, frozen=True, kw_only=True):
    """What was copied for a job, in and out, as the kernel counts it.

    Attributes:
        came_bytes: written to disks by the prolog.
        went_bytes: written to disks by the epilog.
        moved_bytes: read and written by both; part of the job's I/O.
        has_come: whether all that was to be copied in was. None: nothing was to be, or unknown.
        has_gone: likewise out.
    """

    came_bytes: int
    went_bytes: int
    moved_bytes: int
    has_come: bool | None = None
    has_gone: bool | None = None

    @property
    def read_bytes(self) -> int:
        """The part of it that was read; what is copied is written once."""
        return max(0, self.moved_bytes - self.came_bytes - self.went_bytes)


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """Space on one disk that a job holds."""

    tier: TierName
    disk: DiskId
    size_bytes: int
