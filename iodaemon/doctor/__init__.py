"""``iod doctor``: proves on this machine what works, what is lacking, and what is broken.

Each check is a probe, which tries the thing itself and returns a reading, and a judge, a pure
function from the reading to a finding.
"""
