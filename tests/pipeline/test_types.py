"""The type mapping: each row of the table in docs/spark-types.md."""

from __future__ import annotations

import datetime as dt
import math
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import types as st

import splitarrow
from helpers.spark_types import make_frame, show_rows, type_names, write, write_months
from splitarrow import errors, pipeline
from splitarrow.formats.arrow.file_writer import AlignedFileWriter
from splitarrow.pipeline.casting import Caster, cast_array
from splitarrow.pipeline.types import arrow_schema, check_readable, spark_schema
from splitarrow.publication.version_store import VersionStore

MOMENT = dt.datetime(2026, 3, 1, 12, 30, 15, 123456)

# The Spark type, an SQL literal, and the Arrow type that the sink writes (None is not checked).
WRITTEN: list[tuple[str, str, Any]] = [
    ("boolean", "true", pa.bool_()),
    ("tinyint", "cast(-5 as tinyint)", pa.int8()),
    ("smallint", "cast(-5 as smallint)", pa.int16()),
    ("int", "-5", pa.int32()),
    ("bigint", "-5L", pa.int64()),
    ("float", "cast(1.5 as float)", pa.float32()),
    ("double", "1.5D", pa.float64()),
    ("decimal(38,10)", "cast(1.5 as decimal(38,10))", pa.decimal128(38, 10)),
    ("string", "'flight'", pa.string()),
    ("binary", "X'0aff'", pa.binary()),
    ("date", "date'2026-03-01'", pa.date32()),
    ("timestamp", "timestamp'2026-03-01 12:30:15.123456'", pa.timestamp("us", "UTC")),
    ("timestamp_ntz", "timestamp_ntz'2026-03-01 12:30:15.123456'", pa.timestamp("us")),
    ("interval day to second", "interval '1 02:03:04.5' day to second", pa.duration("us")),
    ("array<int>", "array(1, null)", pa.list_(pa.field("element", pa.int32()))),
    (
        "map<string,int>",
        "map('a', 1, 'b', null)",
        pa.map_(pa.string(), pa.int32()),
    ),
    ("struct<a:int,b:string>", "named_struct('a', 1, 'b', 'x')", None),
    ("variant", "parse_json('{\"a\": [1, null]}')", None),
    ("void", "null", pa.null()),
]

# The Arrow type, a value, the Spark type that the source reads, and the value in Spark.
READ: list[tuple[Any, Any, str, Any]] = [
    (pa.uint8(), 255, "smallint", 255),
    (pa.uint16(), 65535, "int", 65535),
    (pa.uint32(), 2**32 - 1, "bigint", 2**32 - 1),
    (pa.uint64(), 2**64 - 1, "decimal(20,0)", Decimal(2**64 - 1)),
    (pa.float16(), 1.5, "float", 1.5),
    (pa.decimal32(7, 2), Decimal("1.25"), "decimal(7,2)", Decimal("1.25")),
    (pa.decimal64(12, 2), Decimal("1.25"), "decimal(12,2)", Decimal("1.25")),
    (pa.decimal256(38, 2), Decimal("1.25"), "decimal(38,2)", Decimal("1.25")),
    (pa.large_string(), "x", "string", "x"),
    (pa.string_view(), "x" * 20, "string", "x" * 20),
    (pa.large_binary(), b"x", "binary", b"x"),
    (pa.binary_view(), b"x", "binary", b"x"),
    (pa.binary(2), b"xy", "binary", b"xy"),
    (pa.date64(), dt.date(2026, 3, 1), "date", dt.date(2026, 3, 1)),
    (pa.timestamp("s"), MOMENT.replace(microsecond=0), "timestamp_ntz", None),
    (pa.timestamp("ns"), MOMENT, "timestamp_ntz", MOMENT),
    (pa.duration("ms"), dt.timedelta(1, 2), "interval day to second", dt.timedelta(1, 2)),
    (pa.large_list(pa.uint8()), [1, None], "array<smallint>", [1, None]),
    (pa.list_(pa.int32(), 2), [1, 2], "array<int>", [1, 2]),
    (pa.list_view(pa.string_view()), ["a"], "array<string>", ["a"]),
    (pa.dictionary(pa.int8(), pa.string()), "x", "string", "x"),
    (pa.run_end_encoded(pa.int32(), pa.int64()), 7, "bigint", 7),
    (pa.uuid(), b"0123456789abcdef", "binary", b"0123456789abcdef"),
    (pa.bool8(), True, "boolean", True),
    (pa.json_(), "{}", "string", "{}"),
]

