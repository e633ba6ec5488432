"""What a metric is: a row that says name, kind, labels, help, and how to read it from a scene.

The exporter's table is made of these; so is the table in docs/metrics.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Literal, NamedTuple, assert_never

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.core import (
    Metric as Family,
)

from iodaemon.daemon.driver import Driver
from iodaemon.daemon.tally import Durations, Histogram

PREFIX: Final = "iodaemon_"

Kind = Literal["gauge", "counter", "histogram"]
Rows = Iterable[tuple[tuple[str, ...], float]]
"""Label values, in the order of the metric's labels, and the value."""
Histograms = Mapping[tuple[str, ...], Histogram]
"""One histogram for each set of label values."""


class Scene(NamedTuple):
    """All that can be shown.

    Attributes:
        driver: with the state, the journal, the rules and the tally.
        samples_skipped: how many readings were skipped because the last one was still under way.
        controls: what the kernel may offer for jobs besides, and whether it does.
        log_lines_lost: lines of the log that could not be written.
        supervisor_problem: why no supervisor answers; empty: one does.
        is_protected: the supervisor has an anchor, which would start another one.
    """

    driver: Driver
    samples_skipped: Callable[[], int]
    controls: Callable[[], Mapping[str, bool]] = dict
    log_lines_lost: Callable[[], int] = lambda: 0
    supervisor_problem: Callable[[], str] = str
    is_protected: Callable[[], bool] = lambda: True


class Metric(NamedTuple):
    """One metric.

    Attributes:
        name: without the prefix; with unit and ``_total`` as Prometheus wants them.
        kind: what Prometheus calls its type.
        labels: names of its labels.
        help: one sentence, for people.
        read: its values now; of a histogram its histograms, or the one without labels.
    """

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str
    read: Callable[[Scene], Rows | Histograms | Durations]

    def family(self, scene: Scene) -> Family:
        """The metric with its values now, as the client library writes it."""
        name, found = PREFIX + self.name, self.read(scene)
        if isinstance(found, Durations):
            return self._histogram(name, {(): found.histogram})
        if isinstance(found, Mapping):
            return self._histogram(name, found)
        family = self._empty(name)
        for labels, value in found:
            family.add_metric(list(labels), value)
        return family

    def _histogram(self, name: str, values: Histograms) -> HistogramMetricFamily:
        family = HistogramMetricFamily(name, self.help, labels=self.labels)
        for labels, each in values.items():
            family.add_metric(list(labels), buckets=each.cumulative(), sum_value=each.sum)
        return family

    def _empty(self, name: str) -> GaugeMetricFamily | CounterMetricFamily:
        match self.kind:
            case "gauge":
                return GaugeMetricFamily(name, self.help, labels=self.labels)
            case "counter":
                return CounterMetricFamily(name, self.help, labels=self.labels)
            case "histogram":
                raise TypeError(f"{name}: a histogram is read from Durations")
            case _:
                assert_never(self.kind)


def markdown_table(metrics: Iterable[Metric]) -> str:
    """The metrics as a table for people."""
    return "\n".join(["| Metric | Type | Labels | Meaning |", "|---|---|---|---|", *_rows(metrics)])


def _rows(metrics: Iterable[Metric]) -> Iterator[str]:
    for metric in metrics:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        yield f"| `{PREFIX}{metric.name}` | {metric.kind} | {labels} | {metric.help} |"
