"""Policies that change while jobs run, drains between: nothing stays frozen, every job ends."""

import msgspec
from builders import platform
from exploring import tries
from hypothesis import given, settings
from hypothesis import strategies as st
from test_properties import DISK, HOSTILE, MACHINES, MAX_SUSPEND_S, MIXES, NEVER_S, from_file

from iodaemon.config import find_policies
from iodaemon.core import event as ev
from iodaemon.core.decision import Start
from iodaemon.core.job import SUSPENDED
from iodaemon.core.limits import Sharing
from iodaemon.core.rule import Mode
from iodaemon.model.node import Model
from iodaemon.registry import shipped
from iodaemon.simulator.run import simulate
from iodaemon.simulator.workload import MB, Mix, random_workload

POLICIES = [HOSTILE, *(from_file(name) for name in find_policies([shipped("policies")]))]
TIMES_S = st.floats(0.0, 60.0, allow_nan=False).map(lambda at_s: round(at_s, 1))
"""To a tenth: some changes fall on the very instant of a sample."""
LAST_S = 61.0


def changed(at_s, rules=None, sharing=None):
    return ev.Reconfigured(at_s=at_s, by="ann", changes=(), rules=rules, sharing=sharing)


SHARINGS = st.builds(Sharing, max_running=st.sampled_from([None, 1, 3]), fair=st.booleans())
CHANGES = st.lists(
    st.one_of(
        st.builds(changed, TIMES_S, st.sampled_from(POLICIES), st.none() | SHARINGS),
        st.builds(ev.DrainBegun, at_s=TIMES_S, by=st.just("ann")),
        st.builds(ev.DrainEnded, at_s=TIMES_S, by=st.just("ann")),
        st.builds(ev.ModeChanged, at_s=TIMES_S, mode=st.sampled_from(Mode), by=st.just("ann")),
    ),
    max_size=12,
)


class Watch:
    def __init__(self):
        self.starts_while_drained = 0
        self.not_asked = 0

    def __call__(self, state, plan):
        state.check()
        if state.drain is not None:
            self.starts_while_drained += sum(isinstance(d, Start) for d in plan.decisions)
        for job in state.live:
            if job.state in SUSPENDED and not job.wants_freeze and job.freeze_asked:
                self.not_asked += 1


@settings(max_examples=tries(120), deadline=None)
@given(
    machine=MACHINES,
    mix=MIXES,
    seed=st.integers(0, 2**32),
    first=st.sampled_from(POLICIES),
    changes=CHANGES,
)
def test_every_feasible_job_ends_whatever_is_changed_meanwhile(machine, mix, seed, first, changes):
    watch = Watch()
    result = simulate(
        machine,
        first,
        random_workload(mix, seed),
        model=Model(disk=DISK),
        seed=seed,
        until_s=NEVER_S,
        on_step=watch,
        events=[*changes, ev.DrainEnded(at_s=LAST_S, by="ann")],
    )

    largest = machine.largest_partition
    feasible = {job.id for job in result.jobs if job.spec.cpus <= largest}
    assert feasible <= {job.id for job in result.finished}
    assert 0 == watch.starts_while_drained
    assert 0 == watch.not_asked


def test_a_hostile_rule_that_is_replaced_leaves_nobody_behind():
    mix = Mix(jobs=8, mean_gap_s=0.0, cpus=(1, 1), transfer_bytes=(100 * MB, 400 * MB))
    forever = msgspec.structs.replace(HOSTILE, max_suspend_s=None)
    none = msgspec.structs.replace(from_file("none"), max_suspend_s=None)

    result = simulate(
        platform(4, 4),
        forever,
        random_workload(mix, 7),
        model=Model(disk=DISK),
        until_s=NEVER_S,
        events=[changed(20.0, none)],
    )

    stood_s = [job.suspended_io_s for job in result.jobs]
    assert max(stood_s) > MAX_SUSPEND_S  # with the guard lifted it held them
    assert 8 == len(result.finished)
