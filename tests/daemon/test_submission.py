"""What a client may submit: any other bytes are refused in one line."""

import json

import pytest
from builders import platform
from decoding import decode_submission
from hypothesis import given, settings
from hypothesis import strategies as st

from iodaemon.core.job import JobId, JobState
from iodaemon.daemon.http.refusal import Misstated
from iodaemon.daemon.http.submission import (
    SubmittedJob,
    adjust,
    job_maker,
)
from iodaemon.errors import RequestError

MACHINE = platform(2, 4)


def body(*jobs, **others):
    return json.dumps({"jobs": list(jobs), **others}).encode()


def spec(**fields):
    return {"command": ["true"], **fields}


def made(submitted, uid=1000):
    [one] = decode_submission(body(submitted), MACHINE).jobs
    return job_maker(one, uid, "key")(JobId(3), 5.0)


def test_all_that_can_be_said_of_a_job_is_kept():
    said = {
        "command": ["a", "ß", ""],
        "cwd": "/w",
        "name": "n",
        "cpus": 4,
        "walltime_s": 1.5,
        "memory_bytes": 2**40,
        "io_rate_bytes_per_s": 40.0,
        "io_share": 0.25,
        "io_operations_per_s": 0.0,
        "no_suspend": True,
        "max_suspend_s": 3.0,
        "stdout": "o",
        "stderr": "e",
        "umask": 0o077,
    }
    job = made(said)

    kept = {name: getattr(job.spec, name) for name in said}

    assert {**said, "command": tuple(said["command"])} == kept
    assert "key" == job.spec.environment_id


def test_a_held_job_waits_for_its_resume():
    job = made(spec(hold=True))

    assert (JobState.HELD, True) == (job.state, job.user_hold)
    assert f"'iod resume {job.id}'" == job.reason.cure


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "the submission is no JSON: "),
        (b"[]", "the submission must be an object, not a list"),
        (b"\xff\xfe{}", "the submission is no JSON: "),
        (b'{"jobs":[{"command":["\xff"]}]}', "the job is no JSON: "),
        (b'{"jobs":[{"command":["\\udc80"]}]}', "the submission is no JSON: "),
        (b"[" * 1_000_000, "the submission must be an object, not a list"),
        (b'{"jobs":' + b"[" * 1_000_000, "the submission is no JSON: maximum recursion depth"),
        (body(spec()) + b"x", "the submission is no JSON: "),
        (b"{}", "'jobs' is missing; docs/api.md"),
        (body(), "0 jobs in one submission; send 1 to 100000"),
        (body(spec(), x=1), "there is no 'x'; docs/api.md"),
        (body(spec(x=1)), "there is no 'x'; docs/api.md"),
        (body({}), "'command' is missing"),
        (body(spec(command=[])), "command is empty"),
        (body(spec(command="true")), "command must be a list, not a text"),
        (body(spec(command=[1])), "command[0] must be a text, not a whole number"),
        (body(spec(command=[""])), "the command is empty; give one after --"),
        (body(spec(command=["a\0"])), "NUL characters"),
        (body(spec(stderr="a\0")), "NUL characters"),
        (body(spec(cwd="here")), "cwd must begin with /"),
        (body(spec(name="n" * 201)), "name has more than 200 characters; shorten it"),
        (body(spec(cpus=0)), "cpus must be at least 1"),
        (body(spec(cpus=1.5)), "cpus must be a whole number, not a number"),
        (body(spec(cpus=True)), "cpus must be a whole number, not true or false"),
        (body(spec(cpus=5)), "asks for 5 CPUs, the largest socket has 4; lower --cpus to 4"),
        (body(spec(), spec(cpus=10**30)), "job 2 of 2: asks for 1000000"),
        (body(spec(walltime_s=0)), "walltime_s "),
        (b'{"jobs":[{"command":["a"],"walltime_s":1e999}]}', "walltime_s "),
        (b'{"jobs":[{"command":["a"],"walltime_s":NaN}]}', "the submission is no JSON: "),
        (body(spec(memory_bytes=2**64)), "memory_bytes "),
        (body(spec(umask=0o1000)), "umask "),
        (body(spec(), environment={"A": 1}), "environment must be a text, not a whole number"),
        (body(spec(), environment={"": "x"}), "environment variable '' cannot be set"),
        (body(spec(), environment={"A": "\0"}), "environment variable 'A' cannot be set"),
        (body(*[spec()] * 100_001), "100001 jobs in one submission; send 1 to 100000"),
    ],
)
def test_what_cannot_be_run_is_refused_in_a_line_with_the_place_in_it(data, expected):
    with pytest.raises(RequestError) as caught:
        decode_submission(data, MACHINE)

    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("data", "at", "problem"),
    [
        (body(spec(walltime_s=0)), ("jobs", 0, "walltime_s"), "must be above 0"),
        (body(spec(), spec(name=1)), ("jobs", 1, "name"), "must be a text, not a whole number"),
        (
            body(spec(), {}),
            ("jobs", 1, "command"),
            "is missing; docs/api.md lists what is required",
        ),
        (body(spec(command=["a", 1])), ("jobs", 0, "command", 1), "command[1] must be a text, not"),
        (body(spec(), spec(cpus=9)), ("jobs", 1), "asks for 9 CPUs, the largest socket has 4; "),
        (body(spec(cwd=f"/{'d' * 5000}")), ("jobs", 0, "cwd"), "is longer than the 4095 bytes"),
        (body(spec(x=1)), ("jobs", 0), "there is no 'x'; docs/api.md"),
        (body(spec(), environment=1), ("environment",), "must be an object, not a whole number"),
    ],
)
def test_a_refusal_says_where_and_what_without_the_keys_name(data, at, problem):
    with pytest.raises(Misstated) as caught:
        decode_submission(data, MACHINE)

    assert at == caught.value.at
    assert caught.value.problem.startswith(problem)


