"""The blocking stream."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

import pyarrow as pa

from ..errors import ClosedError, SplitArrowError, TransportError
from ..protocol.limits import DEFAULT_LIMITS, Limits
from ..protocol.uri import DataUri
from ..transport import blocking as driver
from ..transport.certificates import TlsOptions
from ..transport.registry import transport_for
from .ahead import ThreadAhead
from .batches import BatchStream
from .decoder import checked_validation
from .reader import Reader, ReadOptions, resolve


class Stream(BatchStream):
    """A dataset being read. Made by `open`; a context manager and an iterator of batches.

    The batches belong to the caller: they own the memory that they arrived in, and stay valid
    after the stream is closed. One thread at a time may read; any thread may `cancel`.
    """

    def __init__(self, uris: list[DataUri], options: ReadOptions) -> None:
        self._reader = reader = Reader(uris, options)
        self._stall = options.stall_timeout
        self._cancelled = False
        self._window = options.prefetch_bytes
        self._ahead: ThreadAhead | None = None
        try:
            for uri in uris:
                transport = transport_for(uri, options.tls)
                channel = transport.connect(uri, options.limits, options.connect_timeout)
                request = reader.attach(channel, uri)
                driver.send(channel, [request], self._stall)
            reader.requested()
            while reader.schema is None:
                reader.check()
                self._receive()
        except BaseException:
            reader.close()
            raise

    @property
    def schema(self) -> pa.Schema:
        """The schema of the stream."""
        schema = self._reader.schema
        assert schema is not None
        return schema

    @property
    def transport(self) -> str:
        """The scheme that the stream came by; with the lanes, as ``ucx (cma/memory)``."""
        return self._reader.transport

    @property
    def rows_received(self) -> int:
        """How many rows have been received and decoded."""
        return self._reader.rows

    @property
    def bytes_received(self) -> int:
        """How many bytes have arrived, headers included."""
        return self._reader.bytes_received

    def _receive(self) -> None:
        kind, channel = self._reader.wanted()
        try:
            frames = driver.receive(channel, self._stall)
        except SplitArrowError as error:
            if self._cancelled and isinstance(error, TransportError):
                error = ClosedError("the stream was cancelled")
            self._reader.fail(error)
        else:
            self._reader.take(kind, frames)

    def __next__(self) -> pa.RecordBatch:
        """Return the next record batch.

        Raises
        ------
        StopIteration
            At the proven end of the stream, and only there.
        ProtocolError, RemoteError, TransportError
            If the stream breaks. Everything returned before is good, and not the whole.
        """
        reader = self._reader
        if self._window:
            return self._next_ahead()
        if reader.batches:
            return reader.batches.popleft()
        while (batch := reader.pop()) is None:
            if not reader.check():
                raise StopIteration
            self._receive()
        return batch

    def _next_ahead(self) -> pa.RecordBatch:
        if self._ahead is None:
            self._ahead = ThreadAhead(self._reader, self._receive, self._window)
        batch = self._ahead.next()
        if batch is None:
            self._reader.check()
            raise StopIteration
        return batch

    def cancel(self) -> None:
        """Stop a read that another thread waits in: it raises `ClosedError`."""
        self._cancelled = True
        for channel in self._reader.channels.values():
            channel.interrupt()

    def close(self) -> None:
        """Close the connection. Batches already handed out stay valid. Idempotent."""
        if self._ahead is not None:
            self.cancel()
            self._ahead.stop()
        self._reader.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<splitarrow.Stream {self._reader.name!r} {self._reader.state.value}>"


def open(
    uri: str | DataUri | Sequence[str | DataUri],
    ticket: bytes | str | None = None,
    *,
    columns: Sequence[str] | None = None,
    limit: int | None = None,
    batch_rows: int | None = None,
    compression: str | None = None,
    validate: str | None = None,
    connect_timeout: float = 10.0,
    stall_timeout: float | None = 30.0,
    prefetch_bytes: int = 0,
    require_transport: str | None = None,
    limits: Limits = DEFAULT_LIMITS,
    tls: TlsOptions | None = None,
) -> Stream:
    """Open a dataset for reading.

    Parameters
    ----------
    uri : str, DataUri, or a pair of them
        A ``want_data`` URI; two, one with ``stream=metadata`` and one with ``stream=body``,
        read the two streams from two connections, be it to one server or to two.
    ticket : bytes or str, optional
        What to ask for, where the URI has no ticket.
    columns : sequence of str, optional
        The columns to read, in this order; all by default.
    limit : int, optional
        The largest number of rows to read.
    batch_rows : int, optional
        The largest number of rows in a batch.
    compression : {"none", "lz4", "zstd"}, optional
        How the bodies travel; by default as they lie at the server.
    validate : {"full", "cheap", "off"}, optional
        How batches are checked before they are handed out. By default ``full``, or ``cheap``
        where the server is on this host.
    connect_timeout : float
        The longest time to connect, in seconds.
    stall_timeout : float or None
        The longest silence of the server while something is awaited, in seconds.
    prefetch_bytes : int
        How many bytes of batches a thread of the stream's may read ahead of the consumer; 0
        reads when asked, and leaves reading ahead to the kernel's buffers.
    require_transport : str, optional
        What the stream has to come by: a scheme, or a lane of UCX (``cma``, ``rc_mlx5/mlx5_0:1``).
        A stream that comes by anything else is refused before it begins.
    limits : Limits
        Bounds on what is accepted from the server.

    Returns
    -------
    Stream
        Its schema has arrived.

    Raises
    ------
    UsageError
        If an argument is wrong; `UriError` for the URI.
    TransportError
        If no server answers, or what answers does not speak splitarrow.
    RemoteError
        If the server refuses; `NotFoundError` if it has no such dataset.

    Examples
    --------
    >>> import pyarrow, splitarrow
    >>> table = pyarrow.table({"n": [1, 2, 3], "name": ["a", "b", "c"]})
    >>> with splitarrow.serve({"numbers": table}) as server:
    ...     with splitarrow.open(server.uri("numbers"), columns=["name"]) as stream:
    ...         stream.read_all()["name"].to_pylist()
    ['a', 'b', 'c']
    """
    uris = resolve(
        uri, ticket, columns=columns, limit=limit, batch_rows=batch_rows, compression=compression
    )
    options = ReadOptions(
        validate=None if validate is None else checked_validation(validate),
        connect_timeout=connect_timeout,
        stall_timeout=stall_timeout,
        prefetch_bytes=prefetch_bytes,
        require_transport=require_transport,
        limits=limits,
        tls=tls,
    )
    return Stream(uris, options)
