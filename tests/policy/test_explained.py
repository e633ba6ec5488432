"""What ``bounded`` does slice by slice, and what is said of it: in units of the right thing."""

from builders import MB, exited
from slices import Machine, congested

from iodaemon.policy.regulation import bounded


def test_a_turn_that_the_cap_causes_is_explained_with_the_cap():
    machine = Machine(bounded.Rule(io_bound_bytes_per_s=15.0 * MB), 2)
    for _ in range(25):
        machine.slice(queue=1.0, mb=10)

    turns = [
        (table.signal, table.quantity, row.why)
        for table in machine.evidence
        for row in table.jobs
        if row.verdict == "suspend" and "turn" in row.why
    ]
    assert {"total of all jobs"} == {signal for signal, _, _ in turns}
    assert {"bandwidth"} == {quantity for _, quantity, _ in turns}
    assert ("job 1 takes its turn; all jobs move 10 MB/s, io_bound is 15 MB/s") == turns[0][2]


def test_a_turn_that_a_device_causes_is_explained_with_the_device():
    machine = congested()
    for _ in range(15):
        machine.slice(queue=1.9, mb=10)

    last = machine.evidence[-1]
    assert ("wait of sim0", "wait") == (last.signal, last.quantity)
    assert any("takes its turn; requests to sim0 take" in row.why for row in last.jobs)


def test_a_device_that_is_not_counted_once_keeps_its_jobs_held():
    machine = congested()
    held = machine.held

    machine.slice(queue=None, mb=10)

    assert held == machine.held


def test_who_is_held_for_a_device_that_is_gone_comes_back_and_hears_why():
    machine = congested()
    [held] = machine.held

    machine.slice(queue=None, mb=10)
    machine.slice(queue=None, mb=10)

    assert [] == machine.held
    last = machine.evidence[-1]
    assert ("absence of sim0", "absence", 2.0) == (last.signal, last.quantity, last.value)
    [row] = [row for row in last.jobs if row.verdict == "resume"]
    assert (held, "sim0 is gone, for which it was held: no counters of it in 2 slices") == (
        row.job_id,
        row.why,
    )


def test_a_device_that_comes_again_is_learned_anew():
    machine = congested()
    for _ in range(3):
        machine.slice(queue=None, mb=10)
    machine.slice(queue=2.5, mb=10)
    machine.slice(queue=2.5, mb=10)

    assert [] == machine.held


def test_an_end_does_not_let_go_who_is_held_for_a_device_that_is_not_known_now():
    machine = congested(3)
    held = machine.held
    machine.slice(queue=None, mb=10)
    [running] = [made.id for made in machine.state.live if not made.io_hold]

    machine.controller.step([exited(machine.now_s, running)])

    assert held == machine.held
