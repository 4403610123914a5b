"""The kinds of file that fetched record batches are written to, batch by batch."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from io import IOBase
from pathlib import Path
from typing import Any, Protocol, cast

import pyarrow as pa

from ..errors import UsageError

_BUFFER_BYTES = 1 << 20
"""Smaller pieces are gathered; a larger one is written as it is."""
_ROW_GROUP_ROWS = 1 << 20
_ROW_GROUP_BYTES = 128 << 20
"""A Parquet row group ends at either of the two: that much is held in memory."""
_CUT = b"\xff\xff\xff\xff\x08\0\0\0"
"""The prefix of a message of 8 bytes, which do not follow."""


class Sink(Protocol):
    """Where record batches go."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch, or keep it for the next write.

        Raises
        ------
        OSError
            If it cannot be written.
        UsageError
            If this kind of file cannot hold it.
        """
        ...

    def close(self) -> None:
        """Write what is left, and the end; raises as `write` does."""
        ...

    def abandon(self) -> None:
        """Close the file without caring for what is in it. Raises nothing."""
        ...


class StreamSink:
    """The IPC stream format: batches and dictionaries as they come.

    Parameters
    ----------
    file : pyarrow.NativeFile
        Where it goes. The sink closes it.
    schema : pyarrow.Schema
        The schema of all batches.
    """

    _open: Callable[..., Any] = staticmethod(pa.ipc.new_stream)

    def __init__(self, file: pa.NativeFile, schema: pa.Schema) -> None:
        self._file = file
        options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
        self._writer = self._open(file, schema, options=options)

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch; see `Sink.write`."""
        self._writer.write_batch(batch)

    def close(self) -> None:
        """Write the end; see `Sink.close`."""
        self._writer.close()
        self._file.close()

    def abandon(self) -> None:
        """Close the file; see `Sink.abandon`."""
        with suppress(OSError, pa.ArrowException):
            self._file.close()


class FileSink(StreamSink):
    """The IPC file format (Feather version 2).

    The format has one dictionary for each field, which a later batch may extend but not
    replace. A batch with another dictionary is therefore written with the one before it,
    extended by the values that are new.
    """

    _open = staticmethod(pa.ipc.new_file)

    def __init__(self, file: pa.NativeFile, schema: pa.Schema) -> None:
        super().__init__(file, schema)
        self._encoded = [field.name for field in schema if _has_dictionary(field.type)]
        self._ordered = any(_has_dictionary(field.type, ordered=True) for field in schema)
        self._last: pa.RecordBatch | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch; see `Sink.write`."""
        if not self._encoded:
            self._writer.write_batch(batch)
            return
        try:
            self._writer.write_batch(batch)
        except pa.ArrowInvalid as error:
            if self._last is None:
                raise
            if not batch.num_rows:
                return
            batch = self._write_extended(batch, self._last, error)
        self._last = batch.slice(0, 0)

    def _write_extended(
        self, batch: pa.RecordBatch, last: pa.RecordBatch, reason: Exception
    ) -> pa.RecordBatch:
        """Write a batch with the dictionaries of the `last` one, extended; return it."""
        try:
            if self._ordered:
                raise reason
            both = pa.Table.from_batches([last, batch]).unify_dictionaries()
            extended = both.to_batches()[-1]
            self._writer.write_batch(extended)
        except pa.ArrowException as error:
            raise UsageError(
                "an Arrow IPC file holds one dictionary for each column, and those of "
                f"{', '.join(self._encoded)} change in a way that cannot be merged ({error}); "
                "write to .arrows or .parquet instead"
            ) from None
        return extended


class ParquetSink:
    """A Parquet file; see `Sink`. Batches are gathered into row groups.

    Parameters
    ----------
    file : pyarrow.NativeFile
        Where it goes. The sink closes it.
    schema : pyarrow.Schema
        The schema of all batches.
    """

    def __init__(self, file: pa.NativeFile, schema: pa.Schema) -> None:
        import pyarrow.parquet as pq

        self._file = file
        self._schema = schema
        self._gathered: list[pa.RecordBatch] = []
        self._rows = 0
        self._bytes = 0
        try:
            self._writer: Any = pq.ParquetWriter(file, schema)
        except pa.ArrowException as error:
            raise self._unfit(error) from None

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch; see `Sink.write`."""
        self._gathered.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.get_total_buffer_size()
        if self._rows >= _ROW_GROUP_ROWS or self._bytes >= _ROW_GROUP_BYTES:
            self._write_group()

    def _write_group(self) -> None:
        group = pa.Table.from_batches(self._gathered, self._schema)
        self._gathered, self._rows, self._bytes = [], 0, 0
        try:
            self._writer.write_table(group, row_group_size=_ROW_GROUP_ROWS)
        except pa.ArrowException as error:
            raise self._unfit(error) from None

    def _unfit(self, error: Exception) -> UsageError:
        return UsageError(f"a Parquet file cannot hold this data: {error}; write to .arrow instead")

    def close(self) -> None:
        """Write what is left, and the end; see `Sink.close`."""
        if self._gathered:
            self._write_group()
        self._writer.close()
        self._file.close()

    def abandon(self) -> None:
        """Close the file; see `Sink.abandon`."""
        with suppress(OSError, pa.ArrowException):
            self._writer.close()  # or it would try later, when nobody listens
        with suppress(OSError, pa.ArrowException):
            self._file.close()


