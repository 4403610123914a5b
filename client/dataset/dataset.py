"""A dataset of a control plane, and the stream that reads it.

The stream reads several endpoints in parallel, and returns their batches in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, TypeVar, Unpack

import pyarrow as pa

from ...errors import ClosedError, InvalidDataError, SplitArrowError, UsageError
from ...formats.arrow.tensors.tensor import AnyTensor
from ...formats.text import describe_rows
from ..arguments import ReadArguments
from ..rpc.channel import DatasetHold
from ..rpc.download import TRANSPORT as DO_GET
from ..rpc.info import DatasetInfo
from ..stream.batch_stream import (
    BatchStream,
    CustomMetadata,
    PolarsTabular,
    attach_metadata,
    check_tensor_content,
    find_metadata,
    refuse_array,
)
from ..stream.read_ahead import ThreadPrefetcher
from ..stream.tracing import SpanScope
from .endpoints import ResumableEndpoint

_Item = TypeVar("_Item")


class DatasetStream(BatchStream):
    """A dataset being read: a context manager and an iterator of record batches.

    `Client.read` returns it. The batches arrive in the order of the dataset, even though several
    endpoints are read in parallel. After a broken connection, the read continues where it stopped.

    The caller owns the batches. They stay valid after the stream is closed. One thread at a time
    may read; any thread may call `cancel`.

    Parameters
    ----------
    name : str
        The dataset.
    schema : pyarrow.Schema
        The schema that the control plane reported. It applies if there are no endpoints.
    endpoints : sequence of ResumableEndpoint
        The endpoints, in order. The stream closes them.
    parallel : int
        The number of endpoints to read at a time.
    window : int
        The size of the batches to prefetch from all endpoints together, in bytes. 0 reads one
        endpoint at a time, on the caller's thread.
    limit : int, optional
        The largest number of rows to return from all endpoints together.
    holds : sequence of DatasetHold
        The holds on the dataset at its servers. The stream releases them.
    trace : SpanScope, optional
        The span of the read. The stream ends it.
    """

    def __init__(
        self,
        name: str,
        schema: pa.Schema,
        endpoints: Sequence[ResumableEndpoint],
        parallel: int,
        window: int,
        *,
        limit: int | None = None,
        holds: Sequence[DatasetHold] = (),
        trace: SpanScope | None = None,
    ) -> None:
        self._name = name
        self._endpoints = list(endpoints)
        self._holds = holds
        self._parallel = parallel
        self._window = window
        self._prefetchers: deque[ThreadPrefetcher[pa.RecordBatch]] = deque()
        self._current = 0
        """The index of the endpoint whose batches are returned."""
        self._started = 0
        """The number of endpoints that have, or had, a prefetcher."""
        self._closed = self._cancelled = self._exhausted = False
        self.on_close: Callable[[], None] | None = None
        """Called when the stream is closed, or was read to its end."""
        self._error: BaseException | None = None
        self._limit = self._remaining = limit
        self._schema = schema
        self._schema_metadata: bytes | None = None
        self._format = "arrow"
        self._trace = trace
        for endpoint in self._endpoints:
            endpoint.trace_context = None if trace is None else trace.context
        if self._endpoints:
            try:
                self._endpoints[0].open(first=True)
            except BaseException as error:
                self._end_trace(error)
                self.close()
                raise
            self._schema = self._endpoints[0].schema
            self._schema_metadata = self._endpoints[0].schema_metadata
            self._format = self._endpoints[0].format

    @property
    def schema(self) -> pa.Schema:
        """The schema of the stream."""
        return self._schema

    @property
    def error(self) -> SplitArrowError | None:
        """The error that ended the stream; None if there was none."""
        return self._error if isinstance(self._error, SplitArrowError) else None

    @property
    def is_exhausted(self) -> bool:
        """Whether the stream was read to its end, and has closed itself."""
        return self._exhausted

    @property
    def footer_metadata(self) -> CustomMetadata | None:
        """The custom metadata of the file's footer, if the dataset has one endpoint."""
        return self._endpoints[0].footer_metadata if len(self._endpoints) == 1 else None

    @property
    def schema_metadata(self) -> bytes | None:
        """The FlatBuffer of the schema message of the first part; None if there are no parts."""
        return self._schema_metadata

    def keep_messages(self) -> None:
        """Keep the encapsulated messages of all batches; call this before reading the first.

        `client.stream.decoders.find_messages` returns those of a batch.
        """
        for endpoint in self._endpoints:
            endpoint.keep_messages()

    @property
    def format(self) -> str:
        """The format of the record batches of the first endpoint: ``arrow`` or ``vortex``."""
        return self._format

    @property
    def transport(self) -> str:
        """The transports in use, separated by commas: ``tcp``, ``shm``, ``flight`` and so on."""
        used = [endpoint.transport for endpoint in self._endpoints if endpoint.transport]
        return ",".join(dict.fromkeys(used)) or DO_GET

    @property
    def rows_received(self) -> int:
        """The number of rows received and decoded so far."""
        rows = sum(endpoint.rows for endpoint in self._endpoints)
        return rows if self._limit is None else min(rows, self._limit)

    @property
    def bytes_received(self) -> int:
        """The size of everything received so far, in bytes."""
        return sum(endpoint.bytes_received for endpoint in self._endpoints)

    @property
    def resumed(self) -> int:
        """The number of times that the read continued over a new connection."""
        return sum(endpoint.resumed for endpoint in self._endpoints)

    def __next__(self) -> pa.RecordBatch:
        """Return the next record batch.

        Raises
        ------
        StopIteration
            At the proven end of all endpoints, and only there.
        ProtocolError, RemoteError, TransportError
            If the stream fails. All batches returned before are valid, but the data is incomplete.
        ClosedError
            If the stream was closed or cancelled.
        """
        batch = self._next_item(self._next_of_endpoint)
        if batch is None:
            raise StopIteration
        return batch if self._remaining is None else self._limit_rows(batch)

    def next_tensor(self) -> AnyTensor | None:
        """Return the next tensor, or None at the proven end of all endpoints.

        A read of tensors does not continue after a broken connection.
        """
        check_tensor_content(self._schema)
        return self._next_item(lambda: self._read_item(ResumableEndpoint.next_tensor))

    def next_array(self) -> Any:
        """Return the next Vortex array, or None at the proven end of all endpoints.

        A read of arrays does not continue after a broken connection.
        """
        return self._next_item(lambda: self._read_item(ResumableEndpoint.next_array))

    def _next_item(self, read: Callable[[], _Item | None]) -> _Item | None:
        """Return what `read` returns from the endpoints, one after the other; None at the end."""
        if self._error is not None:
            raise self._error
        if self._exhausted:
            return None
        if self._closed:
            raise ClosedError("the stream is closed", stream=self._name)
        while self._current < len(self._endpoints) and self._remaining != 0:
            try:
                item = read()
                if item is not None:
                    return item
            except (SplitArrowError, MemoryError) as error:
                if isinstance(error, UsageError):
                    raise
                if self._cancelled and not isinstance(error, ClosedError):
                    error = ClosedError("the stream was cancelled", stream=self._name)
                self._error = error
                self.close()
                raise error from None
            self._current += 1
        self._exhausted = True
        self.close()
        return None

    def _read_item(self, read: Callable[[ResumableEndpoint], Any]) -> Any:
        """Return the next tensor or array of the current endpoint, or None at its end."""
        endpoint = self._endpoints[self._current]
        item = read(endpoint)
        if item is None:
            endpoint.close()
        return item

    def _next_of_endpoint(self) -> pa.RecordBatch | None:
        """Return the next batch of the current endpoint, or None at its end."""
        endpoint = self._endpoints[self._current]
        if not self._window:
            batch = endpoint.next()
        else:
            self._start_prefetchers()
            batch = self._prefetchers[0].next()
            if batch is None:
                self._prefetchers.popleft().stop()
        if batch is None:
            endpoint.close()
        elif not batch.schema.equals(self._schema):
            raise InvalidDataError(
                "the endpoints of the dataset have different schemas", stream=self._name
            )
        return batch

    def _start_prefetchers(self) -> None:
        """Prefetch from the current endpoint and the ones after it."""
        last = min(len(self._endpoints), self._current + self._parallel)
        while self._started < last:
            share = max(1, self._window // min(self._parallel, len(self._endpoints)))
            endpoint = self._endpoints[self._started]
            self._prefetchers.append(ThreadPrefetcher(endpoint.next, share))
            self._started += 1

    def _limit_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        assert self._remaining is not None
        custom_metadata = find_metadata(batch)
        batch = batch.slice(0, self._remaining)
        attach_metadata(batch, custom_metadata)
        self._remaining -= batch.num_rows
        if not self._remaining:
            self._release()
        return batch

    def cancel(self) -> None:
        """Interrupt a read that waits in another thread: it raises `ClosedError`."""
        self._cancelled = True
        for endpoint in self._endpoints:
            endpoint.cancel()

    def close(self) -> None:
        """Close all connections. Batches that were returned stay valid. Idempotent."""
        if not self._closed:
            self._closed = True
            self._release()
            self._end_trace(self._error)
            if self.on_close is not None:
                self.on_close()

    def _end_trace(self, error: BaseException | None) -> None:
        if self._trace is None:
            return
        figures = {
            "splitarrow.transport": self.transport,
            "splitarrow.rows": self.rows_received,
            "splitarrow.bytes": self.bytes_received,
            "splitarrow.resumed": self.resumed,
        }
        self._trace.end(error, figures, is_complete=self._exhausted)

    def _release(self) -> None:
        """End all threads and close all connections."""
        for endpoint in self._endpoints:
            endpoint.cancel()
        while self._prefetchers:
            self._prefetchers.popleft().stop()
        for endpoint in self._endpoints:
            endpoint.close()
        for hold in self._holds:
            hold.release()

    def __enter__(self) -> DatasetStream:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _facts(self) -> list[str]:
        state = "read to its end" if self._exhausted else "closed" if self._closed else "open"
        parts = len(self._endpoints)
        facts = [state, self.transport, describe_rows(self.rows_received, ended=self._exhausted)]
        return [*facts, f"{parts:,} parts"] if parts > 1 else facts

    def _title(self) -> str:
        return f"DatasetStream {self._name!r}"


class BaseDataset:
    """What a dataset is known to be, and the method `read` of the client that looked it up."""

    def __init__(self, read: Callable[..., Any], info: DatasetInfo) -> None:
        self._read = read
        self._info = info

    @property
    def info(self) -> DatasetInfo:
        """The description of the dataset at the time of the lookup."""
        return self._info

    @property
    def name(self) -> str:
        """The name of the dataset."""
        return self._info.name

    @property
    def schema(self) -> pa.Schema:
        """The schema of the dataset."""
        return self.info.schema

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return self.schema.names

    @property
    def num_columns(self) -> int:
        """The number of columns."""
        return len(self.schema)

    @property
    def num_rows(self) -> int | None:
        """The number of rows; None if the server does not know it."""
        return self.info.rows

    @property
    def shape(self) -> tuple[int | None, int]:
        """The numbers of rows and columns."""
        info = self.info
        return info.rows, len(info.schema)

    def __len__(self) -> int:
        rows = self.num_rows
        if rows is None:
            raise TypeError(
                f"the server does not know the number of rows of {self.name!r}; read it to count"
            )
        return rows

    def __bool__(self) -> bool:
        return True

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """Raise `UsageError`; NumPy and pandas would take the dataset for one value."""
        raise refuse_array(f"dataset {self.name!r}")

    def __repr__(self) -> str:
        return repr(self._known()).replace("DatasetInfo", type(self).__name__, 1)

    def _repr_html_(self) -> str:
        return self._known()._repr_html_()  # pyright: ignore[reportPrivateUsage]

    def _known(self) -> DatasetInfo:
        """Return the description, or the last one if the server cannot be reached."""
        with suppress(SplitArrowError):
            return self.info
        return self._info


class Dataset(BaseDataset, PolarsTabular):
    """A dataset of a control plane. Each method that reads opens a new stream.

    ``client["flights"]`` and `Client.dataset` return it. The length is the number of rows, and
    iteration yields record batches. The schema, the length and the other facts are those of the
    current version, which a read returns: each requests them from the server. A dataset is also an
    Arrow C stream, which other libraries import directly: ``polars.DataFrame(client["flights"])``.

    Parameters
    ----------
    read : callable
        The method `read` of the client, which must stay open while the dataset is used.
    info : DatasetInfo
        The description of the dataset, as `Client.info` returned it.
    describe : callable, optional
        The method `info` of the client. `None` keeps the first description.

    Examples
    --------
    >>> import pyarrow, splitarrow
    >>> flights = pyarrow.table({"carrier": ["AA", "BB", "CC"], "delay": [1, 70, 99]})
    >>> server = splitarrow.serve({"flights": flights}, control="grpc://127.0.0.1:0")
    >>> with server, splitarrow.connect(server.control_uri) as client:
    ...     "flights" in client, len(client["flights"])
    ...     client["flights"].head(1).to_pydict()
    ...     client["flights"].to_arrow(filter="delay > 60", columns="carrier").to_pydict()
    (True, 3)
    {'carrier': ['AA'], 'delay': [1]}
    {'carrier': ['BB', 'CC']}
    """

    def __init__(
        self,
        read: Callable[..., Any],
        info: DatasetInfo,
        describe: Callable[[str], DatasetInfo] | None = None,
    ) -> None:
        super().__init__(read, info)
        self._describe = describe

    @property
    def info(self) -> DatasetInfo:
        """The description of the dataset now."""
        if self._describe is not None:
            self._info = self._describe(self.name)
        return self._info

    def read(self, **arguments: Unpack[ReadArguments]) -> DatasetStream:
        """Open the dataset for reading; see `ReadArguments`."""
        return self._read(self.name, **arguments)

    def head(self, rows: int = 5, **arguments: Any) -> pa.Table:
        """Return the first rows as a table; see `ReadArguments`."""
        if "limit" in arguments:
            raise UsageError("head takes the number of rows; leave limit out")
        with self.read(limit=rows, **arguments) as stream:
            return stream.read_all()

    def to_arrow(self, **arguments: Unpack[ReadArguments]) -> pa.Table:
        """Read into a ``pyarrow.Table``; see `ReadArguments`."""
        with self.read(**arguments) as stream:
            return stream.read_all()

    def to_table(self, **arguments: Unpack[ReadArguments]) -> pa.Table:
        """Read into a ``pyarrow.Table``, as `to_arrow` does."""
        return self.to_arrow(**arguments)

    def to_pandas(self, **arguments: Unpack[ReadArguments]) -> Any:
        """Read into a ``pandas.DataFrame``; see `ReadArguments`."""
        with self.read(**arguments) as stream:
            return stream.to_pandas()

    def to_polars(self, **arguments: Unpack[ReadArguments]) -> Any:
        """Read into a ``polars.DataFrame``; see `ReadArguments`."""
        with self.read(**arguments) as stream:
            return stream.to_polars()

    def scan_polars(self, **arguments: Unpack[ReadArguments]) -> Any:
        """Return a ``polars.LazyFrame`` that reads the dataset whenever it is collected.

        The server sends only the columns that the query uses, and not more rows than its first
        `head` needs. It applies the conditions on integers, booleans, texts, dates, timestamps and
        nulls that filters have. polars applies the rest, so that the result is always its own.

        Parameters
        ----------
        **arguments
            The options of each read, as in ``transport="tcp"``; see `ReadArguments`. The query
            takes the place of `columns`, `filter` and `limit`.

        Raises
        ------
        MissingExtraError
            If polars is not installed.
        UsageError
            If an argument selects what the query does.

        Examples
        --------
        >>> import polars, pyarrow, splitarrow
        >>> flights = pyarrow.table({"carrier": ["AA", "BB", "CC"], "delay": [1, 70, 99]})
        >>> server = splitarrow.serve({"flights": flights}, control="grpc://127.0.0.1:0")
        >>> with server, splitarrow.connect(server.control_uri) as client:
        ...     late = client["flights"].scan_polars().filter(polars.col("delay") > 60)
        ...     late.select("carrier").collect().to_series().to_list()
        ['BB', 'CC']
        """
        from .polars_scan import scan_dataset

        return scan_dataset(self.read, self.schema, arguments)

    def to_numpy(self, **arguments: Unpack[ReadArguments]) -> dict[str, Any]:
        """Read into NumPy arrays by column; see `ReadArguments`."""
        with self.read(**arguments) as stream:
            return stream.to_numpy()

    def read_tensor(self, **arguments: Unpack[ReadArguments]) -> AnyTensor:
        """Return the only tensor of the dataset; see `ReadArguments`."""
        with self.read(**arguments) as stream:
            return stream.read_tensor()

    def to_duckdb(self, connection: Any = None, **arguments: Unpack[ReadArguments]) -> Any:
        """Read into a table, and return a DuckDB relation; see `BatchStream.to_duckdb`."""
        with self.read(**arguments) as stream:
            return stream.to_duckdb(connection)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        with self.read() as stream:
            yield from stream

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        """Read the dataset through the Arrow C stream interface."""
        return self.read().__arrow_c_stream__(requested_schema)
