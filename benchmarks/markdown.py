"""The tables of a report in Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .backends import BASELINE
from .figures import format_conditions, format_figures
from .formatting import UNKNOWN, format_median, format_ratio, format_size
from .options import Consume
from .report import Report

BEGIN = "<!-- benchmark: begin -->"
END = "<!-- benchmark: end -->"
"""The markers in a page between which `save_markdown` puts the tables."""

_CONSUMERS: dict[Consume, str] = {
    "count": "A client that counts rows:",
    "sum": "A client that sums every column:",
    "numpy": "A client that makes a NumPy array of each column and sums it:",
}
_HEADINGS = (
    "GB/s",
    "min–max",
    f"× {BASELINE}",
    "95 % interval",
    "batches/s",
    "M rows/s",
    "first batch ms",
    "server CPU s/GiB",
    "client CPU s/GiB",
    f"CPU × {BASELINE}",
    "server MiB",
    "client MiB",
)


def save_markdown(report: Report, path: Path) -> None:
    """Write the tables of a report to a Markdown file.

    If the file contains the lines ``<!-- benchmark: begin -->`` and ``<!-- benchmark: end -->``,
    the tables replace the lines between them. Otherwise they replace the whole file.
    """
    page = path.read_text() if path.exists() else ""
    path.write_text(insert_between(BEGIN, END, markdown_tables(report), page))


def markdown_tables(report: Report) -> str:
    """Return the tables of a report in Markdown."""
    lines: list[str] = []
    for consume in report.consumers():
        lines += [
            f"{_CONSUMERS[consume]} GB/s, median of all rounds. In parentheses: the ratio to "
            f"{BASELINE}.",
            "",
            *_rate_table(report, consume),
            "",
        ]
    concurrent = report.section("clients")
    if concurrent:
        size = format_size(concurrent[0].batch_bytes)
        lines += [f"Concurrent clients of one server, batches of {size}:", ""]
        lines += _table_head(["clients", "backend", *_HEADINGS], text_columns=2)
        for result in concurrent:
            figures = format_figures(report, result)
            lines.append(_table_row([str(result.clients), result.backend, *figures]))
        lines.append("")
    lines += ["All figures of a single client:", ""]
    lines += _table_head(["batch", "client", "backend", *_HEADINGS], text_columns=3)
    for result in report.section("sizes"):
        figures = format_figures(report, result)
        cells = [format_size(result.batch_bytes), result.consume, result.backend, *figures]
        lines.append(_table_row(cells))
    lines += ["", f"Measured {format_conditions(report)}."]
    return "\n".join(lines) + "\n"


def _rate_table(report: Report, consume: Consume) -> list[str]:
    """Return a table of rates with a row per batch size and a column per backend."""
    names = report.backends()
    lines = _table_head(["batch", *names], text_columns=1)
    for size in report.batch_sizes():
        rates = [_rate_cell(report, name, size, consume) for name in names]
        lines.append(_table_row([format_size(size), *rates]))
    if means := report.mean_ratios(consume):
        cells = [f"({format_ratio(means[name])})" if name in means else UNKNOWN for name in names]
        lines.append(_table_row(["geometric mean", *cells]))
    return lines


def _rate_cell(report: Report, backend: str, batch_bytes: int, consume: Consume) -> str:
    result = report.find(backend, batch_bytes, consume)
    if result is None:
        return UNKNOWN
    rate, ratio = format_median(result.rate, 1e-9), report.ratio(result)
    return rate if ratio is None else f"{rate} ({format_ratio(ratio)})"


def _table_head(cells: Sequence[str], *, text_columns: int) -> list[str]:
    rule = ["---" if index < text_columns else "---:" for index in range(len(cells))]
    return [_table_row(cells), _table_row(rule)]


def _table_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def insert_between(begin: str, end: str, tables: str, page: str) -> str:
    """Return a page with the tables between its markers, or only the tables without markers."""
    before, found_begin, rest = page.partition(begin)
    _, found_end, after = rest.partition(end)
    if not found_begin or not found_end:
        return tables
    return f"{before}{begin}\n\n{tables}\n{end}{after}"
