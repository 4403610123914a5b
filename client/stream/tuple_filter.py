"""Filters that are written as tuples, such as ``("delay", ">", 60)``."""

from __future__ import annotations

import operator
from typing import Any

import pyarrow as pa

from ...errors import UsageError
from .comparisons import COMPARISONS, column, combine, compare, is_in, literal


def parse_tuples(filter: Any, schema: pa.Schema) -> Any:
    """Return the expression of tuples, as ``pyarrow.parquet.read_table`` takes them.

    Parameters
    ----------
    filter : tuple or list
        A tuple such as ``("delay", ">", 60)``, a list of tuples that must all hold, or a list of
        such lists of which one must hold.
    schema : pyarrow.Schema
        The schema of the dataset.

    Raises
    ------
    UsageError
        If a tuple is malformed, or does not fit the schema.
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
