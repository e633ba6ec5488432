"""Job states as people type them."""

from __future__ import annotations

from collections.abc import Sequence

from iodaemon.api.model import STATE_CODES
from iodaemon.cli.failure import UsageError, nearest


def parse_states(words: Sequence[str]) -> list[str]:
    """The states' words, from words or codes in any case, several in one word or not.

    Raises:
        UsageError: there is no such state.
    """
    by_code = {code: state for state, code in STATE_CODES.items()}
    states = []
    for word in (part.upper() for text in words for part in text.split(",")):
        state = by_code.get(word, word)
        if state not in STATE_CODES:
            hint = f"one of {', '.join(STATE_CODES)}"
            raise UsageError(f"--state: no state {word!r}{nearest(word, STATE_CODES, hint)}")
        states.append(state)
    return states
