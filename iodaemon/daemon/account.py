"""The users of this machine, as the daemon speaks of them: names, numbers, groups.

No lookup is waited for in the event loop longer than ``_NAME_WITHIN_S``, and that once: where the
databases (nsswitch.conf) are silent, names are numbers and groups are as last known.
"""

from __future__ import annotations

import functools
import grp
import logging
from typing import Final

from iodaemon.errors import NotFound, RequestError
from iodaemon.node.condition import NO_ANSWER
from iodaemon.node.name_service import Lookups, find_groups, find_name, find_uid

log = logging.getLogger(__name__)

GROUPS_FRESH_S: Final = 30.0
"""An administrator who was taken out of the group is none any more after so long, at most."""
_NAMES_FRESH_S: Final = 300.0
_GROUPS_WITHIN_S: Final = 2.0
_NAME_WITHIN_S: Final = 0.1
"""A lookup in /etc/passwd takes 0.05 ms, one that sssd has kept 0.2 ms."""
_UID_WITHIN_S: Final = 5.0
_GROUP_WITHIN_S: Final = 5.0
_LARGEST: Final = 2**63 - 1
STRANGERS: Final = -1
"""No user's number."""
WITHIN_S: Final = 2.0
"""So long it is waited for who has an account."""


class Accounts:
    """Who has an account, and who is only a number: of those there are 65,536 a user (subuid(5)).

    Args:
        names: of users; those of this machine if None.
    """

    def __init__(self, names: Lookups[int, str | None] | None = None) -> None:
        self._names = names or names_of_users()

    def pool(self, uid: int) -> int:
        """As whom this user is counted: all that are not known to have an account are one."""
        answer = self._names.known(uid)
        return uid if uid == 0 or (answer is not None and answer.value is not None) else STRANGERS

    def is_fresh(self, uid: int) -> bool:
        """True when it need not be asked whether this user has one; root always has."""
        return uid == 0 or self._names.is_fresh(uid)

    async def ask(self, uid: int) -> bool | None:
        """Whether this user has an account; None: nobody answers in time."""
        if uid == 0:
            return True
        await self._names.refresh(uid, WITHIN_S)
        answer = self._names.known(uid)
        return None if answer is None else answer.value is not None


def user_name(uid: int) -> str:
    """The user's name; the number where there is no such user, or no answer."""
    answer = names_of_users().get(uid, _NAME_WITHIN_S)
    return str(uid) if answer is None or answer.value is None else answer.value


def parse_user(text: str) -> int:
    """The user's number, by name or number. Waits up to ``_UID_WITHIN_S``: not in the event loop.

    Raises:
        NotFound: no such user.
        RequestError: nobody answers whether there is.
    """
    if text.isascii() and text.isdigit():
        return min(int(text[:20]), _LARGEST)
    answer = _uids().get(text, _UID_WITHIN_S)
    if answer is None:
        raise RequestError(f"{NO_ANSWER.fact} who {text!r} is; write the user's number")
    if answer.value is None:
        raise NotFound(f"no user {text!r} on this machine; write a name or a number")
    return answer.value


async def refresh_groups(uid: int) -> None:
    """Know the user's groups as they are now, or go on with what was known; say what changed."""
    lookups = groups_of_users()
    before = lookups.known(uid)
    await lookups.refresh(uid, _GROUPS_WITHIN_S)
    after = lookups.known(uid)
    if before is not None and after is not None and before.value != after.value:
        log.info(
            'event=groups_changed uid=%d came=%s went=%s text="jobs that run keep the groups of '
            'their start; rights and later starts go by those of now"',
            uid,
            _listed(after.value - before.value),
            _listed(before.value - after.value),
        )


def _listed(gids: frozenset[int]) -> str:
    return ",".join(map(str, sorted(gids))) or "none"


def find_gid(name: str) -> int | None:
    """The number of a group; None where there is none, or no answer. For the daemon's start."""

    def look_up(name: str) -> int | None:
        try:
            return grp.getgrnam(name).gr_gid
        except KeyError:
            return None

    answer = Lookups(look_up, fresh_s=0, on_silence=_complain).get(name, _GROUP_WITHIN_S)
    return None if answer is None else answer.value


@functools.cache
def groups_of_users() -> Lookups[int, frozenset[int]]:
    """The groups of users, by their numbers; one for the process."""
    return Lookups(find_groups, fresh_s=GROUPS_FRESH_S, on_silence=_complain)


@functools.cache
def names_of_users() -> Lookups[int, str | None]:
    """Their names, by their numbers; one for the process."""
    return Lookups(find_name, fresh_s=_NAMES_FRESH_S, on_silence=_complain)


@functools.cache
def _uids() -> Lookups[str, int | None]:
    return Lookups(find_uid, fresh_s=_NAMES_FRESH_S, on_silence=_complain)


def _complain(who: int | str, waited_s: float) -> None:
    log.warning(
        'event=accounts_silent asked_for=%r waited_s=%g text="%s; jobs run on, users are shown by '
        'number, groups are as last known; %s"',
        who,
        waited_s,
        *NO_ANSWER,
    )
