"""The interface that the clients of one daemon and of a cluster share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from ...errors import UsageError
from ...protocol.limits import DEFAULT_LIMITS, Limits
from ...protocol.request import Request
from ..stream.memory_argument import find_allocator, move_to_memory
from ..stream.options import ReadOptions, check_validation
from ..stream.tracing import trace_plan, trace_read
from ..stream.uris import check_spans, column_names
from .format_choice import resolve_format
from .listing import DatasetListing
from .read_plan import AUTO, ReadPlan
from .requests import build_request

if TYPE_CHECKING:
    from .dataset import Dataset
    from .dataset_stream import DatasetStream
    from .resumable_endpoint import ResumableEndpoint


class BaseClient(DatasetListing):
    """A client that lists, describes, reads and drops datasets: a context manager."""

    def dataset(self, name: str) -> Dataset:
        """Look up a dataset, to read it by ``to_pandas()``, ``head()`` and so on.

        ``client["flights"]`` is the same.

        Raises
        ------
        NotFoundError
            If no such dataset exists.
        """
        from .dataset import Dataset  # needed by reads alone

        return Dataset(self.read, self.info(name))

    def __getitem__(self, name: str) -> Dataset:
        return self.dataset(name)

    def count_rows(
        self,
        name: str,
        *,
        filter: Any = None,
        version: str | None = None,
        timeout: float = 600.0,
    ) -> dict[int, list[int]]:
        """Count the rows of each stored record batch, or row group of a Parquet file.

        Parameters
        ----------
        name : str
            The dataset.
        filter : str, tuples, or expression, optional
            Count only the rows that it selects; see `read`. The server reads the columns that it
            refers to.
        version : str, optional
            The version to count, as `info` reports it. `None` counts the current version.
        timeout : float
            The time limit for the server, in seconds.

        Returns
        -------
        dict of int to list of int
            For each shard, by its ordinal, the rows of its record batches. A dataset that is not
            published has a shard for each of its endpoints, counted from 0.

        Raises
        ------
        NotFoundError
            If no such dataset exists.
        RemoteError
            If the server refuses, for example because the dataset has no random access.

        Examples
        --------
        >>> import pyarrow, pyarrow.compute as pc, splitarrow
        >>> batches = pyarrow.table({"n": [1, 2, 3, 4, 5]}).to_batches(max_chunksize=2)
        >>> server = splitarrow.serve({"numbers": batches}, control="grpc://127.0.0.1:0")
        >>> with server, splitarrow.connect(server.control_uri) as client:
        ...     client.count_rows("numbers")
        ...     client.count_rows("numbers", filter=pc.field("n") > 3)
        ...     with client.read("numbers", batches=(1, 3)) as stream:
        ...         stream.read_all()["n"].to_pylist()
        {0: [2, 2, 1]}
        {0: [0, 1, 1]}
        [3, 4, 5]
        """
        request = build_request(
            name,
            filter=self._serialize_filter(name, filter),
            version=version,
        )
        return self._count_rows(request, timeout)

    @abstractmethod
    def _count_rows(self, request: Request, timeout: float) -> dict[int, list[int]]:
        """Return the rows of each record batch of each shard, by ordinal."""

    def read(
        self,
        name: str | None = None,
        *,
        columns: str | Sequence[str] | None = None,
        filter: Any = None,
        limit: int | None = None,
        batch_rows: int | None = None,
        compression: str | None = None,
        format: str | None = None,
        transport: str = AUTO,
        validate: str | None = None,
        connect_timeout: float = 10.0,
        location_timeout: float = 2.0,
        stall_timeout: float | None = 30.0,
        prefetch_bytes: int | None = None,
        max_decoded_bytes: int = 1 << 30,
        require_transport: str | None = None,
        window_bytes: int = 256 << 20,
        parallel: int = 4,
        resume_attempts: int = 8,
        limits: Limits = DEFAULT_LIMITS,
        shards: Iterable[int] | None = None,
        batches: tuple[int, int] | None = None,
        rows: tuple[int, int] | None = None,
        version: str | None = None,
        memory: Any = None,
        sql: str | None = None,
    ) -> DatasetStream:
        """Open a dataset for reading.

        Parameters
        ----------
        name : str, optional
            The dataset. Leave it out with `sql`.
        columns : str or sequence of str, optional
            The columns to read, in this order. `None` reads all columns.
        filter : str, tuples, or expression, optional
            The rows to read. The filter may use any column of the dataset. It is one of these:

            - a condition in SQL, such as ``"delay > 60 and carrier = 'AA'"``;
            - a tuple such as ``("delay", ">", 60)``, a list of tuples that must all hold, or a
              list of such lists of which one must hold;
            - an expression of pyarrow, such as ``pc.field("delay") > 60``, or of polars.
        limit : int, optional
            The largest number of rows to read.
        batch_rows : int, optional
            The largest number of rows in a batch.
        compression : {"none", "lz4", "zstd", "auto"}, optional
            The codec of the bodies. `None` keeps that of the source; ``auto`` compresses while that
            is faster on the link.
        format : {"arrow", "vortex", "auto"}, optional
            The format of the messages; see `splitarrow.open`. DoGet always has Arrow.
        transport : str
            The scheme to use: ``tcp``, ``tcp+tls``, ``shm``, ``ucx``, or ``flight`` for DoGet.
            ``auto`` takes the first location that can be reached.
        validate : {"strict", "full", "cheap", "off"}, optional
            How to check batches; see `splitarrow.open`.
        connect_timeout, location_timeout : float
            The time limit to connect to the only location, and to one of several, in seconds.
        stall_timeout : float or None
            The longest wait for data from the server, in seconds. `None` disables the limit.
        prefetch_bytes : int, optional
            The bytes to prefetch from a single endpoint; see `splitarrow.open`.
        max_decoded_bytes : int
            The limit on decoded data that the consumer has not taken; see `splitarrow.open`. Each
            of the `parallel` endpoints may exceed its share of the window by one batch.
        require_transport : str, optional
            The scheme, or lane of UCX (such as ``cma``), that must carry the data. Locations that
            use anything else count as unreachable.
        window_bytes : int
            The size of the batches to prefetch from several endpoints together, in bytes.
        parallel : int
            The number of endpoints to read at a time.
        resume_attempts : int
            Consecutive retries per server without receiving a row; 0 disables resuming.
        limits : Limits
            Limits on the data that the server sends.
        shards : iterable of int, optional
            The shards to read, by their ordinals, or the endpoints by their indices if the
            dataset is not published. They arrive in the order of the dataset. `None` reads all.
        batches : pair of int, optional
            The first stored record batch to read and the one after the last, counted from 0; in a
            Parquet file, the row groups. They are selected before the filter and the limit. With
            `shards`, which then names one shard, they are counted in that shard.
        rows : pair of int, optional
            The first stored row and the one after the last, in the way of `batches`, instead of it.
        version : str, optional
            The version to read, as `info` reports it. `None` reads the current version.
        memory : str, CudaMemory, PinnedMemory or Allocator, optional
            Where the batches land; see `splitarrow.open`. With a device, the result is a
            `DeviceStream`.
        sql : str, optional
            A SELECT statement whose result to read; see `sql`. It excludes `memory` and the
            arguments that select: the name, `columns`, `filter`, `limit`, `batch_rows`, `shards`,
            `batches`, `rows` and `version`. The other arguments apply to each dataset that it
            reads. The result is held in memory.

        Returns
        -------
        DatasetStream
            A stream that has received its schema.

        Raises
        ------
        UsageError
            If an argument is invalid, or the server does not offer the transport.
        TransportError
            If the data cannot be reached.
        RemoteError
            If the server refuses; `NotFoundError` if no such dataset exists.

        Examples
        --------
        >>> import pyarrow, pyarrow.compute as pc, splitarrow
        >>> flights = pyarrow.table({"carrier": ["AA", "BB", "CC"], "delay": [1, 70, 99]})
        >>> server = splitarrow.serve({"flights": flights}, control="grpc://127.0.0.1:0")
        >>> with server, splitarrow.connect(server.control_uri) as client:
        ...     late = pc.field("delay") > 60
        ...     with client.read("flights", columns=["carrier"], filter=late) as stream:
        ...         stream.read_all()["carrier"].to_pylist()
        ['BB', 'CC']
        """
        if sql is not None:
            from .query_stream import QueryStream, check_no_selection
            from .sql import run_query

            selection = {"columns": columns, "filter": filter, "limit": limit, "shards": shards}
            selection |= {"batches": batches, "rows": rows, "batch_rows": batch_rows}
            check_no_selection(name, selection | {"version": version, "memory": memory})
            read = partial(
                self.read,
                compression=compression,
                format=format,
                transport=transport,
                validate=validate,
                connect_timeout=connect_timeout,
                location_timeout=location_timeout,
                stall_timeout=stall_timeout,
                prefetch_bytes=prefetch_bytes,
                max_decoded_bytes=max_decoded_bytes,
                require_transport=require_transport,
                window_bytes=window_bytes,
                parallel=parallel,
                resume_attempts=resume_attempts,
                limits=limits,
            )
            return QueryStream(run_query(sql, self.schema, read))
        if name is None:
            raise UsageError("name a dataset to read, or give sql='SELECT …'")
        with trace_read(name) as trace:
            selected: Any = {"columns": columns, "version": version, "transport": transport}
            format = resolve_format(self, name, format, **selected)
            options = ReadOptions(
                validate=check_validation(validate),
                connect_timeout=connect_timeout,
                stall_timeout=stall_timeout,
                prefetch_bytes=prefetch_bytes,
                max_decoded_bytes=max_decoded_bytes,
                require_transport=require_transport,
                limits=limits,
                allocator=find_allocator(memory),
            )
            plan = ReadPlan(
                options, transport, location_timeout, resume_attempts, parallel, window_bytes
            )
            request = build_request(
                name,
                columns=column_names(columns),
                filter=self._serialize_filter(name, filter),
                limit=limit,
                batch_rows=batch_rows,
                compression=compression,
                format=format,
                version=version,
                **check_spans(batches, rows),
            )
            selected = None if shards is None else frozenset(shards)
            if request.selects_span and selected is not None and len(selected) != 1:
                span = "rows" if batches is None else "batches"
                raise UsageError(
                    f"{span} are selected from one shard; shards names {len(selected)} of {name!r}"
                )
            with trace_plan(name):
                schema, endpoints = self._plan_endpoints(request, selected, plan)
            several = len(endpoints) > 1
            channels = dict.fromkeys(endpoint.channel for endpoint in endpoints) if several else ()
            from .dataset_stream import DatasetStream  # not needed by a call that fails

            stream = DatasetStream(
                name,
                schema,
                endpoints,
                parallel,
                min(window_bytes, max_decoded_bytes) if several else options.window_bytes,
                limit=limit if several or selected is not None else None,
                holds=[channel.hold_dataset(name) for channel in channels],
                trace=trace,
            )
            return move_to_memory(stream, memory)

    def sql(self, query: str) -> pa.Table:
        """Return the result of a SELECT statement over datasets. DuckDB runs it in this process.

        The tables of the statement are datasets. The server sends only the columns that the
        statement uses, with the rights of the caller and the limits of every other read.

        Parameters
        ----------
        query : str
            The statement, in DuckDB's dialect. Put a name such as ``"a/b"`` in double quotes.

        Raises
        ------
        UsageError
            If the statement is malformed or fails.
        MissingExtraError
            If duckdb is not installed.
        RemoteError
            If the server refuses; `NotFoundError` if a dataset does not exist.
        """
        from .sql import run_query

        return run_query(query, self.schema, self.read)

    def _serialize_filter(self, name: str, filter: Any) -> str | None:
        if filter is None:
            return None
        from ..stream.filters import serialize_filter

        return serialize_filter(name, self.schema(name), filter)

    @abstractmethod
    def _plan_endpoints(
        self, request: Request, shards: frozenset[int] | None, plan: ReadPlan
    ) -> tuple[pa.Schema, list[ResumableEndpoint]]:
        """Return the schema of a selection and the endpoints that deliver it, in order."""

    @abstractmethod
    def drop(self, name: str) -> None:
        """Remove a dataset that was uploaded or published."""

    @abstractmethod
    def close(self) -> None:
        """Close all connections to control planes. Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
