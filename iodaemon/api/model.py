"""The shapes of what the API takes and gives, as they stand in its JSON.

Plain typed dictionaries: a client needs nothing to read them but ``json``. Times are seconds
since 1970, ``None`` means unknown or not yet, and units are in the names. What a request's body
may have is declared where it is checked (``daemon.http``); docs/api.md and ``/v1/openapi.json``
tell it.
"""

# No annotations of __future__ here: as texts they would be compiled one by one, which took 4 ms of
# each command.

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NotRequired, TypeAlias, TypedDict

if TYPE_CHECKING:
    JsonValue: TypeAlias = (
        "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
    )
else:
    JsonValue: TypeAlias = Any  # what makes schemas of these types knows no recursive ones
"""Whatever JSON can say."""

JsonObject: TypeAlias = dict[str, JsonValue]
"""An object whose keys docs/api.md lists, and nobody's types."""
JobOptions: TypeAlias = dict[str, Any]
"""What may be said of a job besides its command; what is left out is the daemon's to choose."""
JobSpec: TypeAlias = dict[str, Any]
"""One job as it is submitted: SPEC of docs/api.md. ``command`` is a list of words."""
ScratchOptions: TypeAlias = dict[str, Any]
"""The space that a job wants, and what is copied into it and out of it: SCRATCH."""
ImportedRun: TypeAlias = dict[str, Any]
"""One run of a program elsewhere: RUN of docs/api.md."""

LAST_EVENT: Final = "Last-Event-ID"
"""Header: the event after which events are asked for, or begin."""
OUTPUT_BEGIN: Final = "Output-Begin"
"""The header of an answer with output: where in its file the answer's first byte stands."""

STATE_CODES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "HELD": "H",
        "PENDING": "PD",
        "STARTING": "ST",
        "RUNNING": "R",
        "SUSPENDED_IO": "SI",
        "SUSPENDED_USER": "SU",
        "STOPPING": "SG",
        "COMPLETED": "CD",
        "FAILED": "F",
        "CANCELLED": "CA",
        "TIMEOUT": "TO",
        "OUT_OF_MEMORY": "OM",
        "LOST": "LO",
    }
)
"""Every state and its code; the same as the core's, written out so that nothing is imported."""

FINAL_STATES: Final = frozenset(
    {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "LOST"}
)
"""The states a job leaves only when it is requeued."""


class Reason(TypedDict):
    """Why a job is where it is: a stable word for programs, a sentence for people.

    ``cure`` is what lets a held job go on: ``'iod resume 7'``.
    """

    code: str
    text: str
    cure: NotRequired[str]


class Bandwidth(TypedDict):
    """What a job read and wrote in the last timeslice."""

    read_bytes_per_s: float | None
    written_bytes_per_s: float | None


class Predicted(TypedDict):
    """What a job's I/O is expected to be, how surely (0 to 1), and whence that is known."""

    rate_bytes_per_s: float | None
    confidence: float | None
    source: str | None


class Expected(TypedDict):
    """What a job's I/O is expected to be as a mean over its run, or was when it started.

    ``source`` is declared, learned, imported, measured (its own mean until now) or unknown, and
    ``by`` the key of the ``runs`` that it is known from.
    """

    rate_bytes_per_s: float | None
    confidence: float
    source: str
    io_share: float | None
    operations_per_s: float | None
    by: str
    runs: int


class Phase(TypedDict):
    """An I/O phase that a job told of; ``granted_s`` is None while it waits for its turn."""

    asked_s: float
    expect_bytes: int | None
    granted_s: float | None


class Share(TypedDict):
    """Space on one disk that a job holds."""

    tier: str
    disk: str
    size_bytes: int


class Stage(TypedDict):
    """Which step of staging is under way: ``in`` or ``out``."""

    step: str


