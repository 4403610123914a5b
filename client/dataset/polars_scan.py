"""A lazy scan of a dataset by polars, which sends columns, conditions and limits to the server.

polars applies the whole predicate to what arrives. The server may therefore return more rows than
match, and never fewer. polars and filters differ in some comparisons: of NaN, of categories, of
timestamps whose units differ. Only conditions that mean the same in both are sent. Those on
timestamps are widened by the coarsest unit of polars.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as pt

from ...errors import RemoteError, UsageError
from ...formats.arrow.supported_types import make_empty_batch
from ..arguments import ReadArguments
from ..stream.batch_stream import import_package

_SELECTED_BY_POLARS: Final = ("columns", "filter", "limit", "memory", "sql")
_LOGIC: Final = ("and", "or", "xor", "not", "is true", "if_else")
_TEXT_TESTS: Final = ("starts_with", "ends_with", "contains")
_MILLISECOND: Final = 10**6
_EXACT_INTEGERS: Final = 2**53
"""polars may compare larger integers as floating-point numbers."""


def scan_dataset(
    open_stream: Callable[..., Any], schema: pa.Schema, arguments: ReadArguments
) -> Any:
    """Return a ``polars.LazyFrame`` that reads a dataset when it is collected.

    `open_stream` opens the dataset with the arguments of a read.
    """
    polars = import_package("polars")
    plugins: Any = __import__("polars.io.plugins", fromlist=["register_io_source"])
    if given := [name for name in _SELECTED_BY_POLARS if arguments.get(name) is not None]:
        raise UsageError(
            f"a scan takes no {', '.join(given)}; use select, filter and head of the LazyFrame"
        )

    def read(
        columns: list[str] | None, predicate: Any, limit: int | None, batch_rows: int | None
    ) -> Iterator[Any]:
        del batch_rows  # a hint; the server would have to encode the data again
        # polars limits the rows before it filters them.
        condition = None if predicate is None or limit is not None else _choose(predicate, schema)
        selection = ReadArguments(columns=columns or None, limit=limit)
        with _open(open_stream, {**arguments, **selection}, condition) as stream:
            yield _filter(polars.from_arrow(make_empty_batch(stream.schema)), predicate)
            for batch in stream:
                yield _filter(polars.from_arrow(batch), predicate)

    columns = polars.from_arrow(make_empty_batch(schema))
    return plugins.register_io_source(read, schema=columns.schema)


def _filter(frame: Any, predicate: Any) -> Any:
    return frame if predicate is None else frame.filter(predicate)


def _open(open_stream: Callable[..., Any], arguments: ReadArguments, condition: Any) -> Any:
    """Open a stream of rows that fulfil a condition, or of all rows if it is refused."""
    if condition is not None:
        try:
            return open_stream(**{**arguments, "filter": condition})
        except (UsageError, RemoteError):
            pass
    return open_stream(**arguments)


def _choose(predicate: Any, schema: pa.Schema) -> Any:
    """Return the tree of a condition that every row of the predicate fulfils; None for any row."""
    from ...filters.tree import combine

    names = set(predicate.meta.root_names()) & set(schema.names)
    types = {name: schema.field(name).type for name in names}
    parts = [_relax(part, types) for part in _list_conjuncts(predicate)]
    chosen = [part for part in parts if part is not None]
    return combine("and", chosen) if chosen else None


def _list_conjuncts(predicate: Any) -> Iterator[Any]:
    """Yield the trees of the conditions that must all hold, without those that filters lack."""
    from ...filters.expressions import convert_polars
    from ...filters.tree import Call

    try:
        tree = convert_polars(predicate)
    except UsageError:
        if _is_conjunction(predicate):
            for part in predicate.meta.pop():
                yield from _list_conjuncts(part)
        return
    is_conjunction = isinstance(tree, Call) and tree.function == "and"
    yield from tree.arguments if is_conjunction else (tree,)


def _is_conjunction(predicate: Any) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the form differs between versions of polars
        node = json.loads(predicate.meta.serialize(format="json"))
    return node.get("BinaryExpr", {}).get("op") in ("And", "LogicalAnd")


def _relax(node: Any, types: dict[str, pa.DataType]) -> Any:
    """Return a condition that holds for every row for which a condition of polars does, or None."""
    from ...filters.tree import MIRRORED, Call, Column, Instant, Literal

    match node:
        case Call(function, (Literal() as literal, Column() as column)) if function in MIRRORED:
            return _relax(Call(MIRRORED[function], (column, literal)), types)
        case Call(
            function,
            (Column(name) as column, Literal(Instant("timestamp" | "timestamptz" as kind, ns))),
        ) if name in types and pt.is_timestamp(types[name]):
            low = Call(">=", (column, Literal(Instant(kind, ns - _MILLISECOND))))
            high = Call("<=", (column, Literal(Instant(kind, ns + _MILLISECOND))))
            sides = {"=": Call("and", (low, high)), "<": high, "<=": high, ">": low, ">=": low}
            return sides.get(function)
        case _:
            return node if _is_equivalent(node, types) else None


def _is_equivalent(node: Any, types: dict[str, pa.DataType]) -> bool:
    """Return whether a condition means the same in polars and in filters."""
    from ...filters.tree import COMPARISONS, MIRRORED, Call, Column, Literal

    match node:
        case Literal(value):
            return value is None or isinstance(value, bool)
        case Column(name):
            return name in types and pt.is_boolean(types[name])
        case Call("is null", (Column(name),)):
            return name in types and (pt.is_primitive(types[name]) or _is_text(types[name]))
        case Call(function, arguments) if function in _LOGIC or function == "is null":
            return all(_is_equivalent(each, types) for each in arguments)
        case Call(function, (Literal() as literal, Column() as column)) if function in MIRRORED:
            return _is_equivalent(Call(MIRRORED[function], (column, literal)), types)
        case Call(function, (Column(name), *values)) if name in types:
            known = (*COMPARISONS, "in", *_TEXT_TESTS)
            if function not in known or (function in _TEXT_TESTS and not _is_text(types[name])):
                return False
            return all(
                isinstance(each, Literal) and _has_type(each.value, types[name]) for each in values
            )
        case _:
            return False


def _has_type(value: Any, data_type: pa.DataType) -> bool:
    """Return whether polars compares a value with a column without a conversion of the column."""
    from ...filters.tree import Instant

    match value:
        case bool():
            return pt.is_boolean(data_type)
        case int():
            return pt.is_integer(data_type) and abs(value) < _EXACT_INTEGERS
        case str():
            return _is_text(data_type)
        case Instant("date", _):
            return pt.is_date32(data_type)
        case _:
            return False


def _is_text(data_type: pa.DataType) -> bool:
    return pt.is_string(data_type) or pt.is_large_string(data_type) or pt.is_string_view(data_type)
