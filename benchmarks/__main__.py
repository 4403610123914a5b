"""Show an earlier run again: ``python -m splitarrow.benchmarks report.json``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ..errors import SplitArrowError, UsageError
from .markdown import save_markdown
from .plot import save_plot
from .report import Report
from .tables import terminal_tables


def main(arguments: list[str] | None = None) -> int:
    """Show a report as tables or as a plot, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m splitarrow.benchmarks")
    parser.add_argument("report", type=Path, help="a file that `splitarrow bench --json` wrote")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write tables in Markdown")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw an .svg or .png")
    options = parser.parse_args(arguments)
    try:
        report = Report.from_json(options.report.read_text())
        if options.markdown:
            save_markdown(report, options.markdown)
        if options.plot:
            save_plot(report, options.plot)
    except (SplitArrowError, OSError) as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    if not options.markdown and not options.plot:
        from rich.console import Console

        Console().print(terminal_tables(report))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
