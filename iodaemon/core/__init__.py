"""Decides: events of one instant in, a plan of decisions out. No clock, no I/O, no logging.

``Controller.step`` is the one door. A step has phases, in this order:

1. Each event changes the records of jobs (``handlers``), through a ``Step``, which keeps what
   changed for the plan. Only a step changes the ``State``, and only by ``lifecycle``.
2. Jobs at a limit are stopped, killed or let go (``controller``).
3. When a sample is among the events, the regulation rule is asked (``regulator``).
4. The admission rule is asked, as long as anything may start.
5. What the holds of jobs say is asked of the world: suspend and resume.

A rule (``rule``) sees a ``View`` and answers with a plan (``decision``), which is checked before
anything of it is carried out. Begin to read in ``job`` and ``controller``.
"""
