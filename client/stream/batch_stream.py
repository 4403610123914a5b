"""The interface that all blocking streams of record batches share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from ...errors import ClosedError, UsageError
from ...formats.arrow.numpy_arrays import columns_to_numpy
from ...formats.arrow.tensors.labels import is_tensor_content
from ...formats.arrow.tensors.sparse_tensor import AnyTensor
from ...representation import describe_as_html, describe_object
from .conversions import first_rows, table_to_duckdb, table_to_pandas, to_polars
from .custom_metadata import BatchWithMetadata, CustomMetadata, find_metadata


class BatchStream(ABC):
    """An iterator of record batches that have one schema."""

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """The schema of the stream."""

    @property
    @abstractmethod
    def is_exhausted(self) -> bool:
        """Whether the stream was read to its end, and has closed itself."""

    @property
    @abstractmethod
    def footer_metadata(self) -> CustomMetadata | None:
        """The custom metadata of the footer of the Arrow file that the stream was read from.

        None if the footer has none, or the stream is not that of one Arrow file.
        """

    @property
    def format(self) -> str:
        """The format of the record batches that arrive: ``arrow`` or ``vortex``.

        Iteration yields record batches from either.
        """
        return "arrow"

    @abstractmethod
    def __next__(self) -> pa.RecordBatch:
        """Return the next record batch."""

    @abstractmethod
    def close(self) -> None:
        """Close the stream."""

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
        return pa.Table.from_batches(list(self), self.schema)

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
        return to_polars(self)

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
    """Raise if a stream was read to its end.

    Raises
    ------
    ClosedError
        If it was.
    """
    if is_exhausted:
        raise ClosedError("the stream was already read to its end; open it again to read it again")
