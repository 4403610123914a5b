"""Tables on standard output, all in one style."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.table import Table

from .terminal import is_terminal

_PIPE_WIDTH = 120


def make_console() -> Console:
    """Return a console for standard output. Its width suits the terminal, or a pipe."""
    return Console(highlight=False, width=None if is_terminal(sys.stdout) else _PIPE_WIDTH)


def make_table() -> Table:
    """Return an empty table with a heading for each column, and without lines."""
    return Table(box=None, pad_edge=False, header_style="bold")


def make_properties() -> Table:
    """Return an empty table for names, in bold, and their values."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    return table
