"""Which of two answers is told, what was learned here or what was imported."""

from hypothesis import given
from hypothesis import strategies as st

from iodaemon.core.forecast import FAR_SURER, LEAST_CONFIDENCE, Answer, preferred
from iodaemon.core.job import Prediction
from iodaemon.core.similarity import KINDS, Key


def answer(source, kind, confidence):
    told = Prediction(rate_bytes_per_s=1.0, confidence=confidence, source=source, by=f"{kind}:x")
    return Answer(Key(1, kind, "x"), told)


SURE = st.floats(LEAST_CONFIDENCE, 1.0)


@given(st.sampled_from(KINDS), SURE, st.sampled_from(KINDS), SURE)
def test_the_less_specific_goes_first_only_where_it_is_far_surer(one, sure, other, surer):
    learned, imported = answer("learned", one, sure), answer("imported", other, surer)

    found = preferred(learned, imported)
    left = learned if found is imported else imported
    assert left.confidence <= FAR_SURER * found.confidence
    if left.worth > found.worth or (left.worth == found.worth and left is learned):
        assert found.confidence > FAR_SURER * left.confidence
    assert preferred(learned, None) is learned
    assert preferred(None, imported) is imported
