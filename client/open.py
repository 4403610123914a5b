"""Opening a data stream: by its URI, or a dataset of a control plane by its name.

`open` returns a blocking stream, and `open_async` one for asyncio and trio.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Unpack

from ..errors import UriError, UsageError
from ..protocol.uri import DataUri
from ..transport.tls_options import TlsOptions
from .arguments import AUTO, Read, ReadArguments, find_allocator
from .stream.device_stream import wrap_for_device
from .stream.stream import AsyncStream, Stream, plan_opening
from .tokens import Token, TokenFile, TokenSource, parse_token
from .uris import (
    is_control_uri,
    is_http_uri,
    is_this_host,
    parse_control_uris,
    resolve_uris,
    split_dataset,
    split_http_dataset,
)

if TYPE_CHECKING:
    from .dataset.aio import AsyncDatasetStream
    from .dataset.dataset import DatasetStream


def open(
    target: str | DataUri | Sequence[str | DataUri],
    ticket: bytes | str | None = None,
    *,
    token: Token | None = None,
    token_file: TokenFile = None,
    **arguments: Unpack[ReadArguments],
) -> Stream | DatasetStream:
    """Open a data stream for reading.

    Parameters
    ----------
    target : str, DataUri, or a pair of them
        One of these:

        - a ``want_data`` URI, which a server prints and `Server.uri` returns;
        - a short form of it for a dataset at a default listener: ``tcp://host/flights``;
        - a dataset of a control plane: ``grpc://host:8815/flights`` or ``host:8815/flights``. The
          read then works as with `Client.read`;
        - a dataset over HTTP: ``http://host:9816/flights`` or ``https://host/flights``, through the
          proxy that ``HTTP_PROXY`` or ``HTTPS_PROXY`` names. The read resumes after a broken
          connection;
        - a pair of ``want_data`` URIs, one with ``stream=metadata`` and one with ``stream=body``,
          to read over two connections, to one server or to two.
    ticket : bytes or str, optional
        The ticket, if the URI has none: a dataset's name, or a ticket from a control plane. With a
        control plane or HTTP, the name of the dataset.
    token : str or callable, optional
        With a control plane or HTTP, the bearer token that authenticates the caller, or a function
        that returns the current one; see `connect`.
    token_file : path-like, optional
        A file with the token, in place of `token`. It is read again after a change.
    **arguments
        The options; see `ReadArguments`.

    Returns
    -------
    Stream or DatasetStream
        A stream that has received its schema; a `DatasetStream` with a control plane or HTTP. With
        ``memory`` on a device, a `DeviceStream`.

    Raises
    ------
    UsageError
        If an argument is invalid; `UriError` for the URI.
    TransportError
        If the server cannot be reached, or does not speak the protocol.
    RemoteError
        If the server refuses; `NotFoundError` if it has no such dataset.

    Examples
    --------
    Serve a table in this process and read one column of it:

    >>> import pyarrow, splitarrow
    >>> table = pyarrow.table({"n": [1, 2, 3], "name": ["a", "b", "c"]})
    >>> server = splitarrow.serve({"numbers": table})
    >>> with server, splitarrow.open(server.uri("numbers"), columns="name") as stream:
    ...     stream.read_all().to_pydict()
    {'name': ['a', 'b', 'c']}
    """
    source = parse_token(token, token_file)
    if isinstance(target, (str, DataUri)) and is_control_uri(target):
        return _open_dataset(target, ticket, source, arguments)
    if isinstance(target, (str, DataUri)) and is_http_uri(target):
        return _open_url(target, ticket, source, arguments)
    read = _read_stream(arguments, source)
    stream = Stream(plan_opening(resolve_uris(target, ticket, read.request), read))
    return stream if read.memory is None else wrap_for_device(stream, read.memory)


def open_async(
    target: str | DataUri | Sequence[str | DataUri],
    ticket: bytes | str | None = None,
    *,
    token: Token | None = None,
    token_file: TokenFile = None,
    **arguments: Unpack[ReadArguments],
) -> AsyncStream | AsyncDatasetStream:
    """Open a data stream for reading; the parameters are those of `splitarrow.open`.

    Returns
    -------
    AsyncStream or AsyncDatasetStream
        A stream that connects when it is entered with ``async with``. Entering it raises the
        errors of `splitarrow.open`.

    Raises
    ------
    UsageError
        If an argument is invalid; `UriError` for the URI.

    Examples
    --------
    >>> import anyio, pyarrow, splitarrow
    >>> async def read_names(uri):
    ...     async with splitarrow.aio.open(uri, columns=["name"]) as stream:
    ...         async for batch in stream:
    ...             print(batch.to_pydict())
    >>> table = pyarrow.table({"n": [1, 2, 3], "name": ["a", "b", "c"]})
    >>> with splitarrow.serve({"numbers": table}) as server:
    ...     anyio.run(read_names, server.uri("numbers"))
    {'name': ['a', 'b', 'c']}
    """
    source = parse_token(token, token_file)
    open_dataset = None
    if isinstance(target, (str, DataUri)) and is_control_uri(target):
        open_dataset = partial(_open_dataset, target, ticket, source, arguments)
        if arguments.get("sql") is None:
            locate_dataset(target, ticket)
    elif isinstance(target, (str, DataUri)) and is_http_uri(target):
        open_dataset = partial(_open_url, target, ticket, source, arguments)
        split_http_dataset(target, ticket)
    if open_dataset is not None:
        from .dataset.aio import AsyncDatasetStream

        memory = arguments.get("memory")
        if memory is not None:
            arguments["memory"] = find_allocator(memory)
        return wrap_for_device(AsyncDatasetStream(open_dataset), memory)
    read = _read_stream(arguments, source)
    stream = AsyncStream(plan_opening(resolve_uris(target, ticket, read.request), read))
    return wrap_for_device(stream, read.memory)


def _read_stream(arguments: ReadArguments, token: TokenSource | None) -> Read:
    """Return the read of a ``want_data`` URI. Refuse what only a control plane can do."""
    if token is not None:
        raise UsageError(
            "a token is for a control plane, as in grpc://host:8815/NAME, or for HTTP; the ticket "
            "of a want_data URI already contains its authorization"
        )
    read = Read.of(arguments)
    for name, value in (("sql", read.sql), ("shards", read.shards)):
        if value is not None:
            raise UsageError(f"{name} needs a control plane, as in grpc://host:8815/NAME")
    if read.plan.transport != AUTO:
        raise UsageError(
            "the URI states the transport; leave transport out, or use require_transport"
        )
    return read


def _open_dataset(
    target: str | DataUri,
    ticket: bytes | str | None,
    token: TokenSource | None,
    arguments: ReadArguments,
) -> DatasetStream:
    """Connect to a control plane, and open a dataset with a client of its own or a kept one."""
    from .connect import connect
    from .dataset.client import BaseClient, Client
    from .kept_clients import KEPT_CLIENTS

    name: str | None
    if arguments.get("sql") is not None and ticket is None:
        address, name = split_dataset(target)
    else:
        address, name = locate_dataset(target, ticket)
    options = Read.of({**arguments, "memory": None}, name).options
    tls, timeout = options.tls, options.connect_timeout
    uris = parse_control_uris(address)

    def open_stream(client: BaseClient) -> DatasetStream:
        return client.read(name, **arguments)

    if len(uris) > 1:
        client = connect(address, token, tls=tls, connect_timeout=timeout)
        try:
            stream, release = open_stream(client), client.close
        except BaseException:
            client.close()
            raise
    else:
        key = uris[0], token, tls or TlsOptions.from_environment(), timeout
        connect_one = partial(Client, uris[0], token, tls=tls, connect_timeout=timeout, check=False)
        keep = not is_this_host(uris[0].host)
        stream, release = KEPT_CLIENTS.open(key, connect_one, timeout, open_stream, keep=keep)
    source: DatasetStream = getattr(stream, "source", stream)  # the stream in a `DeviceStream`
    finalizer = weakref.finalize(source, release)  # for a stream that nobody closes
    finalizer.atexit = False
    source.on_close = finalizer
    return stream


def _open_url(
    target: str | DataUri,
    ticket: bytes | str | None,
    token: TokenSource | None,
    arguments: ReadArguments,
) -> DatasetStream:
    """Open a dataset over HTTP."""
    from .dataset.url import open_url

    for name in ("sql", "shards"):
        if arguments.get(name) is not None:
            raise UsageError(f"{name} needs a control plane, as in grpc://host:8815/NAME")
    uri, name = split_http_dataset(target, ticket)
    read = Read.of(arguments, name)
    if read.plan.transport not in (AUTO, "http", uri.scheme):
        raise UsageError(f"transport is {read.plan.transport!r}, and {uri.address} is over HTTP")
    if read.request.format == "vortex":
        raise UsageError("HTTP carries the format 'arrow'; leave format out, or use another URI")
    stream = open_url(uri, token, read)
    return wrap_for_device(stream, read.memory)


def locate_dataset(target: str | DataUri, ticket: bytes | str | None) -> tuple[str, str]:
    """Return the control plane and the name of a dataset, which the URI or the ticket states."""
    address, name = split_dataset(target)
    if ticket is None and name is None:
        raise UriError(
            f"{address} names no dataset; open {address}/NAME, or list the datasets with "
            f"splitarrow.connect({address!r}).datasets()"
        )
    if ticket is not None and name is not None:
        raise UriError(f"{address}/{name} already names a dataset; leave the ticket out")
    given = ticket.decode(errors="replace") if isinstance(ticket, bytes) else ticket
    return address, name or given or ""
