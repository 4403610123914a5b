"""The tables of a report, for a terminal and in Markdown, alone or beside an earlier run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from .backends import BASELINE
from .options import Consume
from .report import Report, Result
from .statistics import (
    UNKNOWN,
    Interval,
    format_interval,
    format_mebibytes,
    format_median,
    format_range,
    format_ratio,
    format_size,
    ratio_interval,
)

if TYPE_CHECKING:
    from rich.console import Group


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


_TERMINAL_HEADINGS = ("GB/s", f"× {BASELINE}", "95 %", "first ms", "CPU s/GiB", "MiB")


def terminal_tables(report: Report) -> Group:
    """Return the tables of a report as a renderable of rich. They fit 80 columns."""
    from rich import box
    from rich.console import Group, RenderableType
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=0)
    table.add_column("batches of", no_wrap=True)
    for heading in _TERMINAL_HEADINGS:
        table.add_column(heading, justify="right")
    for size, consume in product(report.batch_sizes(), report.consumers()):
        table.add_row(Text(f"{format_size(size)}, {consume}", style="bold"))
        for result in report.section("sizes"):
            if result.case == (size, 1, consume):
                table.add_row(f"  {result.backend}", *_cells(report, result))
    concurrent = report.section("clients")
    if concurrent:
        size = format_size(concurrent[0].batch_bytes)
        table.add_row(Text(f"concurrent clients, {size}", style="bold"))
        for result in concurrent:
            table.add_row(f"  {result.backend} × {result.clients}", *_cells(report, result))
    renderables: list[RenderableType] = [table, ""]
    for consume in report.consumers():
        if means := report.mean_ratios(consume):
            values = ", ".join(
                f"{name} {format_ratio(mean)} ({format_ratio(report.worst_ratio(name, consume))})"
                for name, mean in means.items()
            )
            text = f"Geometric mean of the ratios to {BASELINE} (the worst), {consume}: {values}"
            renderables += [Text(text, style="bold"), ""]
    for name, reason in report.skipped.items():
        renderables.append(Text(f"skipped: {name}: {reason}"))
    renderables.append(
        Text("CPU: server + client. MiB: the server's anonymous + a client's peak memory.")
    )
    renderables.append(Text(format_conditions(report), style="dim"))
    return Group(*renderables)


def _cells(report: Report, result: Result) -> list[str]:
    figures = format_figures(report, result)
    cpu = f"{figures.server_cpu}+{figures.client_cpu}"
    memory = f"{figures.server_memory}+{figures.client_memory}"
    if figures.server_cpu == UNKNOWN:  # the client's process serves the file
        cpu, memory = figures.client_cpu, figures.client_memory
    return [
        figures.rate,
        figures.ratio,
        figures.ratio_interval,
        figures.first_batch,
        cpu,
        memory,
    ]


BEGIN = "<!-- benchmark: begin -->"
END = "<!-- benchmark: end -->"
"""The markers in a page between which `save_markdown` puts the tables."""
SUMMARY_BEGIN = "<!-- benchmark summary: begin -->"
SUMMARY_END = "<!-- benchmark summary: end -->"
"""The markers in a page between which `save_markdown` puts a summary of the tables."""

_SUMMARY = ("splitarrow-tcp", "splitarrow-shm", BASELINE)
"""The backends between which most users choose."""
_CONSUMERS: dict[Consume, str] = {
    "count": "A client that counts rows:",
    "sum": "A client that sums every column:",
    "numpy": "A client that makes a NumPy array of each column and sums it:",
}
_MARKDOWN_HEADINGS = (
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
    the tables replace the lines between them. If it contains such lines with ``benchmark summary``,
    a summary of the tables does. Otherwise the tables replace the whole file.
    """
    page = path.read_text() if path.exists() else ""
    if SUMMARY_BEGIN in page:
        text = insert_between(SUMMARY_BEGIN, SUMMARY_END, summary_tables(report), page)
    else:
        text = insert_between(BEGIN, END, markdown_tables(report), page)
    path.write_text(text)


def summary_tables(report: Report) -> str:
    """Return the rates of a single client, and the figures of concurrent ones, in Markdown."""
    lines = _rate_tables(report, [name for name in report.backends() if name in _SUMMARY])
    concurrent = report.section("clients")
    if concurrent:
        size = format_size(concurrent[0].batch_bytes)
        headings = ("GB/s", f"× {BASELINE}", "first batch ms", "CPU s/GiB", "MiB")
        lines += [f"Concurrent clients of one server, batches of {size}:", ""]
        lines += table_head(["clients", "backend", *headings], text_columns=2)
        for result in concurrent:
            rate, _, ratio, first_batch, cpu, memory = _cells(report, result)
            cells = [rate, ratio, first_batch, cpu, memory]
            lines.append(table_row([str(result.clients), result.backend, *cells]))
        lines.append("")
    lines.append(f"Measured {format_conditions(report)}.")
    return "\n".join(lines) + "\n"


def _rate_tables(report: Report, names: list[str]) -> list[str]:
    lines: list[str] = []
    for consume in report.consumers():
        lines += [
            f"{_CONSUMERS[consume]} GB/s, median of all rounds. In parentheses: the ratio to "
            f"{BASELINE}.",
            "",
            *_rate_table(report, names, consume),
            "",
        ]
    return lines