class Scratch(TypedDict):
    """The space of a job: what it asked for, the tier that it is on, and its shares of disks.

    ``kept`` says why what an ended job has there is not removed, ``kept_until_s`` when it will be
    (null: never), ``unwanted`` why it was, or is being, ``unwanted_by`` who
    asked for that (empty: nobody); ``over`` that it has more than it asked for, ``most_bytes`` how
    much that was at most (0: it never had).
    ``copied_in``, ``copied_out``: whether that was done, null while it may be, and where it is not
    known. ``charged_s``: what its run is charged. ``had_space``: whether it has or had directories
    of its own, null where it is not known.
    """

    size_bytes: int
    asked_tier: str | None
    fallback: str
    input_path: str | None
    output_path: str | None
    output_on: str
    input_bytes: int
    output_bytes: int
    data_bytes: int
    tier: str | None
    had_space: bool | None
    shares: list[Share]
    kept: Reason | None
    kept_until_s: float | None
    unwanted: Reason | None
    unwanted_by: str
    over: Reason | None
    most_bytes: int
    copied_in: bool | None
    copied_out: bool | None
    stage: Stage | None
    charged_s: float | None


class Job(TypedDict):
    """One job and what became of it so far.

    ``expected_ratio``: of an ended job, the expected rate over the true one.
    """

    id: int
    name: str
    user: str
    uid: int
    state: str
    state_shown: str
    code: str
    reason: Reason | None
    command: list[str]
    cwd: str
    cpus: int
    walltime_s: float | None
    memory_bytes: int | None
    io_rate_bytes_per_s: float | None
    no_suspend: bool
    max_suspend_s: float | None
    requeue: bool
    socket: int | None
    slots: list[int]
    attempt: int
    submitted_s: float
    started_s: float | None
    ended_s: float | None
    run_s: float
    suspended_io_s: float
    suspended_user_s: float
    exit_code: int | None
    signal: int | None
    shell_code: int | None
    read_bytes: int | None
    written_bytes: int | None
    io_at_least: bool
    bandwidth: Bandwidth | None
    predicted: Predicted | None
    stdout: str | None
    stderr: str | None
    phase: Phase | None
    io_share: float | None
    io_operations_per_s: float | None
    operations: int | None
    expected: Expected
    expected_ratio: float | None
    scratch: Scratch | None
    shares_cores: bool


class JobDetail(Job):
    """One job asked for by its number: with its processes and raw counters."""

    pids: NotRequired[list[int]]
    output_kept_s: NotRequired[float | None]
    counters: NotRequired[JsonObject | None]


class DrainRecord(TypedDict):
    """Since when the node is drained, by whom, and what for (empty: not said)."""

    since_s: float
    by: str
    reason: str


class Condition(TypedDict):
    """What is not as usual: the mode of regulation, a drain, why no job starts (empty: they do)."""

    mode: str
    drain: DrainRecord | None
    starts_blocked: str


class LoadLine(TypedDict):
    """The node in one line, above the queue."""

    policy: str
    timeslice_s: float
    io_bound_bytes_per_s: float | None
    slots: int
    slots_free: int
    read_bytes_per_s: float | None
    written_bytes_per_s: float | None
    states: dict[str, int]
    set_aside: list[str]
    starts_blocked: str
    condition: Condition


class JobsAnswer(TypedDict):
    """The queue, ordered by id."""

    version: int
    now_s: float
    node: LoadLine
    jobs: list[Job]


class SubmitAnswer(TypedDict):
    """The numbers of the jobs, and what was said of their I/O that makes no sense."""

    ids: list[int]
    warnings: NotRequired[list[str]]


class JobAnswer(TypedDict):
    """What became of one request on one job.

    A cancel says whether it is ``gone``, a requeue whether it is ``requeued``: waits or runs again;
    what was kept in its space is ``removed``.
    """

    job: Job
    removed: NotRequired[bool]
    gone: NotRequired[bool]
    requeued: NotRequired[bool]


class MeAnswer(TypedDict):
    """Who asks, by the kernel's word; ``job_id``: from within which job (None: from none)."""

    uid: int
    user: str
    job_id: int | None


