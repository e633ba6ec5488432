"""What Prometheus reads: ``GET /metrics``, and the totals behind it.

Begin with ``table``: one row a metric that is read from the state when somebody asks. ``counts``
holds what only the steps of the controller tell, as counters and histograms of the client library;
the driver feeds it. What jobs and devices moved comes from ``daemon.usage``. ``page`` is the route
and the listener on the loopback interface.

No label names a job or a user: the number of series does not grow with the work done. A value that
is not known is absent, never 0. ``python -m iodaemon.daemon.metrics.table`` prints the table of
docs/metrics.md.
"""
