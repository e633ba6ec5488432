"""Whether this machine says who is who, how soon, and who the users and administrators are."""

from __future__ import annotations

import grp
import os
import time
from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple

from iodaemon.doctor.finding import Finding, broken, judge, lacking, ok
from iodaemon.node.condition import NO_ANSWER
from iodaemon.node.name_service import Lookups, find_groups, find_uid
from iodaemon.supervisor.launch import no_account
from iodaemon.supervisor.reap import read_status

WITHIN_S: Final = 3.0
SERVICE_USER: Final = "iodaemon"
"""And the group of who may act on all jobs (systemd/sysusers.conf)."""
_MOST_SHOWN: Final = 8
_SLOW_S: Final = 0.5
"""A start of a job takes 5 ms without."""


def probe_lookup(
    uid: int, look_up: Callable[[int], object] = find_groups, within_s: float = WITHIN_S
) -> float | None:
    """How long the databases take to say which groups the user is in, s; None: too long."""
    began_s = time.monotonic()
    answer = Lookups(look_up, fresh_s=0).get(uid, within_s)
    return None if answer is None else time.monotonic() - began_s


def judge_lookup(uid: int, took_s: float | None, within_s: float = WITHIN_S) -> Finding:
    """Before each start of a job as a user, that user is looked up."""
    what = "account lookup"
    if took_s is None:
        return broken(
            what,
            f"{NO_ANSWER.fact} for uid {uid} within {within_s:g} s",
            {"took_s": None},
            cost="no job of others starts, users are numbers; jobs that run go on",
            remedy=NO_ANSWER.cure,
        )
    shown, values = f"uid {uid} and its groups in {took_s * 1000:.1f} ms", {"took_s": took_s}
    cost = "each start of a job as another user waits so long"
    return judge(took_s < _SLOW_S, what, shown, values, cost=cost, remedy=NO_ANSWER.cure)


def examine_lookup() -> Finding:
    """Of who examines."""
    uid = os.geteuid()
    return judge_lookup(uid, probe_lookup(uid))


def find_service_uid() -> int | None:
    """Whose daemon the system's service is; None: it is not set up, or nobody answers."""
    answer = Lookups(find_uid, fresh_s=0).get(SERVICE_USER, WITHIN_S)
    return None if answer is None else answer.value


def find_members(group: str) -> tuple[str, ...] | None:
    """Who is in the group beside those that have it as their first; None: there is none."""
    try:
        return tuple(grp.getgrnam(group).gr_mem)
    except KeyError:
        return None


def examine_members(group: str) -> Finding:
    """Who may act on all jobs."""
    answer = Lookups(find_members, fresh_s=0).get(group, WITHIN_S)
    return judge_members(
        group, None if answer is None else answer.value, is_answered=answer is not None
    )


def judge_members(
    group: str, members: tuple[str, ...] | None, *, is_answered: bool = True
) -> Finding:
    """Whether there is such a group, and who is in it."""
    what = "group of admins"
    if not is_answered:
        return broken(
            what,
            f"{NO_ANSWER.fact} who is in group {group} within {WITHIN_S:g} s",
            cost="who was not looked up before has the rights of their login",
            remedy=NO_ANSWER.cure,
        )
    if members is None:
        return lacking(
            what,
            f"there is no group {group}",
            cost="root alone acts on other users' jobs",
            remedy=f"'groupadd --system {group}', then restart the daemon",
        )
    shown = ", ".join(members) or "nobody"
    return ok(what, f"{group}: {shown}, and root", {"members": len(members)})


def judge_users(users: Collection[str]) -> Finding:
    """Whether all jobs' users have accounts.

    Args:
        users: of all jobs that have not ended; a number stands for who has no name.
    """
    what = "users of jobs"
    gone = sorted({user for user in users if user.isdigit()}, key=int)
    values = {"users": len(set(users)), "without_account": len(gone)}
    return judge(
        not gone,
        what,
        no_account(*gone) if gone else f"{len(set(users))}, all with an account",
        values,
        cost="what runs goes on; what waits is held",
        remedy="make the account again and 'iod resume' the jobs, or 'iod cancel' them",
    )


class Running(NamedTuple):
    """A job that has processes, by one of them."""

    job_id: int
    uid: int
    pid: int


def examine_groups(jobs: Sequence[Running]) -> Finding:
    """Whether the jobs that run have the groups that their users have now."""
    lookups = Lookups(find_groups, fresh_s=WITHIN_S)
    stale = []
    for job in jobs:
        answer, had = lookups.get(job.uid, WITHIN_S), groups_of_process(job.pid)
        if answer is not None and answer.value and had is not None and had != answer.value:
            stale.append(job.job_id)
    return judge_groups(stale, len(jobs))


def groups_of_process(pid: int) -> frozenset[int] | None:
    """Its effective and supplementary groups; None: it is gone, or hidden."""
    if not (status := read_status(pid)):
        return None
    return frozenset(map(int, status[b"Gid"].split()[1:2] + status[b"Groups"].split()))


def judge_groups(stale: Sequence[int], looked_at: int) -> Finding:
    """Whether there are jobs whose users' groups have changed since they started.

    Args:
        stale: their numbers.
        looked_at: how many jobs were looked at.
    """
    what = "groups of jobs"
    values = {"jobs": looked_at, "with_other_groups": len(stale)}
    jobs = ", ".join(map(str, stale[:_MOST_SHOWN])) + (" ..." if len(stale) > _MOST_SHOWN else "")
    return judge(
        not stale,
        what,
        f"other groups than their users have now: job {jobs}"
        if stale
        else f"{looked_at} looked at, all with their users' groups of today",
        values,
        cost="they run on with the groups of their start",
        remedy="let them end, or 'iod requeue' them to have today's",
    )
