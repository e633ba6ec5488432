"""``iod why``, ``iod events``, ``iod mode``, ``iod replay``, as a user meets them."""

import json
import time
from pathlib import Path

import msgspec
import pytest
from builders import MB, counters, platform, sample
from fake_daemon import NOW_S, job, reason

from iodaemon.core.job import Job, JobId, JobSpec, JobState
from iodaemon.simulator.replay import Recording

POLICIES = Path(__file__).parents[2] / "policies"


@pytest.fixture(autouse=True)
def _far_from_home(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def moved(job_id, before, after, at_s=NOW_S, why=None):
    told = None if why is None else reason(why)
    event = {"kind": "moved", "job_id": job_id, "at_s": at_s, "before": before, "after": after}
    return event | {"reason": told}


def evidence(
    signal="total of all jobs", value=90e6, threshold=40e6, *, quantity="bandwidth", **changes
):
    rows = [(1, 60e6, "suspend", "heaviest"), (2, None, "resume", "fits"), (3, 30e6, "spared", "")]
    scale = 1.0 if quantity == "bandwidth" else 1e-7
    made = {
        "at_s": NOW_S - 5,
        "signal": signal,
        "quantity": quantity,
        "value": value,
        "threshold": threshold,
        "load": 9.0,
        "allowed": 4.0,
        "fits": None,
        "total_bytes_per_s": 90e6,
        "jobs": [
            {
                "job_id": number,
                "rate_bytes_per_s": rate,
                "load": (rate or 0.0) * scale,
                "verdict": verdict,
                "why": why,
            }
            for number, rate, verdict, why in rows
        ],
        "is_shadow": False,
    }
    return made | changes


def shadow(job_id, verdict, lasted_s=None):
    made = {"kind": "shadow", "job_id": job_id, "at_s": NOW_S, "verdict": verdict}
    return made | {"reason": reason("too much"), "lasted_s": lasted_s}


def trial(**changes):
    text = "2 at a time got 2.6 times as much done as 6 at a time"
    made = {"at_s": NOW_S, "resource": "memory", "verdict": "kept", "before": 6, "tried": 2}
    return made | {"gain": 2.6, "text": text, "is_shadow": False} | changes


EVENTS = [
    moved(1, None, "PENDING"),
    moved(1, "RUNNING", "SUSPENDED_IO", why="above the bound"),
    {"kind": "evidence", **evidence()},
    shadow(2, "suspend"),
    shadow(2, "resume", 12.5),
    {"kind": "mode", "at_s": NOW_S, "mode": "shadow", "by": "ann"},
    {"kind": "trial", **trial()},
    {"kind": "trial", **trial(verdict="began", gain=None, is_shadow=True)},
]
LIFE = [moved(7, None, "PENDING", NOW_S - 60), moved(7, "PENDING", "STARTING", NOW_S - 59)]


def explain(daemon, job_id, state="RUNNING", **changes):
    daemon.add(job(job_id, state))
    told = {
        "is_so": "runs on socket 0",
        "since_s": NOW_S - 5,
        "until": "its own end",
        "evidence": None,
        "history": LIFE,
    }
    daemon.whys[job_id] = {"limits": [], "trials": []} | told | changes


# -- why -----------------------------------------------------------------------------------------


def test_why_says_where_it_is_since_when_until_when_and_its_life(iod, daemon):
    explain(daemon, 7)

    assert (
        "Job 7  job7 (ann)\n"
        "State  RUNNING, since 2027-01-15 07:59:55, for 0 s\n"
        "Why    runs on socket 0\n"
        "Until  its own end\n"
        "\n"
        "2027-01-15 07:59:00  submitted, PENDING\n"
        "2027-01-15 07:59:01  PENDING -> STARTING\n"
    ) == iod("why", "7").out


def test_why_of_a_job_held_for_io_has_the_table(iod, daemon):
    explain(daemon, 1, "SUSPENDED_IO", evidence=evidence())

    assert [
        "In the slice that ended 2027-01-15 07:59:55: total of all jobs 90 MB/s, threshold 40 MB/s",
        "JOB   MOVED    PART VERDICT WHY",
        "  1 60 MB/s 60 MB/s suspend heaviest",
        "  2       ?   0 B/s resume  fits",
        "  3 30 MB/s 30 MB/s spared",
    ] == iod("why", "1").out.splitlines()[5:10]


def test_why_of_a_job_that_enough_contend_without_says_what_was_tried(iod, daemon):
    limit = {"resource": "memory", "contending": 2, "limit": 2, "text": "tried twice"}
    unknown = {"resource": "sda", "contending": 4, "limit": None, "text": ""}
    explain(daemon, 7, "PENDING", limits=[limit, unknown], trials=[trial()])

    lines = iod("why", "7").out.splitlines()
    assert [
        "Limit  memory: 2 at once, 2 now: tried twice",
        "Limit  sda: no limit, 4 now",
        f"Tried  2027-01-15 08:00:00  keep 2 for memory: {trial()['text']}",
    ] == lines[4:7]


WAIT = ("wait of sda", 3.25, 3.0)
IN_REQUESTS = "wait of sda 3.2 times a lone request's, threshold 3.0; 9.0 requests in flight, 4.0"


@pytest.mark.parametrize(
    ("told", "line"),
    [
        (evidence(*WAIT, quantity="wait"), f"{IN_REQUESTS} may be"),
        (evidence(*WAIT, quantity="wait"), "  1 60 MB/s 6.0 req suspend heaviest"),
        (  # the mark for coming back, where there is one
            evidence(*WAIT, quantity="wait", fits=4.0),
            f"{IN_REQUESTS} may be; jobs come back up to 4.0 req",
        ),
        (evidence(fits=28e6), "threshold 40 MB/s; jobs come back up to 28 MB/s"),
        (evidence(threshold=0.0), "total of all jobs 90 MB/s"),  # nothing was held against it
    ],
)
def test_the_evidence_is_told_in_its_own_quantity(iod, daemon, told, line):
    explain(daemon, 1, evidence=told)

    assert any(each.endswith(line) for each in iod("why", "1").out.splitlines())


def test_several_jobs_are_told_one_below_the_other_and_as_json(iod, daemon):
    explain(daemon, 7)
    explain(daemon, 8)

    heads = [line for line in iod("why", "7-8").out.splitlines() if line.startswith("Job")]
    one, two = ({"job": daemon.jobs[n]} | daemon.whys[n] for n in (7, 8))
    assert ["Job 7  job7 (ann)", "Job 8  job8 (ann)"] == heads
    assert one == iod("why", "--json", "7").json
    assert [one, two] == iod("why", "--json", "7-8").json


# -- events --------------------------------------------------------------------------------------


def test_events_are_one_line_each(iod, daemon):
    daemon.events = EVENTS

    at = "2027-01-15 08:00:00"
    signal = "total of all jobs 90 MB/s, threshold 40 MB/s"
    assert [
        f"{at}      1 submitted, PENDING",
        f"{at}      1 RUNNING -> SUSPENDED_IO      above the bound",
        f"2027-01-15 07:59:55      - suspend 1, resume 2          {signal}",
        f"{at}      2 would suspend                too much",
        f"{at}      2 would resume, after 12.5 s   too much",
        f"{at}      - regulation shadow            switched by ann",
        f"{at}      - keep 2 for memory            {trial()['text']}",
        f"{at}      - would try 2 for memory       {trial()['text']}",
    ] == iod("events").out.splitlines()


@pytest.mark.parametrize(
    ("event", "told"),
    [
        (  # from before its quantity was kept
            {k: v for k, v in evidence(*WAIT).items() if k not in ("quantity", "fits")},
            "wait of sda 3.25, threshold 3\n",
        ),
        (evidence(is_shadow=True), "would suspend 1, resume 2"),
        ({"kind": "eclipse", "at_s": NOW_S}, "- eclipse\n"),  # of a newer daemon
    ],
)
def test_events_of_other_daemons_and_of_shadow_are_told(iod, daemon, event, told):
    daemon.events = [{"kind": "evidence"} | event]

    assert told in iod("events").out


@pytest.mark.parametrize(
    ("words", "query"),
    [
        ([], {"follow": ["0"], "since": ["-3600.0"]}),
        (["-f"], {"follow": ["1"]}),
        (["-f", "--since", "2026-11-21 12:00"], {"follow": ["1"], "since": ["1795262400.0"]}),
    ],
)
def test_the_last_hour_is_shown_or_what_follows_unless_a_time_is_given(iod, daemon, words, query):
    iod("events", *words)

    assert query == daemon.seen[-1][2]


@pytest.mark.parametrize(
    ("words", "places"),
    [
        (("--kind", "shadow"), [3, 4]),
        (("-k", "mode,evidence"), [2, 5]),
        (("-k", "mode", "-k", "moved"), [0, 1, 5]),
        (("1",), [0, 1, 2]),
        (("all",), [0, 1, 2, 3, 4, 5, 6, 7]),
        (("2", "--kind", "evidence"), [2]),
    ],
)
def test_events_are_chosen_by_kind_and_job(iod, daemon, words, places):
    daemon.events = EVENTS

    told = [json.loads(line) for line in iod("events", "--json", *words).out.splitlines()]
    assert [EVENTS[place] for place in places] == told


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("why",), "no job given: write 7, 3-9, 1,4, last or all, or select by -J, -u or -s"),
        (("events", "--kind", "shadw"), "--kind: no kind 'shadw': did you mean shadow?"),
        (("events", "--since", "soon"), "--since: 'soon' is no point in time: write 2d, "),
        (("mode", "shado"), "no mode 'shado': did you mean shadow?"),
    ],
)
def test_what_does_not_exist_is_a_usage_error(iod, words, line):
    code, told = iod.fails(*words)

    assert (2, True) == (code, told.startswith(line)), told


