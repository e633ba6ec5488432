"""``iod compare``: real jobs on this machine, under each of several policies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from iodaemon.cli import output, trial
from iodaemon.cli.command import OFF, App, Context, Word, option, verb
from iodaemon.cli.failure import UsageError
from iodaemon.cli.output import Column

if TYPE_CHECKING:
    from iodaemon.cli.session import Session
    from iodaemon.trial.comparing import Outcome, Plan, Policy
    from iodaemon.trial.folder import Folder
    from iodaemon.trial.summary import Change, Measure, Spread
    from iodaemon.trial.workload import Workload

app = App()

DEFAULT_POLICIES: Final = "none,default"
DEFAULT_ROUNDS: Final = 6
"""The fewest of which a difference can be told from noise."""
METHOD: Final = (
    "Rounds are compared within themselves. p: the chance of a difference as large without any",
    "effect, by a randomisation test over the rounds. Up to 5 % it is told as one, and so is one",
    "of 20 measures by chance. Below 6 rounds nothing is claimed.",
)
_SMALL_P: Final = 0.01
_WORDS: Final = {
    "noise": "within the noise",
    "too few rounds": "too few rounds to tell",
    "same": "the same",
    "unknown": "not known",
}

Policies = Annotated[
    Word, option("--policies", metavar="A,B,...", text="Names or files [none,default].")
]
Rounds = Annotated[Word, option("--rounds", metavar="N", text="Rounds of every policy [6].")]
Output = Annotated[
    Word, option("--output", metavar="DIR", text="Where results go [./iod-compare/NAME].")
]


@verb(app, "compare")
def compare(
    ctx: Context,
    name: trial.WorkloadFile = None,
    policies: Policies = None,
    rounds: Rounds = None,
    folder: Output = None,
    directory: trial.Directory = None,
    force: trial.Force = OFF,
    as_json: trial.AsJson = OFF,
) -> int:
    """Run the same jobs under each policy, and say what differs.

    WORKLOAD.toml has the jobs: commands, or built-in kernels that read, write and compute. In
    every round each kind runs alone once, then all together under each policy in turn, by daemons
    of its own. It tells medians with ranges, against the first policy, and whether a difference is
    more than noise.

    At the end all but the results is removed; after Ctrl-C as well, and complete rounds are told.
    """
    from iodaemon.trial.fit import check_fit

    workload = trial.read_workload(name, directory)
    plan = _plan(workload, policies or DEFAULT_POLICIES, trial.parse_rounds(rounds, DEFAULT_ROUNDS))
    check_fit(workload)
    place = trial.find_folder(folder, "compare", workload.name)
    notes = trial.watch_machine(workload, is_forced=force)
    outcome = _run(ctx.obj, workload, plan, notes)
    return _tell(outcome, place, as_json=as_json)


def _plan(workload: Workload, words: str, rounds: int) -> Plan:
    """The policies, each loaded once, so that a wrong one is told before anything is run."""
    from iodaemon.cli.policy import load_named
    from iodaemon.trial.comparing import Plan, Policy

    names = [word.strip() for word in words.split(",") if word.strip()]
    found: list[Policy] = []
    notes: list[tuple[str, ...]] = []
    for name in names:
        overrides = {"regulation": workload.regulation} if workload.regulation else {}
        policy = load_named(name, overrides, str(workload.path))
        notes.append(policy.notes)
        is_file = "/" in name or name.endswith(".toml")
        source = str(Path(name).resolve()) if is_file else name
        found.append(Policy(name=policy.name, source=source))
    for note in sum(notes, ()) if all(notes) else ():  # what one of them knows is no mistake
        output.say(note)
    if len({policy.name for policy in found}) != len(found) or len(found) < 2:
        raise UsageError(f"--policies {words}: name two or more, each once")
    return Plan(policies=tuple(found), rounds=rounds)


def _run(session: Session, workload: Workload, plan: Plan, notes: tuple[str, ...]) -> Outcome:
    import msgspec

    from iodaemon.trial.comparing import compare as conduct

    telling = trial.begin(workload, plan.rounds, len(plan.policies), "policies")
    copies = [job.count for job in workload.jobs]
    with trial.at_site(session, workload, copies, telling) as (place, check):
        outcome = conduct(place, plan, check=check, tell=telling)
    return msgspec.structs.replace(outcome, notes=(*notes, *outcome.notes))


def _tell(outcome: Outcome, folder: Folder, *, as_json: bool) -> int:
    """Print, keep, draw; the exit code."""
    from iodaemon.trial.document import comparison_document
    from iodaemon.trial.picture import comparison_bars, comparison_figures

    if outcome.runs or outcome.partial:
        document = comparison_document(outcome)
        trial.tell_results(document, lambda: outcome_lines(outcome), folder, as_json=as_json)
    if outcome.runs:
        bars = trial.draw(comparison_figures(outcome), folder, comparison_bars(outcome))
        if bars and not as_json:
            print("\n".join(bars))
    return trial.end(outcome)


def outcome_lines(outcome: Outcome) -> list[str]:
    """What was run, the table, the comparisons, and how to read them."""
    from iodaemon.trial.summary import MEASURES, changes, spread_of, values_of

    lines = _head_lines(outcome)
    if not outcome.runs:
        return [*lines, "", "no round is complete: nothing to compare"]
    columns = [Column("MEASURE"), *(Column(name, is_number=True) for name in outcome.policies)]
    rows = []
    for measure in MEASURES:
        cells = [
            spread_words(
                spread_of(values_of([r for r in outcome.runs if r.policy == name], measure.key)),
                measure,
            )
            for name in outcome.policies
        ]
        rows.append((measure.label, *cells))
    lines += ["", *output.table(columns, rows)]
    found = changes(outcome.runs, outcome.policies)
    lines += ["", f"against {outcome.policies[0]}:", *_change_lines(found), "", *METHOD]
    return lines


def _head_lines(outcome: Outcome) -> list[str]:
    counts = ", ".join(f"{count} {kind}" for kind, count in outcome.counts.items())
    total = sum(outcome.counts.values())
    early = "" if outcome.rounds == outcome.rounds_asked else f" of {outcome.rounds_asked} asked"
    sockets = output.count_of(len(outcome.sockets), "socket")
    return [
        f"workload {outcome.workload}: {total} jobs ({counts}), {outcome.slots} CPUs on {sockets}",
        f"rounds: {outcome.rounds}{early}, policies in turns; median [lowest, highest]",
        f"alone: {trial.alone_words(outcome.alone_times_s)}",
        *trial.machine_lines(outcome.machine, outcome.notes),
    ]


def spread_words(spread: Spread | None, measure: Measure) -> str:
    """Such as ``12.3 [11.9, 14.0]``."""
    if spread is None:
        return output.UNKNOWN
    middle, low, high = (
        figure(value / measure.per_unit) for value in (spread.median, spread.low, spread.high)
    )
    return f"{middle} [{low}, {high}]"


def figure(value: float) -> str:
    """Three digits that count, never an exponent."""
    import math

    digits = 2 if value == 0.0 else max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{min(digits, 4)}f}"


def _change_lines(found: tuple[Change, ...]) -> list[str]:
    from iodaemon.trial.summary import MEASURES

    labels = {measure.key: measure.label.partition(",")[0] for measure in MEASURES}
    columns = (Column("MEASURE"), Column("POLICY"), Column("CHANGE"), Column("VERDICT"))
    rows = [
        (labels[change.measure], change.policy, change_words(change), verdict_words(change))
        for change in found
    ]
    return output.table(columns, rows)


def change_words(change: Change) -> str:
    """Such as ``-12 % [-20, +1]``; nothing to say where the first policy has 0."""
    if change.ratio is None or change.low is None or change.high is None:
        return output.NOTHING
    middle, low, high = (100.0 * (each - 1.0) for each in (change.ratio, change.low, change.high))
    return f"{middle:+.0f} % [{low:+.0f}, {high:+.0f}]"


def verdict_words(change: Change) -> str:
    """The verdict, with the chance where one was reckoned."""
    words = _WORDS.get(change.verdict, change.verdict)
    if change.p is None or change.verdict not in ("better", "worse", "more", "less", "noise"):
        return words
    return f"{words} (p < 0.01)" if change.p < _SMALL_P else f"{words} (p {change.p:.2f})"