UNSUPPORTED: list[tuple[Any, str]] = [
    (pa.decimal256(39, 0), r"decimal256\(39, 0\)"),
    (pa.decimal128(5, -2), r"decimal128\(5, -2\)"),
    (pa.dense_union([pa.field("a", pa.int32())]), "union"),
    (pa.struct([("inner", pa.decimal256(60, 0))]), r"'c\.inner'"),
]


def array(kind: Any, values: list[Any]) -> Any:
    if isinstance(kind, pa.BaseExtensionType):
        storage: Any = [None if v is None else int(v) if v is True else v for v in values]
        return pa.ExtensionArray.from_storage(kind, pa.array(storage, kind.storage_type))
    return pa.array(values, kind)


READERS = ("jvm", "python")


def test_values_that_spark_writes_return_unchanged(spark, tmp_path, serve):
    columns = [f"{literal} as c{index}" for index, (_, literal, _) in enumerate(WRITTEN)]
    nulls = [f"cast(null as {kind}) as c{index}" for index, (kind, _, _) in enumerate(WRITTEN)]
    frame = spark.range(1).selectExpr(*columns).union(spark.range(1).selectExpr(*nulls))
    frame.coalesce(1).write.format("splitarrow").mode("append").save(str(tmp_path / "set"))
    manifest: Any = VersionStore(str(tmp_path / "set")).load()
    for field, (kind, _, expected) in zip(manifest.schema, WRITTEN, strict=True):
        assert expected is None or field.type == expected, kind
    uri = serve({"set": tmp_path / "set"}).control_uri
    reader = spark.read.format("splitarrow").option("uri", uri)
    reads = [reader.option("reader", name).load("set") for name in READERS]
    # Variants cannot be compared, but their JSON can.
    names = [
        f"c{i}" if kind != "variant" else f"to_json(c{i})" for i, (kind, _, _) in enumerate(WRITTEN)
    ]
    written = frame.selectExpr(*names).collect()
    for read in reads:
        assert [f.dataType.simpleString() for f in read.schema] == [kind for kind, _, _ in WRITTEN]
        assert read.selectExpr(*names).collect() == written


def test_arrow_types_that_spark_lacks_are_read_exactly(spark, tmp_path, serve):
    arrays = [array(kind, [value, None]) for kind, value, _, _ in READ]
    batch = pa.record_batch(arrays, names=[f"c{index}" for index in range(len(READ))])
    file = AlignedFileWriter(batch.schema)
    path = tmp_path / "t.arrow"
    path.write_bytes(b"".join(map(bytes, [*file.begin(), *file.add(batch), *file.end()])))
    uri = serve({"t": path}).control_uri
    reader = spark.read.format("splitarrow").option("uri", uri)
    for name in READERS:
        frame = reader.option("reader", name).load("t")
        assert [f.dataType.simpleString() for f in frame.schema] == [kind for _, _, kind, _ in READ]
        first, second = frame.collect()
        for index, (_, value, kind, expected) in enumerate(READ):
            assert first[index] == (value if expected is None else expected), (name, kind)
            assert second[index] is None, (name, kind)


@pytest.mark.parametrize(
    ("kind", "message"), UNSUPPORTED, ids=[message for _, message in UNSUPPORTED]
)
def test_a_type_that_spark_cannot_hold_is_an_error(kind, message):
    with pytest.raises(errors.InvalidDataError, match=message):
        spark_schema(pa.schema({"c": kind}))


