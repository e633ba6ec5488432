"""``iod compare``: real jobs on this machine, under each of several policies."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from iodaemon.cli import output
from iodaemon.cli.command import OFF, App, Word, argument, option, verb
from iodaemon.cli.failure import ExitCode, UsageError, count
from iodaemon.cli.output import Column, Progress
from iodaemon.cli.session import Session
from iodaemon.errors import NoDrawing, RequestError
from iodaemon.units import format_bytes, format_duration

if TYPE_CHECKING:
    from iodaemon.simulator.experiment import Figure
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
    "effect, by a randomisation test over the rounds. A difference counts if p is at most 5 %; of",
    "20 measures one passes by chance. Below 6 rounds nothing is claimed.",
)
MOST_ROUNDS: Final = 1000
HINTED_S: Final = 60.0
"""A run that takes so long may be one that never ends."""
_SMALL_P: Final = 0.01
_SHOWN_STATES: Final = {
    "running": ("R", "ST", "SG"),
    "suspended": ("SI", "SU", "SI..."),
    "waiting": ("PD", "H"),
}
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
ResultsFolder = Annotated[
    Word, option("--output", metavar="DIR", text="Where results go [./iod-compare/NAME].")
]
Directory = Annotated[
    Word, option("--directory", metavar="DIR", text="On the disk to use, instead of the file's.")
]
Force = Annotated[bool, option("--force", text="Measure even if other processes use the machine.")]


@verb(app, "compare")
def compare(
    session: Session,
    name: Annotated[Word, argument("WORKLOAD.toml")] = None,
    policies: Policies = None,
    rounds: Rounds = None,
    folder: ResultsFolder = None,
    directory: Directory = None,
    force: Force = OFF,
    as_json: Annotated[bool, option("--json", text="The results as JSON.")] = OFF,
) -> int:
    """Run the same jobs under each policy, and say what differs.

    WORKLOAD.toml has the jobs: commands, or built-in kernels that read, write and compute. In
    every round each kind runs alone once, then all together under each policy in turn, by daemons
    of its own. It tells medians with ranges, against the first policy, and whether a difference is
    more than noise. A single policy is measured and compared with nothing.

    At the end all but the results is removed; after Ctrl-C as well, and complete rounds are told.
    """
    import msgspec

    from iodaemon.trial.folder import Folder
    from iodaemon.trial.workload import check_fit, load_workload

    if name is None:
        raise UsageError("name a workload file: 'iod compare --help' says what it has")
    number = DEFAULT_ROUNDS
    if rounds is not None:
        number = count("--rounds", rounds, "rounds", "6", most=MOST_ROUNDS)
    workload = load_workload(Path(name), directory)
    plan = _plan(workload, policies or DEFAULT_POLICIES, number)
    check_fit(workload)
    path = Path("iod-compare") / workload.name if folder is None else Path(folder)
    place = Folder(path=path, own=2 if folder is None else 1)
    place.check()
    notes = _watch_machine(workload, is_forced=force)
    outcome = _run(session, workload, plan)
    outcome = msgspec.structs.replace(outcome, notes=(*notes, *outcome.notes))
    return tell(outcome, place, as_json=as_json)


def _plan(workload: Workload, words: str, rounds: int) -> Plan:
    """The policies, each loaded once, so that a wrong one is told before anything is run."""
    from iodaemon.cli.config import load_named
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
    if len({policy.name for policy in found}) != len(found) or not found:
        raise UsageError(f"--policies {words}: name each once")
    return Plan(policies=tuple(found), rounds=rounds)


def _run(session: Session, workload: Workload, plan: Plan) -> Outcome:
    """Whatever was made is gone afterwards; signals are obeyed when all is tidied up."""
    from iodaemon.calibration.store import kept_file
    from iodaemon.trial.comparing import compare as conduct
    from iodaemon.trial.run import InterruptedTrialError, interruptible
    from iodaemon.trial.site import site

    calibration = kept_file(Path(session.load_config({}).state_dir))
    kinds, policies = len(workload.jobs), len(plan.policies)
    apart = "one kind of job" if kinds == 1 else f"each of {kinds} kinds of job"
    under = "policy" if policies == 1 else "policies"
    output.say(
        f"{plan.rounds * (kinds + policies)} runs ({output.count_of(plan.rounds, 'round')} of "
        f"{apart} alone and of {policies} {under}); the first round shows how long they take"
    )
    telling = Telling(kinds + policies, can_last=any(job.time_s is None for job in workload.jobs))

    def heard() -> None:
        telling.close()
        output.say("ending: jobs are cancelled and files removed, which takes some seconds")

    try:
        with (
            telling,
            interruptible(heard) as check,
            site(
                workload,
                calibration=calibration if calibration.is_file() else None,
                progress=telling.tell,
                check=check,
            ) as place,
        ):
            return conduct(place, plan, check=check, tell=telling.tell_run)
    except InterruptedTrialError as error:  # before there was anything to tell
        raise SystemExit(128 + error.signal_number) from error


def _watch_machine(workload: Workload, *, is_forced: bool) -> tuple[str, ...]:
    """See whether others use the machine; what a reader of the results must know of that."""
    from iodaemon.calibration.beside import look
    from iodaemon.trial.site import find_disks

    disks = find_disks(workload.directory)
    why = look([device.id for device in disks.devices])
    if not why:
        return ()
    words = f"the machine is busy: {'; '.join(why)}"
    if not is_forced:
        raise RequestError(f"{words}: try when it is quiet, or give --force")
    output.say(f"{words}; going on, as --force says")
    return (f"{words}, before the first run",)


def tell(outcome: Outcome, folder: Folder, *, as_json: bool) -> int:
    """Print, keep, draw; the exit code."""
    from iodaemon.trial.comparing import comparison_document
    from iodaemon.trial.picture import comparison_bars, comparison_figures

    if outcome.runs or outcome.partial:
        document = comparison_document(outcome)
        output.show(document, lambda: outcome_lines(outcome), as_json=as_json)
        folder.keep({"results.json": f"{json.dumps(document, indent=1)}\n".encode()})
    if outcome.runs:
        bars = draw(comparison_figures(outcome), folder, comparison_bars(outcome))
        if bars and not as_json:
            print("\n".join(bars))
    if outcome.failure is not None:
        for line in getattr(outcome.failure, "tail", ()):
            output.say(f"| {line}")
        raise outcome.failure
    if outcome.signal_number is not None:
        output.say(f"ended early: {outcome.rounds} of {outcome.rounds_asked} rounds are complete")
        return 128 + outcome.signal_number
    return ExitCode.OK


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
            spread_words(spread_of(values_of(outcome.runs, name, measure.key)), measure)
            for name in outcome.policies
        ]
        rows.append((measure.label, *cells))
    lines += ["", *output.table(columns, rows)]
    if found := changes(outcome.runs, outcome.policies):
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
        f"alone: {alone_words(outcome.alone_times_s)}",
        *machine_lines(outcome.machine, outcome.notes),
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


class Telling(Progress):
    """How far a trial is.

    Args:
        per_round: runs of a round.
        can_last: whether a job may run for ever, which is then said once.
    """

    def __init__(self, per_round: int = 1, *, can_last: bool = False) -> None:
        super().__init__()
        self._per_round = per_round
        self._can_last = can_last
        self._done = 0
        self._began_s = self._round_s = self._begun_s

    def tell_run(self, what: str, done: int, total: int, states: Mapping[str, int]) -> None:
        """Tell what a run does, how many are done, and the jobs by the code of their state."""
        now_s = time.monotonic()
        if done != self._done:
            self._done, self._began_s = done, now_s
            if done % self._per_round == 0:
                self._round_s = now_s
        if self._can_last and now_s - self._began_s >= HINTED_S:
            self._can_last = False
            self.close()
            output.say(
                f"{what} takes longer than {HINTED_S:.0f} s; where a job does not end, Ctrl-C ends "
                'the trial, and time = "5m" in its [[job]] ends the job'
            )
        words = f"{what}: {states_words(states)}"
        if rounds := done // self._per_round:
            each_s = (self._round_s - self._begun_s) / rounds
            left_s = self._round_s + each_s * (total / self._per_round - rounds) - now_s
            words += f"; about {format_duration(float(round(max(0.0, left_s))))} left"
        self.tell(words)


def states_words(states: Mapping[str, int]) -> str:
    """Such as ``3 running, 2 suspended, 4 waiting, 1 of 10 ended``."""
    counts = {
        word: sum(states.get(code, 0) for code in codes) for word, codes in _SHOWN_STATES.items()
    }
    parts = [f"{count} {word}" for word, count in counts.items() if count or word == "running"]
    total = sum(states.values())
    return ", ".join([*parts, f"{total - sum(counts.values())} of {total} ended"])


def draw(figures: Sequence[Figure], folder: Folder, instead: Sequence[str]) -> list[str]:
    """Draw the figures; where that is not possible, the lines that are shown instead."""
    from iodaemon.simulator.draw import draw as draw_figure

    try:
        with tempfile.TemporaryDirectory(prefix="iod-figures.") as place:
            into = Path(place)
            drawn = [path for figure in figures for path in draw_figure(figure, into, then="")]
            folder.keep({path.name: path.read_bytes() for path in drawn})
    except NoDrawing as error:
        output.say(f"results are in {folder.path}; {error}")
        return ["", *instead]
    output.say(f"results and {len(drawn) // 2} figures are in {folder.path}")
    return []


def alone_words(times_s: Mapping[str, Sequence[float]]) -> str:
    """Such as ``stream 0.77 s [0.74, 0.81]``: of each kind the median and the range."""
    words = []
    for kind, each in times_s.items():
        span = f" [{min(each):.2f}, {max(each):.2f}]" if len(each) > 1 else ""
        words.append(f"{kind} {statistics.median(each):.2f} s{span}")
    return ", ".join(words) or "not known"


def machine_lines(machine: Mapping[str, Any], notes: Sequence[str]) -> list[str]:
    """What it was run on, and what a reader must know."""
    rotation = {True: "rotational", False: "not rotational", None: "rotational or not unknown"}
    kinds = sorted({rotation[each] for each in machine["is_rotational"]})
    disk = ", ".join([str(machine["storage"]), *kinds])
    cpus, memory = f"{machine['cpus']} CPUs", format_bytes(machine["memory_bytes"])
    return [
        f"machine: Linux {machine['kernel']}, {cpus} ({machine['cpu_model']}), {memory}",
        f"storage: {disk}",
        *notes,
    ]
