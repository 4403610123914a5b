"""The tables of a report for a terminal."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from .backends import BASELINE
from .figures import format_conditions, format_figures
from .formatting import UNKNOWN, format_ratio, format_size
from .report import Report
from .results import Result

if TYPE_CHECKING:
    from rich.console import Group

_HEADINGS = ("GB/s", "min–max", f"× {BASELINE}", "first ms", "CPU s/GiB", "MiB")


def terminal_tables(report: Report) -> Group:
    """Return the tables of a report as a renderable of rich. They fit 80 columns."""
    from rich import box
    from rich.console import Group, RenderableType
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=0)
    table.add_column("batches of", no_wrap=True)
    for heading in _HEADINGS:
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
            values = ", ".join(f"{name} {format_ratio(mean)}" for name, mean in means.items())
            text = f"Geometric mean of the ratios to {BASELINE}, {consume}: {values}"
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
        figures.rate_range,
        figures.ratio,
        figures.first_batch,
        cpu,
        memory,
    ]
