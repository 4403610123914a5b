"""The command line: `app.COMMANDS` names the module of each command.

Commands that share options share a module.

The exit status is 0 for success, 1 for failure, 2 for wrong usage, and 128 + N if signal N ended
the command.
"""

from __future__ import annotations

import gc
import sys
from typing import NoReturn

__all__ = ["main"]


def main() -> NoReturn:
    """Run the command in ``sys.argv``, and exit with its status."""
    gc.disable()  # what a command imports is no garbage; see `app.load_command`
    try:
        from .app import run

        status = run()
    except KeyboardInterrupt:
        status = 130
    sys.exit(status)
