"""Arrow types and Spark types: what stands for what, and what is refused.

docs/spark-types.md has the table. Spark's own ``to_arrow_schema`` says what Arrow types Spark
takes; here is the way from any Arrow type to a Spark type that holds all of its values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.types as at
from pyspark.errors import PySparkException
from pyspark.sql import types as st
from pyspark.sql.pandas.types import is_geography, is_geometry, is_variant, to_arrow_type

from ..errors import InvalidDataError

ZONE = "UTC"
"""The time zone of all timestamps that are exchanged with Spark."""
_MOST_DIGITS = 38
_VARIANTS = ("arrow.parquet.variant", "parquet.variant")

_PLAIN: dict[Any, Callable[[], st.DataType]] = {
    pa.null(): st.NullType,
    pa.bool_(): st.BooleanType,
    pa.int8(): st.ByteType,
    pa.int16(): st.ShortType,
    pa.int32(): st.IntegerType,
    pa.int64(): st.LongType,
    # The next larger type that has a sign.
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
    """Return the Spark schema that holds what an Arrow schema describes. All is nullable.

    Raises
    ------
    InvalidDataError
        If a column has a type that Spark cannot hold; it is named.
    """
    return st.StructType([st.StructField(f.name, spark_type(f.type, f.name)) for f in schema])


def spark_type(found: Any, column: str) -> st.DataType:
    """Return the Spark type that holds all values of an Arrow type.

    Parameters
    ----------
    found : pyarrow.DataType
        The Arrow type.
    column : str
        Whose type it is, with dots within structs, for errors.

    Raises
    ------
    InvalidDataError
        If there is none.
    """
    plain = _PLAIN.get(found)
    if plain is not None:
        return plain()
    if isinstance(found, pa.BaseExtensionType):
        if found.extension_name in _VARIANTS:
            return st.VariantType()
        if found.extension_name == "arrow.bool8":
            return st.BooleanType()
        return spark_type(found.storage_type, column)
    if at.is_dictionary(found) or at.is_run_end_encoded(found):
        return spark_type(found.value_type, column)
    if at.is_fixed_size_binary(found):
        return st.BinaryType()
    if at.is_decimal(found):
        if found.precision <= _MOST_DIGITS and 0 <= found.scale <= found.precision:
            return st.DecimalType(found.precision, found.scale)
    elif at.is_timestamp(found):
        return st.TimestampNTZType() if found.tz is None else st.TimestampType()
    elif at.is_time(found):
        return st.TimeType(_digits(found.unit))
    elif at.is_duration(found):
        return st.DayTimeIntervalType()
    elif at.is_map(found):
        key = spark_type(found.key_type, f"{column}.key")
        return st.MapType(key, spark_type(found.item_type, f"{column}.value"))
    elif at.is_struct(found):
        return _struct(found, column)
    elif _is_list(found):
        return st.ArrayType(spark_type(found.value_type, f"{column}.element"))
    raise InvalidDataError(f"column {column!r} is {_name(found)}, which Spark cannot hold")


def _struct(found: Any, column: str) -> st.DataType:
    if is_variant(found):
        return st.VariantType()
    children = [found.field(index) for index in range(found.num_fields)]
    names = [child.name for child in children]
    if len(set(names)) < len(names):
        raise InvalidDataError(f"column {column!r} has two fields of one name")
    return st.StructType(
        [st.StructField(c.name, spark_type(c.type, f"{column}.{c.name}")) for c in children]
    )


def _is_list(found: Any) -> bool:
    return (
        at.is_list(found)
        or at.is_large_list(found)
        or at.is_fixed_size_list(found)
        or at.is_list_view(found)
        or at.is_large_list_view(found)
    )


def _digits(unit: str) -> int:
    return {"s": 0, "ms": 3, "us": 6, "ns": 9}[unit]


def _name(found: Any) -> str:
    try:
        return str(found)
    except KeyError:  # pyarrow does not know some intervals
        return "an interval"


def arrow_schema(schema: st.StructType) -> pa.Schema:
    """Return the Arrow schema that Spark and Python exchange for a Spark schema.

    All is nullable: what Spark says of that depends on the query, not on the data.

    Raises
    ------
    InvalidDataError
        If Spark cannot hand over a column as Arrow data; it is named.
    """
    fields: list[Any] = []
    for field in schema.fields:
        try:
            found = to_arrow_type(_nullable(field.dataType), timezone=ZONE)
        except PySparkException:
            raise InvalidDataError(
                f"column {field.name!r}: Spark hands over no "
                f"{field.dataType.simpleString()} as Arrow data; cast it before"
            ) from None
        fields.append(pa.field(field.name, found))
    return pa.schema(fields)


def _nullable(found: st.DataType) -> st.DataType:
    match found:
        case st.UserDefinedType():
            return _nullable(found.sqlType())
        case st.StructType():
            return st.StructType(
                [st.StructField(child.name, _nullable(child.dataType)) for child in found.fields]
            )
        case st.ArrayType():
            return st.ArrayType(_nullable(found.elementType))
        case st.MapType():
            return st.MapType(_nullable(found.keyType), _nullable(found.valueType))
        case _:
            return found


def check_readable(schema: st.StructType) -> None:
    """Check that Spark takes all columns from a data source that is written in Python.

    Raises
    ------
    InvalidDataError
        If not; the column is named.
    """
    for field, found in zip(schema.fields, arrow_schema(schema), strict=True):
        if at.is_struct(found.type) and (is_geometry(found.type) or is_geography(found.type)):
            raise InvalidDataError(
                f"column {field.name!r}: Spark takes no {field.dataType.simpleString()} from Python"
            )
