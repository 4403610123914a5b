"""The interfaces of streams of record batches: blocking and asynchronous.

Every stream has one of them. They convert tables for other libraries, and keep the custom metadata
of a batch for as long as the batch lives.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Iterator
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import pyarrow as pa
from anyio import to_thread

from ...errors import ClosedError, MissingExtraError, UsageError
from ...formats.arguments import check_integer, refuse
from ...formats.arrow.numpy_arrays import columns_to_numpy
from ...formats.arrow.supported_types import convert_to_supported
from ...formats.arrow.tensors.labels import is_tensor_content
from ...formats.arrow.tensors.tensor import AnyTensor
from ...formats.text import describe_as_html, describe_object

if TYPE_CHECKING:

    class PolarsTabular:
        """Makes ``polars.from_arrow`` return a data frame: the base class of all tables of pyarrow.

        Of any other Arrow C stream, polars makes a series of structs.
        """
else:
    PolarsTabular = pa.lib._Weakrefable

CustomMetadata = dict[bytes, bytes]
"""The pairs of keys and values of a message."""

_METADATA: dict[int, tuple[weakref.ref[pa.RecordBatch], CustomMetadata]] = {}


class BatchWithMetadata(NamedTuple):
    """A record batch, and the custom metadata of its message."""

    batch: pa.RecordBatch
    """The batch."""
    custom_metadata: CustomMetadata | None
    """The custom metadata; None if the message has none."""


def attach_metadata(batch: pa.RecordBatch, metadata: CustomMetadata | None) -> None:
    """Remember the custom metadata of a batch until the batch is garbage collected."""
    if metadata is not None:
        key = id(batch)
        reference = weakref.ref(batch, lambda _: _METADATA.pop(key, None))
        _METADATA[key] = (reference, metadata)


def find_metadata(batch: pa.RecordBatch) -> CustomMetadata | None:
    """Return the custom metadata of a batch that was received; None if it has none."""
    found = _METADATA.get(id(batch))
    return None if found is None else found[1]


def table_to_pandas(table: pa.Table, **options: Any) -> Any:
    """Return a ``pandas.DataFrame``; `options` are those of ``pyarrow.Table.to_pandas``."""
    import_package("pandas")
    return convert_to_supported(table).to_pandas(**options)


def table_to_duckdb(table: pa.Table, connection: Any = None) -> Any:
    """Return a ``duckdb.DuckDBPyRelation`` over a table; None is the default connection."""
    source = import_package("duckdb") if connection is None else connection
    if not hasattr(source, "from_arrow"):
        refuse("connection", connection, "a duckdb.DuckDBPyConnection, or None")
    return source.from_arrow(table)


def refuse_array(title: str) -> UsageError:
    """Return the error for a conversion to one array, which pandas tries as well."""
    return UsageError(
        f"the {title} is not one array; to_pandas() returns a pandas.DataFrame, to_numpy() the "
        "arrays of the columns, and read_tensor() a tensor"
    )


def first_rows(batches: Iterable[pa.RecordBatch], schema: pa.Schema, rows: int) -> pa.Table:
    """Return a table of the first rows. It takes no more batches than it needs."""
    taken: list[pa.RecordBatch] = []
    missing = check_integer("rows", rows, 0)
    for batch in batches if rows > 0 else ():
        taken.append(batch.slice(0, missing))
        missing -= taken[-1].num_rows
        if not missing:
            break
    return pa.Table.from_batches(taken, schema)


def import_package(package: str) -> Any:
    """Return a package that may be missing; raise `MissingExtraError` if it is."""
    try:
        return import_module(package)
    except ImportError as error:
        if error.name != package:
            raise
        raise MissingExtraError(
            f"{package} is not installed; install it with: pip install {package}"
        ) from None


class StreamFacts(ABC):
    """The facts of a stream, which another object knows unless the stream itself does."""

    @property
    def _known(self) -> Any:
        """The object that knows the facts: a `Reader` or a `DatasetStream`."""
        raise NotImplementedError

    @property
    def schema(self) -> pa.Schema:
        """The schema of the stream. An asynchronous stream has to be entered first."""
        return self._known.schema

    @property
    def is_exhausted(self) -> bool:
        """Whether the stream was read to its end, and has closed itself."""
        return self._known.is_exhausted

    @property
    def footer_metadata(self) -> CustomMetadata | None:
        """The custom metadata of the footer of the Arrow file that the stream was read from.

        None if the footer has none, or the stream is not that of one Arrow file.
        """
        return self._known.footer_metadata

    @property
    def format(self) -> str:
        """The format of the record batches that arrive: ``arrow`` or ``vortex``.

        Iteration yields record batches from either.
        """
        return self._known.format

    @property
    def transport(self) -> str:
        """The scheme in use, with the lanes if it has several: ``tcp``, ``ucx (cma/memory)``.

        The schemes of a dataset with several endpoints are separated by commas.
        """
        return self._known.transport

    @property
    def rows_received(self) -> int:
        """The number of rows received and decoded so far."""
        return self._known.rows_received

    @property
    def bytes_received(self) -> int:
        """The size of everything received so far, in bytes."""
        return self._known.bytes_received

    @abstractmethod
    def close(self) -> None:
        """Close the stream."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """Raise `UsageError`; NumPy and pandas would take the stream for one value."""
        raise refuse_array("stream")


class BatchStream(StreamFacts, PolarsTabular):
    """An iterator of record batches that have one schema."""

    @abstractmethod
    def __next__(self) -> pa.RecordBatch:
        """Return the next record batch."""

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def batches_with_metadata(self) -> Iterator[BatchWithMetadata]:
        """Iterate over the rest of the stream, with the custom metadata of each batch's message.

        The server has to send the batches as they are stored: re-encoding a batch in parts gives
        each part the custom metadata.
        """
        for batch in self:
            yield BatchWithMetadata(batch, find_metadata(batch))

    def read_all(self) -> pa.Table:
        """Read the rest of the stream into one table.

        Raises
        ------
        ClosedError
            If the stream was read to its end before.
        """
        check_unread(self.is_exhausted)
        batches = [batch for batch in self if batch.num_rows]
        return pa.Table.from_batches(batches, self.schema)

    def to_arrow(self) -> pa.Table:
        """Read the rest of the stream into one table, as `read_all` does."""
        return self.read_all()

    def to_pandas(self, **options: Any) -> Any:
        """Read the rest of the stream into a ``pandas.DataFrame``.

        Parameters
        ----------
        **options
            The options of ``pyarrow.Table.to_pandas``.

        Raises
        ------
        ClosedError
            If the stream was read to its end before.
        MissingExtraError
            If pandas is not installed.
        """
        return table_to_pandas(self.read_all(), **options)

    def to_polars(self) -> Any:
        """Read the rest of the stream into a ``polars.DataFrame``; raises as `to_pandas` does."""
        polars = import_package("polars")
        return polars.DataFrame(self.read_all())  # from a stream, it hides the errors of reading

    def to_numpy(self) -> dict[str, Any]:
        """Read the rest of the stream into NumPy arrays, by the names of their columns.

        Lists of a fixed size and tensors, of numbers without nulls, become arrays of more
        dimensions. For all else, pyarrow's ``to_numpy`` decides.

        Raises
        ------
        ClosedError
            If the stream was read to its end before.
        MissingExtraError
            If NumPy is not installed.
        UsageError
            If several columns have one name.
        """
        return columns_to_numpy(self.read_all())

    def to_duckdb(self, connection: Any = None) -> Any:
        """Read the rest of the stream into a table, and return a DuckDB relation over it.

        Parameters
        ----------
        connection : duckdb.DuckDBPyConnection, optional
            The connection of the relation. `None` is DuckDB's default connection.

        Raises
        ------
        ClosedError
            If the stream was read to its end before.
        MissingExtraError
            If duckdb is not installed.
        """
        return table_to_duckdb(self.read_all(), connection)

    def next_tensor(self) -> AnyTensor | None:
        """Return the next tensor, or None at the proven end of the stream.

        Raises
        ------
        UsageError
            If the stream carries record batches.
        """
        raise refuse_tensors()

    def next_array(self) -> Any:
        """Return the next Vortex array, or None at the proven end of the stream.

        Raises
        ------
        UsageError
            If the stream has the format Arrow.
        """
        raise refuse_arrays()

    def arrays(self) -> Iterator[Any]:
        """Iterate over the arrays of the stream undecoded, as ``vortex.Array``.

        Each is a struct array with the rows of one record batch. Its columns have the storage
        types that the guide to Vortex lists: a dictionary column is its indices.

        Raises
        ------
        UsageError
            If the stream has the format Arrow.
        """
        if self.format != "vortex":
            raise refuse_arrays()
        return self._iterate_arrays()

    def _iterate_arrays(self) -> Iterator[Any]:
        while (array := self.next_array()) is not None:
            yield array

    def tensors(self) -> Iterator[AnyTensor]:
        """Iterate over the tensors of the stream.

        Their values are the memory that they arrived in: with shared memory, that of the server.

        Raises
        ------
        UsageError
            If the stream carries record batches.
        """
        check_tensor_content(self.schema)
        return iter(self.next_tensor, None)

    def read_tensor(self) -> AnyTensor:
        """Return the only tensor of the stream.

        Returns
        -------
        Tensor or SparseTensor
            The tensor. ``to_numpy()`` returns the values of a dense one without a copy,
            ``to_scipy()`` those of a sparse one.

        Raises
        ------
        UsageError
            If the stream carries record batches, several tensors or none.
        ClosedError
            If the stream was read to its end before.
        """
        check_tensor_content(self.schema)
        check_unread(self.is_exhausted)
        tensor = self.next_tensor()
        if tensor is None:
            raise UsageError("the dataset holds no tensors")
        if self.next_tensor() is not None:
            self.close()
            raise refuse_several_tensors()
        return tensor

    def head(self, rows: int = 5) -> pa.Table:
        """Return the next rows as a table, and close the stream.

        Parameters
        ----------
        rows : int
            The largest number of rows.

        Raises
        ------
        ClosedError
            If the stream was read to its end before.
        """
        check_unread(self.is_exhausted)
        table = first_rows(self, self.schema, rows)
        self.close()
        return table

    def to_reader(self) -> pa.RecordBatchReader:
        """Return a ``pyarrow.RecordBatchReader`` of the rest of the stream.

        Raises
        ------
        ClosedError
            If the stream was read to its end before.
        """
        check_unread(self.is_exhausted)
        return pa.RecordBatchReader.from_batches(self.schema, self)

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        """Export the rest of the stream through the Arrow C stream interface."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    @abstractmethod
    def _facts(self) -> list[str]:
        """Return short descriptions of the state: for people."""

    @abstractmethod
    def _title(self) -> str:
        """Return the name of the class and of the dataset."""

    def __repr__(self) -> str:
        return describe_object(self._title(), self.schema, self._facts())

    def _repr_html_(self) -> str:
        return describe_as_html(self._title(), self.schema, self._facts())


