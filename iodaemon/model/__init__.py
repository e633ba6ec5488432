"""A simulated node and its physics: links, stores, page cache, disk, and what jobs do.

Begin reading with ``node`` (decisions in, events and counters out), then ``machine`` (how jobs get
on), ``profile`` (what each does) and ``spec`` (what they share).
"""
