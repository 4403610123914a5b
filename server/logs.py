"""What the server logs, and how.

Events go to the standard library's loggers below ``splitarrow``, with their fields as extra
attributes: silent in a notebook, part of the log of a program that embeds a server. The daemon
of the command line sends them to standard error, for people or as JSON. Events carry names of
datasets and addresses of peers, and never a ticket.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog

logging.getLogger("splitarrow").addHandler(logging.NullHandler())


def get_logger(name: str) -> Any:
    """Return the logger ``splitarrow.NAME``."""
    return structlog.wrap_logger(
        logging.getLogger(f"splitarrow.{name}"),
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.render_to_log_kwargs,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
    )


def configure_logs(level: str, style: str) -> None:
    """Send the events of this process to standard error.

    Parameters
    ----------
    level : str
        The least severe level to send, in lower case.
    style : {"auto", "console", "json"}
        ``auto`` is ``console`` on a terminal and ``json`` elsewhere.
    """
    console = style == "console" or (style == "auto" and sys.stderr.isatty())
    renderer: Any = (
        structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(),
            exception_formatter=structlog.dev.plain_traceback,  # others show what variables hold
        )
        if console
        else structlog.processors.JSONRenderer()
    )
    before: list[Any] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=not console),
    ]
    after: list[Any] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta]
    if not console:
        after.append(structlog.processors.format_exc_info)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(foreign_pre_chain=before, processors=[*after, renderer])
    )
    logger = logging.getLogger("splitarrow")
    logger.handlers[:] = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False
