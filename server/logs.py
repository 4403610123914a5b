"""Logging: structured events through the standard library's loggers below ``splitarrow``.

A program that embeds a server gets the events in its own log, with their fields as extra
attributes; without a logging configuration there is no output. ``splitarrow serve`` writes them
to standard error, as text or JSON. Events name datasets and peers but never contain a ticket.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from contextvars import ContextVar
from io import StringIO
from typing import Any, TextIO

import structlog
from structlog.typing import ExcInfo

from ..formats.text import escape_controls
from ..transport.log_limiter import LogLimiter

_MAX_EQUAL_EVENTS = 100
"""The number of events with the same text that are logged in a minute."""

_TRACE_ID: ContextVar[str | None] = ContextVar("splitarrow_trace_id", default=None)

logging.getLogger("splitarrow").addHandler(logging.NullHandler())


def bind_trace(trace_id: str | None) -> None:
    """Let the events of this task, and of those that it starts, name a trace; None names none."""
    _TRACE_ID.set(trace_id)


def _add_trace(logger: object, name: str, event: MutableMapping[str, Any]) -> Any:
    """Add the trace of the task that logs an event."""
    del logger, name
    trace_id = _TRACE_ID.get()
    if trace_id is not None:
        event["trace_id"] = trace_id
    return event


def get_logger(name: str) -> Any:
    """Return the structured logger ``splitarrow.NAME``."""
    return structlog.wrap_logger(
        logging.getLogger(f"splitarrow.{name}"),
        processors=[
            structlog.stdlib.filter_by_level,
            _add_trace,
            structlog.stdlib.render_to_log_kwargs,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
    )


def configure_logs(level: str, style: str) -> None:
    """Write the events of this process to standard error; see the setting ``log_format``."""
    is_terminal = sys.stderr.isatty()
    console = style == "console" or (style == "auto" and is_terminal)
    before: list[Any] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=not console),
    ]
    after: list[Any] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta]
    if console:
        render = structlog.dev.ConsoleRenderer(
            colors=is_terminal, exception_formatter=_write_traceback
        )
        after += [_escape_values, render]
    else:
        after += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(EventFilter())
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(foreign_pre_chain=before, processors=after)
    )
    for name in ("splitarrow", "opentelemetry"):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.propagate = False
    set_log_level(level)


def _escape_values(logger: object, name: str, event: MutableMapping[str, Any]) -> Any:
    """Escape what could control the terminal: peers choose names of datasets, for example."""
    del logger, name
    return {
        key: escape_controls(value) if isinstance(value, str) else value
        for key, value in event.items()
    }


def _write_traceback(file: TextIO, exc_info: ExcInfo) -> None:
    """Write a traceback with its text escaped.

    Unlike structlog's default, it shows no local variables: one of them might be a ticket.
    """
    text = StringIO()
    structlog.dev.plain_traceback(text, exc_info)
    file.write("\n".join(map(escape_controls, text.getvalue().split("\n"))))


class EventFilter(logging.Filter):
    """Leaves out events that come too often. The next one has their number, ``left_out``.

    Events for debugging, and those of the daemon itself, always pass: no peer can cause a flood of
    them.
    """

    def __init__(self, limit: int = _MAX_EQUAL_EVENTS) -> None:
        super().__init__()
        self._limiter = LogLimiter(limit)

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log an event."""
        if record.levelno <= logging.DEBUG or record.name == "splitarrow.daemon":
            return True
        left_out = self._limiter.admit((record.name, record.msg))
        if left_out:
            record.left_out = left_out
        return left_out is not None


def set_log_level(level: str) -> None:
    """Set the least severe level to write; see `configure_logs`."""
    logging.getLogger("splitarrow").setLevel(level.upper())
