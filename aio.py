"""The asynchronous side of the front door, for asyncio and trio."""

from .client.aio import AsyncStream, open

__all__ = ["AsyncStream", "open"]
