"""A daemon and a client for Apache Arrow's Dissociated IPC protocol.

A server holds datasets. `serve` starts one in this process, ``splitarrow serve`` as a process of
its own. A client reads record batches from it over TCP, shared memory or UCX: `open` needs the URI
of a data stream, and `connect` finds datasets by name.

Examples
--------
>>> import pyarrow, splitarrow
>>> flights = pyarrow.table({"carrier": ["AA", "BB"], "delay": [1, 70]})
>>> with splitarrow.serve({"flights": flights}) as server:
...     with splitarrow.open(server.uri("flights")) as stream:
...         stream.read_all().num_rows
2
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import aio, errors, geo, variant
    from .client.arguments import ReadArguments
    from .client.cluster.client import ClusterClient
    from .client.connect import connect
    from .client.dataset.client import Client
    from .client.dataset.dataset import Dataset, DatasetStream
    from .client.open import open
    from .client.rpc.info import DatasetInfo, Endpoint, TensorInfo
    from .client.stream.stream import Stream
    from .formats.arrow.tensors.tensor import SparseTensor, Tensor
    from .protocol.limits import Limits
    from .server.config.settings import ServeArguments
    from .server.embedded import Server, serve
    from .transport.tls_options import TlsOptions

__version__ = "0.1.0"

__all__ = [
    "Client",
    "ClusterClient",
    "Dataset",
    "DatasetInfo",
    "DatasetStream",
    "Endpoint",
    "Limits",
    "ReadArguments",
    "ServeArguments",
    "Server",
    "SparseTensor",
    "Stream",
    "Tensor",
    "TensorInfo",
    "TlsOptions",
    "__version__",
    "aio",
    "connect",
    "errors",
    "geo",
    "open",
    "serve",
    "variant",
]

_MODULES = {
    "Client": ".client.dataset.client",
    "ClusterClient": ".client.cluster.client",
    "Dataset": ".client.dataset.dataset",
    "DatasetInfo": ".client.rpc.info",
    "DatasetStream": ".client.dataset.dataset",
    "Endpoint": ".client.rpc.info",
    "Limits": ".protocol.limits",
    "ReadArguments": ".client.arguments",
    "ServeArguments": ".server.config.settings",
    "Server": ".server.embedded",
    "SparseTensor": ".formats.arrow.tensors.tensor",
    "Stream": ".client.stream.stream",
    "Tensor": ".formats.arrow.tensors.tensor",
    "TensorInfo": ".client.rpc.info",
    "TlsOptions": ".transport.tls_options",
    "aio": ".aio",
    "connect": ".client.connect",
    "errors": ".errors",
    "geo": ".geo",
    "open": ".client.open",
    "serve": ".server.embedded",
    "variant": ".variant",
}
_SUBMODULES = {"memory", "pipeline", "pytorch", "testing"}
"""The public modules that are imported by their full names."""


def __getattr__(name: str) -> Any:
    """Import a public name at its first use: a client does not load the server, nor gRPC."""
    module_name = _MODULES.get(name)
    if module_name is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(module_name, __name__)
    value = module if module_name == f".{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names, with those of the submodules that were imported."""
    return sorted([*__all__, *_SUBMODULES & globals().keys()])
