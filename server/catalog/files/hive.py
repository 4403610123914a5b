"""Hive partitions: the columns that folders named ``key=value`` define for the files below them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from ....errors import DatasetError
from ....formats.arrow.supported_types import hide_intervals, hide_schema_intervals
from ..selection import Selection, select_fields
from .origins import FileOrigin

_NULL = "__HIVE_DEFAULT_PARTITION__"

PartitionValues = tuple[Any, ...]
"""The values of the partition columns for one file, as ``pyarrow.Scalar``."""


@dataclass(frozen=True, slots=True)
class Partitions:
    """The partition columns of a directory."""

    fields: tuple[pa.Field[Any], ...]
    """The columns, in the order of the folders."""
    values: tuple[PartitionValues, ...]
    """The values for each file."""

    @classmethod
    def read(
        cls,
        root: str,
        files: Sequence[FileOrigin],
        schema: pa.Schema,
        *,
        as_text: bool = False,
    ) -> Partitions | None:
        """Return the partition columns of Parquet files.

        The type of a column is int32 if all values of the key fit and differ, and string otherwise
        or `as_text`.

        Return None if no folder is named ``key=value``. Raises `DatasetError` if the files have
        different keys, or a key is also a column of the files.
        """
        folders = [_list_partition_folders(file.name) for file in files]
        keys = tuple(key for key, _ in folders[0])
        for file, pairs in zip(files, folders, strict=True):
            own = tuple(key for key, _ in pairs)
            if own != keys:
                raise DatasetError(
                    f"{file.path} has the partition keys {own}, but {files[0].path} has {keys}"
                )
        if not keys:
            return None
        for key in keys:
            if key in schema.names:
                raise DatasetError(
                    f"{key!r} is both a partition key of {root} and a column of its files"
                )
        texts = [
            pa.array([pairs[number][1] for pairs in folders], pa.string())
            for number in range(len(keys))
        ]
        columns = texts if as_text else [_infer_column(column) for column in texts]
        fields = tuple(
            pa.field(key, column.type) for key, column in zip(keys, columns, strict=True)
        )
        return cls(fields, tuple(zip(*columns, strict=True)))


def select_from_file(selection: Selection, schema: pa.Schema, partitions: range) -> Selection:
    """Return the selection to read each file with."""
    count = len(partitions)
    if selection.columns is None:
        columns = None
        part = schema
    else:
        columns = tuple(
            column if column < partitions.start else column - count
            for column in selection.columns
            if column not in partitions
        )
        part = select_fields(schema, columns)
    row_filter = selection.filter
    if row_filter is not None and count:
        row_filter = row_filter.move_columns(partial(_find_in_file, partitions))
    return replace(selection, schema=part, columns=columns, filter=row_filter)


def _find_in_file(partitions: range, index: int) -> int:
    """Return the index of a column in a file; -1 if it is a partition column."""
    if index in partitions:
        return -1
    return index if index < partitions.start else index - len(partitions)


def add_partition_columns(
    batch: pa.RecordBatch, values: PartitionValues, selection: Selection, partitions: range
) -> pa.RecordBatch:
    """Return a batch with the selected file and partition columns."""
    if not values:
        return batch
    columns = selection.columns
    if columns is None:
        columns = range(len(selection.schema))
    from_file = iter(hide_intervals(batch).columns)
    arrays = [
        pa.repeat(values[partitions.index(column)], batch.num_rows)
        if column in partitions
        else next(from_file)
        for column in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=hide_schema_intervals(selection.schema))


def _list_partition_folders(name: str) -> list[tuple[str, str | None]]:
    """Return the keys and the values that the folders of a file define; None is null."""
    pairs: list[tuple[str, str | None]] = []
    for folder in name.split("/")[:-1]:
        key, separator, value = folder.partition("=")
        if separator:
            pairs.append((key, None if value == _NULL else unquote(value)))
    return pairs


def _infer_column(texts: pa.StringArray) -> Any:
    """Return integers, unless a text is not one, or two texts such as 7 and 007 are the same."""
    try:
        numbers = texts.cast(pa.int32())
    except pa.ArrowInvalid:
        return texts
    return numbers if len(numbers.unique()) == len(texts.unique()) else texts
