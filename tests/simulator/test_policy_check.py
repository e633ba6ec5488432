"""A policy is tried on simulated loads: a rule that fails is named with file, line and load."""

import pickle

import msgspec
import pytest

from iodaemon.config import find_policies, load_policy
from iodaemon.core.decision import AdmissionPlan
from iodaemon.core.rule_error import RuleError
from iodaemon.policy.admission import fcfs
from iodaemon.registry import shipped
from iodaemon.simulator.policy_check import any_platform, loads, platform_of, try_policy
from iodaemon.simulator.run import simulate
from iodaemon.simulator.workload import Mix, random_workload

SHIPPED = find_policies((shipped("policies"),))


def loaded(name, **overrides):
    return load_policy(name, overrides=overrides, search=(shipped("policies"),))


class Own:
    """A regulation that suspends nobody, and looks at every instant at what ``look`` says."""

    timeslice_s = 1.0

    def __init__(self, look):
        self.look = look

    def decide(self, view, memory):
        self.look(view)
        return loaded("none").rules.regulation.decide(view, memory)


def using(look):
    return msgspec.structs.replace(loaded("none").rules, regulation=Own(look))


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_policy_goes_through_all_loads(name):
    assert () == try_policy(loaded(name).rules, any_platform())


LOOKS = {
    "mixed jobs": lambda view: 1 // (view.now_s < 30.0),
    "unknown I/O": lambda view: 1 // any(map(view.bandwidth, (j.id for j in view.live))),
}


@pytest.mark.parametrize("name", LOOKS)
def test_a_rule_that_fails_is_found_with_its_line_and_the_load(name):
    """Which of the loads meets it first is another matter for some."""
    look, machine = LOOKS[name], any_platform()

    with pytest.raises(RuleError) as e:
        try_policy(using(look), machine)

    assert f"{__file__}:" in e.value.fault.place
    assert name in {load.name for load in loads(machine)}
    assert any(f"'{load.name}'" in str(e.value) for load in loads(machine))


def test_a_rule_that_starts_nobody_is_remarked_on():
    class Nobody:
        def decide(self, view, memory):
            return AdmissionPlan(), memory

    rules = msgspec.structs.replace(loaded("none").rules, admission=Nobody())

    assert len(list(loads(any_platform()))) == len(try_policy(rules, any_platform()))


@pytest.mark.slow
def test_the_loads_have_what_a_rule_may_not_expect():
    seen = set()

    def look(view):
        live = list(view.live)
        seen.add("empty" if not live and not list(view.pending) else "busy")
        if live and not list(view.running):
            seen.add("none runs")
        if live and all(view.bandwidth(job.id) is None for job in live):
            seen.add("unknown")
        if any(job.shares for job in live):
            seen.add("space")
        if not view.devices:
            seen.add("no devices")

    try_policy(using(look), any_platform())

    assert {"empty", "busy", "none runs", "unknown", "space", "no devices"} == seen


def test_the_platform_of_a_daemon_is_made_from_its_answer():
    node = {
        "sockets": [{"id": 0, "slots": 2}, {"id": 1, "slots": 3}],
        "devices": [{"id": "sda", "rotational": True, "capacity_bytes_per_s": 1e8}],
    }

    made = platform_of(node)

    assert [2, 3] == [len(partition.slots) for partition in made.partitions]
    assert 5 == made.slot_count
    assert 1e8 == made.capacity_bytes_per_s


# -- cautions ------------------------------------------------------------------------------------


def test_a_caution_that_fails_is_told_with_its_line_and_ends_nothing():
    class Worried(fcfs.Rule):
        def caution(self, platform):
            raise KeyError("sda")

    rules = msgspec.structs.replace(loaded("none").rules, admission=Worried())

    [told] = rules.cautions(any_platform())

    assert f"{__file__}:" in told


# -- simulations ---------------------------------------------------------------------------------


def test_the_error_of_a_rule_passes_between_processes():
    with pytest.raises(RuleError) as e:
        simulate(any_platform(), using(lambda view: 1 // 0), random_workload(Mix(jobs=3), 1))

    again = pickle.loads(pickle.dumps(e.value))

    assert (e.value.fault, str(e.value)) == (again.fault, str(again))
