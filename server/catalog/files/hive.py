"""Hive partitions: the columns that folders named ``key=value`` define for the files below them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from ....errors import DatasetError
from ..query.selection import Selection, select_fields

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
    def read(cls, root: Path, paths: Sequence[Path], schema: pa.Schema) -> Partitions | None:
        """Return the partition columns of Parquet files.

        pyarrow infers the types: int32 if all values of a key fit, and string otherwise.

        Parameters
        ----------
        root : Path
            The directory.
        paths : sequence of Path
            The files in it.
        schema : pyarrow.Schema
            The schema of the files.

        Returns
        -------
        Partitions or None
            None if no folder is named ``key=value``.

        Raises
        ------
        DatasetError
            If the files have different keys, or a key is also a column of the files.
        """
        keys = _partition_keys(root, paths[0])
        for path in paths:
            if _partition_keys(root, path) != keys:
                raise DatasetError(
                    f"{path} has the partition keys {_partition_keys(root, path)}, "
                    f"but {paths[0]} has {keys}"
                )
        if not keys:
            return None
        for key in keys:
            if key in schema.names:
                raise DatasetError(
                    f"{key!r} is both a partition key of {root} and a column of its files"
                )
        try:
            return cls._infer(root, paths, keys)
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            raise DatasetError(f"cannot read the partitions of {root}: {error}") from None

    @classmethod
    def _infer(cls, root: Path, paths: Sequence[Path], keys: Sequence[str]) -> Partitions:
        import pyarrow.dataset as ds  # takes a third of a second

        dataset = ds.dataset(
            [str(path) for path in paths],
            format="parquet",
            partitioning="hive",
            partition_base_dir=str(root),
        )
        keys_by_path = {
            fragment.path: ds.get_partition_keys(fragment.partition_expression)
            for fragment in dataset.get_fragments()
        }
        fields = tuple(dataset.schema.field(key) for key in keys)
        values = tuple(
            tuple(
                pa.scalar(keys_by_path[str(path)].get(field.name), field.type) for field in fields
            )
            for path in paths
        )
        return cls(fields, values)


def select_from_file(selection: Selection, schema: pa.Schema) -> Selection:
    """Return the selection to read each file with.

    Parameters
    ----------
    selection : Selection
        A selection of the columns of the files, followed by the partition columns.
    schema : pyarrow.Schema
        The schema of the files.
    """
    if selection.columns is None:
        columns = None
        part = schema
    else:
        columns = tuple(column for column in selection.columns if column < len(schema))
        part = select_fields(schema, columns)
    row_filter = selection.filter
    if row_filter is not None and any(column >= len(schema) for column in row_filter.columns):
        row_filter = None  # it needs partition columns, which the file does not have
    return Selection(
        part,
        columns,
        selection.limit,
        selection.batch_rows,
        filter=row_filter,
    )


def add_partition_columns(
    batch: pa.RecordBatch, values: PartitionValues, selection: Selection, file_columns: int
) -> pa.RecordBatch:
    """Return a batch with the selected file and partition columns.

    Parameters
    ----------
    batch : pyarrow.RecordBatch
        A batch that was read with `select_from_file`.
    values : tuple of pyarrow.Scalar
        The values of the partition columns for the file.
    selection : Selection
        The selection of file and partition columns.
    file_columns : int
        The number of columns in the file.
    """
    if not values:
        return batch
    columns = selection.columns
    if columns is None:
        columns = range(file_columns + len(values))
    from_file = iter(batch.columns)
    arrays = [
        next(from_file)
        if column < file_columns
        else pa.repeat(values[column - file_columns], batch.num_rows)
        for column in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=selection.schema)


def _partition_keys(root: Path, path: Path) -> tuple[str, ...]:
    folders = path.relative_to(root).parts[:-1]
    return tuple(folder.partition("=")[0] for folder in folders if "=" in folder)
