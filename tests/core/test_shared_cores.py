"""Jobs that ask for no CPUs share the cores of their socket; those that ask have their own."""

import msgspec
import pytest
from builders import Rig, exited, job, reason, sampled, submitted
from builders import platform as machine_of
from hypothesis import given
from hypothesis import strategies as st
from tracing import then, timeslice

from iodaemon.core.decision import AdmissionPlan, Start, StartLimit
from iodaemon.core.job import JobId, JobSpec
from iodaemon.core.platform import (
    COPY_STRIDE,
    Partition,
    PartitionId,
    Platform,
    Slot,
    SlotId,
    oversubscribe,
    share_cores,
)
from iodaemon.core.state import State
from iodaemon.policy.admission import easy, fcfs, pack
from iodaemon.policy.placement.least_io import Rule as LeastIo

WHY = reason("Contention", "one more would read the cache away from those that run")
RULES = [fcfs.Rule(), easy.Rule(), pack.Rule()]
GIB = 2**30


def shared(*sizes):
    machine = machine_of(*sizes)
    return msgspec.structs.replace(
        machine, partitions=tuple(share_cores(each) for each in machine.partitions)
    )


def rig_of(*sizes, admission=None):
    rig = Rig(State(shared(*sizes)))
    rules = msgspec.structs.replace(
        rig.controller.rules, admission=admission or fcfs.Rule(), placement=LeastIo()
    )
    rig.controller.use(rules)
    return rig


def plain(job_id, **fields):
    """A job that asked for no CPUs."""
    return job(job_id, shares_cores=True, **fields)


def limited(rig, at_s, why=WHY, **fields):
    """The event that ends a timeslice in which regulation limits starts so."""
    timeslice(rig, at_s, starts=StartLimit(why=why, **fields))
    return sampled(at_s)


def above(number):
    return {"above_cores": {PartitionId(0): number}}


def come(*jobs):
    """These are submitted; by number they ask for no CPUs."""
    return tuple(submitted(plain(each) if isinstance(each, int) else each) for each in jobs)


def cpus_of(rig, job_id):
    made = rig.job(job_id)
    slots = rig.state.platform.partition(made.partition).slots
    return sorted({cpu for slot in slots if slot.id in made.slots for cpu in slot.cpus})


def waits(rig, job_id):
    return rig.state.reason(JobId(job_id)).text


def test_a_job_that_asks_for_no_cpus_has_all_of_its_socket_and_others_their_own():
    rig = rig_of(2)
    then(rig, come(1, 2), "start 1", "start 2")
    assert [[0, 1], [0, 1]] == [cpus_of(rig, n) for n in (1, 2)]

    rig = rig_of(3)
    then(rig, come(job(1), 2, job(3)), "start 1", "start 2", "start 3")
    assert [[0], [1]] == [cpus_of(rig, n) for n in (1, 3)]

    rig = Rig(State(machine_of(2)))  # where each slot is like the other it has one
    then(rig, come(1), "start 1")
    assert [0] == cpus_of(rig, 1)


def test_together_they_are_as_many_as_there_are_cores():
    rig = rig_of(2)
    then(rig, come(job(1), 2, 3), "start 1", "start 2", job_id=3, waits="Slots")

    text = "all 2 cores of the socket are busy or taken; regulation lets no more jobs share them"
    assert f"{text} now" == waits(rig, 3)


@pytest.mark.parametrize(
    ("why", "told"), [(WHY, f"now: {WHY.text}"), (reason("X", ""), "share them now")]
)
def test_more_share_while_regulation_lets_them(why, told):
    rig = rig_of(2)
    then(rig, come(*range(1, 6)), "start 1", "start 2")
    decided = ["start 3", "start 4"]
    then(rig, limited(rig, 1.0, why, **above(2)), *decided, job_id=5, waits="Slots")

    assert waits(rig, 5).endswith(told)


def test_above_the_cores_a_job_needs_memory():
    rig = rig_of(1)
    then(rig, come(1), "start 1")
    then(rig, limited(rig, 1.0, **above(9), memory_bytes=3 * GIB, footprint_bytes=GIB))
    jobs = come(plain(2, memory_bytes=2 * GIB), 3, 4)
    then(rig, jobs, "start 2", "start 3", job_id=4, waits="Cores")

    text = "the only core of the socket is busy or taken; to share them it needs 1 GiB of memory"
    assert f"{text}, and 0 B is left" == waits(rig, 4)


def test_the_memory_of_a_job_that_ended_is_there_for_the_next():
    rig = rig_of(1)
    rig.run(plain(1), plain(2))
    then(rig, limited(rig, 1.0, **above(1), memory_bytes=GIB, footprint_bytes=GIB), "start 2")
    then(rig, come(3))
    then(rig, exited(1.5, 1), "start 3")


def test_below_the_cores_no_memory_is_asked_for():
    rig = rig_of(2)
    rig.run(plain(1))
    then(rig, limited(rig, 1.0, memory_bytes=0.0, footprint_bytes=GIB))
    then(rig, come(2), "start 2")


def test_a_job_waits_for_cores_of_its_own_that_others_have():
    rig = rig_of(2)
    rig.run(job(1, cpus=2))
    then(rig, limited(rig, 1.0, **above(3)))
    then(rig, come(job(2), 3), job_id=2, waits="Cores")