def test_all_types_return_by_every_way(spark, tmp_path, serve):
    """The source in Python reads the types that PySpark can return, and the others as stored."""
    frame = make_frame(spark)
    write(frame, str(tmp_path / "set"))
    uri = serve({"set": tmp_path / "set"}).control_uri
    reader = spark.read.format("splitarrow").option("uri", uri)
    expected = show_rows(frame)
    for options in ({}, {"folder": str(tmp_path / "set")}):
        read = reader.options(reader="jvm", **options).load("set")
        assert type_names(read.schema) == type_names(frame.schema)
        assert show_rows(read) == expected
    names = [
        field.name
        for field in frame.schema
        if not any(
            word in field.dataType.simpleString() for word in ("geo", "interval,", "interval>")
        )
        and field.dataType.simpleString() != "interval"
    ]
    columns = ",".join(names)
    read = reader.options(reader="python", columns=columns).load("set")
    assert type_names(read.schema) == type_names(frame.select(names).schema)
    assert show_rows(read) == show_rows(frame.select(names))
    (geometry,) = (f.name for f in frame.schema if f.dataType.simpleString() == "geometry(0)")
    read = reader.options(reader="python", columns=geometry).load("set")
    assert type_names(read.schema) == ["binary"]
    assert read.where(f"{geometry} is not null").count() > 0


