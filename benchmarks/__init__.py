"""Throughput of record batches, beside pyarrow.flight and plain sockets in the same run.

`run` measures the cases that `Options` describe and returns a `Report`. `terminal_tables`,
`save_markdown` and `save_plot` show it, `comparison_table` compares it with an earlier one, and
`Report.to_json` serializes it.

A run consists of these processes::

    runner.run           this process: starts the workers, takes turns, computes the report
      worker (server)    one per backend: serves a file with `Backend.serve`
      worker (client)    one per backend and client: reads it with `Backend.read`

The backends are in `backends`. The benchmarks of single parts are modules of `studies`, which only
a checkout has.
"""

from .backends import backend_names
from .options import Options
from .plot import check_plot, save_plot
from .report import Report
from .runner import run
from .tables import comparison_table, save_markdown, terminal_tables

__all__ = [
    "Options",
    "Report",
    "backend_names",
    "check_plot",
    "comparison_table",
    "run",
    "save_markdown",
    "save_plot",
    "terminal_tables",
]
