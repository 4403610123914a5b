"""The metrics of a server."""

from __future__ import annotations

from .label_cap import OTHER, LabelCap
from .registry import Histogram, Labelled, Metric, MetricType, Sample, merge_samples
from .server_metrics import DaemonMetrics, Metrics, list_stats

__all__ = [
    "OTHER",
    "DaemonMetrics",
    "Histogram",
    "LabelCap",
    "Labelled",
    "Metric",
    "MetricType",
    "Metrics",
    "Sample",
    "list_stats",
    "merge_samples",
]
