"""A file of requests, what is in it, and what StorAlloc's simulator would print of it."""

YAML = """\
# requests
jobs:
- id: 0
  startTime: 2020-01-01 01:00:00
  endTime: '2020-01-01 03:00:00'
  readBytes: 12034354913
  writtenBytes: 24068709827
- id: 1
  startTime: "2020-01-01T02:00:00"   # quoted
  endTime: 2020-01-01 02:30:00
  readBytes: 450000000000
  writtenBytes: 0
- id: 2
  startTime: 2020-01-01 02:00:00
  endTime: 2020-01-01 02:30:00
  readBytes: 0
  writtenBytes: 0
"""
ROWS = [("0", 24_068_709_827, 3600.0, 10_800.0), ("1", 450_000_000_000, 7200.0, 9000.0)]
NEW_YEAR_S = 1_577_836_800.0
"""Of the requests: id, bytes, begin and end after new year."""
PRINTED = """\
failed_requests_count: 0
max_concurrent_allocations: 4
nodes:
- disks:
  - capacity: 4000
    id: 0
    last_alloc_time: 1577847600
    max_cap_utilisation: 5.625
    max_nb_alloc: 2
    mean_capacity_utilisation: 1.875
    mean_nb_alloc: 1.25
  - capacity: 4000
    id: 1
    last_alloc_time: 1577845800
    max_cap_utilisation: 6.25
    max_nb_alloc: 2
    mean_capacity_utilisation: 1.562
    mean_nb_alloc: 0.5
  id: S-4d5fce:0
  max_nb_alloc: 4
requests_count: 4
retries_allowed: 'yes'
sim_duration: 7200
split_threshold_gb: 200
tt_allocated_gb: 475.0
"""


def told(requests):
    return [(r.id, r.size_bytes, r.start_s - NEW_YEAR_S, r.end_s - NEW_YEAR_S) for r in requests]
