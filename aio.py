"""The asynchronous API, for asyncio and trio: `open` and `connect`, and what they return."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .client.aio import connect
    from .client.aio_open import open
    from .client.cluster.aio_client import AsyncClusterClient
    from .client.dataset.aio_client import AsyncClient
    from .client.dataset.aio_dataset import AsyncDataset
    from .client.dataset.aio_stream import AsyncDatasetStream
    from .client.stream.aio import AsyncStream

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
    "AsyncClient": ".client.dataset.aio_client",
    "AsyncClusterClient": ".client.cluster.aio_client",
    "AsyncDataset": ".client.dataset.aio_dataset",
    "AsyncDatasetStream": ".client.dataset.aio_stream",
    "AsyncStream": ".client.stream.aio",
    "connect": ".client.aio",
    "open": ".client.aio_open",
}


def __getattr__(name: str) -> Any:
    """Import a public name at its first use: reading a data stream does not load gRPC."""
    module_name = _MODULES.get(name)
    if module_name is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(module_name, __package__), name)
    globals()[name] = value
    return value
