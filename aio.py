"""The asynchronous API, for asyncio and trio: `open` and `connect`, and what they return."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .client.cluster.client import AsyncClusterClient
    from .client.connect import connect_async as connect
    from .client.dataset.aio import AsyncClient, AsyncDataset, AsyncDatasetStream
    from .client.open import open_async as open
    from .client.stream.stream import AsyncStream

__all__ = [
    "AsyncClient",
    "AsyncClusterClient",
    "AsyncDataset",
    "AsyncDatasetStream",
    "AsyncStream",
    "connect",
    "open",
]

_MODULES = {
    "AsyncClient": ".client.dataset.aio",
    "AsyncClusterClient": ".client.cluster.client",
    "AsyncDataset": ".client.dataset.aio",
    "AsyncDatasetStream": ".client.dataset.aio",
    "AsyncStream": ".client.stream.stream",
    "connect": ".client.connect",
    "open": ".client.open",
}


def __getattr__(name: str) -> Any:
    """Import a public name at its first use: reading a data stream does not load gRPC."""
    module_name = _MODULES.get(name)
    if module_name is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(module_name, __package__)
    value = getattr(module, f"{name}_async" if name.islower() else name)
    globals()[name] = value
    return value
