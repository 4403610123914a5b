"""Metrics: declared once, counted by attribute, read as samples and as `stats()`."""

from __future__ import annotations

import doctest
import runpy
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pytest

import splitarrow
from helpers.package import ROOT
from helpers.waiting import wait_until
from splitarrow.server import metrics as metrics_module
from splitarrow.server.metrics import (
    DaemonMetrics,
    Histogram,
    Merge,
    Metric,
    Metrics,
    MetricType,
    Registry,
    RelayMetrics,
    counter,
    gauge,
    histogram,
    list_stats,
    merge_samples,
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
    oldest: int = gauge("Oldest.", export="oldest_file", merge=Merge.MAX)


def test_a_declaration_states_name_type_help_unit_and_labels() -> None:
    requests, open_files, sizes, oldest = Example.declarations()
    assert (requests.name, requests.type) == ("requests", MetricType.COUNTER)
    assert (requests.help, requests.labels) == ("Requests.", ("method", "code"))
    assert (open_files.type, open_files.labels) == (MetricType.GAUGE, ())
    assert (sizes.type, sizes.unit) == (MetricType.HISTOGRAM, "bytes")
    assert requests.exported_name == "splitarrow_requests_total"
    assert oldest.exported_name == "splitarrow_oldest_file"


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
        ("oldest",): 0,
    }


def test_the_samples_of_processes_are_merged_as_declared() -> None:
    first, second = Example(), Example()
    first.add_collector(lambda: {"requests": {("read", "OK"): 5}, "oldest": 7})
    second.add_collector(lambda: {"requests": {("read", "OK"): 1, ("write", "OK"): 2}, "oldest": 4})
    for each in (first, second):
        each.sizes.observe(50)
        each.open_files += 1
    merged = merge_samples([first.samples(), second.samples()])
    values = {(one.metric.name, *one.labels): one.value for one in merged}
    sizes = values.pop(("sizes",))
    assert isinstance(sizes, Histogram)
    assert (sizes.counts, sizes.sum) == ([0, 2, 0], 100)
    assert values == {
        ("requests", "read", "OK"): 6,
        ("requests", "write", "OK"): 2,
        ("open_files",): 2,
        ("oldest",): 7,
    }
    assert first.sizes.counts == [0, 1, 0]


def test_collected_values_are_added_to_those_counted() -> None:
    registry = Metrics()
    registry.bytes_sent += 10
    registry.add_collector(lambda: {"bytes_sent": 5, "leases": 2})
    registry.add_collector(lambda: {"leases": 1})
    stats = list_stats(registry.samples())
    assert (stats["bytes_sent"], stats["leases"]) == (15, 3)


def test_a_label_is_replaced_where_a_metric_has_it() -> None:
    registry = Metrics()
    registry.sent_rows["data", "tcp"] += 1
    labels = {
        sample.labels
        for sample in registry.samples()
        for sample in [sample.relabel("dataset", str.upper)]
        if sample.metric.name in ("sent_rows", "connections")
    }
    assert labels == {("DATA", "tcp"), ()}


def test_registries_do_not_share_values() -> None:
    first, second = Example(), Example()
    first.sizes.observe(1)
    assert second.sizes.counts == [0, 0, 0]


def test_the_keys_of_stats_are_a_contract() -> None:
    assert list(list_stats(Metrics().samples())) == STATS
    with splitarrow.serve({"data": pa.table({"n": [1]})}) as server:
        assert list(server.stats()) == STATS


DECLARATIONS = [
    *Metrics.declarations(),
    *DaemonMetrics.declarations(),
    *RelayMetrics.declarations(),
]


@pytest.mark.parametrize("metric", DECLARATIONS, ids=lambda metric: metric.name)
def test_every_metric_has_a_help_text(metric: Metric) -> None:
    assert metric.help.endswith(".")
    assert metric.unit in ("", "bytes", "seconds")
    assert metric.name.endswith("_bytes") <= (metric.unit == "bytes")
    assert metric.name.endswith("_seconds") <= (metric.unit == "seconds")


def test_the_exported_names_are_unique() -> None:
    names = [metric.exported_name for metric in DECLARATIONS if metric.exported_name is not None]
    assert len({name.removesuffix("_total") for name in names}) == len(names)


def test_the_page_describes_every_metric() -> None:
    hook = runpy.run_path(str(ROOT / "docs" / "hooks" / "generated_parts.py"))
    page = hook["on_page_markdown"]((ROOT / "docs" / "monitoring.md").read_text())
    assert "<!-- metrics" not in page
    for metric in DECLARATIONS:
        if metric.exported_name is not None:
            assert f"\n- `{metric.exported_name}" in page


def test_no_number_of_datasets_makes_more_labels() -> None:
    with splitarrow.serve({f"d{n}": pa.table({"n": [n]}) for n in range(102)}) as server:
        for n in range(102):
            splitarrow.open(server.uri(f"d{n}")).close()
        metrics = server._daemon.metrics
        wait_until(lambda: sum(metrics.ended_streams.values()) == 102)
    labels = {labels[0] for labels in metrics.started_streams}
    assert len(labels) == 101
    assert metrics.started_streams["other", "tcp"] == 2


def test_examples() -> None:
    results = doctest.testmod(metrics_module)
    assert results.attempted > 0
    assert results.failed == 0
