"""A file of requests, and what is in it."""

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


def told(requests):
    return [(r.id, r.size_bytes, r.start_s - NEW_YEAR_S, r.end_s - NEW_YEAR_S) for r in requests]
