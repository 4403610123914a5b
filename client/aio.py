"""The asynchronous form of `connect`, for asyncio and trio."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, overload

from ..protocol.uri import DataUri
from ..transport.tls_options import TlsOptions
from .dataset.client import Client
from .rpc.control_uri import parse_control_uris

if TYPE_CHECKING:
    from .cluster.aio_client import AsyncClusterClient
    from .dataset.aio_client import AsyncClient


@overload
def connect(
    uri: str | DataUri,
    token: str | None = None,
    *,
    tls: TlsOptions | None = None,
    connect_timeout: float = 10.0,
    timeout: float = 30.0,
) -> AsyncClient: ...


@overload
def connect(
    uri: Sequence[str | DataUri],
    token: str | None = None,
    *,
    tls: TlsOptions | None = None,
    connect_timeout: float = 10.0,
    timeout: float = 30.0,
) -> AsyncClient | AsyncClusterClient: ...


def connect(
    uri: str | DataUri | Sequence[str | DataUri],
    token: str | None = None,
    *,
    tls: TlsOptions | None = None,
    connect_timeout: float = 10.0,
    timeout: float = 30.0,
) -> AsyncClient | AsyncClusterClient:
    """Connect to a control plane; the parameters are those of `splitarrow.connect`.

    Returns
    -------
    AsyncClient or AsyncClusterClient
        A client that connects when it is entered with ``async with``. Entering it raises the
        errors of `splitarrow.connect`. Several control planes have an `AsyncClusterClient`.

    Raises
    ------
    UriError
        If a URI is malformed.

    Examples
    --------
    >>> import anyio, pyarrow, splitarrow
    >>> async def read_miles(uri):
    ...     async with splitarrow.aio.connect(uri) as client:
    ...         async with client.read("trips", columns=["miles"]) as stream:
    ...             return (await stream.read_all())["miles"].to_pylist()
    >>> trips = pyarrow.table({"id": [1, 2, 3], "miles": [0.5, 3.0, 7.5]})
    >>> with splitarrow.serve({"trips": trips}, control="grpc://127.0.0.1:0") as server:
    ...     anyio.run(read_miles, server.control_uri)
    [0.5, 3.0, 7.5]
    """
    uris = parse_control_uris(uri)
    if len(uris) > 1:
        from .cluster.aio_client import AsyncClusterClient
        from .cluster.client import ClusterClient

        return AsyncClusterClient(
            partial(
                ClusterClient,
                uris,
                token,
                tls=tls,
                connect_timeout=connect_timeout,
                timeout=timeout,
            )
        )
    from .dataset.aio_client import AsyncClient

    return AsyncClient(
        partial(Client, uris[0], token, tls=tls, connect_timeout=connect_timeout, timeout=timeout)
    )