class StandardOutputSink(StreamSink):
    """The IPC stream format on standard output, which nothing else may write to.

    Parameters
    ----------
    schema : pyarrow.Schema
        The schema of all batches.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._output = open(1, "wb", buffering=_BUFFER_BYTES, closefd=False)  # noqa: SIM115
        super().__init__(pa.PythonFile(cast(IOBase, self._output), mode="w"), schema)

    def close(self) -> None:
        """Write the end; see `Sink.close`."""
        try:
            super().close()
        except OSError as error:
            raise self._about(error) from None

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch; see `Sink.write`."""
        try:
            super().write(batch)
        except OSError as error:
            raise self._about(error) from None

    def _about(self, error: OSError) -> OSError:
        return OSError(error.errno, error.strerror, "standard output")

    def abandon(self) -> None:
        """Cut the stream so that its reader cannot take it for whole.

        Readers take a stream that stops between two messages for one that has ended.
        """
        try:
            self._output.write(_CUT)
            self._output.flush()
        except OSError:
            with open(os.devnull, "wb") as nothing:  # for what is still buffered
                os.dup2(nothing.fileno(), 1)
        with suppress(OSError):
            self._output.close()


_BY_SUFFIX: dict[str, Callable[[pa.NativeFile, pa.Schema], Sink]] = {
    ".arrow": FileSink,
    ".feather": FileSink,
    ".arrows": StreamSink,
    ".parquet": ParquetSink,
}


def checked_suffix(path: Path) -> str:
    """Return the suffix of a path, which tells the kind of file.

    Raises
    ------
    UsageError
        If there is no such kind.
    """
    suffix = path.suffix.lower()
    if suffix not in _BY_SUFFIX:
        raise UsageError(
            f"{path}: the suffix tells the kind of file; known are {', '.join(_BY_SUFFIX)}, "
            "and - for standard output"
        )
    return suffix


def open_sink(suffix: str, place: Path, schema: pa.Schema) -> Sink:
    """Open a file for writing.

    Parameters
    ----------
    suffix : str
        The kind, as `checked_suffix` returns it.
    place : Path
        Where; what is there is overwritten.
    schema : pyarrow.Schema
        The schema of all batches.
    """
    file = pa.BufferedOutputStream(pa.OSFile(str(place), "wb"), _BUFFER_BYTES)
    try:
        return _BY_SUFFIX[suffix](file, schema)
    except BaseException:
        file.close()
        raise


def _has_dictionary(kind: pa.DataType, *, ordered: bool = False) -> bool:
    """Tell whether a type is, or holds, a dictionary; with `ordered`, one whose order counts."""
    if isinstance(kind, pa.DictionaryType):
        return not ordered or kind.ordered or _has_dictionary(kind.value_type, ordered=ordered)
    if isinstance(kind, pa.BaseExtensionType):
        return _has_dictionary(kind.storage_type, ordered=ordered)
    return any(
        _has_dictionary(kind.field(index).type, ordered=ordered) for index in range(kind.num_fields)
    )
