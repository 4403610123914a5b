"""Frames with columns of all types of the running version of Spark, and their rows as text."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql import types as st

from splitarrow.pipeline.options import SparkOptions
from splitarrow.pipeline.spark_versions import VERSION
from splitarrow.pipeline.types import sink_schema
from splitarrow.pipeline.writer import WRITE_OPTIONS, write_frame
from splitarrow.publication.version_store import VersionStore

LINE = tuple(int(part) for part in VERSION.split(".")[:2])
_POINT = "X'0101000000000000000000F03F0000000000000040'"
_LINE = "X'010200000002000000000000000000000000000000000000000000000000002440000000000000E0BF'"

# The type, and literals of values that are hard to keep.
_TYPES: dict[tuple[int, int], dict[str, list[str]]] = {
    (3, 5): {
        "boolean": ["true", "false"],
        "tinyint": ["-128", "127"],
        "smallint": ["-32768", "32767"],
        "int": ["-2147483648", "2147483647"],
        "bigint": ["-9223372036854775808", "9223372036854775807"],
        "float": ["'NaN'", "'-0.0'", "3.4028235e38", "1.4e-45"],
        "double": ["'NaN'", "'-Infinity'", "1.7976931348623157e308", "4.9e-324"],
        "decimal(5,2)": ["-999.99", "0.01"],
        "decimal(38,10)": ["9999999999999999999999999999.9999999999", "-1"],
        "string": ["''", "'\U0001f600 e\u0301'"],
        "binary": ["X''", "X'00ff'"],
        "date": ["date'0001-01-01'", "date'9999-12-31'"],
        "timestamp": [
            "timestamp'0001-01-03 00:00:00 UTC'",
            "timestamp'9999-12-30 23:59:59.999999 UTC'",
        ],
        "timestamp_ntz": [
            "timestamp_ntz'0001-01-01 00:00:00'",
            "timestamp_ntz'9999-12-31 23:59:59.999999'",
        ],
        "interval day to second": [
            "make_dt_interval(106751991, 4, 0, 54.775807)",
            "make_dt_interval(-106751991, -4, 0, -54.775808)",
        ],
        "interval hour": ["interval '-5' hour", "interval '2147483647' hour"],
        "interval day to minute": ["interval '1 02:03' day to minute"],
    },
    (4, 0): {
        "interval": ["make_interval(-1, 2, 3, -4, 5, 6, -7.000008)"],
        "string collate UTF8_LCASE": ["'Aa'", "'aA'"],
        "string collate UNICODE_CI": ["'\u00c9'"],
        "variant": ["parse_json('{\"a\": [1, null]}')"],
    },
    (4, 1): {
        "time(0)": ["time'00:00:00'", "time'23:59:59'"],
        "time(6)": ["time'23:59:59.999999'"],
        "geometry(0)": [f"st_geomfromwkb({_POINT})"],
    },
    (4, 2): {
        "geometry(4326)": [f"st_geomfromwkb({_LINE}, 4326)", f"st_geomfromwkb({_POINT}, 4326)"],
        "geography(4326)": [f"st_geogfromwkb({_LINE})"],
    },
}
TYPES = {
    kind: values for line, kinds in _TYPES.items() if line <= LINE for kind, values in kinds.items()
}
_NESTED = ("{0}", "array({0}, null)", "map('k', {0})", "named_struct('f', {0}, 'n', 1)")
_SETTINGS = ("spark.sql.timeType.enabled", "spark.sql.geospatial.enabled")


def make_frame(spark: Any, nested: tuple[str, ...] = _NESTED) -> Any:
    """Return a frame with columns of all types, also nested: a row of nulls, and rows of values."""
    for name in _SETTINGS:
        spark.conf.set(name, "true")
    rows = max(map(len, TYPES.values()))
    frame: Any = None
    for row in range(rows + 1):
        columns: list[str] = []
        for kind, values in TYPES.items():
            literal = values[row % len(values)] if row < rows else "null"
            value = f"cast({literal} as {kind})"
            columns += [
                f"{form.format(value)} as c{len(columns) + i}" for i, form in enumerate(nested)
            ]
        some = spark.range(1).selectExpr(*columns)
        frame = some if frame is None else frame.unionAll(some)
    return frame.coalesce(1)


def write(frame: Any, location: str) -> None:
    """Publish a frame with any version of Spark."""
    write_frame(frame, SparkOptions({"path": location}, WRITE_OPTIONS), overwrite=False)


def show_rows(frame: Any) -> list[list[str]]:
    """Return the rows as text, which shows each value exactly."""
    shown: list[str] = []
    for field in frame.schema:
        kind = field.dataType.simpleString()
        if "geo" in kind:
            shown.append(f"`{field.name}`")
        elif "time(" in kind and LINE < (4, 2):  # to_json does not know the type
            shown.append(f"cast(`{field.name}` as string)")
        else:
            shown.append(f"to_json(struct(`{field.name}`))")
    return sorted([str(value) for value in row] for row in frame.selectExpr(*shown).collect())


def type_names(schema: Any) -> list[str]:
    """Return the types of the columns."""
    return [field.dataType.simpleString() for field in schema]


def write_months(location: str) -> list[list[Any]]:
    """Publish year-month intervals, and return the columns in months."""
    year, month = st.YearMonthIntervalType(0, 0), st.YearMonthIntervalType()
    kinds = [
        year,
        month,
        st.ArrayType(month),
        st.MapType(st.StringType(), year),
        st.StructType([st.StructField("f", st.YearMonthIntervalType(1, 1))]),
    ]
    names = [f"c{index}" for index in range(len(kinds))]
    schema = st.StructType([st.StructField(*pair) for pair in zip(names, kinds, strict=True)])
    columns = [
        [24, None],
        [2**31 - 1, -(2**31)],
        [[-1, None], None],
        [[("k", -12)], []],
        [{"f": 5}, {"f": None}],
    ]
    arrow = sink_schema(schema)
    arrays = [pa.array(values, kind) for values, kind in zip(columns, arrow.types, strict=True)]
    store = VersionStore(location)
    batch = pa.record_batch(arrays, schema=arrow)
    store.commit("job", arrow, [store.write_shard("job", "0.arrow", arrow, [batch])], append=False)
    return columns
