"""Metrics in the text formats of Prometheus and OpenMetrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate

from prometheus_client import Metric as Family
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from ..metrics import OTHER, Histogram, Metric, MetricType, Sample, merge_samples


def render_metrics(
    samples: Iterable[Sample], accept: str, shows: Callable[[str], bool]
) -> tuple[bytes, str]:
    """Return metrics as text, and its content type.

    Parameters
    ----------
    samples : iterable of Sample
        The metrics.
    accept : str
        The header ``Accept`` of the request. It selects OpenMetrics or the older format.
    shows : callable
        Returns whether the client may see a dataset's name. The others become `OTHER`.
    """
    encode, content_type = choose_encoder(accept)

    def hide(name: str) -> str:
        return name if shows(name) else OTHER

    hidden = merge_samples([[sample.relabel("dataset", hide) for sample in samples]])
    return encode(_Families(hidden)), content_type


class _Families(Collector):
    def __init__(self, samples: Iterable[Sample]) -> None:
        self._samples: dict[Metric, list[Sample]] = {}
        for sample in samples:
            if sample.metric.export is not None:
                self._samples.setdefault(sample.metric, []).append(sample)

    def collect(self) -> Iterator[Family]:
        for metric, samples in self._samples.items():
            yield _build_family(metric, samples)


def _build_family(metric: Metric, samples: Iterable[Sample]) -> Family:
    assert metric.exported_name is not None
    if metric.type is MetricType.HISTOGRAM:
        family = HistogramMetricFamily(metric.exported_name, metric.help, labels=metric.labels)
        for sample in samples:
            assert isinstance(sample.value, Histogram)
            family.add_metric(sample.labels, _list_buckets(sample.value), sample.value.sum)
        return family
    kind = CounterMetricFamily if metric.type is MetricType.COUNTER else GaugeMetricFamily
    simple = kind(metric.exported_name, metric.help, labels=metric.labels)
    for sample in samples:
        assert not isinstance(sample.value, Histogram)
        simple.add_metric(sample.labels, sample.value)
    return simple


def _list_buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Return the upper bounds of the buckets, and the number of values up to each of them."""
    bounds = [*(f"{bound:g}" for bound in histogram.bounds), "+Inf"]
    return list(zip(bounds, accumulate(histogram.counts), strict=True))
