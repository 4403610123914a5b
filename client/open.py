"""Opening a data stream, blocking or asynchronous.

The target is the URI of a stream, or a dataset of a control plane.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ..errors import UriError, UsageError
from ..protocol.limits import DEFAULT_LIMITS, Limits
from ..protocol.memory import DEFAULT_ALLOCATOR
from ..protocol.uri import DataUri
from ..transport.tls_options import TlsOptions
from .arguments import ReadOptions, check_validation
from .stream import stream as blocking
from .stream.device_stream import find_allocator, move_to_memory
from .stream.format_choice import AUTO_FORMAT, choose_for_uris
from .stream.stream import AsyncStream, Stream
from .uris import is_control_uri, resolve_uris, split_dataset

if TYPE_CHECKING:
    from .dataset.aio import AsyncDatasetStream
    from .dataset.dataset import DatasetStream


def open(
    uri: str | DataUri | Sequence[str | DataUri],
    ticket: bytes | str | None = None,
    *,
    columns: str | Sequence[str] | None = None,
    filter: Any = None,
    limit: int | None = None,
    batch_rows: int | None = None,
    compression: str | None = None,
    format: str | None = None,
    batches: tuple[int, int] | None = None,
    rows: tuple[int, int] | None = None,
    validate: str | None = None,
    connect_timeout: float = 10.0,
    stall_timeout: float | None = 30.0,
    prefetch_bytes: int | None = None,
    max_decoded_bytes: int = 1 << 30,
    require_transport: str | None = None,
    limits: Limits = DEFAULT_LIMITS,
    tls: TlsOptions | None = None,
    token: str | None = None,
    memory: Any = None,
) -> Stream | DatasetStream:
    """Open a data stream for reading.

    Parameters
    ----------
    uri : str, DataUri, or a pair of them
        One of these:

        - a ``want_data`` URI, which a server prints and `Server.uri` returns;
        - a short form of it for a dataset at a default listener: ``tcp://host/flights``;
        - a dataset of a control plane: ``grpc://host:8815/flights`` or ``host:8815/flights``. The
          read then works as with `Client.read`;
        - a pair of ``want_data`` URIs, one with ``stream=metadata`` and one with ``stream=body``,
          to read over two connections, to one server or to two.
    ticket : bytes or str, optional
        The ticket, if the URI has none: a dataset's name, or a ticket from a control plane. With a
        control plane, the name of the dataset.
    columns : str or sequence of str, optional
        The columns to read, in this order. `None` reads all columns.
    filter : str, tuples, or expression, optional
        The rows to read; see `Client.read`. Without a control plane, a first connection reads the
        schema of the dataset.
    limit : int, optional
        The largest number of rows to read.
    batch_rows : int, optional
        The largest number of rows in a batch.
    compression : {"none", "lz4", "zstd", "auto"}, optional
        The codec of the bodies. `None` keeps that of the source; ``auto`` compresses while that
        is faster on the link.
    format : {"arrow", "vortex", "auto"}, optional
        The format of the messages. `None` is ``arrow``; ``vortex`` sends compressed arrays, which
        need the extra ``vortex`` here and at the server. ``auto`` takes them where the link is
        slower than decoding, which the first read from a server measures.
    batches : pair of int, optional
        The first stored record batch to read and the one after the last, counted from 0; in a
        Parquet file, the row groups. They are selected before the filter and the limit.
    rows : pair of int, optional
        The first stored row to read and the one after the last, counted from 0. They are selected
        before the filter and the limit. It excludes `batches`.
    validate : {"strict", "full", "cheap", "off"}, optional
        How to check batches before they are returned. ``full`` checks every value that a consumer
        relies on: offsets, UTF-8, indices. Values outside of the range of their type, such as a
        decimal with too many digits, cause an `errors.InvalidValueWarning`; ``strict`` refuses
        them. ``cheap`` checks the sizes of buffers. ``off`` checks nothing. The default is
        ``full``, or ``cheap`` if the server is on this host.
    connect_timeout : float
        The time limit to connect, in seconds.
    stall_timeout : float or None
        The longest wait for data from the server, in seconds. `None` disables the limit.
    prefetch_bytes : int, optional
        The size of the batches that a thread of the stream may prefetch, in bytes. 0 disables
        prefetching: only the kernel's buffers fill ahead of the consumer. `None` measures how
        long the stream and its consumer take, and starts a thread where that makes both
        together faster; at most 32 MiB and one batch then wait.
    max_decoded_bytes : int
        The limit on decoded data that the consumer has not taken, in bytes. A compressed batch,
        or the dictionaries of the stream, that exceed it raise `LimitError`; prefetching pauses.
    require_transport : str, optional
        The scheme, or lane of UCX (``cma``, ``rc_mlx5/mlx5_0:1``), that must carry the data. A
        connection that uses anything else is refused.
    limits : Limits
        Limits on the data that the server sends.
    tls : TlsOptions, optional
        Certificates for TLS. `None` reads the variables ``SPLITARROW_TLS_CA``, ``_CERT``,
        ``_KEY`` and ``_SERVER_NAME``.
    token : str, optional
        With a control plane, the bearer token that authenticates the caller.
    memory : str, CudaMemory, PinnedMemory or Allocator, optional
        Where the batches land: ``"pinned"`` for page-locked memory, ``"cuda:0"`` for the memory
        of a CUDA device, or an object of `splitarrow.memory`. With a device, the result is a
        `DeviceStream`. `None` is pageable host memory, or the server's own over ``shm``.

    Returns
    -------
    Stream or DatasetStream
        A stream that has received its schema; a `DatasetStream` with a control plane.

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
    options: dict[str, Any] = {
        "columns": columns,
        "filter": filter,
        "limit": limit,
        "batch_rows": batch_rows,
        "compression": compression,
        "format": format,
        "batches": batches,
        "rows": rows,
        "validate": validate,
        "connect_timeout": connect_timeout,
        "stall_timeout": stall_timeout,
        "prefetch_bytes": prefetch_bytes,
        "max_decoded_bytes": max_decoded_bytes,
        "require_transport": require_transport,
        "limits": limits,
        "tls": tls,
    }
    if isinstance(uri, (str, DataUri)) and is_control_uri(uri):
        return open_dataset(uri, ticket, token, memory=memory, **options)
    check_no_token(token)
    stream = blocking.open(uri, ticket, allocator=find_allocator(memory), **options)
    return move_to_memory(stream, memory)


