"""What one user can have the daemon keep, in memory and in its journal."""

import os

import pytest
from builders import job, platform
from hypothesis import given
from hypothesis import strategies as st
from served import Served

from iodaemon.api.hints import forget_hints, import_runs
from iodaemon.core import state as core_state
from iodaemon.core.decision import Plan
from iodaemon.core.job import JobId, JobState
from iodaemon.core.state import State
from iodaemon.daemon import allowance, command, lookup
from iodaemon.daemon.allowance import BURST_BYTES, BYTES_PER_S, Allowances
from iodaemon.daemon.authorise import Rights
from iodaemon.daemon.environments import Environments
from iodaemon.errors import RequestError

HELD = {"command": ["job"], "hold": True}


@pytest.fixture
def served(tmp_path):
    served = Served(tmp_path, rights=Rights(owner_uid=4321, is_shared=True))
    yield served
    served.close()


# -- environments --------------------------------------------------------------------------------


def test_environments_go_with_the_jobs_that_used_them(served):
    for number in range(5):
        [job_id] = served.client.submit([HELD], {"A": str(number)})
        assert 1 == served.call(lambda: len(served.driver.environments))
        served.client.cancel(job_id)

    assert 0 == served.call(lambda: len(served.driver.environments))
    assert 0 == served.call(lambda: served.driver.environments.kept_bytes(os.geteuid()))


def test_a_requeued_job_has_its_environment_again(served):
    [job_id] = served.client.submit([HELD], {"A": "1"})
    served.client.cancel(job_id)
    served.client.requeue(job_id)
    key = served.state.jobs[JobId(job_id)].spec.environment_id

    assert {"A": "1"} == served.call(lambda: served.driver.environments.get(key))


def test_an_environment_outlives_the_end_of_another_job_with_it_in_the_same_instant(served):
    [first] = served.client.submit([HELD], {"A": "1"})
    spec = served.state.jobs[JobId(first)].spec

    def both():
        driver = served.driver
        driver.environments.bring(spec.environment_id, {"A": "1"})
        waits = job(7, command=spec.command, environment_id=spec.environment_id)
        ended = job(first, state=JobState.CANCELLED, environment_id=spec.environment_id)
        served.state.jobs[waits.id], served.state.jobs[ended.id] = waits, ended
        try:
            driver._write(Plan(changed=(ended.id, waits.id)), (), (), driver._kept([], [], ()))
            return driver.environments.get(spec.environment_id)
        finally:
            del served.state.jobs[waits.id]

    assert {"A": "1"} == served.call(both)


def with_state(number, *, uid, key, state):
    return job(number, uid=uid, command=("x" * number,), environment_id=key, state=state)


STEPS = st.lists(
    st.tuples(st.integers(1, 6), st.sampled_from([JobState.PENDING, JobState.CANCELLED])),
    max_size=30,
)


