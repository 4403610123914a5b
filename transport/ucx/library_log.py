"""The log of the library, as events of the logger ``splitarrow.ucx``.

By default the library writes to standard output, as often as something happens. If it runs out of
descriptors, for instance, it repeats an error tens of thousands of times a second.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Any

from ...log_limiter import LogLimiter
from .ffi import ffi, libc, ucs

_LEVELS = {0: logging.CRITICAL, 1: logging.ERROR, 2: logging.WARNING, 3: logging.INFO}
"""The levels of the library that have one here; all others are for debugging."""
_STOP, _CONTINUE = 0, 1
_MAX_BYTES = 1000
_MAX_FAST_REPEATS = 100
_PAUSE_SECONDS = 0.01

_log = logging.getLogger("splitarrow.ucx")
_limiter = LogLimiter()


@ffi.callback("ucs_log_func_t")
def _handle(
    file: Any, line: int, function: Any, level: int, component: Any, format: Any, arguments: Any
) -> int:
    del function, component
    place = (ffi.string(file), line)
    left_out = _limiter.admit(place)
    if left_out is None:
        # The library repeats an operation that fails on a thread of its own. Pausing that thread
        # leaves the processor to those that can help.
        if _limiter.left_out(place) > _MAX_FAST_REPEATS and _is_library_thread():
            time.sleep(_PAUSE_SECONDS)
    else:
        text = ffi.new("char[]", _MAX_BYTES)
        libc.vsnprintf(text, _MAX_BYTES, format, arguments)
        message = ffi.string(text).decode(errors="replace")
        repeats = f" ({left_out} more times before)" if left_out else ""
        _log.log(_LEVELS.get(level, logging.DEBUG), "%s%s", message, repeats)
    return _CONTINUE if _has_own_output() else _STOP


def _is_library_thread() -> bool:
    """Return whether the current thread was not started by Python."""
    return threading.current_thread().name.startswith("Dummy-")


def _has_own_output() -> bool:
    """Return whether the user has configured the library's own log."""
    return "UCX_LOG_LEVEL" in os.environ or "UCX_LOG_FILE" in os.environ


def install() -> None:
    """Let the library report its events here. Call this once."""
    ucs.ucs_log_push_handler(_handle)
