"""The daemon: it decides, journals and serves, and has no privilege.

Begin reading with ``main`` (the life of one daemon) and ``driver`` (one turn: events in, decisions
out). ``journal`` is all that survives a power failure, ``http`` all that clients ask, ``metrics``
what is counted. ``backends`` has the two nodes that decisions are carried out on.

Before a daemon serves: ``preflight`` (what it refuses), ``place`` (its directories and locks),
``timeline`` (clocks that were set), ``tiering`` (disks of tiers), ``outputs`` (what the
supervisor's files know), ``knowledge`` (what earlier runs taught), ``calibrating`` (what was
measured).
"""
