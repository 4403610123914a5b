"""Variant columns in Parquet files, with the annotation that pyarrow cannot write."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from .errors import UsageError
from .formats.arrow.numpy_arrays import require_numpy
from .formats.parquet.footer import MAGIC, TAIL_BYTES, read_footer_size, wrap_footer
from .formats.parquet.variant_footer import annotate_variants, find_variant_paths


def write_parquet(
    table: pa.Table,
    path: str | os.PathLike[str],
    *,
    shred: Mapping[str, pa.DataType | None] | None = None,
    **options: Any,
) -> None:
    """Write a table to a Parquet file, with the annotation VARIANT on its Variant columns.

    Parameters
    ----------
    table : pyarrow.Table
        The table. `variant.field` describes the fields of its Variant columns.
    path : path-like
        The file. It is overwritten.
    shred : mapping of str to pyarrow.DataType or None, optional
        The columns to shred, and their types; see `variant.shred`. None stands for the type that
        `variant.infer_type` chooses.
    **options
        Further arguments of `pyarrow.parquet.write_table`.

    Raises
    ------
    OSError
        If the file cannot be written.
    UsageError
        If a column to shred does not exist, or Variants cannot be shredded as its type.
    InvalidDataError
        If a Variant that is to be shredded is invalid.
    """
    import pyarrow.parquet as pq

    shred_types = shred or {}
    unknown = shred_types.keys() - set(table.column_names)
    if unknown:
        raise UsageError(f"the table has no column {min(unknown)!r} to shred")
    paths = find_variant_paths(table.schema)
    for name, data_type in shred_types.items():
        index = table.column_names.index(name)
        column = _shred_column(table.column(index), data_type)
        table = table.set_column(index, pa.field(name, column.type), column)
    paths += [name for name in shred_types if name not in paths]
    arguments: dict[str, Any] = {"store_decimal_as_integer": True, "store_schema": False}
    pq.write_table(table, os.fspath(path), **{**arguments, **options})
    annotate(path, paths)


def _shred_column(column: Any, data_type: Any) -> Any:
    require_numpy()
    from .formats.parquet.variant.columns import shred_column

    return shred_column(column, data_type, ordered=True)


def annotate(path: str | os.PathLike[str], columns: Iterable[str]) -> None:
    """Give groups of a Parquet file the annotation VARIANT, which pyarrow cannot write.

    The footer is replaced in place; the data stay unchanged.

    Parameters
    ----------
    path : path-like
        The file.
    columns : iterable of str
        The paths of the groups in the schema of the file, with dots between the names. Each has
        the fields ``metadata`` and ``value``, and perhaps ``typed_value``.

    Raises
    ------
    OSError
        If the file cannot be read or written.
    InvalidDataError
        If it is not a Parquet file.
    UsageError
        If the file has no such group, or it is not a Variant.
    """
    with open(path, "r+b") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(end - TAIL_BYTES, 0))
        size = read_footer_size(file.read(), end)
        start = end - TAIL_BYTES - size
        file.seek(start)
        footer = annotate_variants(file.read(size), list(columns))
        file.seek(start)
        file.write(wrap_footer(footer)[len(MAGIC) :])
        file.truncate()
