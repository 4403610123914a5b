"""The throughput of the pipeline: ``python -m splitarrow.benchmarks.studies.spark``.

It also makes the report: goals, tables in Markdown, and a plot.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from ...errors import SplitArrowError, UsageError
from ...formats.text import format_bytes
from ..plot import check_plot, open_figure
from ..statistics import format_interval, ratio_interval
from ..tables import insert_between, table_head, table_row
from .spark_run import (
    MAPPED,
    OVER_TCP,
    PARQUET,
    PARQUET_WRITER,
    PARTS,
    READS,
    SINK,
    WIDE_COLUMNS,
    WRITES,
)

BEGIN = "<!-- spark benchmark: begin -->"
END = "<!-- spark benchmark: end -->"
"""The markers in a page between which `save_spark_markdown` puts the tables."""

_OURS, _OTHERS = "#0072B2", "#9aa5b1"

Figures = Mapping[str, Any]
"""The figures of a run; see `SparkRun.figures`."""


class Goal(NamedTuple):
    """A figure, and the value that it should reach."""

    name: str
    text: str
    """The figure as text."""
    goal: str
    """The goal as text; empty if there is none."""
    is_met: bool


def list_goals(figures: Figures) -> list[Goal]:
    """Return the goals of a run. Those whose figures are missing are left out."""
    return [*_rate_goals(figures), *_size_goals(figures)]


def _rate_goals(figures: Figures) -> Iterator[Goal]:
    ratios = (
        ("JVM reader over TCP / Spark's Parquet reader", OVER_TCP, PARQUET, 1.2),
        ("JVM reader, mapped files / Spark's Parquet reader", MAPPED, PARQUET, 1.4),
        ("`pipeline.read` / Spark's Parquet reader", PARTS, PARQUET, None),
        ("sink / Spark's Parquet writer", SINK, PARQUET_WRITER, 1.0),
    )
    for name, job, peer, least in ratios:
        seconds = figures["seconds"]
        if job in seconds and peer in seconds:
            ratio = median(seconds[peer]) / median(seconds[job])
            interval = format_interval(ratio_interval(seconds[peer], seconds[job]))
            goal = "" if least is None else f"at least {least:.1f}"
            text = f"{ratio:.2f} ({interval})"
            yield Goal(name, text, goal, least is None or ratio >= least)


def _size_goals(figures: Figures) -> Iterator[Goal]:
    nbytes, memory, probe = figures["bytes"], figures["memory"], figures["check_workers"]
    if "one column" in nbytes:
        used = nbytes["one column"]
        ratio = (used["control"] + used["data"]) / used["column"]
        name = f"1 of {WIDE_COLUMNS} columns: bytes transferred / bytes of that column"
        yield Goal(name, f"{ratio:.3f}", "at most 1.2", ratio <= 1.2)
    if "count" in nbytes:
        total = nbytes["count"]["control"] + nbytes["count"]["data"]
        yield Goal("`count()`: bytes transferred", f"{total:,}", "under 50,000", total < 50_000)
    if memory:
        peak, limit = memory["task_peak_bytes"], memory["task_limit_bytes"]
        yield Goal(
            "memory of a task outside of the heap, JVM reader over TCP",
            format_bytes(peak),
            f"at most `memory_limit`, {format_bytes(limit)}",
            peak <= limit,
        )
        own = format_bytes(memory["worker_own_bytes"])
        yield Goal("memory of a Python worker that is not shared", own, "", True)
    if "again" in probe:
        text = f"{probe['first']:.2f} s, then {probe['again']:.2f} s"
        yield Goal("the check of the workers, with their start and without", text, "", True)


def spark_markdown(figures: Figures) -> str:
    """Return the tables of a run in Markdown."""
    lines = [*_table("reading and summing every column", figures, READS), ""]
    lines += [*_table("writing rows that come from Parquet", figures, WRITES), ""]
    lines += ["| figure | | goal |", "| --- | ---: | --- |"]
    for goal in list_goals(figures):
        missed = "" if goal.is_met else " (missed)"
        lines.append(f"| {goal.name} | {goal.text} | {goal.goal}{missed} |")
    return "\n".join([*lines, "", _conditions(figures)]) + "\n"


def _table(heading: str, figures: Figures, jobs: Sequence[str]) -> Iterator[str]:
    yield from table_head([heading, "M rows/s", "processor s"])
    for job in jobs:
        if job in figures["seconds"]:
            rate = median(_rates(figures, job))
            cpu = median(figures["cpu_seconds"][job])
            yield table_row([job, f"{rate:.2f}", f"{cpu:.2f}"])


def _rates(figures: Figures, job: str) -> list[float]:
    """Return the millions of rows per second of all rounds."""
    return [figures["rows"] / seconds / 1e6 for seconds in figures["seconds"][job]]


def _conditions(figures: Figures) -> str:
    machine = figures["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in figures["versions"].items())
    return (
        f"Measured {figures['date']}; {machine['processor']}, {machine['threads']} threads; "
        f"{machine['system']}; {versions}; `{figures['master']}`, {figures['rows']:,} rows in "
        f"{figures['shards']} shards, {figures['rounds']} rounds."
    )


def save_spark_markdown(figures: Figures, path: Path, plot: Path | None = None) -> None:
    """Write the plot and the tables of a run to a page: between its markers, if it has them."""
    page = path.read_text() if path.exists() else ""
    tables = spark_markdown(figures)
    if plot is not None:
        link = Path(os.path.relpath(plot, path.parent)).as_posix()
        tables = f"![Rows per second of each job]({link})\n\n{tables}"
    path.write_text(insert_between(BEGIN, END, tables, page))


def save_spark_plot(figures: Figures, path: Path) -> None:
    """Draw the rates of a run as bars."""
    groups = [[job for job in jobs if job in figures["seconds"]] for jobs in (READS, WRITES)]
    heights = [max(1, len(jobs)) for jobs in groups]
    titles = ("reading and summing every column, M rows/s", "writing, M rows/s")
    with open_figure(path, (8.4, 4.4)) as figure:
        panels = figure.subplots(2, 1, sharex=True, height_ratios=heights)
        for axes, jobs, title in zip(panels, groups, titles, strict=True):
            _draw_bars(axes, figures, jobs, title)


def _draw_bars(axes: Any, figures: Figures, jobs: Sequence[str], title: str) -> None:
    rates = [median(_rates(figures, job)) for job in jobs]
    colors = [_OURS if job in (MAPPED, OVER_TCP, PARTS, SINK) else _OTHERS for job in jobs]
    labels = [job.replace("`", "") for job in jobs]
    bars = axes.barh(labels, rates, color=colors, height=0.66)
    axes.bar_label(bars, [f" {rate:.2f}" for rate in rates])
    axes.invert_yaxis()
    axes.set_title(title, loc="left", fontsize=11)
    axes.tick_params(length=0, labelbottom=False)
    for side in ("top", "right", "bottom", "left"):
        axes.spines[side].set_visible(False)


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark from the command line, and return the exit status."""
    options = _parse(arguments)
    try:
        _check(options)
        figures = _measure(options) if options.report is None else _load(options.report)
        _show(figures, options)
    except (SplitArrowError, OSError) as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    return 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m splitarrow.benchmarks.studies.spark")
    parser.add_argument("--rows", type=int, default=8_000_000)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures as JSON")
    parser.add_argument("--report", type=Path, metavar="FILE", help="show an earlier run again")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write tables in Markdown")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw an .svg or .png")
    return parser.parse_args(arguments)


def _check(options: argparse.Namespace) -> None:
    if min(options.rows, options.shards, options.rounds) < 1:
        raise UsageError("--rows, --shards and --rounds must be at least 1")
    if options.plot:
        check_plot(options.plot)


def _measure(options: argparse.Namespace) -> Figures:
    from .spark_run import SparkRun

    with tempfile.TemporaryDirectory(prefix="splitarrow-bench-") as folder:
        run = SparkRun(
            options.rows,
            options.shards,
            options.rounds,
            options.master,
            Path(folder),
            options.json,
        )
        run.run()
    return run.figures


def _load(path: Path) -> Figures:
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise UsageError(f"{path} is not a report: {error}") from None


def _show(figures: Figures, options: argparse.Namespace) -> None:
    if options.plot:
        save_spark_plot(figures, options.plot)
    if options.markdown:
        save_spark_markdown(figures, options.markdown, options.plot)
    print(spark_markdown(figures), end="")


if __name__ == "__main__":
    raise SystemExit(main())
