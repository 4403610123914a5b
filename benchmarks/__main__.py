"""Show a run again: ``python -m splitarrow.benchmarks FILE.json`` and ``--help``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ..errors import SplitArrowError, UsageError
from .report import Report


def main(arguments: list[str] | None = None) -> int:
    """Show a report again; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m splitarrow.benchmarks")
    parser.add_argument("report", type=Path, help="what --json wrote")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write tables in Markdown")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw an .svg or .png")
    chosen = parser.parse_args(arguments)
    try:
        report = Report.from_json(chosen.report.read_text())
        if chosen.markdown:
            report.save_markdown(chosen.markdown)
        if chosen.plot:
            report.plot(chosen.plot)
    except (SplitArrowError, OSError) as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    if not chosen.markdown and not chosen.plot:
        from rich.console import Console

        Console().print(report.to_table())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