def markdown_tables(report: Report) -> str:
    """Return the tables of a report in Markdown."""
    lines = _rate_tables(report, report.backends())
    concurrent = report.section("clients")
    if concurrent:
        size = format_size(concurrent[0].batch_bytes)
        lines += [f"Concurrent clients of one server, batches of {size}:", ""]
        lines += table_head(["clients", "backend", *_MARKDOWN_HEADINGS], text_columns=2)
        for result in concurrent:
            figures = format_figures(report, result)
            lines.append(table_row([str(result.clients), result.backend, *figures]))
        lines.append("")
    lines += ["All figures of a single client:", ""]
    lines += table_head(["batch", "client", "backend", *_MARKDOWN_HEADINGS], text_columns=3)
    for result in report.section("sizes"):
        figures = format_figures(report, result)
        cells = [format_size(result.batch_bytes), result.consume, result.backend, *figures]
        lines.append(table_row(cells))
    lines += ["", f"Measured {format_conditions(report)}."]
    return "\n".join(lines) + "\n"


def _rate_table(report: Report, names: list[str], consume: Consume) -> list[str]:
    """Return a table of rates with a row per batch size and a column per backend."""
    lines = table_head(["batch", *names], text_columns=1)
    for size in report.batch_sizes():
        rates = [_rate_cell(report, name, size, consume) for name in names]
        lines.append(table_row([format_size(size), *rates]))
    if means := report.mean_ratios(consume):
        cells = [f"({format_ratio(means[name])})" if name in means else UNKNOWN for name in names]
        lines.append(table_row(["geometric mean", *cells]))
    return lines


def _rate_cell(report: Report, backend: str, batch_bytes: int, consume: Consume) -> str:
    result = report.find(backend, batch_bytes, consume)
    if result is None:
        return UNKNOWN
    rate, ratio = format_median(result.rate, 1e-9), report.ratio(result)
    return rate if ratio is None else f"{rate} ({format_ratio(ratio)})"


def table_head(cells: Sequence[str], *, text_columns: int = 1) -> list[str]:
    """Return the head of a table in Markdown. Only the first columns are aligned to the left."""
    rule = ["---" if index < text_columns else "---:" for index in range(len(cells))]
    return [table_row(cells), table_row(rule)]


def table_row(cells: Sequence[str]) -> str:
    """Return a row of a table in Markdown."""
    return f"| {' | '.join(cells)} |"


def insert_between(begin: str, end: str, tables: str, page: str) -> str:
    """Return a page with the tables between its markers, or only the tables without markers."""
    before, found_begin, rest = page.partition(begin)
    _, found_end, after = rest.partition(end)
    if not found_begin or not found_end:
        return tables
    return f"{before}{begin}\n\n{tables}\n{end}{after}"


_LEAST_CHANGE = 0.02
"""A smaller change does not count, whatever its interval."""


@dataclass(frozen=True, slots=True)
class Change:
    """One case that both runs measured."""

    earlier: Result
    """The result of the earlier run."""
    later: Result
    """The result of the later run."""

    @property
    def ratio(self) -> float:
        """The later median rate divided by the earlier one."""
        return self.later.rate.median / self.earlier.rate.median

    @property
    def interval(self) -> Interval:
        """The 95 % confidence interval of the ratio."""
        earlier, later = (
            [sample.seconds for sample in result.samples] for result in (self.earlier, self.later)
        )
        return ratio_interval(earlier, later)

    @property
    def verdict(self) -> str:
        """``faster`` or ``slower`` if the interval shows it, otherwise empty."""
        low, high = self.interval
        if low > 1 + _LEAST_CHANGE:
            return "faster"
        return "slower" if high < 1 - _LEAST_CHANGE else ""


def find_changes(earlier: Report, later: Report) -> list[Change]:
    """Return the cases that both runs measured, in the order of the later run."""
    known = {(each.section, each.backend, *each.case): each for each in earlier.results}
    pairs = ((known.get((each.section, each.backend, *each.case)), each) for each in later.results)
    return [Change(before, after) for before, after in pairs if before is not None]


def comparison_table(earlier: Report, later: Report) -> Group:
    """Return the changes as a renderable of rich. It fits 80 columns."""
    from rich import box
    from rich.console import Group, RenderableType
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("batches of", no_wrap=True)
    for heading in ("before", "now", "ratio", "95 % interval", ""):
        table.add_column(heading, justify="right", no_wrap=True)
    heading = ""
    for change in find_changes(earlier, later):
        result, verdict = change.later, change.verdict
        clients = f" × {result.clients}" if result.clients > 1 else ""
        before, heading = heading, f"{format_size(result.batch_bytes)}, {result.consume}"
        if heading != before:
            table.add_row(Text(heading, style="bold"))
        table.add_row(
            f"  {result.backend}{clients}",
            format_median(change.earlier.rate, 1e-9),
            format_median(result.rate, 1e-9),
            f"{change.ratio:.2f}",
            format_interval(change.interval),
            Text(verdict, style={"faster": "green", "slower": "red"}.get(verdict, "")),
        )
    parts: list[RenderableType] = [
        Text(f"GB/s, compared with the run of {earlier.created}", style="bold"),
        table,
    ]
    if (earlier.machine, earlier.options) != (later.machine, later.options):
        parts.append(Text("The runs differ in their machine or their options.", style="yellow"))
    return Group(*parts)
