"""``iod replay``: what another policy would have done with what was measured."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any, Final

from iodaemon.cli import output
from iodaemon.cli.command import OFF, App, AsJson, Context, Word, option, verb
from iodaemon.cli.output import Column
from iodaemon.cli.selector import parse_moment_s
from iodaemon.cli.session import Session
from iodaemon.errors import RequestError

if TYPE_CHECKING:
    from iodaemon.core.rule import Rules
    from iodaemon.simulator.replay import Outcome, Recording

app = App()

CANNOT_KNOW: Final = (
    "A replay cannot know what the jobs would have moved: they move what they moved then.",
    "One that would have stood still would have moved that later, the others more meanwhile;",
    "and one that truly stood still moves nothing in that time. REALLY is of its whole life.",
)
_COLUMNS: Final = (
    Column("JOB", is_number=True),
    Column("NAME", width_max=20),
    Column("REALLY", is_number=True),
    Column("WOULD", is_number=True),
    Column("TIMES", is_number=True),
)

Policy = Annotated[
    Word, option("--policy", metavar="POLICY|FILE", text="The policy to try [the one in force].")
]
Since = Annotated[Word, option("--since", metavar="WHEN", text="Samples from then on [1h].")]


@verb(app, "replay")
def replay(ctx: Context, policy: Policy = None, since: Since = None, as_json: AsJson = OFF) -> int:
    """Show what a policy would have done with what was measured.

    Needs a daemon with journal_samples = true; raw samples are kept for a day. WHEN is 2d or 90m
    (ago), 12:00 (the last one), 2026-11-21, '2026-11-21 12:00', today or yesterday.

    For each job: how long it really stood still for I/O, how long it would have, and how many
    times it would have been suspended.
    """
    session: Session = ctx.obj
    since_s = parse_moment_s(since or "1h", time.time(), "--since")
    rules = _in_force(session) if policy is None else _named(policy)
    recording = _fetch(session, since_s)
    if not recording.samples:
        raise RequestError(
            f"no samples (--since {since or '1h'}): set journal_samples = true in the "
            "daemon's configuration and let it run for a while"
        )
    from iodaemon.simulator.replay import replay as ask

    for caution in rules.cautions(recording.platform):
        output.say(caution)
    outcome = ask(recording, rules)
    import msgspec

    told = msgspec.to_builtins(outcome)
    output.show(told, lambda: outcome_lines(outcome), as_json=as_json)
    return 0


def outcome_lines(outcome: Outcome) -> list[str]:
    """What was replayed, a line a job, the sums, and what it is worth."""
    from iodaemon.units import format_duration

    head = (
        f"policy {outcome.policy} over {outcome.samples} samples, "
        f"{output.local_time(outcome.from_s)} to {output.local_time(outcome.to_s)}"
    )
    rows = [
        (
            str(job.job_id),
            job.name,
            format_duration(round(job.really_s, 1)),
            format_duration(round(job.would_s, 1)),
            str(job.suspensions),
        )
        for job in outcome.jobs
    ]
    sums = (
        "",
        f"({len(rows)} jobs)",
        format_duration(round(sum(job.really_s for job in outcome.jobs), 1)),
        format_duration(round(sum(job.would_s for job in outcome.jobs), 1)),
        str(sum(job.suspensions for job in outcome.jobs)),
    )
    return [head, *output.table(_COLUMNS, [*rows, sums]), *CANNOT_KNOW]


def _fetch(session: Session, since_s: float) -> Recording:
    import msgspec

    from iodaemon.simulator.replay import parse_recording

    try:
        return parse_recording(session.client().samples(since_s))
    except msgspec.ValidationError as error:
        raise RequestError(
            f"the daemon's samples have another shape ({error}): use the iod of its version"
        ) from error


def _named(name: str) -> Rules:
    from iodaemon.cli.policy import load_named

    policy = load_named(name)
    for note in policy.notes:
        output.say(note)
    return policy.rules


def _in_force(session: Session) -> Rules:
    """The daemon's rules with the parameters that they have there.

    Raises:
        ConfigError: a rule of the daemon's is not known here.
    """
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
