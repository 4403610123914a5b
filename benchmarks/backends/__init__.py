"""What is measured: one entry for each way that batches can come."""

from __future__ import annotations

from ...errors import UsageError
from .base import Backend
from .flight import Flight
from .memcpy import Memcpy
from .raw import Raw
from .streams import Streams

__all__ = ["BASELINE", "REFERENCE", "Backend", "available", "backend", "names"]

BASELINE = "flight"
"""The backend that the others are compared with."""
REFERENCE = "memcpy"
"""The backend that moves nothing between processes; left out of the plot."""

_BACKENDS: dict[str, Backend] = {
    entry.name: entry
    for entry in (
        Streams("splitarrow-tcp", "tcp://127.0.0.1:0"),
        Streams("splitarrow-tcp-async", "tcp://127.0.0.1:0", asynchronous=True),
        Streams("splitarrow-shm", "shm://"),
        Streams("splitarrow-ucx-tcp", "ucx://127.0.0.1:0", lanes="tcp"),
        Streams("splitarrow-ucx", "ucx://127.0.0.1:0", body="packed"),
        Streams("splitarrow-ucx-remote", "ucx://127.0.0.1:0", body="remote"),
        Streams("inproc", "inproc://", in_process=True),
        Flight(),
        Raw(),
        Memcpy(),
    )
}


def names() -> list[str]:
    """Return the names of all backends, in the order of the report."""
    return list(_BACKENDS)


def backend(name: str) -> Backend:
    """Return the backend of a name.

    Raises
    ------
    UsageError
        If there is none.
    """
    try:
        return _BACKENDS[name]
    except KeyError:
        raise UsageError(f"no backend {name!r}; there are {', '.join(names())}") from None


def available() -> tuple[list[str], dict[str, str]]:
    """Return the names of the backends that can run here, and why the others cannot."""
    reasons = {name: entry.unavailable() for name, entry in _BACKENDS.items()}
    missing = {name: reason for name, reason in reasons.items() if reason is not None}
    return [name for name in _BACKENDS if name not in missing], missing