def check_tensor_content(schema: pa.Schema) -> None:
    """Raise `UsageError` unless a schema announces tensors."""
    if not is_tensor_content(schema):
        raise refuse_tensors()


def refuse_arrays() -> UsageError:
    """Return the error for arrays of a stream in the format Arrow."""
    return UsageError(
        "the stream has the format 'arrow', which has no Vortex arrays; open it with "
        "format='vortex'"
    )


def refuse_tensors() -> UsageError:
    """Return the error for reading record batches as tensors."""
    return UsageError(
        "the dataset holds record batches, not tensors; iterate over the stream, or use read_all()"
    )


def refuse_several_tensors() -> UsageError:
    """Return the error for reading several tensors as one."""
    return UsageError("the dataset holds several tensors; iterate over tensors()")


def check_unread(is_exhausted: bool) -> None:
    """Raise `ClosedError` if a stream was read to its end."""
    if is_exhausted:
        raise ClosedError("the stream was already read to its end; open it again to read it again")


class AsyncContext:
    """What ``async with`` enters. ``await`` is refused with an explanation."""

    def __await__(self) -> NoReturn:
        raise UsageError(f"{type(self).__name__} cannot be awaited; enter it: async with … as name")


class AsyncBatchStream(StreamFacts, AsyncContext):
    """An asynchronous iterator of record batches that have one schema."""

    @abstractmethod
    async def __anext__(self) -> pa.RecordBatch:
        """Return the next record batch."""

    def __aiter__(self) -> AsyncIterator[pa.RecordBatch]:
        return self

    async def batches_with_metadata(self) -> AsyncIterator[BatchWithMetadata]:
        """Iterate over the rest of the stream; see `BatchStream.batches_with_metadata`."""
        async for batch in self:
            yield BatchWithMetadata(batch, find_metadata(batch))

    async def read_all(self) -> pa.Table:
        """Read the rest of the stream into one table; see `BatchStream.read_all`."""
        check_unread(self.is_exhausted)
        batches = [batch async for batch in self if batch.num_rows]
        return pa.Table.from_batches(batches, self.schema)

    async def to_arrow(self) -> pa.Table:
        """Read the rest of the stream into one table, as `read_all` does."""
        return await self.read_all()

    async def to_pandas(self, **options: Any) -> Any:
        """Read the rest of the stream into a data frame; see `BatchStream.to_pandas`."""
        table = await self.read_all()
        return await to_thread.run_sync(partial(table_to_pandas, table, **options))

    async def to_polars(self) -> Any:
        """Read the rest of the stream into a data frame; see `BatchStream.to_polars`."""
        return await to_thread.run_sync(import_package("polars").DataFrame, await self.read_all())

    async def to_numpy(self) -> dict[str, Any]:
        """Read the rest of the stream into NumPy arrays; see `BatchStream.to_numpy`."""
        return await to_thread.run_sync(columns_to_numpy, await self.read_all())

    async def to_duckdb(self, connection: Any = None) -> Any:
        """Read the rest of the stream into a relation; see `BatchStream.to_duckdb`."""
        return table_to_duckdb(await self.read_all(), connection)

    async def next_tensor(self) -> AnyTensor | None:
        """Return the next tensor, or None at the end; see `BatchStream.next_tensor`."""
        raise refuse_tensors()

    async def next_array(self) -> Any:
        """Return the next Vortex array, or None at the end; see `BatchStream.next_array`."""
        raise refuse_arrays()

    async def arrays(self) -> AsyncIterator[Any]:
        """Iterate over the arrays of the stream undecoded; see `BatchStream.arrays`."""
        if self.format != "vortex":
            raise refuse_arrays()
        while (array := await self.next_array()) is not None:
            yield array

    async def tensors(self) -> AsyncIterator[AnyTensor]:
        """Iterate over the tensors of the stream; see `BatchStream.tensors`."""
        check_tensor_content(self.schema)
        while (tensor := await self.next_tensor()) is not None:
            yield tensor

    async def read_tensor(self) -> AnyTensor:
        """Return the only tensor of the stream; see `BatchStream.read_tensor`."""
        check_tensor_content(self.schema)
        check_unread(self.is_exhausted)
        tensor = await self.next_tensor()
        if tensor is None:
            raise UsageError("the dataset holds no tensors")
        if await self.next_tensor() is not None:
            self.close()
            raise refuse_several_tensors()
        return tensor

    async def head(self, rows: int = 5) -> pa.Table:
        """Return the next rows as a table, and close the stream; see `BatchStream.head`."""
        check_unread(self.is_exhausted)
        taken: list[pa.RecordBatch] = []
        while sum(batch.num_rows for batch in taken) < rows:
            try:
                taken.append(await self.__anext__())
            except StopAsyncIteration:
                break
        self.close()
        return first_rows(taken, self.schema, rows)