INT64 = [-(2**63), 2**63 - 1, 2**53 + 1, -(2**53) - 1]
FIRST, LAST = -62_135_596_800, 253_402_300_799
"""The seconds of the first and the last second of the years 1 and 9999."""
MOMENTS = [FIRST * 10**6, LAST * 10**6 + 999_999, -1, None]
FLOATS = [math.inf, -math.inf, math.nan, -0.0]
TEXTS = ["", "\0", "a\0b\0", "\U0010ffff"]
EXTREMES = pa.table(
    {
        "boolean": pa.array([True, False, None, None]),
        **{
            f"int{n}": pa.array([-(2 ** (n - 1)), 2 ** (n - 1) - 1, 0, None], f"int{n}")
            for n in (8, 16, 32)
        },
        "int64": pa.array(INT64, pa.int64()),
        "float": pa.array(FLOATS, pa.float32()),
        "floats": pa.array([3.4028234663852886e38, 1.4e-45, 2.0**24 + 2, None], pa.float32()),
        "double": pa.array(FLOATS, pa.float64()),
        "doubles": pa.array([sys.float_info.max, 5e-324, 2.0**53 + 2, None]),
        "decimal": pa.array([10**38 - 1, 1 - 10**38, 0, None], pa.decimal128(38, 0)),
        "fraction": pa.array(
            [Decimal(f"{sign}0.{digits:>038}") for sign in ("", "-") for digits in ("9" * 38, "1")],
            pa.decimal128(38, 38),
        ),
        "string": pa.array(TEXTS),
        "binary": pa.array([text.encode() for text in TEXTS], pa.binary()),
        "date": pa.array([FIRST // 86_400, LAST // 86_400, -1, None], pa.date32()),
        "timestamp": pa.array(MOMENTS, pa.timestamp("us", "UTC")),
        "timestamp_ntz": pa.array(MOMENTS, pa.timestamp("us")),
        "duration": pa.array(INT64, pa.duration("us")),
        "list": pa.array([TEXTS, [], [None], None], pa.list_(pa.string())),
        "struct": pa.array([{"": text, "a": n} for text, n in zip(TEXTS, INT64, strict=True)]),
        "map": pa.array(
            [list(zip(TEXTS, INT64, strict=True)), [], [("", None)], None],
            pa.map_(pa.string(), pa.int64()),
        ),
    }
)


def show_bits(table: Any) -> list[Any]:
    """Return the columns in the types of `EXTREMES`, and floating-point numbers as their bits."""
    shown: list[Any] = []
    for column in table.cast(EXTREMES.schema).combine_chunks().columns:
        array = column.combine_chunks()
        is_float = pa.types.is_floating(array.type)
        shown.append(array.view(f"int{array.type.bit_width}") if is_float else array)
    return shown


@pytest.mark.parametrize("rows", [4, 0])
def test_extreme_values_return_by_every_way(spark, tmp_path, serve, rows):
    """Also in the files themselves, as pyarrow reads them."""
    table = EXTREMES.slice(0, rows)
    frame = spark.createDataFrame(table, spark_schema(table.schema)).coalesce(1)
    frame.write.format("splitarrow").mode("append").save(str(tmp_path / "sink"))
    write(frame, str(tmp_path / "function"))
    found: list[Any] = []
    for name in ("sink", "function"):
        manifest: Any = VersionStore(str(tmp_path / name)).load()
        files = [pa.ipc.open_file(tmp_path / name / s.path).read_all() for s in manifest.shards]
        found.append(pa.concat_tables([manifest.schema.empty_table(), *files]))
    uri = serve({"sink": tmp_path / "sink"}).control_uri
    source = spark.read.format("splitarrow").option("uri", uri)
    frames = [source.option("reader", reader).load("sink") for reader in READERS]
    frames.append(source.options(reader="jvm", folder=str(tmp_path / "sink")).load("sink"))
    frames.append(pipeline.read(spark, uri, "sink"))
    found += [frame.toArrow() for frame in frames]
    for each in found:
        assert show_bits(each) == show_bits(table)


def test_rows_without_columns_return_or_are_refused(spark, tmp_path, serve):
    frame = spark.range(0, 3, 1, 2).drop("id")
    frame.write.format("splitarrow").mode("append").save(str(tmp_path / "sink"))
    uri = serve({"sink": tmp_path / "sink"}).control_uri
    source = spark.read.format("splitarrow").option("uri", uri)
    with splitarrow.connect(uri) as client:
        assert client["sink"].to_arrow().num_rows == 3
    assert source.load("sink").collect() == frame.collect()
    assert pipeline.read(spark, uri, "sink").collect() == frame.collect()
    with pytest.raises(PySparkException, match="'sink': it has no columns"):
        source.option("reader", "jvm").load("sink").collect()
    with pytest.raises(errors.InvalidDataError, match="the rows have no columns"):
        write(frame, str(tmp_path / "function"))
    assert not (tmp_path / "function").exists()


def test_python_reads_months_as_their_number(spark, tmp_path, serve):
    columns = write_months(str(tmp_path / "set"))
    uri = serve({"set": tmp_path / "set"}).control_uri
    reader = spark.read.format("splitarrow").options(uri=uri, reader="python")
    rows = reader.load("set").select("c0", "c1", "c2").collect()
    assert [list(column) for column in zip(*rows, strict=True)] == columns[:3]
    with pytest.raises(PySparkException, match="'c0': Spark cannot import the type interval year"):
        reader.schema("c0 interval year").load("set").collect()


@pytest.mark.parametrize("literal", ["make_ym_interval(1, 2)", "array(interval '1' year)"])
def test_months_that_pyspark_cannot_export_are_refused_by_name(spark, tmp_path, literal):
    frame = spark.range(1).selectExpr(f"{literal} as c")
    with pytest.raises(errors.InvalidDataError, match="column 'c': PySpark cannot export"):
        write(frame, str(tmp_path / "set"))


def test_a_type_that_spark_cannot_export_is_an_error():
    schema = st.StructType([st.StructField("c", st.CharType(2))])
    with pytest.raises(errors.InvalidDataError, match="column 'c': Spark cannot export the type"):
        arrow_schema(schema)


NAMES = ["A", "a", "B", None]
CONDITIONS = {
    "name = 'A'": 2,
    "name in ('a', 'c')": 2,
    "name > 'a'": 1,
    "name like 'A%'": 2,
    "startswith(name, 'A')": 2,
    "not (name = 'a')": 1,
    "name <=> 'A'": 2,
    "name is null": 1,
    "s.name = 'A'": 2,
}


@pytest.mark.parametrize(
    "way",
    ["jvm", "python", *(pytest.param(w, marks=pytest.mark.long) for w in ("folder", "schema"))],
)
def test_collations_compare_as_spark_does(spark, tmp_path, serve, way):
    """Neither filters nor the ranges of shards may compare the bytes of the strings."""
    rows = [(name, (name,), 1) for name in NAMES]
    kinds = "name string, s struct<name string>, n int"
    if way != "schema":
        kinds = kinds.replace("name string", "name string collate UTF8_LCASE")
    write(spark.createDataFrame(rows, kinds).repartition(3), str(tmp_path / "set"))
    uri = serve({"set": tmp_path / "set"}).control_uri
    reader = spark.read.format("splitarrow").option("pushdown", "true")
    if way == "folder":
        frame = reader.load(str(tmp_path / "set"))
    elif way == "schema":
        frame = reader.schema(kinds.replace("name string", "name string collate UTF8_LCASE"))
        frame = frame.option("uri", uri).load("set")
    else:
        frame = reader.options(uri=uri, reader=way).load("set")
    assert frame.schema["name"].dataType == st.StringType("UTF8_LCASE")
    for condition, count in CONDITIONS.items():
        assert len(frame.where(condition).select("n").collect()) == count, condition
    assert frame.selectExpr("lower(min(name))", "max(name)", "count(name)").collect() == [
        ("a", "B", 3)
    ]


def test_a_cast_never_changes_a_value():
    nanoseconds = pa.record_batch({"t": pa.array([1], pa.timestamp("ns"))})
    with pytest.raises(errors.InvalidDataError, match=r"column 't'.*exactly"):
        Caster(nanoseconds.schema, pa.schema({"t": pa.timestamp("us")})).cast(nanoseconds)
    large = pa.record_batch({"n": pa.array([300])})
    with pytest.raises(errors.InvalidDataError, match=r"column 'n'.*exactly"):
        Caster(large.schema, pa.schema({"n": pa.int8()})).cast(large)
    with pytest.raises(errors.InvalidDataError, match="column 'm' is missing"):
        Caster(large.schema, pa.schema({"m": pa.int8()}))


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.int8()),
        pa.large_list(pa.int8()),
        pa.list_view(pa.int8()),
        pa.large_list_view(pa.int8()),
        pa.list_(pa.int8(), 2),
    ],
    ids=str,
)
def test_slices_of_lists_are_cast_correctly(kind):
    values = pa.array([[9, 9], [1, 1], None, [3, None]], kind)
    for begin in range(5):
        found = cast_array(values[begin:], pa.list_(pa.field("element", pa.int64())))
        found.validate(full=True)
        assert found.to_pylist() == values[begin:].to_pylist()