def test_a_client_hears_where_and_what(served):
    with pytest.raises(RequestError) as caught:
        served.client.submit([spec(), spec(walltime_s=0)], {})

    assert ("jobs", 1, "walltime_s") == caught.value.at
    assert "must be above 0" == caught.value.problem
    assert "job 2: walltime_s must be above 0" == str(caught.value)


# -- what is said of I/O ---------------------------------------------------------------------------

RATE, SHARE, OPERATIONS = "io_rate_bytes_per_s", "io_share", "io_operations_per_s"
IGNORED = "; the hint is ignored"


def heeded(*jobs):
    return adjust(decode_submission(body(*jobs), MACHINE).jobs, None, {})


@pytest.mark.parametrize(
    ("hint", "line"),
    [
        ({RATE: -1}, f"{RATE} -1 is no rate; give bytes/s, 0 or more"),
        ({RATE: 1e30}, f"{RATE} 1e+30 is no rate; give bytes/s, 0 or more"),
        (
            {RATE: 1, SHARE: 1.5},
            f"{SHARE} 1.5 is no part of the run time; give 0.2 or 20%, at most 1",
        ),
        ({RATE: 1, SHARE: 0}, f"{SHARE} 0 is no part of the run time; give 0.2 or 20%, at most 1"),
        (
            {RATE: 1, SHARE: -0.1},
            f"{SHARE} -0.1 is no part of the run time; give 0.2 or 20%, at most 1",
        ),
        ({SHARE: 0.5}, f"{SHARE} says nothing without {RATE}; give both"),
        ({RATE: 1, OPERATIONS: -2}, f"{OPERATIONS} -2 is no rate; give requests/s, 0 or more"),
        ({OPERATIONS: 5}, f"{OPERATIONS} says nothing without {RATE}; give both"),
    ],
    ids=str,
)
def test_a_hint_without_sense_is_told_and_the_job_is_taken_without_it(hint, line):
    [job], warnings = heeded(spec(**hint, cpus=2))

    assert [line + IGNORED] == warnings
    assert (2, None, None, None) == (
        job.cpus,
        *(getattr(job, name) for name in (RATE, SHARE, OPERATIONS)),
    )


def test_of_many_jobs_with_the_same_nonsense_the_first_is_named():
    jobs, warnings = heeded(
        spec(), *[spec(**{RATE: -1})] * 50, spec(**{RATE: -2}), spec(**{RATE: 3})
    )

    assert ["job 2", "job 52"] == [line.partition(":")[0] for line in warnings]
    assert [3.0] == [job.io_rate_bytes_per_s for job in jobs if job.io_rate_bytes_per_s is not None]


NUMBERS = st.none() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)


@settings(deadline=None)
@given(NUMBERS, NUMBERS, NUMBERS)
def test_whatever_numbers_are_given_the_job_is_taken_with_a_hint_that_can_be_or_none(
    rate, share, operations
):
    try:
        [job], warnings = heeded(spec(**{RATE: rate, SHARE: share, OPERATIONS: operations}))
    except RequestError as error:
        assert "out of range" in str(error)  # noqa: PT017 - beyond what JSON's numbers can be
        return

    kept = job_maker(job, 1000, "key")(JobId(1), 0.0).spec
    assert kept.io_share is None or 0.0 < kept.io_share <= 1.0
    assert kept.declared is None or kept.declared.rate_bytes_per_s >= 0.0
    assert len(warnings) <= 1
    assert not warnings or kept.declared is None


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_a_submission_or_refused(data):
    try:
        submission = decode_submission(data, MACHINE)
    except RequestError:
        return

    assert submission.jobs


def test_a_job_without_walltime_gets_the_default_one_and_its_submitter_is_told():
    jobs = decode_submission(body(spec(), spec(walltime_s=5.0)), MACHINE).jobs

    limited, told = adjust(jobs, 86400.0, {})

    assert [86400.0, 5.0] == [job.walltime_s for job in limited]
    assert 1 == len(told)
    assert "(default_walltime)" in told[0]
    assert (limited, []) == adjust(limited, 86400.0, {})
    assert (list(jobs), []) == adjust(jobs, None, {})


@pytest.mark.parametrize(("has_limit", "count"), [(True, 0), (False, 1)])
def test_a_memory_limit_that_nothing_keeps_is_told_to_its_submitter(serve, has_limit, count):
    jobs = [SubmittedJob(command=("x",), memory_bytes=size) for size in (None, 1 << 30, 1 << 31)]
    served = serve(controls={"memory": has_limit})
    limited = spec(command=["exit=0"], memory_bytes=1 << 30)

    assert count == len(adjust(jobs, None, {"memory": has_limit})[1])
    assert [] == adjust(jobs[:1], None, {"memory": has_limit})[1]
    assert [] == adjust(jobs, None, {})[1]
    assert count == len(served.client.submit_warned([limited], {}).get("warnings", []))
