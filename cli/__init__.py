"""The command line: one module for each command.

Exit statuses: 0; 1, it failed; 2, it was called wrongly; 128 + N, signal N ended it.
"""

from __future__ import annotations

import sys
from typing import NoReturn

__all__ = ["main"]


def main() -> NoReturn:
    """Run the command that ``sys.argv`` names, and exit with its status."""
    try:
        from .app import run

        status = run()
    except KeyboardInterrupt:
        status = 130
    sys.exit(status)
