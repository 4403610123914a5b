"""The throughput of the pipeline: ``python -m splitarrow.benchmarks.spark``.

All jobs process the same rows and take turns; the figures are medians. A job that reads computes
an aggregate of every column. A job that writes writes to a folder of this machine. The figures are
saved after each round, so that a run that is stopped leaves those of its rounds.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import SplitArrowError, UsageError
from .plot import check_plot


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
    parser = argparse.ArgumentParser(prog="python -m splitarrow.benchmarks.spark")
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


def _measure(options: argparse.Namespace) -> Mapping[str, Any]:
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


def _load(path: Path) -> Mapping[str, Any]:
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise UsageError(f"{path} is not a report: {error}") from None


def _show(figures: Mapping[str, Any], options: argparse.Namespace) -> None:
    from .spark_report import save_spark_markdown, save_spark_plot, spark_markdown

    if options.plot:
        save_spark_plot(figures, options.plot)
    if options.markdown:
        save_spark_markdown(figures, options.markdown, options.plot)
    print(spark_markdown(figures), end="")


if __name__ == "__main__":
    raise SystemExit(main())
