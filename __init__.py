"""A daemon and a client for Apache Arrow's Dissociated IPC protocol."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import aio, errors
    from .client.blocking import Stream, open
    from .client.control import Client, connect
    from .client.described import DatasetInfo
    from .client.fleet import FleetClient
    from .client.parallel import DatasetStream
    from .protocol.limits import Limits
    from .server.handle import Server, serve
    from .transport.certificates import TlsOptions

__version__ = "0.1.0"

__all__ = [
    "Client",
    "DatasetInfo",
    "DatasetStream",
    "FleetClient",
    "Limits",
    "Server",
    "Stream",
    "TlsOptions",
    "__version__",
    "aio",
    "connect",
    "errors",
    "open",
    "serve",
]

_PLACES = {
    "Client": ".client.control",
    "DatasetInfo": ".client.described",
    "DatasetStream": ".client.parallel",
    "FleetClient": ".client.fleet",
    "Limits": ".protocol.limits",
    "Server": ".server.handle",
    "Stream": ".client.blocking",
    "TlsOptions": ".transport.certificates",
    "aio": ".aio",
    "connect": ".client.control",
    "errors": ".errors",
    "open": ".client.blocking",
    "serve": ".server.handle",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for, so that a reader need not load the server, nor the reverse."""
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(place, __name__)
    value = module if place == f".{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
