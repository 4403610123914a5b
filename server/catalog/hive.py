"""Partition columns: what the folders ``key=value`` above Parquet files say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from ...errors import DatasetError
from .selection import Selection, schema_part

Values = tuple[Any, ...]
"""The values of the partition columns for one file, as ``pyarrow.Scalar``."""


@dataclass(frozen=True, slots=True)
class Partitions:
    """The partition columns of a directory."""

    fields: tuple[pa.Field[Any], ...]
    """The columns, in the order of the folders."""
    values: tuple[Values, ...]
    """Their values for each file."""

    @classmethod
    def of(cls, root: Path, paths: Sequence[Path], schema: pa.Schema) -> Partitions | None:
        """Return the partition columns of Parquet files; None if no folder is ``key=value``.

        Types are pyarrow's guess: int32 if all values are such numbers, else string.

        Raises
        ------
        DatasetError
            If files lie in folders of different keys, or a key is a column of the files too.
        """
        keys = _keys(root, paths[0])
        for path in paths:
            if _keys(root, path) != keys:
                raise DatasetError(
                    f"{path} lies in the partitions {_keys(root, path)}, {paths[0]} in {keys}"
                )
        if not keys:
            return None
        import pyarrow.dataset as ds  # takes a third of a second

        for key in keys:
            if key in schema.names:
                raise DatasetError(
                    f"{key!r} is both a partition of {root} and a column of the files in it"
                )
        try:
            dataset = ds.dataset(
                [str(path) for path in paths],
                format="parquet",
                partitioning="hive",
                partition_base_dir=str(root),
            )
            found = {
                fragment.path: ds.get_partition_keys(fragment.partition_expression)
                for fragment in dataset.get_fragments()
            }
            fields = tuple(dataset.schema.field(key) for key in keys)
            values = tuple(
                tuple(pa.scalar(found[str(path)].get(field.name), field.type) for field in fields)
                for path in paths
            )
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            raise DatasetError(f"cannot read the partitions of {root}: {error}") from None
        return cls(fields, values)


def _keys(root: Path, path: Path) -> tuple[str, ...]:
    folders = path.relative_to(root).parts[:-1]
    return tuple(folder.partition("=")[0] for folder in folders if "=" in folder)


def file_selection(selection: Selection, schema: pa.Schema) -> Selection:
    """Return what to read from a file for a selection of its columns and partition columns.

    Parameters
    ----------
    selection : Selection
        Of the columns of `schema`, followed by the partition columns.
    schema : pyarrow.Schema
        The file's.
    """
    if selection.columns is None:
        columns = None
        part = schema
    else:
        columns = tuple(column for column in selection.columns if column < len(schema))
        part = schema_part(schema, columns)
    own = selection.filter
    if own is not None and any(column >= len(schema) for column in own.columns):
        own = None  # it looks at partitions: the files alone cannot tell what it leaves
    return Selection(
        part,
        columns,
        selection.limit,
        selection.batch_rows,
        filter=own,
        first=selection.first,
    )


def with_partitions(
    batch: pa.RecordBatch, values: Values, selection: Selection, file_columns: int
) -> pa.RecordBatch:
    """Return a batch of a file with the partition columns in their places.

    Parameters
    ----------
    batch : pyarrow.RecordBatch
        What `file_selection` of `selection` has brought.
    values : tuple of pyarrow.Scalar
        The partition columns' values for the file.
    selection : Selection
        What is wanted.
    file_columns : int
        How many columns the file has.
    """
    if not values:
        return batch
    columns = selection.columns
    if columns is None:
        columns = range(file_columns + len(values))
    own = iter(batch.columns)
    arrays = [
        next(own)
        if column < file_columns
        else pa.repeat(values[column - file_columns], batch.num_rows)
        for column in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=selection.schema)
