"""Whether a path can be that of a unix socket."""

from __future__ import annotations

import os
from typing import Final

LONGEST_BYTES: Final = 107
"""sun_path holds 108 bytes with the closing NUL (unix(7))."""


def why_too_long(path: str) -> str:
    """Why no socket can have this path; empty: one can."""
    size_bytes = len(os.fsencode(path))
    if size_bytes <= LONGEST_BYTES:
        return ""
    return f"socket path {path} has {size_bytes} bytes, the kernel takes {LONGEST_BYTES}"