def open_dataset(
    uri: str | DataUri,
    ticket: bytes | str | None,
    token: str | None,
    *,
    connect_timeout: float,
    tls: TlsOptions | None,
    **options: Any,
) -> DatasetStream:
    """Connect to a control plane and open a dataset. Closing the stream closes the connection.

    The parameters are those of `open`.
    """
    from .connect import connect

    address, name = locate_dataset(uri, ticket)
    client = connect(address, token, tls=tls, connect_timeout=connect_timeout)
    try:
        stream = client.read(name, connect_timeout=connect_timeout, **options)
    except BaseException:
        client.close()
        raise
    source: Any = getattr(stream, "source", stream)  # the stream in a `DeviceStream`
    source.on_close = client.close
    return stream


def locate_dataset(uri: str | DataUri, ticket: bytes | str | None) -> tuple[str, str]:
    """Return the control plane and the name of a dataset.

    Raises `UriError` if the URI and the ticket name no dataset, or both do.
    """
    address, name = split_dataset(uri)
    if ticket is None and name is None:
        raise UriError(
            f"{address} names no dataset; open {address}/NAME, or list the datasets with "
            f"splitarrow.connect({address!r}).datasets()"
        )
    if ticket is not None and name is not None:
        raise UriError(f"{address}/{name} already names a dataset; leave the ticket out")
    given = ticket.decode(errors="replace") if isinstance(ticket, bytes) else ticket
    return address, name or given or ""


def check_no_token(token: str | None) -> None:
    """Refuse a token for the URI of a data stream.

    Raises `UsageError` if there is one.
    """
    if token is not None:
        raise UsageError(
            "a token is for a control plane, as in grpc://host:8815/NAME; the ticket of a "
            "want_data URI already contains its authorization"
        )


def open_async(
    uri: str | DataUri | Sequence[str | DataUri],
    ticket: bytes | str | None = None,
    *,
    columns: str | Sequence[str] | None = None,
    filter: Any = None,
    limit: int | None = None,
    batch_rows: int | None = None,
    compression: str | None = None,
    format: str | None = None,
    batches: tuple[int, int] | None = None,
    rows: tuple[int, int] | None = None,
    validate: str | None = None,
    connect_timeout: float = 10.0,
    stall_timeout: float | None = 30.0,
    prefetch_bytes: int | None = None,
    max_decoded_bytes: int = 1 << 30,
    require_transport: str | None = None,
    limits: Limits = DEFAULT_LIMITS,
    tls: TlsOptions | None = None,
    token: str | None = None,
    memory: Any = None,
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
    host_memory = None if memory is None else find_allocator(memory)
    if isinstance(uri, (str, DataUri)) and is_control_uri(uri):
        locate_dataset(uri, ticket)
        from .dataset.aio import AsyncDatasetStream

        dataset_stream = AsyncDatasetStream(
            partial(
                open_dataset,
                uri,
                ticket,
                token,
                columns=columns,
                filter=filter,
                limit=limit,
                batch_rows=batch_rows,
                compression=compression,
                format=format,
                batches=batches,
                rows=rows,
                validate=validate,
                connect_timeout=connect_timeout,
                stall_timeout=stall_timeout,
                prefetch_bytes=prefetch_bytes,
                max_decoded_bytes=max_decoded_bytes,
                require_transport=require_transport,
                limits=limits,
                tls=tls,
                memory=host_memory,
            )
        )
        return move_to_memory(dataset_stream, memory)
    check_no_token(token)
    uris = resolve_uris(
        uri,
        ticket,
        columns=columns,
        limit=limit,
        batch_rows=batch_rows,
        compression=compression,
        format=None if format == AUTO_FORMAT else format,
        batches=batches,
        rows=rows,
    )
    choose = partial(choose_for_uris, Stream) if format == AUTO_FORMAT else None
    options = ReadOptions(
        validate=check_validation(validate),
        connect_timeout=connect_timeout,
        stall_timeout=stall_timeout,
        prefetch_bytes=prefetch_bytes,
        max_decoded_bytes=max_decoded_bytes,
        require_transport=require_transport,
        limits=limits,
        tls=tls,
        allocator=host_memory or DEFAULT_ALLOCATOR,
    )
    return move_to_memory(AsyncStream(uris, options, filter, choose), memory)
