"""The mapping between Arrow types and Spark types. docs/spark-types.md has the table.

PySpark itself maps Spark types to Arrow types. This module adds the other direction: from any
Arrow type to a Spark type that can hold all of its values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as at
from pyspark.errors import PySparkException
from pyspark.sql import types as st

from ..errors import InvalidDataError
from ..formats.parquet.geo.crs import extension_metadata
from ..formats.parquet.logical_types import Kind, LogicalType
from ..formats.parquet.variant.arrow_fields import variant_field
from .spark_versions import (
    VERSION,
    Absent,
    CalendarIntervalType,
    GeographyType,
    GeometryType,
    TimeType,
    VariantType,
    is_geography,
    is_geometry,
    is_variant,
    to_arrow_type,
)
from .stored_types import TYPE_KEY, mark_type, nullable_type, restore_type

_MAX_DECIMAL_DIGITS = 38
_VARIANT_EXTENSIONS = ("arrow.parquet.variant", "parquet.variant")
_SECOND_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}

_PRIMITIVES: dict[Any, Callable[[], st.DataType]] = {
    pa.null(): st.NullType,
    pa.bool_(): st.BooleanType,
    pa.int8(): st.ByteType,
    pa.int16(): st.ShortType,
    pa.int32(): st.IntegerType,
    pa.int64(): st.LongType,
    # Spark has no unsigned integers. The next larger signed type holds all values.
    pa.uint8(): st.ShortType,
    pa.uint16(): st.IntegerType,
    pa.uint32(): st.LongType,
    pa.uint64(): lambda: st.DecimalType(20, 0),
    pa.float16(): st.FloatType,
    pa.float32(): st.FloatType,
    pa.float64(): st.DoubleType,
    pa.string(): st.StringType,
    pa.large_string(): st.StringType,
    pa.string_view(): st.StringType,
    pa.binary(): st.BinaryType,
    pa.large_binary(): st.BinaryType,
    pa.binary_view(): st.BinaryType,
    pa.date32(): st.DateType,
    pa.date64(): st.DateType,
}


def spark_schema(schema: pa.Schema) -> st.StructType:
    """Return the Spark schema for an Arrow schema. All columns are nullable.

    A column that Spark has written has the type that it had there, if its metadata names it.

    Raises `InvalidDataError` if Spark cannot hold a column. The message names the column.
    """
    return st.StructType([st.StructField(field.name, column_type(field)) for field in schema])


def column_type(field: pa.Field[Any]) -> st.DataType:
    """Return the Spark type of a column: the one that its metadata names, or `spark_type`."""
    return restore_type(field, spark_type(field.type, field.name))


def stored_schema(schema: pa.Schema) -> st.StructType:
    """Return the Spark schema for an Arrow schema, whatever the metadata of the columns names."""
    return st.StructType([st.StructField(f.name, spark_type(f.type, f.name)) for f in schema])


def importable_schema(schema: pa.Schema) -> st.StructType:
    """Return `spark_schema`, but with the types of `stored_schema` where PySpark needs them.

    A data source in Python cannot return some types, such as ``interval year to month``.
    """
    stored = stored_schema(schema)
    pairs = zip(spark_schema(schema), stored, strict=True)
    return st.StructType([one if is_importable(one.dataType) else other for one, other in pairs])


def is_importable(data_type: st.DataType) -> bool:
    """Return whether a data source in Python can return values of a type."""
    match data_type:
        case st.StructType():
            return all(is_importable(field.dataType) for field in data_type)
        case st.ArrayType():
            return is_importable(data_type.elementType)
        case st.MapType():
            return is_importable(data_type.keyType) and is_importable(data_type.valueType)
        case _:
            return not isinstance(data_type, _NOT_IMPORTABLE)


_NOT_IMPORTABLE: tuple[Any, ...] = (
    st.YearMonthIntervalType,
    CalendarIntervalType,
    GeometryType,
    GeographyType,
)


def compares_as_stored(column: pa.Field[Any], path: Sequence[str] = ()) -> bool:
    """Return whether Spark compares the values of a column as those of its Arrow type.

    It does not if the column has another type in Spark, such as a string with a collation. `path`
    names a field of the column.
    """
    if TYPE_KEY not in (column.metadata or {}):
        return True
    try:
        stored = spark_type(column.type, column.name)
    except InvalidDataError:
        return False
    restored = restore_type(column, stored)
    for name in path:
        if not isinstance(restored, st.StructType) or not isinstance(stored, st.StructType):
            return False
        restored, stored = restored[name].dataType, stored[name].dataType
    return restored == stored


def spark_type(arrow_type: Any, column: str) -> st.DataType:
    """Return the Spark type that holds all values of an Arrow type.

    Raises `InvalidDataError` if Spark has no such type.
    """
    primitive = _PRIMITIVES.get(arrow_type)
    if primitive is not None:
        return primitive()
    if isinstance(arrow_type, pa.BaseExtensionType):
        if arrow_type.extension_name in _VARIANT_EXTENSIONS:
            return _require(VariantType, "VARIANT", column)()
        if arrow_type.extension_name == "arrow.bool8":
            return st.BooleanType()
        return spark_type(arrow_type.storage_type, column)
    if at.is_dictionary(arrow_type) or at.is_run_end_encoded(arrow_type):
        return spark_type(arrow_type.value_type, column)
    if at.is_fixed_size_binary(arrow_type):
        return st.BinaryType()
    if at.is_decimal(arrow_type):
        precision, scale = arrow_type.precision, arrow_type.scale
        if precision <= _MAX_DECIMAL_DIGITS and 0 <= scale <= precision:
            return st.DecimalType(precision, scale)
    elif at.is_timestamp(arrow_type):
        return st.TimestampNTZType() if arrow_type.tz is None else st.TimestampType()
    elif at.is_time(arrow_type):
        return _require(TimeType, "TIME", column)(_SECOND_DIGITS[arrow_type.unit])
    elif at.is_duration(arrow_type):
        return st.DayTimeIntervalType()
    elif at.is_interval(arrow_type):
        return _require(CalendarIntervalType, "INTERVAL", column)()
    elif at.is_map(arrow_type):
        key = spark_type(arrow_type.key_type, f"{column}.key")
        return st.MapType(key, spark_type(arrow_type.item_type, f"{column}.value"))
    elif at.is_struct(arrow_type):
        return _spark_struct(arrow_type, column)
    elif _is_list(arrow_type):
        return st.ArrayType(spark_type(arrow_type.value_type, f"{column}.element"))
    raise InvalidDataError(
        f"column {column!r} has the type {_type_name(arrow_type)}, which Spark cannot hold"
    )


def _require(data_type: Any, name: str, column: str) -> Any:
    if data_type is Absent:
        raise InvalidDataError(
            f"column {column!r} needs the type {name}, which Spark {VERSION} does not have"
        )
    return data_type


def _spark_struct(arrow_type: Any, column: str) -> st.DataType:
    if is_variant(arrow_type):
        return VariantType()
    if is_geometry(arrow_type) or is_geography(arrow_type):
        kind = "geometry" if is_geometry(arrow_type) else "geography"
        raise InvalidDataError(
            f"column {column!r} is a {kind}, which Spark cannot import from Python; "
            "write ST_AsBinary of the column"
        )
    fields = [arrow_type.field(index) for index in range(arrow_type.num_fields)]
    names = [field.name for field in fields]
    if len(set(names)) < len(names):
        raise InvalidDataError(
            f"column {column!r} is a struct with duplicate field names, which Spark cannot hold"
        )
    return st.StructType(
        [st.StructField(f.name, spark_type(f.type, f"{column}.{f.name}")) for f in fields]
    )


def _is_list(arrow_type: Any) -> bool:
    return (
        at.is_list(arrow_type)
        or at.is_large_list(arrow_type)
        or at.is_fixed_size_list(arrow_type)
        or at.is_list_view(arrow_type)
        or at.is_large_list_view(arrow_type)
    )


def _type_name(arrow_type: Any) -> str:
    try:
        return str(arrow_type)
    except KeyError:  # pyarrow cannot format some interval types
        return "interval"


def arrow_schema(schema: st.StructType) -> pa.Schema:
    """Return the Arrow schema in which Spark and Python exchange rows of a Spark schema.

    All fields are nullable, because nullability in Spark depends on the query, not on the data. A
    year-month interval is its number of months, as in the rows of Spark.

    Raises `InvalidDataError` if Spark cannot export a column as Arrow data. The message names the
    column.
    """
    return pa.schema([_field(field, to_arrow_type) for field in schema.fields])


def sink_schema(schema: st.StructType) -> pa.Schema:
    """Return the Arrow schema in which rows of a Spark schema are published.

    It is that of `arrow_schema`, but a geometry or geography is binary, in WKB, and the metadata of
    its field names the extension ``geoarrow.wkb``. That of a VARIANT names
    ``arrow.parquet.variant``. Where the Arrow type means another type to Spark, the metadata of the
    column has the type that Spark had.

    Raises `InvalidDataError` as `arrow_schema` does; also if each value of a geospatial column has
    its own SRID.
    """
    return pa.schema([_published_field(field) for field in schema.fields])


def _published_field(field: st.StructField) -> pa.Field[Any]:
    data_type: Any = field.dataType
    if isinstance(data_type, VariantType):
        return variant_field(field.name)
    published = _field(field, lambda leaf: _published_leaf(leaf, field.name))
    if isinstance(data_type, (GeometryType, GeographyType)):
        kind = Kind.GEOMETRY if isinstance(data_type, GeometryType) else Kind.GEOGRAPHY
        logical = LogicalType(kind, crs=_find_crs(data_type))
        metadata: Any = extension_metadata(logical, {})
        published = published.with_metadata(metadata)
    try:
        read = spark_type(published.type, field.name)
    except InvalidDataError:  # a struct with duplicate names, for one
        return published
    return mark_type(published, nullable_type(data_type), read)


def _published_leaf(data_type: Any, column: str) -> pa.DataType:
    if not isinstance(data_type, (GeometryType, GeographyType)):
        return to_arrow_type(data_type)
    if data_type.srid < 0:
        raise InvalidDataError(
            f"column {column!r} has values of any SRID, which Arrow has no place for; "
            f"use ST_SetSRID({column}, …), or write ST_AsBinary of the column"
        )
    return pa.binary()


def _find_crs(data_type: Any) -> str:
    """Return the CRS, as Parquet writes it: Spark's name is in its JSON form."""
    text = str(data_type.jsonValue()).partition("(")[2].rstrip(")").partition(",")[0]
    return text.lower() if text.startswith("SRID:") else text