class AwaitedAnswer(TypedDict):
    """The user's jobs that have not ended, and those submitted or requeued since ``since_s``.

    ``now_s``: when that was so.
    """

    since_s: float
    now_s: float
    ids: list[int]


class WaitAnswer(TypedDict):
    """The jobs waited for, and whether all of them have ended."""

    jobs: list[Job]
    finished: bool


class Weighed(TypedDict):
    """One job in the table of a decision; ``load`` is its part, in the load's unit."""

    job_id: int
    rate_bytes_per_s: float | None
    load: float
    verdict: str
    why: str


class Evidence(TypedDict):
    """What the regulation saw in the slice in which it acted, or would have."""

    at_s: float
    signal: str
    quantity: str
    value: float
    threshold: float
    load: float
    allowed: float
    fits: float | None
    total_bytes_per_s: float
    jobs: list[Weighed]
    is_shadow: bool


class LimitState(TypedDict):
    """How many jobs contend for a resource, and how many should (None: no limit is known)."""

    resource: str
    contending: int
    limit: int | None
    text: str


class TrialStep(TypedDict):
    """One step of finding out how many jobs should contend for a resource at once.

    ``verdict`` is began, kept, undone or learned; ``gain`` how many times as much got done as with
    ``before`` jobs (None: not known yet).
    """

    at_s: float
    resource: str
    verdict: str
    before: int
    tried: int
    gain: float | None
    text: str
    is_shadow: bool


class WhyAnswer(TypedDict):
    """Why a job is where it is, since when, until when; and the steps of its life as events."""

    job: Job
    is_so: str
    since_s: float
    until: str
    evidence: Evidence | None
    limits: list[LimitState]
    trials: list[TrialStep]
    history: list[JsonObject]


class ModeAnswer(TypedDict):
    """What regulation may do; in shadow, how long each live job would have stood still, by id."""

    mode: str
    shadow_suspended_s: dict[str, float]


class SamplesAnswer(TypedDict):
    """Raw samples in order of time, the jobs that they speak of, and the machine."""

    samples: list[JsonObject]
    jobs: list[JsonObject]
    platform: JsonObject


class HistoryAnswer(TypedDict):
    """Finished jobs, the one that ended last at the end."""

    version: int
    now_s: float
    jobs: list[Job]


class Sum(TypedDict):
    """What several finished jobs came to together; None where it is known of none of them.

    ``charged_s``: as ``run_s``, but of jobs with space what their run takes on the slowest tier.
    ``mean_slowdown``: from submission to end over the run time, of those that ran, and
    ``jain_index``: how evenly that is spread over them, 1 being evenly.
    """

    jobs: int
    failed: int
    cancelled: int
    run_s: float
    suspended_io_s: float
    suspended_user_s: float
    read_bytes: int | None
    written_bytes: int | None
    unknown_io_jobs: int
    bandwidth_bytes_per_s: float | None
    charged_s: float
    mean_slowdown: float | None
    jain_index: float | None


class KeyedSum(Sum):
    """The sum over the jobs of one user, or of one name."""

    key: str


class SumsAnswer(TypedDict):
    """Finished jobs added up, who moved most first."""

    version: int
    now_s: float
    by: str
    sums: list[KeyedSum]
    total: Sum


class Hint(TypedDict):
    """What is known of the I/O of jobs with this key, from earlier runs.

    ``off``: by what factor what it foretold of ``predictions`` jobs was wrong, typically.
    """

    key: str
    user: str
    uid: int
    expected: Expected
    last_s: float
    run_s: float | None
    predictions: int
    off: float | None


class Accuracy(TypedDict):
    """By what factor predictions of one source were wrong, typically."""

    source: str
    predictions: int
    off: float


class Lesson(TypedDict):
    """What was learned of jobs with this key: how many should contend, what memory one needs.

    ``limit`` at once got ``gain`` times as much done as ``too_many``; None: not found out. They
    contend for ``resource``; so many as ``seen``, of whatever kind, were seen to do no harm.
    """

    key: str
    user: str
    uid: int
    resource: str
    seen: int
    limit: int | None
    too_many: int | None
    gain: float
    tries: int
    at_s: float
    footprint_bytes: int | None


