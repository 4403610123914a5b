"""Variants: semi-structured values in columns of Arrow and Parquet.

A Variant column is a struct of ``metadata`` and ``value``, both binary, whose field names the
extension type ``arrow.parquet.variant``. The functions take such a struct array, chunked or not,
and return an array of the same kind and length. A null row stays null. They check each value before
they use it.

duckdb 2.0 writes objects whose fields are not in the order of their names, which the specification
forbids. Functions with the parameter `ordered` accept them if it is false.

Examples
--------
>>> import pyarrow
>>> from splitarrow import variant
>>> column = variant.from_json(pyarrow.array(['{"id": 7, "tags": ["a", "b"]}', '{"id": "x"}']))
>>> variant.to_json(column).to_pylist()
['{"id":7,"tags":["a","b"]}', '{"id":"x"}']
>>> variant.get(column, "$.tags[1]", pyarrow.string()).to_pylist()
['b', None]
>>> variant.get(column, "$.id", pyarrow.int64(), errors="null").to_pylist()
[7, None]
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from .errors import UsageError
from .formats.arguments import check_path, check_text, check_type, list_items, refuse
from .formats.arrow.numpy_arrays import require_numpy
from .formats.parquet.footer import MAGIC, TAIL_BYTES, read_footer_size, wrap_footer
from .formats.parquet.variant import arrow_fields
from .formats.parquet.variant.arrow_fields import EXTENSION_NAME
from .formats.parquet.variant_columns import annotate_variants, find_variant_paths

if TYPE_CHECKING:
    from .formats.parquet.variant.python_values import Timestamp

__all__ = [
    "EXTENSION_NAME",
    "Timestamp",
    "annotate",
    "cast",
    "field",
    "from_json",
    "from_python",
    "get",
    "infer_type",
    "is_valid",
    "parse_type",
    "shred",
    "to_json",
    "to_python",
    "unshred",
    "write_parquet",
]


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

    if not isinstance(table, pa.Table):  # pyright: ignore[reportUnnecessaryIsInstance]
        refuse("table", table, "a pyarrow.Table")
    path = check_path("path", path)
    shred_types = shred or {}
    unknown = shred_types.keys() - set(table.column_names)
    if unknown:
        raise UsageError(f"the table has no column {min(unknown)!r} to shred")
    paths = find_variant_paths(table.schema)
    for name, data_type in shred_types.items():
        index = table.column_names.index(name)
        column = _columns().shred_column(table.column(index), data_type, ordered=True)
        table = table.set_column(index, pa.field(name, column.type), column)
    paths += [name for name in shred_types if name not in paths]
    arguments: dict[str, Any] = {"store_decimal_as_integer": True, "store_schema": False}
    pq.write_table(table, path, **{**arguments, **options})
    annotate(path, paths)


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
    items = list_items("columns", columns, "paths of groups")
    names = [check_text("a path in columns", item) for item in items]
    with open(check_path("path", path), "r+b") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(end - TAIL_BYTES, 0))
        size = read_footer_size(file.read(), end)
        start = end - TAIL_BYTES - size
        file.seek(start)
        footer = annotate_variants(file.read(size), names)
        file.seek(start)
        file.write(wrap_footer(footer)[len(MAGIC) :])
        file.truncate()


def __getattr__(name: str) -> Any:
    """Import the class `Timestamp` at its first use, because it needs NumPy."""
    if name != "Timestamp":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require_numpy()
    from .formats.parquet.variant.python_values import Timestamp

    return Timestamp


def _columns() -> Any:
    require_numpy()
    from .formats.parquet.variant import functions as columns

    return columns


def _is_strict(errors: str) -> bool:
    if str(errors) not in ("raise", "null"):
        raise UsageError(f'errors={errors!r}: expected "raise" or "null"')
    return errors == "raise"


def field(
    name: str, *, nullable: bool = True, fields: Mapping[str, pa.DataType | None] | None = None
) -> pa.Field[Any]:
    """Return the field of an unshredded Variant column, for a `pyarrow.Schema`.

    Do not register a Python extension type of its name: pyarrow crashes when it writes one to a
    Parquet file.

    Parameters
    ----------
    name : str
        The name of the column.
    nullable : bool, optional
        Whether rows may be null.
    fields : mapping of str to pyarrow.DataType or None, optional
        The fields of its objects that readers of a published dataset or an Arrow file can name as
        columns, with dots between the names of nested fields, and their types. None stands for
        Variants. A value that does not fit the type is null.

    Raises
    ------
    UsageError
        If a field of a Variant cannot have the name or the type.
    """
    plain = arrow_fields.variant_field(check_text("name", name), nullable=nullable)
    return plain if fields is None else arrow_fields.describe_field(plain, fields)


def to_json(column: Any, *, ordered: bool = True) -> Any:
    """Return Variants as JSON texts.

    A decimal keeps the digits of its scale, and a floating-point number has a fraction. Dates,
    times and timestamps are ISO 8601 strings, with ``+00:00`` if they are instants; binary values
    are in Base64; NaN and the infinities are strings. Fields are in the order of their names.

    Parameters
    ----------
    column : pyarrow.StructArray or pyarrow.ChunkedArray, shape (n,)
        The Variants.
    ordered : bool, optional
        Refuse objects whose fields are not in the order of their names.

    Returns
    -------
    pyarrow.LargeStringArray or pyarrow.ChunkedArray, shape (n,)

    Raises
    ------
    InvalidDataError
        If a Variant is invalid.
    """
    return _columns().to_json(column, ordered=ordered)


def from_json(texts: Any) -> Any:
    """Return JSON texts as Variants.

    Integers get the smallest type that holds them. A number with a point becomes a decimal, and one
    with an exponent or with more than 38 digits a double.

    Parameters
    ----------
    texts : pyarrow.Array or pyarrow.ChunkedArray, shape (n,)
        The texts, of a string type. A null text becomes a null Variant.

    Returns
    -------
    pyarrow.StructArray or pyarrow.ChunkedArray, shape (n,)

    Raises
    ------
    InvalidDataError
        If a text is not JSON, or an object has two fields of one name.
    UsageError
        If a value has no Variant type.
    """
    return _columns().from_json(texts)


def to_python(column: Any, *, ordered: bool = True) -> list[Any]:
    """Return Variants as Python values.

    Objects become dicts, arrays lists, exact numbers int or Decimal, and dates and times objects of
    `datetime`. A timestamp in nanoseconds, or outside of the years 1 to 9999, becomes a
    `Timestamp`.
    This decodes one row after another; `to_json`, `get` and `cast` are faster.

    Raises
    ------
    InvalidDataError
        If a Variant is invalid.
    """
    return _columns().to_python(column, ordered=ordered)


def from_python(values: Iterable[Any]) -> Any:
    """Return Python values as a `pyarrow.StructArray` of Variants, the inverse of `to_python`.

    None becomes the Variant null. A number of NumPy keeps its type.

    Raises
    ------
    UsageError
        If a value has no Variant type.
    """
    return _columns().from_python(values)


def get(
    column: Any,
    path: str,
    type: pa.DataType | None = None,
    *,
    errors: Literal["raise", "null"] = "raise",
    ordered: bool = True,
) -> Any:
    """Return what is at a path, without decoding the rest.

    Parameters
    ----------
    column : pyarrow.StructArray or pyarrow.ChunkedArray, shape (n,)
        The Variants.
    path : str
        ``$``, followed by ``.name``, ``['name']`` and ``[3]``.
    type : pyarrow.DataType, optional
        Convert the values to this type, as `cast` does. Without it, the result is Variants.
    errors : {"raise", "null"}, optional
        What to do with values that do not fit the type.
    ordered : bool, optional
        Refuse objects whose fields are not in the order of their names.

    Returns
    -------
    pyarrow.Array or pyarrow.ChunkedArray, shape (n,)
        The values. A row without this path is null.

    Raises
    ------
    UsageError
        If the path is malformed, or Variants cannot be converted to the type.
    InvalidDataError
        If an object or array on the path is invalid, or a value does not fit the type.
    """
    strict = _is_strict(errors)
    check_type("type", type, optional=True)
    steps = check_text("path", path)
    return _columns().get(column, steps, type, strict=strict, ordered=ordered)


def cast(
    column: Any,
    type: pa.DataType,
    *,
    errors: Literal["raise", "null"] = "raise",
    ordered: bool = True,
) -> Any:
    """Return Variants as an Arrow type.

    Nothing is guessed: exact numbers become equal exact numbers, all numbers become floating-point
    numbers, and everything else keeps its type. No text is parsed. A struct takes the fields of
    objects by name, and a list the elements of arrays. The Variant null becomes null.

    Parameters, results and errors are those of `get`.
    """
    strict = _is_strict(errors)
    return _columns().get(column, "$", check_type("type", type), strict=strict, ordered=ordered)


def is_valid(column: Any, *, ordered: bool = True) -> Any:
    """Return which Variants are valid, as booleans. A null row stays null."""
    return _columns().find_valid(column, ordered=ordered)


def unshred(column: Any, *, ordered: bool = False) -> Any:
    """Return a shredded column as Variants (Variant Shredding).

    Parameters
    ----------
    column : pyarrow.StructArray or pyarrow.ChunkedArray, shape (n,)
        A struct of ``metadata``, ``value`` and ``typed_value``, as pyarrow reads it.
    ordered : bool, optional
        Refuse encoded objects whose fields are not in the order of their names.

    Raises
    ------
    InvalidDataError
        If the type is not one of shredded Variants, or ``value`` and ``typed_value`` contradict
        each other.
    """
    return _columns().unshred_column(column, ordered=ordered)


def shred(column: Any, type: pa.DataType | None = None, *, ordered: bool = True) -> Any:
    """Return Variants split into typed columns, the inverse of `unshred`.

    Parameters
    ----------
    column : pyarrow.StructArray or pyarrow.ChunkedArray, shape (n,)
        The Variants.
    type : pyarrow.DataType, optional
        What to shred as: a struct for objects, a list for arrays, or a primitive type. By default,
        `infer_type` chooses one.
    ordered : bool, optional
        Refuse objects whose fields are not in the order of their names.

    Returns
    -------
    pyarrow.StructArray or pyarrow.ChunkedArray, shape (n,)
        A struct of ``metadata``, ``value`` and ``typed_value``.

    Raises
    ------
    UsageError
        If Variants cannot be shredded as the type.
    InvalidDataError
        If a Variant is invalid.
    """
    check_type("type", type, optional=True)
    return _columns().shred_column(column, type, ordered=ordered)


def parse_type(text: str) -> Any:
    """Return a type to shred Variants as, from its text.

    ``struct<NAME: TYPE, …>`` is for objects, ``list<TYPE>`` for arrays, and ``variant`` for values
    that stay encoded. A name with one of ``:<>,`` or a space at an end is in double quotes, as in
    JSON.

    Raises
    ------
    UsageError
        If the text is malformed, or names a type that Variants do not have.

    Examples
    --------
    >>> parse_type("struct<id: int64, tags: list<string>, price: decimal(9, 2)>")
    StructType(struct<id: int64, tags: list<item: string>, price: decimal128(9, 2)>)
    """
    return arrow_fields.parse_type(check_text("text", text))


def infer_type(column: Any, *, rows: int = 10_000, ordered: bool = True) -> Any:
    """Return the type that `shred` should use, from the first rows of a column.

    Objects become structs of the fields that a tenth of them have. A type must fit nine tenths of
    the values that are not null. The result is the null type if the values have too little in
    common.
    """
    return _columns().infer_column(column, rows=rows, ordered=ordered)
