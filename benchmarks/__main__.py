"""Show an earlier run again: ``python -m splitarrow.benchmarks report.json``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ..errors import SplitArrowError, UsageError
from .plot import save_plot
from .report import read_report
from .tables import comparison_table, save_markdown, terminal_tables


def main(arguments: list[str] | None = None) -> int:
    """Show a report as tables or as a plot, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m splitarrow.benchmarks")
    parser.add_argument("report", type=Path, help="a file that `splitarrow bench --json` wrote")
    parser.add_argument(
        "--markdown",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="write tables in Markdown; can be repeated",
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw an .svg or .png")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="an earlier report")
    options = parser.parse_args(arguments)
    try:
        report = read_report(options.report)
        earlier = None if options.compare is None else read_report(options.compare)
        for page in options.markdown:
            save_markdown(report, page)
        if options.plot:
            save_plot(report, options.plot)
    except (SplitArrowError, OSError) as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    if not options.markdown and not options.plot:
        from rich.console import Console

        console = Console()
        if earlier is None:
            console.print(terminal_tables(report))
        else:
            console.print(comparison_table(earlier, report))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
