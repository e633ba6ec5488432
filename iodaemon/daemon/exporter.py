"""What Prometheus is told: a view of the state at the time of the scrape.

``METRICS`` is the whole list; ``python -m iodaemon.daemon.exporter`` prints it as the table of
docs/metrics.md. A value that is not known is left out, never 0. No label names a job or a user:
series must not grow with the work done.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from iodaemon.daemon.job_metric import JOB_METRICS
from iodaemon.daemon.metric import Scene, markdown_table
from iodaemon.daemon.node_metric import NODE_METRICS
from iodaemon.daemon.storage_metric import STORAGE_METRICS

METRICS: Final = JOB_METRICS + NODE_METRICS + STORAGE_METRICS
"""Every metric, in the order in which it is shown."""


class Exporter:
    """Renders the page. Holds no figure: each page reads them anew, in the daemon's loop.

    Attributes:
        driver: whose state it shows.
    """

    def __init__(self, scene: Scene) -> None:
        self.driver = scene.driver
        self._registry = CollectorRegistry()
        self._registry.register(_View(scene))
        ProcessCollector(registry=self._registry)

    def page(self) -> bytes:
        """All metrics in Prometheus' text format, with ``process_*`` of the daemon itself."""
        return generate_latest(self._registry)


class _View(Collector):
    """Makes the metrics when the client library asks for them."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    def describe(self) -> Iterator[Family]:
        """Nothing in advance: ``METRICS`` has no name twice."""
        return iter(())

    def collect(self) -> Iterator[Family]:
        """Each metric with its values now."""
        return (metric.family(self._scene) for metric in METRICS)


if __name__ == "__main__":
    sys.stdout.write(markdown_table(METRICS) + "\n")
