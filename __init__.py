"""A daemon and a client for Apache Arrow's Dissociated IPC protocol."""

from . import aio, errors
from .client.blocking import Stream, open
from .protocol.limits import Limits
from .server.handle import Server, serve

__version__ = "0.1.0"

__all__ = ["Limits", "Server", "Stream", "__version__", "aio", "errors", "open", "serve"]
