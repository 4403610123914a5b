"""How fast batches move, beside pyarrow.flight and plain sockets in the same run.

`run` measures what `Options` name and returns a `Report`, which can be shown as a table, saved
as JSON or Markdown, and drawn. `check_plot` tells beforehand whether it can be drawn.
"""

from .backends import names as backend_names
from .options import Options
from .plot import check_plot
from .report import Report
from .runner import run

__all__ = ["Options", "Report", "backend_names", "check_plot", "run"]
