"""``iod doctor``: tries on this machine what works, what is lacking, and what is broken.

``checks`` has the table of all checks, in the order of the report, and what they examine;
``report`` a line of the report. A check tries the thing itself (``scratch`` has the places for
that, ``child`` the process) and passes what it found to a pure function, which makes the finding.
"""
