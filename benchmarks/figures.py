"""The figures of a report as text, for the tables on a terminal and in Markdown."""

from __future__ import annotations

from typing import NamedTuple

from .formatting import (
    format_interval,
    format_mebibytes,
    format_median,
    format_range,
    format_ratio,
)
from .report import Report
from .results import Result


class Figures(NamedTuple):
    """The figures of a result, in the order of the columns of a table."""

    rate: str
    """GB/s."""
    rate_range: str
    """The smallest and the largest GB/s of all rounds."""
    ratio: str
    """The ratio of the rate to the baseline's."""
    ratio_interval: str
    """The 95 % confidence interval of that ratio."""
    batch_rate: str
    """Batches per second."""
    row_rate: str
    """Millions of rows per second."""
    first_batch: str
    """Milliseconds until the first batch."""
    server_cpu: str
    """CPU seconds of the server per GiB."""
    client_cpu: str
    """CPU seconds of the clients per GiB."""
    cpu_ratio: str
    """The ratio of both together to the baseline's."""
    server_memory: str
    """The maximum anonymous memory of the server, in MiB."""
    client_memory: str
    """The maximum resident memory of a client, in MiB."""


def format_figures(report: Report, result: Result) -> Figures:
    """Return the figures of a result as text."""
    return Figures(
        rate=format_median(result.rate, 1e-9),
        rate_range=format_range(result.rate, 1e-9),
        ratio=format_ratio(report.ratio(result)),
        ratio_interval=format_interval(report.ratio_interval(result)),
        batch_rate=format_median(result.batch_rate),
        row_rate=format_median(result.row_rate, 1e-6),
        first_batch=format_median(result.first_batch, 1e3),
        server_cpu=format_median(result.server_cpu),
        client_cpu=format_median(result.client_cpu),
        cpu_ratio=format_ratio(report.cpu_ratio(result)),
        server_memory=format_mebibytes(result.maximum("server_anonymous_bytes")),
        client_memory=format_mebibytes(result.maximum("client_peak_bytes")),
    )


def format_conditions(report: Report) -> str:
    """Return the date, the machine, the versions and the options of a run in one line."""
    machine, options = report.machine, report.options
    processor = f"{machine['processor']}, {machine['threads']} threads"
    if machine["memory_bytes"] is not None:
        processor += f", {machine['memory_bytes'] / 2**30:.0f} GiB"
    run = f"{options['rounds']} rounds; {options['read']}, {' and '.join(options['consume'])}"
    if options["validate"]:
        run += f", validate {options['validate']}"
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    return "; ".join([report.created[:10], processor, machine["system"], versions, run])
