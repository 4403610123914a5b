"""Connecting to one control plane, or to several that share datasets.

`connect` returns a blocking client, and `connect_async` one for asyncio and trio.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack, overload

from ..protocol.uri import DataUri
from ..transport.tls_options import TlsOptions
from .dataset.client import Client, ConnectArguments
from .tokens import Token, TokenFile, parse_token
from .uris import parse_control_uris

if TYPE_CHECKING:
    from .cluster.client import AsyncClusterClient, ClusterClient
    from .dataset.aio import AsyncClient


AnyClient: TypeAlias = "Client | ClusterClient"
"""The clients that `connect` returns for any URI."""


@overload
def connect(
    uri: str | DataUri,
    token: Token | None = None,
    **options: Unpack[ConnectArguments],
) -> Client: ...


@overload
def connect(
    uri: Sequence[str | DataUri],
    token: Token | None = None,
    **options: Unpack[ConnectArguments],
) -> Client | ClusterClient: ...


def connect(
    uri: str | DataUri | Sequence[str | DataUri],
    token: Token | None = None,
    *,
    token_file: TokenFile = None,
    tls: TlsOptions | None = None,
    connect_timeout: float = 10.0,
    timeout: float = 30.0,
) -> Client | ClusterClient:
    """Connect to a control plane, or to several that share datasets.

    Parameters
    ----------
    uri : str, DataUri, or a sequence of them
        The control plane: ``grpc://host:port`` or ``grpc+tls://host:port``. The default port is
        8815. Pass several as a list, or as a string such as ``grpc://a:8815,b:8815``.
    token : str or callable, optional
        The bearer token that authenticates the caller, or a function that returns the current
        one. The function is called again before a JSON Web Token expires, every half minute for
        other tokens, and when a server refuses the token.
    token_file : path-like, optional
        A file with the token, in place of `token`. It is read again after a change.
    tls : TlsOptions, optional
        Certificates for TLS. `None` reads the variables ``SPLITARROW_TLS_CA``, ``_CERT``,
        ``_KEY`` and ``_SERVER_NAME``.
    connect_timeout : float
        The time limit for the first response of the server, in seconds.
    timeout : float
        The time limit for calls that transfer no data, in seconds.

    Returns
    -------
    Client or ClusterClient
        A `ClusterClient` for several control planes, otherwise a `Client`. Type checkers infer a
        `Client` for a string; pass several control planes as a list.

    Raises
    ------
    UsageError
        If an argument is invalid; `UriError` for the URI.
    ConnectError
        If no server responds.
    DeniedError
        If the server rejects the token.

    Examples
    --------
    Serve a table in this process, and read some of it by its name:

    >>> import pyarrow, splitarrow
    >>> trips = pyarrow.table({"id": [1, 2, 3], "miles": [0.5, 3.0, 7.5]})
    >>> server = splitarrow.serve({"trips": trips}, control="grpc://127.0.0.1:0")
    >>> with server, splitarrow.connect(server.control_uri) as client:
    ...     with client.read("trips", columns=["miles"], limit=2) as stream:
    ...         for batch in stream:
    ...             print(batch.to_pydict())
    {'miles': [0.5, 3.0]}
    """
    uris, source = parse_control_uris(uri), parse_token(token, token_file)
    if len(uris) > 1:
        from .cluster.client import ClusterClient

        return ClusterClient(
            uris, source, tls=tls, connect_timeout=connect_timeout, timeout=timeout
        )
    return Client(uris[0], source, tls=tls, connect_timeout=connect_timeout, timeout=timeout)


@overload
def connect_async(
    uri: str | DataUri,
    token: Token | None = None,
    **options: Unpack[ConnectArguments],
) -> AsyncClient: ...


@overload
def connect_async(
    uri: Sequence[str | DataUri],
    token: Token | None = None,
    **options: Unpack[ConnectArguments],
) -> AsyncClient | AsyncClusterClient: ...


def connect_async(
    uri: str | DataUri | Sequence[str | DataUri],
    token: Token | None = None,
    *,
    token_file: TokenFile = None,
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
    uris, source = parse_control_uris(uri), parse_token(token, token_file)
    open_client: Any = partial(
        connect, uris, source, tls=tls, connect_timeout=connect_timeout, timeout=timeout
    )
    if len(uris) > 1:
        from .cluster.client import AsyncClusterClient

        return AsyncClusterClient(open_client)
    from .dataset.aio import AsyncClient

    return AsyncClient(open_client)
