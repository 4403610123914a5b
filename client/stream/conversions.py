"""Tables as data frames of other libraries."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any

import pyarrow as pa

from ...errors import MissingExtraError


def table_to_pandas(table: pa.Table, **options: Any) -> Any:
    """Return a ``pandas.DataFrame``; `options` are those of ``pyarrow.Table.to_pandas``.

    Raises
    ------
    MissingExtraError
        If pandas is not installed.
    """
    _require("pandas")
    return table.to_pandas(**options)


def to_polars(data: Any) -> Any:
    """Return a ``polars.DataFrame`` of an Arrow C stream.

    Raises
    ------
    MissingExtraError
        If polars is not installed.
    """
    return _require("polars").DataFrame(data)


def table_to_duckdb(table: pa.Table, connection: Any = None) -> Any:
    """Return a ``duckdb.DuckDBPyRelation`` over a table.

    Parameters
    ----------
    table : pyarrow.Table
        The table.
    connection : duckdb.DuckDBPyConnection, optional
        The connection of the relation. `None` is DuckDB's default connection.

    Raises
    ------
    MissingExtraError
        If duckdb is not installed.
    """
    source = _require("duckdb") if connection is None else connection
    return source.from_arrow(table)


def first_rows(batches: Iterable[pa.RecordBatch], schema: pa.Schema, rows: int) -> pa.Table:
    """Return a table of the first rows. It takes no more batches than it needs."""
    taken: list[pa.RecordBatch] = []
    missing = rows
    for batch in batches if rows > 0 else ():
        taken.append(batch.slice(0, missing))
        missing -= taken[-1].num_rows
        if not missing:
            break
    return pa.Table.from_batches(taken, schema)


def _require(package: str) -> Any:
    try:
        return import_module(package)
    except ImportError as error:
        if error.name != package:
            raise
        raise MissingExtraError(
            f"{package} is not installed; install it with: pip install {package}"
        ) from None
