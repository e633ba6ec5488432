"""Lines of the log: fields, of which no text of a user makes another one."""

import logging
import shlex

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from iodaemon.core.decision import Plan, Transition, TrialStep
from iodaemon.core.job import JobId, JobState, Reason
from iodaemon.daemon.driver import log_plan
from iodaemon.text import quoted


def line_of(caplog, text):
    caplog.clear()
    step = Transition(
        job_id=JobId(7),
        at_s=1.0,
        before=JobState.STARTING,
        after=JobState.FAILED,
        reason=Reason(code="StartFailed", text=text),
    )
    with caplog.at_level(logging.INFO):
        log_plan(Plan(transitions=(step,)))
    [record] = caplog.records
    return record.getMessage()


@pytest.mark.parametrize(
    "text", ['/home/me/x" event=ready job="8', "ends in \\", '\\" event=ready', '"', 'a\n\x1b[2J"']
)
def test_a_text_makes_no_field(caplog, text):
    line = line_of(caplog, text)
    fields = [field.partition("=")[0] for field in shlex.split(line)]

    assert ["event", "job", "from", "to", "reason", "text"] == fields
    assert line.isprintable()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.sampled_from('"\\ =a\n'), max_size=12))
def test_any_text_is_read_again_as_it_was(text):
    """By a shell's rules, but for what cannot be printed."""
    [read] = shlex.split(quoted(text))

    assert text.replace("\n", "\\n") == read


def test_a_trial_is_a_line(caplog):
    fields = {"resource": "memory", "before": 6, "tried": 2, "text": 'so it "is"'}
    began = TrialStep(verdict="began", is_shadow=True, **fields)
    with caplog.at_level(logging.INFO):
        log_plan(Plan(trials=(TrialStep(verdict="kept", gain=2.6123, **fields), began)))

    head = 'event=trial resource="memory" verdict='
    assert [
        head + 'kept before=6 tried=2 gain=2.61 shadow=no text="so it \\"is\\""',
        head + 'began before=6 tried=2 gain=unknown shadow=yes text="so it \\"is\\""',
    ] == [record.getMessage() for record in caplog.records]
