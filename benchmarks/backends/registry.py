"""The list of all backends."""

from __future__ import annotations

from ...errors import UsageError
from .backend import Backend
from .peers import DoGetBackend, FlightBackend, MemcpyBackend, RawSocketBackend
from .splitarrow_stream import SplitArrowBackend

BASELINE = "flight"
"""The backend with which the report compares most others."""
REFERENCE = "memcpy"
"""The backend that transfers nothing between processes. The plot omits it."""


def _index(*backends: Backend) -> dict[str, Backend]:
    return {backend.name: backend for backend in backends}


_BACKENDS = _index(
    SplitArrowBackend("splitarrow-tcp", "tcp://127.0.0.1:0"),
    SplitArrowBackend("splitarrow-tcp-async", "tcp://127.0.0.1:0", asynchronous=True),
    SplitArrowBackend("splitarrow-shm", "shm://"),
    SplitArrowBackend("splitarrow-ucx-tcp", "ucx://127.0.0.1:0", lanes="tcp"),
    SplitArrowBackend("splitarrow-ucx", "ucx://127.0.0.1:0", body="packed"),
    SplitArrowBackend("splitarrow-ucx-remote", "ucx://127.0.0.1:0", body="remote"),
    SplitArrowBackend("inproc", "inproc://", in_process=True),
    FlightBackend(),
    RawSocketBackend(),
    MemcpyBackend(),
)
_ON_REQUEST = _index(
    SplitArrowBackend("splitarrow-tls", "tcp+tls://127.0.0.1:0", baseline="flight-tls"),
    FlightBackend("flight-tls", tls=True),
    DoGetBackend(),
    SplitArrowBackend(
        "splitarrow-parquet", "tcp://127.0.0.1:0", parquet=True, baseline="flight-parquet"
    ),
    FlightBackend("flight-parquet", parquet=True),
)
"""The backends that only run if they are named."""
_ALL = _BACKENDS | _ON_REQUEST


def backend_names(*, on_request: bool = False) -> list[str]:
    """Return the names of the backends, in the order of the report."""
    return list(_ALL if on_request else _BACKENDS)


def find_backend(name: str) -> Backend:
    """Return the backend with a name."""
    try:
        return _ALL[name]
    except KeyError:
        raise UsageError(f"no backend {name!r}; the backends are {', '.join(_ALL)}") from None


def available_backends() -> tuple[list[str], dict[str, str]]:
    """Return the backends that can run on this machine, and the reasons why others cannot.

    Those on request do not count.
    """
    reasons = {name: backend.unavailable_reason() for name, backend in _BACKENDS.items()}
    unavailable = {name: reason for name, reason in reasons.items() if reason is not None}
    return [name for name in _BACKENDS if name not in unavailable], unavailable
