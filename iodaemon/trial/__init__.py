"""``iod compare``: real jobs on the real machine, and what is measured of them.

The daemon uses none of it. Begin with ``comparing``, which runs the rounds of a ``workload`` at a
``site``, each with a ``private`` daemon, as ``run`` has it. ``latency`` and ``summary`` reckon,
``picture`` draws, ``folder`` keeps the results.
"""