class HintsAnswer(TypedDict):
    """What is known from earlier runs, learned last first."""

    version: int
    now_s: float
    hints: list[Hint]
    accuracy: list[Accuracy]
    lessons: list[Lesson]


class ImportAnswer(TypedDict):
    """How many runs were new, and how many had been imported before."""

    imported: int
    known: int


class Holder(TypedDict):
    """A job that holds CPUs."""

    id: int
    state: str


class DrainAnswer(TypedDict):
    """Whether the node is drained, and if so since when, by whom and why; who holds CPUs.

    ``at_rest``: nobody does, and that all have ended is on the disk.
    """

    draining: bool
    holding: list[Holder]
    at_rest: bool
    since_s: NotRequired[float]
    by: NotRequired[str]
    reason: NotRequired[str]


class Changed(TypedDict):
    """One setting, before and after as TOML; ``remedy`` is empty where it counts at once."""

    path: str
    before: str
    after: str
    remedy: str


class ReloadAnswer(TypedDict):
    """What changed, what needs a restart to, and what is to be said of it."""

    file: str | None
    changed: list[Changed]
    needs_restart: list[Changed]
    notes: list[str]


class ForgetAnswer(TypedDict):
    """The keys of which something was known."""

    forgotten: list[str]


class MarkAnswer(TypedDict):
    """Since when ``wait all`` looks back from now on."""

    since_s: float


class PhaseAnswer(TypedDict):
    """The job; ``granted``: whether it is its turn (of ``io`` only)."""

    job: Job
    granted: NotRequired[bool]


class ErrorText(TypedDict):
    """A word for programs, and one line that says what to do.

    Of a value in a body also ``at``, the path to it (``["jobs", 2, "walltime_s"]``), and
    ``problem``: the line without the job's place in it. Where the path ends in a key, that is the
    subject which ``problem`` lacks: ``must be above 0``.
    """

    code: str
    message: str
    at: NotRequired[list[str | int]]
    problem: NotRequired[str]


class ErrorAnswer(TypedDict):
    """What every refused request is answered."""

    error: ErrorText


class Acted(TypedDict):
    """What became of one of several jobs: as of a request on it alone, or why it was refused."""

    id: int
    job: NotRequired[Job]
    error: NotRequired[ErrorText]
    removed: NotRequired[bool]
    gone: NotRequired[bool]
    requeued: NotRequired[bool]


class ActAnswer(TypedDict):
    """What became of each job, by id."""

    results: list[Acted]


class NodeAnswer(TypedDict):
    """Sockets, disks, tiers, and in ``measured`` what is done by which means.

    What need not be there is where it applies: drained, calibrated, tiers configured, a rule set
    aside.
    """

    backend: str
    stopped_by: str
    condition: Condition
    draining: bool
    limits: list[LimitState]
    sockets: list[JsonObject]
    devices: list[JsonObject]
    host: JsonObject
    measured: JsonObject
    sampling: JsonObject
    drain: NotRequired[DrainRecord]
    calibration: NotRequired[list[JsonObject]]
    calibration_problem: NotRequired[str]
    set_aside: NotRequired[list[JsonObject]]
    tiers: NotRequired[list[JsonObject]]
    disks: NotRequired[list[JsonObject]]
    allocated: NotRequired[list[JsonObject]]


class PolicyAnswer(TypedDict):
    """The policy in force: each rule's name (``rule``) and parameters.

    Also rules that failed, and what to know of the policy on this machine, where there is any.
    """

    name: str
    path: str
    source: str
    max_suspend_s: float | None
    admission: JsonObject
    placement: JsonObject
    regulation: JsonObject
    set_aside: NotRequired[list[JsonObject]]
    cautions: NotRequired[list[str]]


class ConfigAnswer(TypedDict):
    """The configuration in force, and the file that was read."""

    file: str | None
    settings: list[JsonObject]
