"""``iod replay``: what another policy would have done with what was measured."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any, Final

from iodaemon.cli import output
from iodaemon.cli.command import OFF, App, AsJson, Word, option, verb
from iodaemon.cli.output import Column
from iodaemon.cli.selector import parse_moment_s
from iodaemon.cli.session import Session
from iodaemon.errors import RequestError
from iodaemon.units import format_duration

if TYPE_CHECKING:
    from iodaemon.core.rule import Rules
    from iodaemon.simulator.replay import Outcome

app = App()

CANNOT_KNOW: Final = (
    "A replay cannot know what the jobs would have moved: they move what they moved then.",
    "One that would have stood still would have moved that later, the others more meanwhile;",
    "and one that truly stood still moves nothing in that time. REALLY is of its whole life.",
)
_COLUMNS: Final = (
    Column("JOB", lambda job: str(job.job_id) if job.job_id else "", is_number=True),
    Column("NAME", lambda job: job.name, width_max=20),
    Column("REALLY", lambda job: format_duration(round(job.really_s, 1)), is_number=True),
    Column("WOULD", lambda job: format_duration(round(job.would_s, 1)), is_number=True),
    Column("TIMES", lambda job: str(job.suspensions), is_number=True),
)

Policy = Annotated[
    Word, option("--policy", metavar="POLICY|FILE", text="The policy to try [the one in force].")
]
Since = Annotated[Word, option("--since", metavar="WHEN", text="Samples from then on [1h].")]


@verb(app, "replay")
def replay(
    session: Session, policy: Policy = None, since: Since = None, as_json: AsJson = OFF
) -> int:
    """Show what a policy would have done with what was measured.

    Needs a daemon with journal_samples = true; raw samples are kept for a day. WHEN is 2d or
    '2 hours ago', 12:00 (the last one), 2026-11-21, '2026-11-21 12:00', today or yesterday.

    For each job: how long it really stood still for I/O, how long it would have, and how many
    times it would have been suspended.
    """
    import msgspec

    from iodaemon.simulator.replay import parse_recording
    from iodaemon.simulator.replay import replay as ask

    since_s = parse_moment_s(since or "1h", time.time(), "--since")
    rules = _in_force(session) if policy is None else _named(policy)
    try:
        recording = parse_recording(session.client().samples(since_s))
    except msgspec.ValidationError as error:
        raise RequestError(
            f"the daemon's samples have another shape ({error}): use the iod of its version"
        ) from error
    if not recording.samples:
        raise RequestError(
            f"no samples (--since {since or '1h'}): set journal_samples = true in the "
            "daemon's configuration and let it run for a while"
        )
    for caution in rules.cautions(recording.platform):
        output.say(caution)
    outcome = ask(recording, rules)
    told = msgspec.to_builtins(outcome)
    output.show(told, lambda: outcome_lines(outcome), as_json=as_json)
    return 0


def outcome_lines(outcome: Outcome) -> list[str]:
    """What was replayed, a line a job, the sums, and what it is worth."""
    from iodaemon.core.job import JobId
    from iodaemon.simulator.replay import Replayed

    head = (
        f"policy {outcome.policy} over {outcome.samples} samples, "
        f"{output.local_time(outcome.from_s)} to {output.local_time(outcome.to_s)}"
    )
    total = Replayed(
        job_id=JobId(0),
        name=f"({len(outcome.jobs)} jobs)",
        really_s=sum(job.really_s for job in outcome.jobs),
        would_s=sum(job.would_s for job in outcome.jobs),
        suspensions=sum(job.suspensions for job in outcome.jobs),
    )
    return [head, *output.listing(_COLUMNS, [*outcome.jobs, total]), *CANNOT_KNOW]


def _named(name: str) -> Rules:
    from iodaemon.cli.config import load_named

    policy = load_named(name)
    for note in policy.notes:
        output.say(note)
    return policy.rules


def _in_force(session: Session) -> Rules:
    """The daemon's rules with the parameters that they have there."""
    import msgspec

    from iodaemon.core.rule import Rules
    from iodaemon.registry import Kind, find_rule

    document: dict[str, Any] = session.client().policy()
    made: dict[str, Any] = {}
    kinds: tuple[Kind, ...] = ("admission", "placement", "regulation")
    try:
        for kind in kinds:
            parameters = dict(document[kind])
            made[kind] = msgspec.convert(parameters, find_rule(kind, parameters.pop("rule")))
    except (KeyError, msgspec.ValidationError) as error:
        raise RequestError(
            f"the daemon's policy is not understood ({error}): name one with --policy"
        ) from error
    limit_s = document.get("max_suspend_s")
    return Rules(name=str(document.get("name")), max_suspend_s=limit_s, **made)
