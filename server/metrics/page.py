"""The exported metrics as a page of the documentation.

``python -m splitarrow.server.metrics.page > docs/metrics.md`` writes it.
"""

from __future__ import annotations

from .registry import Metric, Registry
from .server_metrics import DaemonMetrics, Metrics

_INTRODUCTION = """\
# Metrics

A daemon with the setting `http` serves these metrics at `/metrics`: see
[Operations](operations.md#metrics-and-health). They are in the text format of Prometheus, or in
OpenMetrics if the scraper requests it. With `workers`, all values are those of all processes
together, except where a label names the process.

Names begin with `splitarrow_`, and those of counters end with `_total`. A histogram `NAME` has the
series `NAME_bucket`, `NAME_sum` and `NAME_count`.

- **`dataset`** is a dataset's name. The first 100 datasets that are read have series of their own;
  the others share the name `other`. So do the datasets that the scraper's token may not read.
- **`transport`** is the scheme of the reader's URI, such as `tcp`, `tcp+tls`, `shm` or `ucx`, and
  `flight` for DoGet.

No metric contains a ticket, a token, a path, an address of a reader or a value of a row.
"""


def metrics_page() -> str:
    """Return the page in Markdown: one table for the data, and one for the daemon."""
    return "\n".join(
        (
            _INTRODUCTION,
            _section("Data", Metrics),
            _section("Daemon", DaemonMetrics),
        )
    )


def _section(title: str, registry: type[Registry]) -> str:
    rows = [_row(metric) for metric in registry.declarations() if metric.export is not None]
    heading = "| metric | type | labels | description |\n| --- | --- | --- | --- |\n"
    return f"## {title}\n\n{heading}{''.join(rows)}"


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    cells = (f"`{metric.exported_name}`", metric.type.value, labels, metric.help)
    return f"| {' | '.join(cells)} |\n".replace("|  |", "| |")


if __name__ == "__main__":
    print(metrics_page(), end="")  # noqa: T201