@given(STEPS)
def test_an_environment_is_known_exactly_while_a_job_uses_it(steps):
    environments = Environments({}, ())
    present = {}
    for number, state in steps:
        uid, key = 1000 + number % 2, "ab"[number // 4]
        if state is JobState.PENDING:
            environments.bring(key, {"A": "12345"})
        environments.follow(with_state(number, uid=uid, key=key, state=state))
        present[number] = (uid, key)
        if state is not JobState.PENDING:
            del present[number]

        assert {key for _, key in present.values()} == {k for k in "ab" if environments.get(k)}
        for each in (1000, 1001):
            own = {n: k for n, (u, k) in present.items() if u == each}
            assert sum(own) + 6 * len(set(own.values())) == environments.kept_bytes(each)


def test_one_user_has_so_much_kept_and_no_more(served, monkeypatch):
    monkeypatch.setattr(command, "MOST_KEPT_BYTES", 10_000)
    [first] = served.client.submit([{**HELD, "command": ["x" * 4000]}], {"A": "y" * 4000})
    with pytest.raises(RequestError, match="that one user may have; submit them when some have"):
        served.client.submit([{**HELD, "command": ["x" * 4000]}], {"A": "z"})
    served.client.cancel(first)

    assert served.client.submit([{**HELD, "command": ["x" * 4000]}], {"A": "z"})


# -- jobs that have ended ------------------------------------------------------------------------


def finished(count, size):
    state = State(platform(1))
    for number in range(1, count + 1):
        state.add(job(number, command=("x" * size,)))
        state.put(job(number, command=("x" * size,), state=JobState.CANCELLED))
    state.forget_finished()
    return state


def test_long_commands_of_ended_jobs_do_not_stay_in_memory(monkeypatch):
    monkeypatch.setattr(core_state, "KEPT_FINISHED_BYTES", 10_000)
    state = finished(200, 100)

    assert list(range(101, 201)) == sorted(state.jobs)


def test_the_newest_ends_stay_whatever_their_size(monkeypatch):
    monkeypatch.setattr(core_state, "KEPT_FINISHED_BYTES", 10_000)
    state = finished(200, 5000)

    assert list(range(151, 201)) == sorted(state.jobs)


# -- the journal ---------------------------------------------------------------------------------


class Clock:
    now_s = 5.0

    def __call__(self):
        return self.now_s


def test_what_a_user_has_written_comes_back_at_a_steady_rate():
    clock = Clock()
    allowances = Allowances(clock)
    allowances.spend(1000, BURST_BYTES)
    with pytest.raises(RequestError, match=r"uid 1000 has had 1 GiB .* try again in 4 s"):
        allowances.spend(1000, 4 * BYTES_PER_S)
    allowances.spend(1001, BURST_BYTES)
    clock.now_s += 4.0
    allowances.spend(1000, 4 * BYTES_PER_S)
    clock.now_s += 1e9
    allowances.spend(1000, BURST_BYTES)

    with pytest.raises(RequestError):
        allowances.spend(1000, 1)


def tell(client, job_id, verbs):
    for verb in verbs:
        getattr(client, verb)(job_id)


@pytest.mark.parametrize("verbs", [("suspend", "resume"), ("requeue", "cancel")])
def test_verbs_that_write_are_counted(tmp_path, monkeypatch, verbs):
    monkeypatch.setattr(allowance, "BURST_BYTES", 40_000)
    monkeypatch.setattr(allowance, "BYTES_PER_S", 0.001)
    monkeypatch.setattr(lookup, "NOT_COUNTED", frozenset())
    served = Served(tmp_path, rights=Rights(owner_uid=4321, is_shared=True))
    try:
        [job_id] = served.client.submit([{"command": ["compute=1000s"]}], {})
        served.client.cancel(job_id) if "requeue" in verbs else None
        with pytest.raises(RequestError, match="try again in"):
            tell(served.client, job_id, 20 * verbs)
        with pytest.raises(RequestError, match="try again in"):
            served.client.submit([{"command": ["job", "x" * 40_000]}], {})
    finally:
        served.close()


def test_imports_of_hints_are_counted_and_come_one_after_the_other(tmp_path, monkeypatch):
    monkeypatch.setattr(allowance, "BURST_BYTES", 20 * 8 * 1024)
    monkeypatch.setattr(allowance, "BYTES_PER_S", 0.001)
    monkeypatch.setattr(lookup, "NOT_COUNTED", frozenset())
    run = {"command": ["job"], "ended_s": 1.6e9, "run_s": 1.0, "processes": 1, "io_s": 0.5}
    run |= {"read_bytes": 1, "written_bytes": 1, "operations": 1, "uid": None, "name": ""}
    served = Served(tmp_path, rights=Rights(owner_uid=4321, is_shared=True))
    try:
        import_runs(served.client, [run | {"job": str(number)} for number in range(15)])
        forget_hints(served.client, ["program:job"] * 5)
        for ask in (import_runs, lambda client, _: forget_hints(client, ["program:job"])):
            with pytest.raises(RequestError, match="try again in"):
                ask(served.client, [run | {"job": "more"}])
    finally:
        served.close()