_Leaf = Callable[[Any], pa.DataType]


def _field(field: st.StructField, convert: _Leaf) -> pa.Field[Any]:
    try:
        return pa.field(field.name, _arrow_type(field.dataType, convert))
    except PySparkException:
        raise InvalidDataError(
            f"column {field.name!r}: Spark cannot export the type "
            f"{field.dataType.simpleString()} as Arrow data; cast it to another type"
        ) from None


def _arrow_type(data_type: st.DataType, convert: _Leaf) -> Any:
    """Return the Arrow type of a Spark type, the leaves of which a function converts."""
    match data_type:
        case st.UserDefinedType():
            return _arrow_type(data_type.sqlType(), convert)
        case st.StructType():
            return pa.struct(
                [pa.field(f.name, _arrow_type(f.dataType, convert)) for f in data_type]
            )
        case st.ArrayType():
            return pa.list_(pa.field("element", _arrow_type(data_type.elementType, convert)))
        case st.MapType():
            key: Any = pa.field("key", _arrow_type(data_type.keyType, convert), nullable=False)
            value: Any = pa.field("value", _arrow_type(data_type.valueType, convert))
            return pa.map_(key, value)
        case st.YearMonthIntervalType():
            return pa.int32()
        case _:
            is_calendar = isinstance(data_type, CalendarIntervalType)
            return pa.month_day_nano_interval() if is_calendar else convert(data_type)


