"""Filters: conditions on rows, with one meaning for every way to write them.

A filter in SQL, as tuples, as an expression of pyarrow or polars, or in Substrait becomes a tree
(`tree`). `binding` gives the tree the types of a dataset. `evaluation` evaluates it over record
batches, and `ranges` decides what need not be read.
"""

from __future__ import annotations

import base64
import binascii
import json
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import InvalidDataError, MissingExtraError, UsageError
from ..formats.arguments import check_text
from ..formats.nested_fields import choose_fields, extend_schema
from ..geo import BoxFilter
from .binding import bind
from .tree import Call, Cast, Column, Literal, combine, decode_tree, encode_tree, list_columns

__all__ = ["decode_filter", "encode_filter", "parse_filter"]

_MAX_BOXES: Final = 64


def encode_filter(filter: Any, schema: pa.Schema) -> str:
    """Return a filter as `Request` holds it: a tree in JSON, in base64url.

    Raises `UsageError` if it is malformed, or does not fit the schema.
    """
    tree = parse_filter(filter, schema)
    fields = choose_fields(schema, list_columns(tree))
    bind(tree, extend_schema(schema, fields))
    data = f'{{"where":{encode_tree(tree)}}}'.encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def parse_filter(filter: Any, schema: pa.Schema) -> Any:
    """Return the tree of a filter.

    `filter` is a SQL condition; a tuple such as ``("delay", ">", 60)``, a list of tuples that must
    all hold, or a list of such lists of which one must hold; an expression of pyarrow or polars; a
    `splitarrow.geo.BoxFilter`; or a tree. Raises `UsageError` if the filter is malformed.

    Examples
    --------
    >>> from splitarrow.filters.tree import describe
    >>> schema = pa.schema([("delay", pa.int16()), ("carrier", pa.string())])
    >>> describe(parse_filter(("delay", ">", 60), schema))
    'delay > 60'
    """
    match filter:
        case Column() | Literal() | Call() | Cast():
            return filter
        case BoxFilter():
            parts = [
                Call("intersects", (Column(each.column), *map(Literal, each.sides)))
                for each in filter.conditions(schema)
            ]
            return combine("and", [*parts, *(parse_filter(each, schema) for each in filter.others)])
        case str():
            return _load_sql_parser()(check_text("filter", filter))
        case tuple() | list():
            from .expressions import parse_tuples

            return parse_tuples(filter)
        case pc.Expression():
            from .expressions import convert_arrow

            return convert_arrow(filter)
        case _ if type(filter).__module__.partition(".")[0] == "polars":
            from .expressions import convert_polars

            return convert_polars(filter)
        case _:
            raise UsageError(
                f"filter is a {type(filter).__name__}; expected a SQL condition such as "
                "'delay > 60', tuples such as ('delay', '>', 60), an expression of pyarrow or "
                "polars, or splitarrow.geo.intersects(…)"
            )


def _load_sql_parser() -> Any:
    try:
        from .sql import parse_sql
    except ImportError as error:
        if not (error.name or "").startswith("sqlglot"):
            raise
        raise MissingExtraError(
            "a filter in SQL needs the package sqlglot: pip install sqlglot"
        ) from None
    return parse_sql


@lru_cache(maxsize=256)
def decode_filter(text: str) -> Any:
    """Return the tree of a filter that a request holds.

    It is a tree, boxes in JSON, or a Substrait extended expression. Raises `InvalidDataError` if it
    is malformed.
    """
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise InvalidDataError("the filter is not valid base64url") from None
    if not data.startswith(b"{"):
        from .substrait import decode_substrait

        return decode_substrait(data)
    try:
        document: Any = json.loads(data)
    except (ValueError, RecursionError):
        raise InvalidDataError("the filter begins as JSON but is malformed") from None
    match document:
        case {"where": tree} if len(document) == 1:
            return decode_tree(tree)
        case {"boxes": [*boxes], **others} if 0 < len(boxes) <= _MAX_BOXES:
            parts = [_decode_box(each) for each in boxes]
            if others.keys() - {"filter"}:
                raise InvalidDataError(f"the filter has unknown fields: {', '.join(others)}")
            return combine("and", [*parts, *(decode_filter(str(each)) for each in others.values())])
        case _:
            raise InvalidDataError(
                f"the filter has neither a condition nor 1 to {_MAX_BOXES} boxes"
            )


def _decode_box(box: Any) -> Any:
    match box:
        case [str() as column, [*sides]] if len(sides) == 4:
            if all(type(each) in (int, float) for each in sides):
                return Call("intersects", (Column(column), *(Literal(float(s)) for s in sides)))
        case _:
            pass
    raise InvalidDataError(f"the filter has the invalid box {json.dumps(box)[:100]}")