def test_those_that_share_go_before_one_that_waits_for_cores():
    rig = rig_of(2, admission=easy.Rule())
    rig.run(job(1, cpus=2))
    then(rig, limited(rig, 1.0, **above(3)))
    then(rig, come(job(2), 3, 4, 5), "start 3", "start 4")


def test_nobody_goes_before_one_that_waits_for_memory():
    rig = rig_of(1, admission=easy.Rule())
    rig.run(plain(1))
    then(rig, limited(rig, 1.0, **above(3), memory_bytes=GIB))
    then(rig, come(plain(2, memory_bytes=2 * GIB), 3))


def test_a_job_goes_to_the_socket_that_has_a_core_for_it():
    rig = rig_of(1, 1)
    rig.run(job(1))
    then(rig, limited(rig, 1.0, **above(3)))
    then(rig, come(job(2)), "start 2", job_id=2, partition=1)


class Blind:
    """Starts all that wait, wherever there are slots."""

    def decide(self, view, memory):
        draft = view.draft()
        starts = [draft.start(each, PartitionId(0)) for each in view.pending]
        return AdmissionPlan(starts=tuple(starts)), memory


def test_a_rule_of_ones_own_cannot_start_beyond_the_memory_that_is_left():
    rig = Rig(State(shared(1)))
    rig.run(plain(1))
    then(rig, limited(rig, 1.0, **above(3), memory_bytes=GIB))
    rig.controller.use(msgspec.structs.replace(rig.controller.rules, admission=Blind()))
    then(rig, come(plain(2, memory_bytes=2 * GIB), 3), "start 3", job_id=2, waits=WHY.code)


@pytest.mark.parametrize("before", ["auto", 1, 4])
@pytest.mark.parametrize("after", ["auto", 1, 4])
def test_jobs_outlive_a_change_of_the_setting(before, after):
    def machine(setting):
        (socket,) = machine_of(2).partitions
        made = share_cores(socket) if setting == "auto" else oversubscribe(socket, setting)
        return Platform(partitions=(made,))

    first = Rig(State(machine(before)))
    first.run(plain(1), job(2), plain(3))
    jobs = list(first.state.live)
    second = State(machine(after))
    second.restore(jobs, JobId(4))
    rig = Rig(second)
    live = [each.id for each in second.live]

    rig.step(*(exited(2.0, number) for number in live))

    second.check()
    size = second.platform.slot_count
    assert (size, size) == (second.slots_idle(PartitionId(0)), second.slots_free(PartitionId(0)))


def test_places_are_many_and_bounded():
    counts = {}
    for size in (1, 2, 16, 128):
        slots = tuple(Slot(id=SlotId(i), cpus=(i,)) for i in range(size))
        made = share_cores(Partition(id=PartitionId(0), slots=slots))
        ids = [slot.id for slot in made.slots]
        assert sorted(set(ids)) == ids
        assert made.slots[size].id == slots[0].id + COPY_STRIDE
        counts[size] = len(ids) - size

    assert {1: 64, 2: 64, 16: 512, 128: 1024} == counts


def test_a_record_of_before_owns_its_cores():
    spec = msgspec.json.decode(b'{"command": ["true"]}', type=JobSpec)

    assert not spec.shares_cores


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["plain", "own", "end", "limit"]),
        st.integers(1, 3),
        st.integers(0, 4),
        st.sampled_from([None, 0.0, 2.0 * GIB]),
    ),
    min_size=1,
    max_size=40,
)


@pytest.mark.parametrize("admission", RULES, ids=["fcfs", "easy", "pack"])
@given(events=EVENTS)
def test_no_slot_is_given_twice_and_no_more_run_than_may(admission, events):
    rig = rig_of(2, 3, admission=admission)
    number, more_by = 0, {}
    for at_s, (kind, cpus, more, memory_bytes) in enumerate(events, start=1):
        if kind in ("plain", "own"):
            number += 1
            own = job(number, cpus=cpus, at_s=at_s)
            rig.step(submitted(plain(number, at_s=at_s) if kind == "plain" else own))
        elif kind == "limit":
            more_by = {PartitionId(0): more}
            fields = {"memory_bytes": memory_bytes, "footprint_bytes": GIB}
            rig.step(limited(rig, at_s, above_cores=more_by, **fields))
        elif live := [each.id for each in rig.state.live]:
            rig.step(exited(at_s, live[more % len(live)]))
        check(rig, more_by, [d for d in rig.backend.take() if isinstance(d, Start)])
    rig.step(limited(rig, at_s + 1.0, most=0, memory_bytes=0.0))
    while live := [each.id for each in rig.state.live]:  # whatever regulation says, all end
        rig.step(exited(at_s + 2.0, live[0]))

    assert [] == list(rig.state.pending)


def check(rig, above, started):
    """Cores are had by one job; no start was beyond what may be used."""
    for partition in rig.state.platform.partitions:
        live = [each for each in rig.state.live if each.partition == partition.id]
        own = [slot for each in live if not each.spec.shares_cores for slot in each.slots]
        places = [slot for each in live if each.spec.shares_cores for slot in each.slots]
        assert len(set(own)) == len(own) <= partition.cores
        assert all(slot < COPY_STRIDE for slot in own)
        assert all(slot >= COPY_STRIDE for slot in places)
        if any(d.partition == partition.id for d in started):
            most = partition.cores + above.get(partition.id, 0)
            assert len(own) + len(places) <= most
