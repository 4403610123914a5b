"""The mapping between Arrow types and Spark types. docs/spark-types.md has the table.

PySpark itself maps Spark types to Arrow types. This module adds the other direction: from any
Arrow type to a Spark type that can hold all of its values.
"""

from __future__ import annotations

from collections.abc import Callable
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
    GeographyType,
    GeometryType,
    TimeType,
    VariantType,
    find_collation,
    is_geography,
    is_geometry,
    is_variant,
    to_arrow_type,
)

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

    Raises `InvalidDataError` if Spark cannot hold a column. The message names the column.
    """
    return st.StructType([st.StructField(f.name, spark_type(f.type, f.name)) for f in schema])


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

    All fields are nullable, because nullability in Spark depends on the query, not on the data.

    Raises `InvalidDataError` if Spark cannot export a column as Arrow data, or would lose its
    collation. The message names the column.
    """
    fields: list[Any] = []
    for field in schema.fields:
        _check_collations(field.dataType, field.name)
        try:
            arrow_type = to_arrow_type(_nullable(field.dataType))
        except PySparkException:
            raise InvalidDataError(
                f"column {field.name!r}: Spark cannot export the type "
                f"{field.dataType.simpleString()} as Arrow data; cast it to another type"
            ) from None
        fields.append(pa.field(field.name, arrow_type))
    return pa.schema(fields)


def sink_schema(schema: st.StructType) -> pa.Schema:
    """Return the Arrow schema in which rows of a Spark schema are published.

    It is that of `arrow_schema`, but a geometry or geography is binary, in WKB, and the metadata of
    its field names the extension ``geoarrow.wkb``. That of a VARIANT names
    ``arrow.parquet.variant``.

    Raises `InvalidDataError` as `arrow_schema` does; also if each value of a geospatial column has
    its own SRID.
    """
    arrow = arrow_schema(schema)
    for index, field in enumerate(schema.fields):
        data_type: Any = field.dataType
        if isinstance(data_type, VariantType):
            arrow = arrow.set(index, variant_field(field.name))
        if not isinstance(data_type, (GeometryType, GeographyType)):
            continue
        if data_type.srid < 0:
            raise InvalidDataError(
                f"column {field.name!r} has values of any SRID, which Arrow has no place for; "
                f"use ST_SetSRID({field.name}, …), or write ST_AsBinary of the column"
            )
        kind = Kind.GEOMETRY if isinstance(data_type, GeometryType) else Kind.GEOGRAPHY
        logical = LogicalType(kind, crs=_find_crs(data_type))
        metadata: Any = extension_metadata(logical, {})
        arrow = arrow.set(index, pa.field(field.name, pa.binary(), metadata=metadata))
    return arrow


def _find_crs(data_type: Any) -> str:
    """Return the CRS, as Parquet writes it: Spark's name is in its JSON form."""
    text = str(data_type.jsonValue()).partition("(")[2].rstrip(")").partition(",")[0]
    return text.lower() if text.startswith("SRID:") else text


def _check_collations(data_type: st.DataType, column: str) -> None:
    """Raise `InvalidDataError` for a string with a collation, which Arrow data does not have."""
    match data_type:
        case st.StringType():
            if collation := find_collation(data_type):
                raise InvalidDataError(
                    f"column {column!r}: Arrow data does not have the collation "
                    f"{collation}; cast the column: "
                    f"cast({column} collate UTF8_BINARY as string)"
                )
        case st.StructType():
            for field in data_type:
                _check_collations(field.dataType, f"{column}.{field.name}")
        case st.ArrayType():
            _check_collations(data_type.elementType, f"{column}.element")
        case st.MapType():
            _check_collations(data_type.keyType, f"{column}.key")
            _check_collations(data_type.valueType, f"{column}.value")
        case _:
            pass


def _nullable(data_type: st.DataType) -> st.DataType:
    """Return a Spark type in which every nested field is nullable."""
    match data_type:
        case st.UserDefinedType():
            return _nullable(data_type.sqlType())
        case st.StructType():
            return st.StructType(
                [st.StructField(field.name, _nullable(field.dataType)) for field in data_type]
            )
        case st.ArrayType():
            return st.ArrayType(_nullable(data_type.elementType))
        case st.MapType():
            return st.MapType(_nullable(data_type.keyType), _nullable(data_type.valueType))
        case _:
            return data_type


def check_readable(schema: st.StructType) -> None:
    """Check that Spark accepts all columns from a data source that is written in Python.

    Raises `InvalidDataError` if Spark rejects a column. The message names the column.
    """
    for field, arrow_field in zip(schema.fields, arrow_schema(schema), strict=True):
        arrow_type = arrow_field.type
        if at.is_struct(arrow_type) and (is_geometry(arrow_type) or is_geography(arrow_type)):
            raise InvalidDataError(
                f"column {field.name!r}: Spark cannot import the type "
                f"{field.dataType.simpleString()} from Python; store ST_AsBinary of the column"
            )