@pytest.mark.parametrize(
    ("kind", "target", "values"),
    [
        (pa.string_view(), pa.string(), ["a", None, "x" * 20]),
        (pa.binary_view(), pa.binary(), [b"a", None, b"x" * 20]),
        (pa.list_(pa.string_view()), pa.list_(pa.string()), [["a"], None, [None, "x" * 20]]),
    ],
    ids=str,
)
def test_dictionaries_of_views_are_cast(kind, target, values):
    indices = [2, None, 1, 0, 2]
    expected = [None if index is None else values[index] for index in indices]
    column = pa.DictionaryArray.from_arrays(pa.array(indices, pa.int8()), pa.array(values, kind))
    for begin in range(5):
        found = cast_array(column[begin:], target)
        found.validate(full=True)
        assert (found.type, found.to_pylist()) == (target, expected[begin:])
    nested = pa.StructArray.from_arrays([column], names=["f"])
    assert cast_array(nested, pa.struct([("f", target)])).field("f").to_pylist() == expected


@pytest.mark.parametrize("literal", ["null", "named_struct()"])
def test_a_frame_whose_only_column_has_no_buffers_returns(spark, tmp_path, serve, literal):
    frame = spark.range(0, 6, 1, 2).selectExpr(f"{literal} as c")
    frame.write.format("splitarrow").mode("append").save(str(tmp_path / "set"))
    uri = serve({"set": tmp_path / "set"}).control_uri
    reader = spark.read.format("splitarrow").option("uri", uri)
    for transport, name in (("tcp", "jvm"), ("tcp", "python"), ("shm", "python")):
        rows = reader.options(transport=transport, reader=name).load("set")
        assert rows.schema["c"].dataType == frame.schema["c"].dataType
        assert rows.collect() == frame.collect()


@pytest.mark.parametrize("kind", ["geometry", "geography"])
def test_a_shard_with_geometry_is_refused(kind):
    schema = st.StructType(
        [
            st.StructField(
                "where", {"geometry": st.GeometryType, "geography": st.GeographyType}[kind](4326)
            )
        ]
    )
    with pytest.raises(errors.InvalidDataError, match=f"column 'where' is a {kind}"):
        spark_schema(arrow_schema(schema))


def test_geometry_cannot_be_read(spark):
    schema = st.StructType([st.StructField("where", st.GeometryType(4326))])
    with pytest.raises(
        errors.InvalidDataError, match="column 'where': Spark cannot import the type geometry"
    ):
        check_readable(schema)


def test_the_documentation_lists_every_type():
    page = (Path(__file__).parents[2] / "docs" / "spark-types.md").read_text()
    for kind, _, _ in WRITTEN:
        assert f"`{kind.partition('<')[0].partition('(')[0]}" in page, kind
