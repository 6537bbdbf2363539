"""The metrics of a session for `prometheus_client`, Prometheus' own Python library, which serves and pushes them.

Needs ``pip install 'hocket[prometheus]'``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, final

from hocket import extras
from hocket.kernel import metrics as kernel_metrics
from hocket.util import metrics

_core: Final = extras.load(
    "prometheus_client.core", "hocket.util.prometheus", "prometheus_client", "Run pip install 'hocket[prometheus]'."
)


@final
class Collector:
    """A collector that gives a registry of `prometheus_client` the session's metrics, at each request.

    Register it in the driver. The program chooses the server, push gateway or file for the registry; Hocket opens no
    port.

    Example:
        >>> import prometheus_client
        >>> from hocket.util import metrics, prometheus
        >>> metrics.Counter("cakes", "Cakes so far.", tag_keys=("kind",)).inc(2, tags={"kind": "plum"})
        >>> registry = prometheus_client.CollectorRegistry()
        >>> registry.register(prometheus.Collector())
        >>> registry.get_sample_value("cakes_total", {"kind": "plum"})
        2.0
    """

    def collect(self) -> Iterator[Any]:
        """Yield each metric in the form of `prometheus_client`."""
        for family in metrics.list_families():
            yield _build(family)

    def describe(self) -> list[Any]:
        """Return no metrics: they are unknown when the collector is registered."""
        return []


def _build(family: kernel_metrics.Family) -> object:
    kinds = {
        kernel_metrics.COUNTER: _core.CounterMetricFamily,
        kernel_metrics.GAUGE: _core.GaugeMetricFamily,
        kernel_metrics.HISTOGRAM: _core.HistogramMetricFamily,
    }
    labels = list(dict.fromkeys(metrics.build_label(key) for tags in family.series for key, _ in tags))
    built = kinds[family.kind](family.name, family.description or family.name, labels=labels)
    for tags, numbers in family.series.items():
        given = {metrics.build_label(key): value for key, value in tags}
        values = [given.get(label, "") for label in labels]
        if family.kind == kernel_metrics.HISTOGRAM:
            built.add_metric(values, _sum_up(family.boundaries, numbers), numbers[-1])
        else:
            built.add_metric(values, numbers[0])
    return built


def _sum_up(boundaries: tuple[float, ...], numbers: tuple[float, ...]) -> list[tuple[str, float]]:
    """Return how many values each bucket and all lower ones hold."""
    count = 0.0
    found = []
    for boundary, inside in zip((*boundaries, float("inf")), numbers[:-1], strict=True):
        count += inside
        found.append(("+Inf" if boundary == float("inf") else str(boundary), count))
    return found
