"""Functions over whole columns of Variants, and the paths that they take: ``$.a[3]['b c']``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ....errors import InvalidDataError, UsageError
from ...arguments import check_column, check_integer, check_text, refuse
from ...arrow.data_types import is_text
from .arrow_fields import STORAGE_TYPE, make_column
from .buffers import Mask, RowChecks, null_array, place
from .casts import cast_values
from .encoder import encode_rows
from .json_parser import parse_plain
from .json_text import render_json
from .python_values import decode
from .shredding import infer_type, shred, shredded_type
from .types import Kind
from .unshredding import check_shredded_type, unshred
from .values import (
    Values,
    check_sizes,
    open_values,
    parse_levels,
    read_arrays,
    read_objects,
    split_column,
)

Step = str | int
"""A field name, or the index of an element."""

_STEP = re.compile(
    r"""\.(?P<name>[^.\[\]'"\s]+)
      | \[(?P<index>[0-9]+)\]
      | \['(?P<single>(?:[^'\\]|\\.)*)'\]
      | \["(?P<double>(?:[^"\\]|\\.)*)"\]""",
    re.VERBOSE | re.DOTALL,
)
_MAX_INDEX = (1 << 32) - 1


def parse_path(path: str) -> list[Step]:
    """Return the steps of a path.

    A path starts with ``$``, the whole value. ``.name``, ``['name']`` and ``["name"]`` select a
    field, and ``[3]`` selects an element; the first one has index 0. In quotes, a backslash keeps
    the next character.

    Raises `UsageError` if the path is malformed.
    """
    if not check_text("path", path).startswith("$"):
        raise UsageError(f"the path {path!r} does not start with $; write $.{path}")
    steps: list[Step] = []
    at = 1
    while at < len(path):
        match = _STEP.match(path, at)
        if match is None:
            raise UsageError(
                f"the path {path!r} is malformed at {path[at:]!r}: expected .name, ['name'] or [3]"
            )
        at = match.end()
        if match["index"] is not None:
            steps.append(min(int(match["index"][:11]), _MAX_INDEX))
        elif match["name"] is not None:
            steps.append(match["name"])
        else:
            quoted = match["single"] if match["single"] is not None else match["double"]
            steps.append(re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL))
    return steps


def follow(values: Values, steps: Sequence[Step]) -> Values:
    """Return what is at a path, in the rows that have it.

    Only the objects and arrays on the path are read and checked.

    Raises `InvalidDataError` if one of them is invalid.
    """
    for step in steps:
        values = check_sizes(values)
        kind: Any = values.kinds()
        if isinstance(step, str):
            values = _select_field(values.take(np.flatnonzero(kind == Kind.OBJECT)), step)
        else:
            values = _select_element(values.take(np.flatnonzero(kind == Kind.ARRAY)), step)
        if not len(values):
            break
    return check_sizes(values)


def _select_field(values: Values, name: str) -> Values:
    key = values.context.names.find(name)
    _, entries = read_objects(values)
    if key < 0 or entries.key is None:
        return values.take(np.empty(0, np.int64))
    return entries.values.take(np.flatnonzero(entries.key == key))


def _select_element(values: Values, index: int) -> Values:
    _, entries = read_arrays(values)
    first = np.cumsum(entries.counts) - entries.counts
    return entries.values.take(first[entries.counts > index] + index)


INFERENCE_ROWS = 10_000
"""The number of rows at the beginning of a column by which its type is chosen."""
_CHUNK_ROWS = 16 << 10
_CHUNK_BYTES = 8 << 20
"""Columns are worked on in parts of this size, whose arrays fit into the processor's caches."""


def to_json(column: Any, *, ordered: bool = True) -> Any:
    """Return Variants as JSON; see `splitarrow.variant.to_json`."""

    def convert(metadata: Any, value: Any, first_row: int) -> Any:
        values = _open(metadata, value, first_row, ordered)
        return place(render_json(values), values.row, len(value))

    return _map(column, convert, pa.large_string())


def to_python(column: Any, *, ordered: bool = True) -> list[Any]:
    """Return Variants as Python values; see `splitarrow.variant.to_python`."""
    return [
        None if value is None else decode(metadata, value, ordered=ordered)
        for chunk in _chunks(column)
        for metadata, value in zip(*(part.to_pylist() for part in split_column(chunk)), strict=True)
    ]


def get(
    column: Any,
    path: str | Sequence[Step],
    data_type: Any = None,
    *,
    strict: bool,
    ordered: bool,
) -> Any:
    """Return what is at a path, or at its steps; see `splitarrow.variant.get`."""
    steps = parse_path(path) if isinstance(path, str) else path

    def convert(metadata: Any, value: Any, first_row: int) -> Any:
        values = follow(_open(metadata, value, first_row, ordered), steps)
        if data_type is not None:
            return cast_values(values, len(value), data_type, strict=strict)
        return make_column(metadata, place(values.to_arrow(), values.row, len(value)))

    return _map(column, convert, STORAGE_TYPE if data_type is None else data_type)


def find_valid(column: Any, *, ordered: bool = True) -> Any:
    """Return which Variants are valid; see `splitarrow.variant.is_valid`."""

    def convert(metadata: Any, value: Any, first_row: int) -> Any:
        checks = RowChecks(len(value), first_row=first_row, collect=True)
        parse_levels(open_values(metadata, value, checks, ordered=ordered))
        missing: Mask = value.is_null().to_numpy(zero_copy_only=False)
        return pa.array(~checks.invalid, mask=missing)

    return _map(column, convert, pa.bool_())


