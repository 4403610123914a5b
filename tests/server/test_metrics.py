"""Metrics: declared once, counted by attribute, read as samples and as `stats()`."""

from __future__ import annotations

import doctest
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pytest

import splitarrow
from splitarrow.server import metrics
from splitarrow.server.metrics import (
    Histogram,
    Metrics,
    MetricType,
    Registry,
    counter,
    gauge,
    histogram,
)

STATS = [
    "connections",
    "connections_total",
    "streams",
    "streams_total",
    "leases",
    "leased_bytes",
    "lease_seconds",
    "bad_frees",
    "shared_bytes",
    "bytes_sent",
    "bytes_lent",
    "messages",
    "rows",
    "failures",
    "protocol_errors",
    "refused",
]


@dataclass(eq=False)
class Example(Registry):
    """A registry with a metric of each type."""

    requests: Mapping[tuple[str, ...], int] = counter("Requests.", labels=("method", "code"))
    open_files: int = gauge("Open files.")
    sizes: Histogram = histogram("Sizes.", (10, 100), unit="bytes")  # noqa: RUF009


def test_a_declaration_states_name_type_help_unit_and_labels() -> None:
    requests, open_files, sizes = Example.declarations()
    assert (requests.name, requests.type) == ("requests", MetricType.COUNTER)
    assert (requests.help, requests.labels) == ("Requests.", ("method", "code"))
    assert (open_files.type, open_files.labels) == (MetricType.GAUGE, ())
    assert (sizes.type, sizes.unit) == (MetricType.HISTOGRAM, "bytes")


def test_samples_have_a_value_for_each_combination_of_labels() -> None:
    registry = Example()
    counts: dict[tuple[str, ...], int] = registry.requests  # pyright: ignore[reportAssignmentType]
    counts["read", "OK"] += 2
    counts["read", "NOT_FOUND"] += 1
    registry.open_files += 3
    registry.sizes.observe(10)
    registry.sizes.observe(5000)
    samples = {(one.metric.name, *one.labels): one.value for one in registry.samples()}
    assert samples.pop(("sizes",)) is registry.sizes
    assert (registry.sizes.counts, registry.sizes.sum) == ([1, 0, 1], 5010)
    assert samples == {
        ("requests", "read", "OK"): 2,
        ("requests", "read", "NOT_FOUND"): 1,
        ("open_files",): 3,
    }


def test_collected_values_are_added_to_those_counted() -> None:
    registry = Metrics()
    registry.bytes_sent += 10
    registry.add_collector(lambda: {"bytes_sent": 5, "leases": 2})
    registry.add_collector(lambda: {"leases": 1})
    stats = registry.stats()
    assert (stats["bytes_sent"], stats["leases"]) == (15, 3)


def test_registries_do_not_share_values() -> None:
    first, second = Example(), Example()
    first.sizes.observe(1)
    assert second.sizes.counts == [0, 0, 0]


def test_the_keys_of_stats_are_a_contract() -> None:
    assert list(Metrics().stats()) == STATS
    with splitarrow.serve({"data": pa.table({"n": [1]})}) as server:
        assert list(server.stats()) == STATS


@pytest.mark.parametrize("metric", Metrics.declarations(), ids=lambda metric: metric.name)
def test_every_metric_has_a_help_text(metric: metrics.Metric) -> None:
    assert metric.help.endswith(".")
    assert metric.unit in ("", "bytes", "seconds")
    assert metric.name.endswith("_bytes") <= (metric.unit == "bytes")
    assert metric.name.endswith("_seconds") <= (metric.unit == "seconds")


def test_examples() -> None:
    results = doctest.testmod(metrics)
    assert results.attempted > 0
    assert results.failed == 0
