"""Between two samples: a job ends, and what it used is given on to one that is held."""

import msgspec
import pytest
from builders import Script, exited, job, suspended

from iodaemon.core import event as ev
from iodaemon.core.decision import RegulationPlan, Resume
from iodaemon.core.job import JobId
from iodaemon.core.rule import Mode


class Refiller(Script):
    """Resumes job 2 whenever a job ends, and counts how often it is asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.refills = 0

    def refill(self, view, memory):
        self.refills += 1
        held = tuple(job.id for job in view.suspended if job.id == 2)
        return RegulationPlan(resumes=held, io_headroom_bytes_per_s=7.0), memory


@pytest.fixture
def refiller(rig):
    """Jobs 1, 2 and 3 run; their rule refills."""
    rig.regulation = Refiller()
    rig.controller.use(msgspec.structs.replace(rig.controller.rules, regulation=rig.regulation))
    rig.run(job(1), job(2), job(3))
    rig.regulate(1.0)
    rig.regulate(2.0)
    return rig


def hold_second(rig):
    rig.regulate(3.0, suspends=(2,))
    rig.step(suspended(3.1, 2))
    rig.backend.take()


def test_the_end_of_a_job_lets_another_go_at_once(refiller):
    hold_second(refiller)

    refiller.step(exited(3.4, 1))

    assert [Resume(job_id=JobId(2))] == refiller.backend.take()
    assert 7.0 == refiller.state.io_headroom_bytes_per_s


def test_an_end_that_comes_with_a_sample_is_that_samples_matter(refiller):
    hold_second(refiller)

    refiller.step(exited(3.4, 1), ev.SampleTaken(at_s=3.4, sample=refiller.state.meter.last))

    assert (0, 4) == (refiller.regulation.refills, refiller.regulation.asked)


def test_where_nobody_is_held_an_end_is_nobodys_matter(refiller):
    refiller.step(exited(3.4, 1))

    assert 0 == refiller.regulation.refills


def test_a_rule_that_does_not_refill_waits_for_its_timeslice(rig):
    rig.run(job(1), job(2))
    rig.regulate(1.0)
    rig.regulate(2.0)
    hold_second(rig)

    rig.step(exited(3.4, 1))

    assert (3, []) == (rig.regulation.asked, rig.backend.take())


def test_switched_off_it_is_not_asked(refiller):
    hold_second(refiller)
    refiller.step(ev.ModeChanged(at_s=3.2, mode=Mode.OFF, by="ann"))
    refiller.backend.take()
    refiller.step(exited(3.4, 1))

    assert 0 == refiller.regulation.refills


def test_in_shadow_it_is_asked_and_nothing_is_touched(refiller):
    refiller.step(ev.ModeChanged(at_s=2.5, mode=Mode.SHADOW, by="ann"))
    refiller.regulate(3.0, suspends=(2,))

    plan = refiller.step(exited(3.4, 1))

    assert ((), [(2, "resume", 3.4)]) == (
        plan.decisions,
        [(step.job_id, step.verdict, step.at_s) for step in plan.shadow],
    )
