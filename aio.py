"""The asynchronous side of the front door, for asyncio and trio."""

from .client.aio import AsyncStream, open
from .client.control_aio import AsyncClient, connect

__all__ = ["AsyncClient", "AsyncStream", "connect", "open"]
