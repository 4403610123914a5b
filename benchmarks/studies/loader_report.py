"""The report of the benchmark of loaders: its results, its tables in Markdown, and its plot."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from ...errors import UsageError
from ...publication.atomic_files import AtomicFile
from ..machine import machine_properties, software_versions
from ..plot import TEXT_COLOR, open_figure
from ..statistics import (
    Statistics,
    format_figure,
    format_mebibytes,
    format_median,
    format_ratio,
)
from ..tables import insert_between, table_row

OURS = ("splitarrow, shm", "splitarrow, tcp")
"""The loaders of splitarrow: one for each transport."""
GOALS = {"splitarrow, shm": 3.0, "splitarrow, tcp": 1.5}
"""The rate over that of the fastest peer, in warm rounds."""

_FORMAT = 1
_KIND = "loaders"
_PACKAGES = (
    "torch",
    "datasets",
    "mosaicml-streaming",
    "webdataset",
    "pylance",
    "lancedb",
    "grain",
    "litdata",
    "spdl",
)


@dataclass(slots=True)
class LoaderResult:
    """The results of a loader with a number of workers."""

    loader: str
    """The name of the loader."""
    workers: int
    """The number of its workers."""
    peak_bytes: int
    """The largest memory of all processes together (PSS) while every value is read."""
    rates: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """The rows per second of each round, by its kind: ``warm`` or ``cold``."""
    cpu: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """The processor seconds for a million rows of each round, by its kind."""
    first: list[float] = field(default_factory=list[float])
    """The seconds until the first batch, packages being imported, in each round."""
    resume: list[float] = field(default_factory=list[float])
    """The seconds until the first batch in the middle of an epoch, in each round."""
    replays: bool = False
    """Whether resuming reads the first half again."""

    def add(self, kind: str, rate: float, cpu: float) -> None:
        """Add a round."""
        self.rates.setdefault(kind, []).append(rate)
        self.cpu.setdefault(kind, []).append(cpu)

    def rate(self, kind: str) -> Statistics | None:
        """Return the rows per second; None without a round."""
        return Statistics.of(self.rates.get(kind, []))

    def cpu_seconds(self, kind: str) -> Statistics | None:
        """Return the processor seconds for a million rows; None without a round."""
        return Statistics.of(self.cpu.get(kind, []))


@dataclass(slots=True)
class LoaderReport:
    """The results of a run so far, and its conditions."""

    rows: int
    """The rows of an epoch."""
    created: str
    """The time of the run, in ISO 8601."""
    versions: dict[str, str]
    """The versions of Python and of the packages that affect the figures."""
    machine: dict[str, Any]
    """The processor, its threads, the memory in bytes, and the kernel."""
    skipped: dict[str, str] = field(default_factory=dict[str, str])
    """The loaders that cannot run, or failed, with the reason."""
    results: list[LoaderResult] = field(default_factory=list[LoaderResult])
    """One result per number of workers and loader."""

    @classmethod
    def begin(cls, rows: int) -> LoaderReport:
        """Return the report of a run that begins now on this machine."""
        versions = software_versions()
        for name in _PACKAGES:
            try:
                versions[name] = metadata.version(name)
            except metadata.PackageNotFoundError:
                continue
        return cls(
            rows, datetime.now(UTC).isoformat("T", "seconds"), versions, machine_properties()
        )

    def find(self, loader: str, workers: int) -> LoaderResult | None:
        """Return the result of a loader, or None if it has none."""
        for result in self.results:
            if (result.loader, result.workers) == (loader, workers):
                return result
        return None

    def workers(self) -> list[int]:
        """Return the numbers of workers, in ascending order."""
        return sorted({result.workers for result in self.results})

    def save(self, path: Path) -> None:
        """Write the report to a file as JSON, which is complete at any time."""
        plain = {"format": _FORMAT, "kind": _KIND, **asdict(self)}
        with AtomicFile(path) as file:
            file.temporary.write_text(json.dumps(plain, indent=2) + "\n")

    @classmethod
    def load(cls, path: Path) -> LoaderReport:
        """Return the report that `save` wrote; refuse any other file."""
        try:
            plain = json.loads(path.read_text())
            if (plain["format"], plain["kind"]) != (_FORMAT, _KIND):
                raise UsageError(f"{path}: the report has another format than {_FORMAT}")
            fields: dict[str, Any] = {name: plain[name] for name in cls.__dataclass_fields__}
            fields["results"] = [LoaderResult(**result) for result in plain["results"]]
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{path} is not a report of loaders: {error!r}") from None
        return cls(**fields)


BEGIN = "<!-- loaders: begin -->"
END = "<!-- loaders: end -->"
"""The markers in a page between which `save_markdown` puts the report."""

_HEADINGS = (
    "workers",
    "loader",
    "warm, M rows/s",
    "warm, CPU ms/M rows",
    "cold, M rows/s",
    "MiB",
    "first batch, ms",
    "resume, ms",
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
    lines = [table_row(_HEADINGS), table_row(rules)]
    for workers in report.workers():
        results = [result for result in report.results if result.workers == workers]
        lines += [table_row(_format_cells(result)) for result in results]
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
    return [
        str(result.workers),
        result.loader,
        format_median(result.rate("warm"), 1e-6),
        format_median(result.cpu_seconds("warm"), 1e3),
        format_median(result.rate("cold"), 1e-6),
        format_mebibytes(result.peak_bytes),
        format_median(Statistics.of(result.first), 1e3),
        format_median(Statistics.of(result.resume), 1e3) + (" (replay)" if result.replays else ""),
    ]


def _compare(report: LoaderReport, workers: int) -> Iterator[str]:
    """Yield a line for each transport: the ratio of its warm rate to that of the fastest peer."""
    found = [each for each in report.results if each.workers == workers]
    rates = {each.loader: rate.median for each in found if (rate := each.rate("warm"))}
    peers = [name for name in rates if name not in OURS]
    if not peers:
        return
    fastest = max(peers, key=rates.__getitem__)
    for name in OURS:
        if name in rates:
            ratio, goal = rates[name] / rates[fastest], GOALS[name]
            outcome = "met" if ratio >= goal else "not met"
            yield (
                f"- {name}, {workers} workers, warm: {format_ratio(ratio)} times as fast as "
                f"{fastest} (goal: {format_figure(goal)}, {outcome})."
            )


# The colors of Okabe and Ito, which color-blind readers can distinguish.
_OUR_COLORS = ("#0072B2", "#56B4E9")
_PEER_COLOR = "#b8c0c8"


def save_plot(report: LoaderReport, path: Path) -> None:
    """Draw the warm rates of a report, one panel for each number of workers, and save the plot.

    Raises `UsageError` if the report has no warm round.
    """
    panels = [workers for workers in report.workers() if _list_rates(report, workers)]
    if not panels:
        raise UsageError(f"{path}: the report has no warm round to draw")
    with open_figure(path, (8.4, 3.4), {"font.size": 10, "ytick.color": TEXT_COLOR}) as figure:
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for workers, each in zip(panels, axes, strict=True):
            _draw_panel(report, workers, each)


def _list_rates(report: LoaderReport, workers: int) -> dict[str, float]:
    """Return the median warm rates in million rows per second, by loader."""
    return {
        result.loader: rate.median / 1e6
        for result in report.results
        if result.workers == workers and (rate := result.rate("warm")) is not None
    }


def _draw_panel(report: LoaderReport, workers: int, axes: Any) -> None:
    rates = _list_rates(report, workers)
    ours: dict[str, str] = dict(zip(OURS, _OUR_COLORS, strict=True))
    names = sorted(rates, key=rates.__getitem__)
    bars = axes.barh(names, [rates[name] for name in names], height=0.7)
    for name, bar in zip(names, bars, strict=True):
        bar.set_color(ours.get(name, _PEER_COLOR))
    axes.bar_label(bars, [format_figure(rates[name]) for name in names], padding=4)
    for label, name in zip(axes.get_yticklabels(), names, strict=True):
        label.set_fontweight("bold" if name in ours else "normal")
    axes.margins(x=0.14)
    axes.set_xticks([])
    axes.tick_params(length=0)
    for side in ("top", "right", "bottom", "left"):
        axes.spines[side].set_visible(False)
    title = "no workers" if not workers else f"{workers} workers"
    axes.set_title(f"{title}: M rows/s, warm", loc="left", fontsize=10)
