"""SQL over the datasets of a client, and the stream of its result.

DuckDB runs the query in this process. Each dataset is read with the columns that the query needs.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import pyarrow as pa

from ...errors import MissingExtraError, UsageError, install_hint
from .dataset import DatasetStream


class QueryStream(DatasetStream):
    """The result of a SELECT statement over datasets, which is in memory. See `DatasetStream`."""

    def __init__(self, table: pa.Table) -> None:
        super().__init__("query", table.schema, (), 1, 0)
        self._batches = deque(table.to_batches())
        self._rows = self._nbytes = 0

    @property
    def transport(self) -> str:
        """``sql``."""
        return "sql"

    @property
    def rows_received(self) -> int:
        """The number of rows that were returned so far."""
        return self._rows

    @property
    def bytes_received(self) -> int:
        """The size of the batches that were returned so far, in bytes."""
        return self._nbytes

    def __next__(self) -> pa.RecordBatch:
        """Return the next record batch; see `DatasetStream.__next__`."""
        if self._closed or not self._batches:
            return super().__next__()
        batch = self._batches.popleft()
        self._rows += batch.num_rows
        self._nbytes += batch.get_total_buffer_size()
        return batch

    def cancel(self) -> None:
        """Drop the rest of the result."""
        self.close()

    def close(self) -> None:
        """Drop the rest of the result. Idempotent."""
        self._batches = deque[pa.RecordBatch]()
        super().close()


_DIALECT = "duckdb"
_COLUMN_SETS = ("Columns", "TableColumn")
"""The nodes for ``COLUMNS('d.*')`` and for a table as a value. Not all versions of sqlglot have
both."""


def run_query(
    query: str,
    read_schema: Callable[[str], pa.Schema],
    open_table: Callable[[str, list[str] | None], DatasetStream],
) -> pa.Table:
    """Return the result of a query over datasets.

    Each dataset that the query names is read as a stream, with the columns that the query uses. The
    query can access nothing else: no files and no variables of this process.
    """
    duckdb, statement = _import_duckdb(), _parse(query)
    uses = _count_tables(statement)
    schemas = {name: read_schema(name) for name in uses}
    columns = _find_columns(statement, schemas)
    with ExitStack() as stack:
        connection = stack.enter_context(duckdb.connect())
        connection.execute("SET enable_external_access = false")
        connection.execute("SET python_enable_replacements = false")
        streams: list[DatasetStream] = []
        for name, count in uses.items():
            stream = stack.enter_context(open_table(name, columns.get(name)))
            streams.append(stream)
            # A stream can be scanned once only.
            connection.register(name, stream.to_reader() if count == 1 else stream.read_all())
        try:
            return connection.sql(query).to_arrow_table()
        except duckdb.Error as error:
            # DuckDB reports the error of a stream as text only.
            failure = next((stream.error for stream in streams if stream.error is not None), None)
            raise failure or _query_error(str(error)) from None


def _import_duckdb() -> Any:
    try:
        import duckdb
        import sqlglot  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError as error:
        raise MissingExtraError(
            f"SQL needs the package {error.name!r}: {install_hint('sql')}"
        ) from None
    return duckdb


def _parse(query: str) -> Any:
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    from ...filters.sql import explain_error

    try:
        statements = sqlglot.parse(query, dialect=_DIALECT)
    except SqlglotError as error:
        raise UsageError(f"the query is malformed{explain_error(error)}") from None
    if len(statements) != 1 or not isinstance(statements[0], exp.Query):
        raise UsageError("the query must be one SELECT statement")
    return statements[0]


def _count_tables(statement: Any) -> Counter[str]:
    """Return how often the query uses each dataset."""
    from sqlglot import exp
    from sqlglot.optimizer.scope import traverse_scope

    uses: Counter[str] = Counter()
    for scope in traverse_scope(statement):
        uses.update(
            source.name
            for _, source in scope.selected_sources.values()
            if isinstance(source, exp.Table) and source.name
        )
    return uses


def _find_columns(statement: Any, schemas: Mapping[str, pa.Schema]) -> dict[str, list[str]]:
    """Return the columns of each dataset that the query uses; nothing if that is not clear."""
    from sqlglot import exp
    from sqlglot.errors import SqlglotError
    from sqlglot.optimizer.qualify import qualify
    from sqlglot.optimizer.scope import traverse_scope

    known: dict[str, object] = {}
    for name, schema in schemas.items():
        known[name] = {field.name: "VARCHAR" for field in schema}
    used: dict[str, set[str]] = {name: set() for name in schemas}
    try:
        qualified = qualify(statement.copy(), schema=known, dialect=_DIALECT)
        if _takes_other_columns(statement, qualified):
            return {}
        for scope in traverse_scope(qualified):
            for column in scope.columns:
                source = scope.sources.get(column.table)
                if isinstance(source, exp.Table) and source.name in used:
                    used[source.name].add(column.name.lower())
    except (SqlglotError, KeyError):
        return {}
    selected = {
        name: [field.name for field in schema if field.name.lower() in used[name]]
        for name, schema in schemas.items()
    }
    # A query that counts rows uses no column, and a request selects at least one.
    return {name: names or schemas[name].names[:1] for name, names in selected.items()}


def _takes_other_columns(statement: Any, qualified: Any) -> bool:
    """Return whether a query uses columns that it does not name.

    It may select them with a pattern or ``EXCLUDE``, or take the row of a table as one value.
    """
    from sqlglot import exp

    if any(any(star.args.values()) for star in statement.find_all(exp.Star)):
        return True  # such as * EXCLUDE (id)
    if any(not isinstance(star.parent, exp.Count) for star in qualified.find_all(exp.Star)):
        return True  # such as * LIKE 'd%'
    return any(type(node).__name__ in _COLUMN_SETS for node in qualified.walk())


def _query_error(text: str) -> UsageError:
    return UsageError(f"the query failed: {' '.join(text.split())[:500]}")
