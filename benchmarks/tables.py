"""The tables of a report, for a terminal and for a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .backends import BASELINE
from .results import Result, Spread

if TYPE_CHECKING:
    from rich.console import Group

    from .report import Report

BEGIN = "<!-- benchmark: begin -->"
END = "<!-- benchmark: end -->"
"""The lines of a page between which the tables belong."""

_NONE = "–"
_DETAILS = (
    "GB/s",
    "min–max",
    f"× {BASELINE}",
    "batches/s",
    "M rows/s",
    "first batch ms",
    "server CPU s/GiB",
    "client CPU s/GiB",
    "server MiB",
    "client MiB",
)
_TERMINAL = ("GB/s", "min–max", f"× {BASELINE}", "k/s", "first ms", "CPU s/GiB", "MiB")


def size_text(nbytes: int) -> str:
    """Return a size in bytes as people say it: ``64 KiB``."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= scale:
            return f"{nbytes / scale:g} {unit}"
    return f"{nbytes} B"


def _figure(value: float) -> str:
    """Return a figure with some three digits."""
    if value >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}"


def _middle(spread: Spread | None, scale: float = 1.0) -> str:
    return _NONE if spread is None else _figure(spread.median * scale)


def _mebibytes(nbytes: int | None) -> str:
    return _NONE if nbytes is None else f"{nbytes / 2**20:,.0f}"


def _details(report: Report, result: Result) -> list[str]:
    rate = result.rate
    ratio = report.ratio(result)
    return [
        _middle(rate, 1e-9),
        f"{_figure(rate.least / 1e9)}–{_figure(rate.most / 1e9)}",
        _NONE if ratio is None else f"{ratio:.2f}",
        _middle(result.batch_rate),
        _middle(result.row_rate, 1e-6),
        _middle(result.first_batch, 1e3),
        _middle(result.server_cpu),
        _middle(result.client_cpu),
        _mebibytes(result.most("server_anonymous_bytes")),
        _mebibytes(result.most("client_peak_bytes")),
    ]


def _conditions(report: Report) -> str:
    machine, options = report.machine, report.options
    memory = machine["memory_bytes"]
    parts = [
        report.created[:10],
        f"{machine['processor']}, {machine['threads']} threads"
        + ("" if memory is None else f", {memory / 2**30:.0f} GiB"),
        machine["system"],
        ", ".join(f"{name} {version}" for name, version in report.versions.items()),
        f"{options['rounds']} rounds; {options['read']}, {options['consume']}"
        + (f", validate {options['validate']}" if options["validate"] else ""),
    ]
    return "; ".join(parts)


def _means(report: Report) -> dict[str, str]:
    means = {name: report.mean_ratio(name) for name in report.backends()}
    return {name: f"{mean:.2f}" for name, mean in means.items() if mean is not None}


def terminal(report: Report) -> Group:
    """Return the tables of a report for rich to print."""
    from rich import box
    from rich.console import Group, RenderableType
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=0)
    table.add_column("batches of", no_wrap=True)
    for name in _TERMINAL:
        table.add_column(name, justify="right")
    for size in report.batch_sizes():
        table.add_row(Text(size_text(size), style="bold"))
        for result in report.of("sizes"):
            if result.batch_bytes == size:
                table.add_row(f"  {result.backend}", *_brief(report, result))
    several = report.of("clients")
    if several:
        batch = size_text(several[0].batch_bytes)
        table.add_row(Text(f"clients at once, {batch}", style="bold"))
        for result in several:
            table.add_row(f"  {result.backend} × {result.clients}", *_brief(report, result))
    shown: list[RenderableType] = [table, ""]
    means = _means(report)
    if means:
        named = ", ".join(f"{name} {mean}" for name, mean in means.items())
        shown += [Text(f"Geometric mean of the ratios to {BASELINE}: {named}", style="bold"), ""]
    for name, reason in report.skipped.items():
        shown.append(Text(f"left out: {name}: {reason}"))
    shown.append(Text("CPU: server + client. MiB: the server's anonymous + a client's peak."))
    shown.append(Text(_conditions(report), style="dim"))
    return Group(*shown)


def _brief(report: Report, result: Result) -> list[str]:
    rate, range_, ratio, batches, _, first, server, client, held, peak = _details(report, result)
    batches = _middle(result.batch_rate, 1e-3)
    processor, memory = f"{server}+{client}", f"{held}+{peak}"
    if server == _NONE:  # one process
        processor, memory = client, peak
    return [rate, range_, ratio, batches, first, processor, memory]


def markdown(report: Report) -> str:
    """Return the tables of a report in Markdown."""
    names = report.backends()
    lines = ["GB/s, the median; in brackets how many times " + BASELINE + ".", ""]
    lines += _markdown_head(["batch", *names], left=1)
    for size in report.batch_sizes():
        cells = [size_text(size)]
        for name in names:
            result = report.find(name, size)
            if result is None:
                cells.append(_NONE)
                continue
            ratio = report.ratio(result)
            rate = _middle(result.rate, 1e-9)
            cells.append(rate if ratio is None else f"{rate} ({ratio:.2f})")
        lines.append(_markdown_row(cells))
    means = _means(report)
    if means:
        cells = [f"({means[name]})" if name in means else _NONE for name in names]
        lines.append(_markdown_row(["geometric mean", *cells]))
    several = report.of("clients")
    if several:
        batch = size_text(several[0].batch_bytes)
        lines += ["", f"Several clients of one server at once, batches of {batch}:", ""]
        lines += _markdown_head(["clients", "backend", *_DETAILS], left=2)
        for result in several:
            cells = [str(result.clients), result.backend, *_details(report, result)]
            lines.append(_markdown_row(cells))
    lines += ["", "All figures of one client:", ""]
    lines += _markdown_head(["batch", "backend", *_DETAILS], left=2)
    for result in report.of("sizes"):
        cells = [size_text(result.batch_bytes), result.backend, *_details(report, result)]
        lines.append(_markdown_row(cells))
    lines += ["", f"Measured {_conditions(report)}."]
    return "\n".join(lines) + "\n"


def _markdown_head(cells: list[str], *, left: int) -> list[str]:
    rule = ["---" if index < left else "---:" for index in range(len(cells))]
    return [_markdown_row(cells), _markdown_row(rule)]


def _markdown_row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def placed(text: str, page: str | None) -> str:
    """Return a page with `text` between its marks, or `text` alone if it has none."""
    if page is None or BEGIN not in page or END not in page.partition(BEGIN)[2]:
        return text
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n\n{text}\n{END}{after}"
