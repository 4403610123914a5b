"""Rows of JSON Lines with all digits of their numbers, and the types that keep them.

pyarrow is many times faster, but it turns large integers to doubles.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from ....formats.arrow.data_types import list_child_types, list_fields, replace_fields
from ....formats.arrow.json_values import CONSTANTS, Number
from .csv_types import Column, read_doubles

_DOUBTFUL = re.compile(
    rb"(?<=[\s:,\[-])(?:[0-9][0-9.]{15,}(?:[eE][-+]?[0-9]+)?|[0-9][0-9.]*[eE][-+]?[0-9]{3,})"
)
"""Numbers that a double may not hold. It finds no text that begins with digits."""


class Rows(NamedTuple):
    """The rows of a block."""

    objects: list[dict[str, Any]]
    """The rows, with a `Number` for each number."""
    lines: list[int]
    """The line of each row in the file, from 1."""


def read_rows(handle: Any, block_bytes: int) -> Iterator[Rows]:
    """Yield the rows of a file in blocks."""
    first_line = 1
    for block in _read_lines(handle, block_bytes):
        texts = enumerate(block.split(b"\n"), first_line)
        found = {line: _read_row(text, line) for line, text in texts if text.strip()}
        yield Rows(list(found.values()), list(found))
        first_line += block.count(b"\n")


def _read_lines(handle: Any, block_bytes: int) -> Iterator[bytes]:
    """Yield whole lines; all but the last end in a newline."""
    rest = b""
    while data := handle.read(block_bytes):
        head, newline, tail = data.rpartition(b"\n")
        if newline:
            yield rest + head + newline
            rest = tail
        else:
            rest += data
    if rest:
        yield rest


def _read_row(line: bytes, number: int) -> dict[str, Any]:
    try:
        row = _DECODER.decode(line.decode("utf-8-sig" if number == 1 else "utf-8"))
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise ValueError(f"line {number}: {reason}") from None
    if not isinstance(row, dict):
        raise ValueError(f"line {number}: it has no JSON object")
    return row


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {repeated!r} is repeated")
    return members


_DECODER = json.JSONDecoder(
    parse_int=Number, parse_float=Number, parse_constant=Number, object_pairs_hook=_make_object
)


def is_exact(handle: Any, schema: pa.Schema, block_bytes: int) -> bool:
    """Return whether pyarrow reads all values of a file, with all digits of its numbers."""
    if any(_contains(pa.types.is_null, list_child_types(field.type)) for field in schema):
        return False  # pyarrow drops the last null of a list
    if not _contains(pa.types.is_float64, schema.types):
        return True
    for block in _read_lines(handle, block_bytes):
        try:
            read_doubles(pa.array(_DOUBTFUL.findall(block), pa.string()))
        except ValueError:
            return False
    return True


def _contains(test: Any, data_types: list[Any]) -> bool:
    return any(test(each) or _contains(test, list_child_types(each)) for each in data_types)


def replace_timestamps(schema: pa.Schema) -> pa.Schema:
    """Return a schema with text for the timestamps that pyarrow finds in text."""
    return pa.schema([field.with_type(_replace_timestamps(field.type)) for field in schema])


def _replace_timestamps(data_type: Any) -> Any:
    if pa.types.is_timestamp(data_type):
        return pa.string()
    if not data_type.num_fields:
        return data_type
    fields = [each.with_type(_replace_timestamps(each.type)) for each in list_fields(data_type)]
    return replace_fields(data_type, fields)


class Shape:
    """What is known of the values of a column, or of those inside of it."""

    def __init__(self) -> None:
        self._kinds: set[str] = set()
        self._numbers: list[Any] = []
        self._items: Shape | None = None
        self._members: dict[str, Shape] = {}

    def add(self, values: list[Any]) -> None:
        """Take note of values of `read_rows`."""
        kinds = {_name_kind(value) for value in values} - {"null"}
        self._kinds |= kinds
        if kinds & {"number", "constant"}:
            numbers = [value for value in values if _name_kind(value) in ("number", "constant")]
            self._numbers.append(pa.array(numbers, pa.string()))
        if "array" in kinds:
            self._items = self._items or Shape()
            self._items.add([item for value in values if isinstance(value, list) for item in value])
        if "object" in kinds:
            objects = [value for value in values if isinstance(value, dict)]
            for name in dict.fromkeys(name for value in objects for name in value):
                member = self._members.setdefault(name, Shape())
                member.add([value.get(name) for value in objects])

    def infer(self, name: str) -> Any:
        """Return the type; `name` is that of the column, for an error."""
        kinds = self._kinds
        if "number" in kinds and kinds <= {"number", "constant"}:
            column = Column()
            column.observe(pa.chunked_array(self._numbers).combine_chunks())
            return column.type
        kinds = {"text" if kind == "constant" else kind for kind in kinds}
        if len(kinds) > 1:
            found = " and ".join(sorted(kinds))
            raise ValueError(f"the column {name!r} has values of different kinds: {found}")
        if self._items is not None:
            return pa.list_(self._items.infer(name))
        if kinds == {"object"}:
            return pa.struct(self.infer_fields())
        return {"text": pa.string(), "boolean": pa.bool_()}.get(next(iter(kinds), ""), pa.null())

    def infer_fields(self) -> list[Any]:
        """Return the fields of objects."""
        return [pa.field(name, member.infer(name)) for name, member in self._members.items()]


def _name_kind(value: Any) -> str:
    if isinstance(value, str):
        if isinstance(value, Number):
            return "number"
        return "constant" if value in CONSTANTS else "text"
    if value is None:
        return "null"
    return _KINDS[type(value)]


_KINDS: dict[type, str] = {bool: "boolean", list: "array", dict: "object"}
