"""What a submission says of the space that a job wants, checked before anything is queued."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, Literal

import msgspec

from iodaemon.core.allotting import why_never
from iodaemon.core.scratch import Fallback, ScratchRequest, TierName
from iodaemon.core.size import told_bytes
from iodaemon.core.tier import Tier
from iodaemon.errors import RequestError

_Size = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Path = Annotated[str, msgspec.Meta(pattern="^/")]
_LONGEST_PATH_BYTES: Final = 4095


class SubmittedScratch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """SCRATCH of docs/api.md."""

    size_bytes: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
    tier: Annotated[str, msgspec.Meta(max_length=32)] | None = None
    fallback: Fallback = "wait"
    input_path: _Path | None = None
    output_path: _Path | None = None
    output_on: Literal["success", "always"] = "success"
    input_bytes: _Size = 0
    output_bytes: _Size = 0
    data_bytes: _Size = 0

    @property
    def request(self) -> ScratchRequest:
        """As the core has it."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        tier = None if self.tier is None else TierName(self.tier)
        return ScratchRequest(**{**fields, "tier": tier})


def check_scratch(
    asked: SubmittedScratch, which: str, tiers: Sequence[Tier], *, any_tier: bool = False
) -> None:
    """Refuse what could never be met, and paths that could never be opened.

    Args:
        asked: by a job.
        which: begins the line, where there are several.
        tiers: of this node.
        any_tier: the admission rule chooses among all for who names none.

    Raises:
        RequestError: says what is wrong and what to do.
    """
    for name in ("input_path", "output_path"):
        path = getattr(asked, name) or ""
        if "\0" in path or len(path.encode(errors="replace")) > _LONGEST_PATH_BYTES:
            raise RequestError(f"{which}{name} is no path: it has a NUL or is too long; shorten it")
        if ".." in path.split("/"):
            raise RequestError(f"{which}{name} {path!a} has '..' in it; write it without")
    if asked.input_bytes > asked.size_bytes:
        has, gets = told_bytes(asked.input_bytes), told_bytes(asked.size_bytes)
        raise RequestError(
            f"{which}its input has {has}, more than the {gets} of scratch space it asks for; "
            "ask for more"
        )
    never = why_never(tiers, asked.request, any_tier=any_tier)
    if never is not None:
        raise RequestError(f"{which}{never}")