# -- mode ----------------------------------------------------------------------------------------


def test_a_mode_is_shown_and_switched(iod, daemon):
    assert iod("mode").out.startswith("regulation is on: ")
    assert {"mode": "on", "shadow_suspended_s": {}} == iod("mode", "--json").json
    assert "regulation is off: no job is suspended for I/O\n" == iod("mode", "off").out
    assert [{"mode": "off"}] == [body for body in daemon.bodies("/v1/mode") if "mode" in body]


def test_in_shadow_it_is_told_who_would_have_stood_still(iod, daemon):
    nobody = iod("mode", "shadow").out.splitlines()
    daemon.shadow_suspended_s = {"10": 3.0, "9": 90.0}
    some = iod("mode", "shadow").out.splitlines()

    assert "it would have suspended none of the jobs that run now" == nobody[-1]
    assert ["JOB WOULD HAVE STOOD", "  9            1m30s", " 10              3 s"] == some[1:]


# -- replay --------------------------------------------------------------------------------------


def record(daemon):
    """Two jobs that move 30 MB/s each, for ten slices."""
    jobs = tuple(
        Job(
            id=JobId(number),
            spec=JobSpec(command=("/bin/dd",), name=name),
            uid=1,
            state=JobState.COMPLETED,
            since_s=NOW_S + 9.5,
            submitted_s=NOW_S,
            started_s=NOW_S + 0.5,
            ended_s=NOW_S + 9.5,
            partition=0,
            attempt=1,
        )
        for number, name in ((1, ""), (2, "two"))
    )
    samples = tuple(
        sample(NOW_S + n, {i: counters(30 * n * MB) for i in (1, 2)}) for n in range(1, 11)
    )
    made = Recording(samples=samples, jobs=jobs, platform=platform(2, 2))
    daemon.samples = msgspec.json.decode(msgspec.json.encode(made, enc_hook=dict))


