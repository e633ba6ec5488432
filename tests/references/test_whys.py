"""Every reason code is come to by the core, as it was when they were stored."""

import whys
from reference import told


def test_each_code_is_met_and_rests_on_the_same():
    assert told(whys.compare(whys.collect())) == ""


def test_what_is_held_elsewhere_is_a_code():
    assert whys.ELSEWHERE.keys() <= whys.codes()
