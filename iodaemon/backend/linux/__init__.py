"""What a Linux server is and what its jobs use: topology, disks, counters.

Begin reading with ``topology`` and ``devices`` (what there is), then ``reading`` (what is counted,
in a thread of its own) and ``condition`` (what may be wrong with the machine, in words).
"""