def test_a_replay_tells_each_job_the_sums_and_what_it_cannot_know(iod, daemon):
    record(daemon)

    lines = iod("replay", "--policy", str(POLICIES / "dynamic.toml")).out.splitlines()

    assert "policy dynamic over 10 samples, 2027-01-15 08:00:01 to 2027-01-15 08:00:10" == lines[0]
    assert ["JOB", "NAME", "REALLY", "WOULD", "TIMES"] == lines[1].split()
    assert [["1", "dd"], ["2", "two"]] == [line.split()[:2] for line in lines[2:4]]
    assert "(2 jobs)" in lines[4]
    assert lines[5].startswith("A replay cannot know")


SAMPLE = {"samples": [{"at_s": 4e9, "jobs": 1}], "jobs": [], "platform": {}}


@pytest.mark.parametrize(
    ("words", "path", "answer", "told"),
    [
        ((), "policy", {}, "name one with --policy"),
        ((), "policy", {"admission": {"rule": "fcfs", "bogus": 1}}, "name one with --policy"),
        (
            ("--policy", "none", "--since", "2026-11-21 12:00"),
            None,
            None,
            "no samples (--since 2026-11-21 12:00): set journal_samples = true",
        ),
        (("--policy", "none"), "samples", SAMPLE, "use the iod of its version"),
    ],
    ids=["no policy", "another policy", "no samples", "other samples"],
)
def test_what_cannot_be_replayed_is_one_line(iod, daemon, words, path, answer, told):
    if path is not None:
        daemon.answers[f"/v1/{path}"] = (200, json.dumps(answer).encode())

    code, message = iod.fails("replay", *words)

    assert (1, True) == (code, told in message), message