def check_readable(schema: st.StructType) -> None:
    """Check that Spark accepts all columns from a data source that is written in Python.

    Raises `InvalidDataError` if Spark rejects a column. The message names the column.
    """
    arrow_schema(schema)
    for field in schema.fields:
        if not is_importable(field.dataType):
            raise InvalidDataError(
                f"column {field.name!r}: Spark cannot import the type "
                f"{field.dataType.simpleString()} from Python; use the reader in the JVM, or "
                "name another type with schema(…)"
            )


def check_exportable(schema: st.StructType) -> None:
    """Check that PySpark passes all columns to a writer in Python.

    Raises `InvalidDataError` if it does not. The message names the column.
    """
    for field in schema.fields:
        if _has_months(field.dataType):
            raise InvalidDataError(
                f"column {field.name!r}: PySpark cannot export the type "
                f"{field.dataType.simpleString()}; cast it to int"
            )


def _has_months(data_type: st.DataType) -> bool:
    match data_type:
        case st.StructType():
            return any(_has_months(field.dataType) for field in data_type)
        case st.ArrayType():
            return _has_months(data_type.elementType)
        case st.MapType():
            return _has_months(data_type.keyType) or _has_months(data_type.valueType)
        case _:
            return isinstance(data_type, st.YearMonthIntervalType)
