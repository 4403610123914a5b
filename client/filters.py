"""Filters as users write them: SQL conditions, tuples, and expressions of pyarrow and polars.

Each becomes an expression that Substrait can represent, and that the server evaluates.
"""

from __future__ import annotations

import base64
import operator
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import MissingExtraError, UsageError
from ..formats.parquet.geo.conditions import encode_conditions
from ..formats.parquet.variant.arrow_fields import filter_schema
from ..geo import BoxFilter
from .comparisons import COMPARISONS, column, combine, compare, is_in, literal, storage_type


def parse_tuples(filter: Any, schema: pa.Schema) -> Any:
    """Return the expression of tuples, as ``pyarrow.parquet.read_table`` takes them.

    `filter` is a tuple such as ``("delay", ">", 60)``, a list of tuples that must all hold, or a
    list of such lists of which one must hold. Raises `UsageError` if a tuple is malformed, or does
    not fit the schema.
    """
    if not filter:
        raise UsageError("the filter is empty; pass None to read all rows")
    if isinstance(filter, tuple) or isinstance(filter[0], str):
        return _parse_tuple(filter, schema)
    if all(isinstance(item, tuple) for item in filter):
        return combine(operator.and_, [_parse_tuple(item, schema) for item in filter])
    return combine(operator.or_, [parse_tuples(item, schema) for item in filter])


def _parse_tuple(item: Any, schema: pa.Schema) -> Any:
    if len(item) != 3 or not isinstance(item[0], str) or not isinstance(item[1], str):
        raise UsageError(f"the filter {item!r} is invalid; expected ('delay', '>', 60)")
    name, symbol, value = item
    operand, symbol = column(name, schema), symbol.strip().lower()
    if symbol in COMPARISONS:
        return compare(symbol, operand, literal(value))
    if symbol not in ("in", "not in") or isinstance(value, str):
        known = ", ".join((*COMPARISONS, "in", "not in"))
        raise UsageError(f"the filter {item!r} is invalid; the operators are {known}")
    found = is_in(operand, list(value))
    return found if symbol == "in" else ~found


def serialize_filter(name: str, schema: pa.Schema, filter: Any) -> str:
    """Return a filter as `Request` holds it: a Substrait expression in base64url.

    Raises `UsageError` if it is malformed, or does not fit the schema.
    """
    schema = filter_schema(schema)
    if isinstance(filter, BoxFilter):
        expression = None
        for other in filter.others:
            parsed = parse_filter(other, schema)
            expression = parsed if expression is None else expression & parsed
        text = None if expression is None else _serialize(name, schema, expression)
        return encode_conditions(filter.conditions(schema), text)
    return _serialize(name, schema, parse_filter(filter, schema))


def _serialize(name: str, schema: pa.Schema, expression: Any) -> str:
    try:
        plan = expression.to_substrait(_representable_schema(schema))
    except (pa.ArrowException, ValueError, KeyError, NotImplementedError) as error:
        raise UsageError(f"the filter does not fit {name!r}: {error}") from None
    return base64.urlsafe_b64encode(memoryview(plan)).rstrip(b"=").decode()


def _representable_schema(schema: pa.Schema) -> pa.Schema:
    """Return the columns whose types Substrait knows, with storage types for extension types.

    The server finds columns by their names, so a filter on the others is still right without them.
    """
    fields = [field.with_type(storage_type(field.type)) for field in schema]
    if not _knows_types(fields):
        fields = [field for field in fields if _knows_types([field])]
    return pa.schema(fields)


def _knows_types(fields: list[Any]) -> bool:
    """Return whether Substrait can represent the types of some fields."""
    try:
        pc.scalar(True).to_substrait(pa.schema(fields))
    except NotImplementedError:
        return False
    return True


def parse_filter(filter: Any, schema: pa.Schema) -> Any:
    """Return the ``pyarrow.compute.Expression`` of a filter.

    `filter` is a SQL condition; a tuple such as ``("delay", ">", 60)``, a list of tuples that must
    all hold, or a list of such lists of which one must hold; or an expression of pyarrow or polars.
    Raises `UsageError` if the filter is malformed, or does not fit the schema.

    Examples
    --------
    >>> schema = pa.schema([("delay", pa.int16()), ("carrier", pa.string())])
    >>> parse_filter(("delay", ">", 60), schema)
    <pyarrow.compute.Expression (delay > 60)>
    """
    if hasattr(filter, "to_substrait"):
        return filter
    if isinstance(filter, str):
        return _load_sql_parser()(filter, schema)
    if isinstance(filter, (tuple, list)):
        return parse_tuples(filter, schema)
    if type(filter).__module__.partition(".")[0] == "polars":
        return _convert_polars(filter, schema)
    raise UsageError(
        f"filter is a {type(filter).__name__}; expected a SQL condition such as 'delay > 60', "
        "tuples such as ('delay', '>', 60), an expression of pyarrow or polars, or "
        "splitarrow.geo.intersects(…)"
    )


def _load_sql_parser() -> Any:
    try:
        from .sql_filter import parse_sql_filter
    except ImportError as error:
        if not (error.name or "").startswith("sqlglot"):
            raise
        raise MissingExtraError(
            "a filter in SQL needs the package sqlglot: pip install sqlglot"
        ) from None
    return parse_sql_filter


class _PredicateRecorder:
    """Takes the place of a ``pyarrow.dataset.Dataset``, and keeps the filter that polars passes."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.filter: Any = None

    def to_batches(self, *, filter: Any = None, **_options: Any) -> Iterator[pa.RecordBatch]:
        """Keep the filter, and return no batches."""
        self.filter = filter
        return iter(())


def _convert_polars(filter: Any, schema: pa.Schema) -> Any:
    """Return the pyarrow expression of a polars expression, as polars itself converts it."""
    import polars as pl

    recorder: Any = _PredicateRecorder(schema)
    try:
        pl.scan_pyarrow_dataset(recorder).filter(filter).collect()
    except pl.exceptions.PolarsError as error:
        reason = str(error).partition("\n")[0]
        raise UsageError(f"the filter is invalid: {reason}") from None
    if recorder.filter is None:
        raise UsageError(
            f"polars has no pyarrow form of the filter {filter}; write it as a SQL condition or "
            "as a pyarrow.compute expression"
        )
    return recorder.filter
