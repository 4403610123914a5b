"""The asynchronous client of several control planes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from ...errors import SplitArrowError
from ..dataset.aio_client import AsyncBaseClient, AsyncClient
from ..dataset.threads import run_in_thread
from .client import ClusterClient


class AsyncClusterClient(AsyncBaseClient[ClusterClient]):
    """The asynchronous form of `ClusterClient`: an async context manager.

    `splitarrow.aio.connect` returns it for several URIs. It connects when the context is entered.
    """

    @property
    def uris(self) -> list[str]:
        """The addresses of the control planes."""
        return self._entered.uris

    @property
    def absent(self) -> Mapping[str, SplitArrowError]:
        """The daemons that failed in the last call to all daemons, and their errors."""
        return self._entered.absent

    async def at(self, uri: str) -> AsyncClient:
        """Return the client of one daemon, connected; see `ClusterClient.at`."""
        client = await run_in_thread(partial(self._entered.at, uri))
        return AsyncClient.of(client)