def unshred_column(column: Any, *, ordered: bool = False) -> Any:
    """Return a shredded column unshredded; see `splitarrow.variant.unshred`."""
    check_shredded_type(check_column("column", column).type)
    results: list[Any] = []
    row = 0
    for chunk in _chunks(column):
        metadata, value = unshred(chunk, first_row=row, ordered=ordered)
        results.append(make_column(metadata, value))
        row += len(chunk)
    return _join(column, results, STORAGE_TYPE)


def shred_column(column: Any, data_type: Any = None, *, ordered: bool) -> Any:
    """Return a column shredded as a type; see `splitarrow.variant.shred`."""
    if data_type is None:
        data_type = infer_column(column, rows=INFERENCE_ROWS, ordered=ordered)

    def convert(metadata: Any, value: Any, first_row: int) -> Any:
        values = _open(metadata, value, first_row, ordered)
        parse_levels(values)
        return shred(metadata, values, len(value), data_type)

    return _map(column, convert, shredded_type(data_type))


def infer_column(column: Any, *, rows: int, ordered: bool) -> Any:
    """Return a type to shred a column as; see `splitarrow.variant.infer_type`."""
    arrays = list(_chunks(check_column("column", column)[: check_integer("rows", rows, 0)]))
    if not arrays:
        return pa.null()
    pieces = [
        pa.StructArray.from_arrays(split_column(array), ["metadata", "value"]) for array in arrays
    ]
    metadata, value = split_column(pa.concat_arrays(pieces))
    return infer_type(_open(metadata, value, 0, ordered))


def from_python(values: Iterable[Any]) -> Any:
    """Return Python values as Variants; see `splitarrow.variant.from_python`."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        refuse("values", values, "an iterable of Python values")
    rows = iter(values)
    arrays: list[Any] = []
    while part := list(islice(rows, _CHUNK_ROWS)):
        metadata, encoded = encode_rows(part)
        arrays.append(make_column(metadata, encoded))
    return _join(None, arrays, STORAGE_TYPE)


def from_json(texts: Any) -> Any:
    """Return JSON texts as Variants; see `splitarrow.variant.from_json`."""
    arrays: list[Any] = []
    done = 0
    if not is_text(check_column("texts", texts).type):
        raise UsageError(f"texts has the type {texts.type}; expected strings with JSON")
    for chunk in _chunks(texts):
        metadata, encoded = _encode_json(chunk, done)
        if chunk.null_count:
            encoded = pc.if_else(chunk.is_valid(), encoded, pa.scalar(None, encoded.type))
        arrays.append(make_column(metadata, encoded))
        done += len(chunk)
    return _join(texts, arrays, STORAGE_TYPE)


def _encode_json(texts: Any, first_row: int) -> tuple[Any, Any]:
    """Return the metadata and the values of JSON texts."""
    taken, metadata, value = parse_plain(texts)
    if taken.all():
        return metadata, value
    others = np.flatnonzero(~taken)
    rest = encode_rows(parse_single(texts.take(pa.array(others)), first_row + others))
    index = np.empty(len(texts), np.int64)
    index[np.flatnonzero(taken)] = np.arange(len(value))
    index[others] = len(value) + np.arange(len(others))
    metadata, value = (
        pa.concat_arrays([one, other]).take(pa.array(index))
        for one, other in zip((metadata, value), rest, strict=True)
    )
    return metadata, value


def parse_single(texts: Any, numbers: Any) -> list[Any]:
    """Return JSON texts, the rows with some numbers, as Python values; None for null."""
    # Calls into Python for each number take half of the time, and few texts need them.
    needs_care = pc.match_substring_regex(texts, "[0-9][eE]|[0-9.]{39}")
    is_plain = not pc.any(needs_care, min_count=0).as_py()
    decoder = json.JSONDecoder(
        parse_float=Decimal if is_plain else _parse_number,
        parse_int=int if is_plain else _parse_number,
        parse_constant=_refuse_constant,
        object_pairs_hook=_build_object,
    )
    rows: list[Any] = []
    try:
        rows.extend(None if text is None else decoder.decode(text) for text in texts.to_pylist())
    except (ValueError, RecursionError) as error:
        raise InvalidDataError(f"row {numbers[len(rows)]} is not JSON: {error}") from None
    return rows


def _parse_number(text: str) -> int | float | Decimal:
    """Return an exact number as it is written; one with an exponent is a floating-point number."""
    if "e" in text or "E" in text:
        return float(text)
    digits = len(text) - ("." in text) - ("-" in text)
    if digits > 38:
        return float(text)
    return Decimal(text) if "." in text else int(text)


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a JSON value")


def _build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("an object has two fields of one name")
    return fields


def _open(metadata: Any, value: Any, first_row: int, ordered: bool) -> Values:
    checks = RowChecks(len(value), first_row=first_row)
    return open_values(metadata, value, checks, ordered=ordered)


def _map(column: Any, convert: Callable[[Any, Any, int], Any], data_type: Any) -> Any:
    """Return the results of a function over parts of a column, as an array of the same kind."""
    results: list[Any] = []
    row = 0
    for chunk in _chunks(column):
        metadata, value = split_column(chunk)
        results.append(convert(metadata, value, row))
        row += len(chunk)
    return _join(column, results, data_type)


def _join(column: Any, results: list[Any], data_type: Any) -> Any:
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array(results, data_type)
    return pa.concat_arrays(results) if results else null_array(0, data_type)


def _chunks(column: Any) -> Iterator[Any]:
    """Yield parts of a column that are small enough."""
    check_column("column", column)
    for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
        row_bytes = max(1, chunk.nbytes // max(1, len(chunk)))
        step = int(min(max(_CHUNK_BYTES // row_bytes, 1), _CHUNK_ROWS))
        for first in range(0, len(chunk), step):
            yield chunk.slice(first, step)
