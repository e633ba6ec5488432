"""What a submission says of the space that a job wants, checked before anything is queued."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from iodaemon.core.allotting import why_never
from iodaemon.core.scratch import Fallback, ScratchRequest, TierName
from iodaemon.core.size import told_bytes
from iodaemon.core.tier import Tier
from iodaemon.daemon.room import LONGEST_PATH_BYTES
from iodaemon.errors import RequestError
from iodaemon.policy.staging import extra_s

_Size = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Path = Annotated[str, msgspec.Meta(pattern="^/")]


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
        if "\0" in path or len(path.encode(errors="replace")) > LONGEST_PATH_BYTES:
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


def find_vain(asked: Sequence[SubmittedScratch | None], tiers: Sequence[Tier]) -> tuple[str, ...]:
    """Who asks for a fast tier, of a rule that chooses by ``extra_s``, and never will have one.

    Args:
        asked: by each job; None: by one that wants no space.
        tiers: of this node, fastest first.

    Returns:
        One line for each reason, with the first job that has it.
    """
    lines: dict[bool, str] = {}
    for place, each in enumerate(asked, 1):
        if each is None or each.tier is not None:
            continue
        is_silent = not (each.input_bytes or each.output_bytes or each.data_bytes)
        if is_silent in lines:
            continue
        if (why := _why_vain(each, tiers)) is not None:
            lines[is_silent] = why if len(asked) == 1 else f"job {place}: {why}"
    return tuple(lines.values())


def _why_vain(asked: SubmittedScratch, tiers: Sequence[Tier]) -> str | None:
    if len(tiers) < 2:
        return None
    request = ScratchRequest(
        size_bytes=asked.size_bytes,
        input_bytes=asked.input_bytes,
        output_bytes=asked.output_bytes,
        data_bytes=asked.data_bytes,
    )
    *faster, slowest = tiers
    if any(extra_s(request, tier, slowest) < 0.0 for tier in faster):
        return None
    always = f"it always runs on tier {slowest.name} under this policy: "
    if not (request.input_bytes or request.output_bytes or request.data_bytes):
        return f"{always}it says nothing of what it moves; give --data-size"
    return (
        f"{always}copying in and out takes no less than its I/O is shorter elsewhere; "
        "give --data-size, or, as an administrator, the tier a faster 'staging'"
    )
