"""The report of the benchmark of loaders in Markdown."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from .formatting import (
    UNKNOWN,
    format_figure,
    format_mebibytes,
    format_median,
    format_range,
    format_ratio,
)
from .loader_report import GOALS, OURS, LoaderReport, LoaderResult
from .markdown import insert_between

BEGIN = "<!-- loaders: begin -->"
END = "<!-- loaders: end -->"
"""The markers in a page between which `save_markdown` puts the report."""

_HEADINGS = (
    "workers",
    "loader",
    "M rows/s, warm",
    "min–max",
    "CPU ms per M rows, warm",
    "M rows/s, cold",
    "CPU ms per M rows, cold",
    "MiB",
)


def save_markdown(report: LoaderReport, path: Path, plot: Path | None = None) -> None:
    """Write a report to a Markdown file, between its markers if it has them."""
    page = path.read_text() if path.exists() else ""
    lines = markdown_lines(report)
    if plot is not None:
        place = os.path.relpath(plot, path.parent)
        lines = [f"![Rows per second of each loader]({place})", "", *lines]
    text = "\n".join(lines) + "\n"
    path.write_text(insert_between(BEGIN, END, text, page))


def markdown_lines(report: LoaderReport) -> list[str]:
    """Return a table, the ratios to the fastest peers and the conditions, as lines of Markdown."""
    rules = ["---" if heading == "loader" else "---:" for heading in _HEADINGS]
    lines = [_join(_HEADINGS), _join(rules)]
    for workers in report.workers():
        results = [result for result in report.results if result.workers == workers]
        lines += [_join(_format_cells(result)) for result in results]
    lines.append("")
    lines += [line for workers in report.workers() for line in _compare(report, workers)]
    lines += [f"- Not measured: {name}: {reason}" for name, reason in report.skipped.items()]
    return [*lines, "", f"{describe_run(report)}."]


def describe_run(report: LoaderReport) -> str:
    """Return the date, the machine and the versions of a run in one line."""
    machine = report.machine
    rounds = [len(rates) for result in report.results for rates in result.rates.values()]
    least, most = min(rounds, default=0), max(rounds, default=0)
    return "; ".join(
        [
            f"Measured {report.created[:10]}",
            f"{machine['processor']}, {machine['threads']} threads",
            machine["system"],
            ", ".join(f"{name} {version}" for name, version in report.versions.items()),
            f"{report.rows:,} rows",
            f"rounds: {least}" if least == most else f"rounds: {least} to {most}",
        ]
    )


def _format_cells(result: LoaderResult) -> list[str]:
    warm = result.rate("warm")
    return [
        str(result.workers),
        result.loader,
        format_median(warm, 1e-6),
        UNKNOWN if warm is None else format_range(warm, 1e-6),
        format_median(result.cpu_seconds("warm"), 1e3),
        format_median(result.rate("cold"), 1e-6),
        format_median(result.cpu_seconds("cold"), 1e3),
        format_mebibytes(result.peak_bytes),
    ]


def _compare(report: LoaderReport, workers: int) -> Iterator[str]:
    """Yield a line for each transport: the ratios of warm rates and of processor time."""
    found = [each for each in report.results if each.workers == workers]
    rates = {each.loader: rate.median for each in found if (rate := each.rate("warm"))}
    cpu = {each.loader: cpu.median for each in found if (cpu := each.cpu_seconds("warm"))}
    peers = [name for name in rates if name not in OURS]
    if not peers:
        return
    fastest, leanest = max(peers, key=rates.__getitem__), min(peers, key=cpu.__getitem__)
    for name in OURS:
        if name in rates:
            ratio, goal = rates[name] / rates[fastest], GOALS[name]
            outcome = "met" if ratio >= goal else "not met"
            line = (
                f"- {name}, {workers} workers, warm: {format_ratio(ratio)} times the rows per "
                f"second of {fastest} (goal: {format_figure(goal)}, {outcome})"
            )
            if cpu[name]:
                share = format_ratio(cpu[leanest] / cpu[name])
                line += f", and {share} times the rows per processor second of {leanest}"
            yield f"{line}."


def _join(cells: tuple[str, ...] | list[str]) -> str:
    return f"| {' | '.join(cells)} |"
