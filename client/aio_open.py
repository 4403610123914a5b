"""The asynchronous form of `open`, for asyncio and trio."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ..protocol.limits import DEFAULT_LIMITS, Limits
from ..protocol.memory import DEFAULT_ALLOCATOR
from ..protocol.uri import DataUri
from ..transport.tls_options import TlsOptions
from .open import check_no_token, locate_dataset, open_dataset
from .rpc.control_uri import is_control_uri
from .stream.aio import AsyncStream
from .stream.blocking import Stream
from .stream.format_choice import AUTO, choose_for_uris
from .stream.memory_argument import find_allocator, move_to_memory
from .stream.options import ReadOptions, check_validation
from .stream.uris import resolve_uris

if TYPE_CHECKING:
    from .dataset.aio_stream import AsyncDatasetStream


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
        from .dataset.aio_stream import AsyncDatasetStream

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
        format=None if format == AUTO else format,
        batches=batches,
        rows=rows,
    )
    choose = partial(choose_for_uris, Stream) if format == AUTO else None
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
