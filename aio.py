"""The asynchronous side of the front door, for asyncio and trio."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .client.aio import AsyncStream, open
    from .client.control_aio import AsyncClient, AsyncDatasetStream, connect

__all__ = ["AsyncClient", "AsyncDatasetStream", "AsyncStream", "connect", "open"]


def __getattr__(name: str) -> Any:
    """Import what is asked for: a reader with a URI needs no gRPC."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    place = ".client.aio" if name in ("AsyncStream", "open") else ".client.control_aio"
    value = getattr(import_module(place, __package__), name)
    globals()[name] = value
    return value
