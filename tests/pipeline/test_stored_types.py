"""Spark types in the metadata of columns: used if they fit the Arrow type, ignored if not."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as st
from pyspark.sql.datasource import EqualTo

from splitarrow.pipeline.filters import push_predicates, translate_filter
from splitarrow.pipeline.stored_types import TYPE_KEY
from splitarrow.pipeline.types import column_type, compares_as_stored, sink_schema, spark_schema

LOWER = st.StringType("UTF8_LCASE")
KEPT = [
    LOWER,
    st.TimeType(6),
    st.DayTimeIntervalType(1, 1),
    st.YearMonthIntervalType(0, 0),
    st.GeometryType(0),
    st.GeographyType(4326),
    st.ArrayType(LOWER),
    st.MapType(LOWER, st.ArrayType(st.TimeType(0))),
    st.StructType([st.StructField("a", LOWER), st.StructField("b", st.YearMonthIntervalType())]),
    st.ArrayType(st.GeometryType(4326)),
]
PLAIN = [st.StringType(), st.TimeType(9), st.DayTimeIntervalType(), st.CalendarIntervalType()]

COLLATED = '"string collate UTF8_LCASE"'
UNFIT: list[tuple[Any, str]] = [
    (pa.int64(), COLLATED),
    (pa.binary(), COLLATED),
    (pa.int64(), '"interval year"'),
    (pa.string(), '"interval year"'),
    (pa.string(), '"geometry(OGC:CRS84)"'),
    (pa.binary(), '"geometry(SRID:ANY)"'),
    (pa.binary(), '"geometry(SRID:77777)"'),
    (pa.time64("ns"), '"time(10)"'),
    (pa.string(), '"char(2)"'),
    (pa.string(), '"string collate a; drop"'),
    (pa.string(), '"int"'),
    (pa.list_(pa.int64()), '{"type": "array", "elementType": "interval year"}'),
    (pa.list_(pa.string()), COLLATED),
    (pa.string(), f'{{"type": "array", "elementType": {COLLATED}, "containsNull": true}}'),
    (pa.struct([("a", pa.string())]), '{"type": "struct", "fields": []}'),
    (
        pa.struct([("a", pa.string())]),
        '{"type": "struct", "fields": [{"name": "b", "type": "string", "nullable": true}]}',
    ),
    (pa.string(), "no JSON"),
    (pa.string(), "7"),
    (pa.string(), "[" * 100_000),
    (pa.string(), '{"type": "array", "elementType":' * 50_000),
    (pa.string(), f'"{" " * 2_000_000}string collate UTF8_LCASE"'),
]


def column(data_type: Any, text: str) -> Any:
    return pa.field("c", data_type, metadata={TYPE_KEY: text.encode()})


@pytest.mark.parametrize("kind", KEPT + PLAIN, ids=lambda kind: kind.simpleString())
def test_a_type_returns_from_the_schema_of_the_sink(kind):
    schema = st.StructType([st.StructField("c", kind)])
    written = sink_schema(schema)
    assert spark_schema(written) == schema
    assert (TYPE_KEY in (written.field(0).metadata or {})) == (kind in KEPT)


@pytest.mark.parametrize(("kind", "text"), UNFIT, ids=lambda value: str(value)[:40])
def test_a_type_that_does_not_fit_is_ignored(kind, text):
    assert column_type(column(kind, text)) == column_type(pa.field("c", kind))


def test_a_class_is_never_imported(monkeypatch):
    def refuse(*_: Any) -> None:
        raise SystemExit("a user-defined type was parsed")

    monkeypatch.setattr(st.UserDefinedType, "fromJson", refuse)
    harmful = {"type": "udt", "pyClass": "os.system", "serializedClass": "", "sqlType": "string"}
    nested = {"type": "array", "elementType": harmful, "containsNull": True}
    field = {"name": "a", "type": harmful, "nullable": True, "metadata": {}}
    struct = {"type": "struct", "fields": [field]}
    for kind, node in [
        (pa.string(), harmful),
        (pa.list_(pa.string()), nested),
        (pa.struct([("a", pa.string())]), struct),
    ]:
        assert column_type(column(kind, json.dumps(node))) == column_type(pa.field("c", kind))


def test_a_restored_type_is_nullable():
    """A type that excludes nulls would let Spark leave out its checks."""
    text = f'{{"type": "array", "elementType": {COLLATED}, "containsNull": false}}'
    assert column_type(column(pa.list_(pa.string()), text)) == st.ArrayType(LOWER)


def test_only_columns_of_their_own_type_compare_as_stored():
    struct = st.StructType([st.StructField("a", LOWER), st.StructField("b", st.LongType())])
    schema = sink_schema(
        st.StructType([st.StructField("s", struct), st.StructField("n", st.LongType())])
    )
    assert compares_as_stored(schema.field("n"))
    assert compares_as_stored(schema.field("s"), ["b"])
    assert not compares_as_stored(schema.field("s"), ["a"])
    assert not compares_as_stored(schema.field("s"))


def test_filters_on_collations_are_never_pushed():
    schema = sink_schema(
        st.StructType([st.StructField("c", LOWER), st.StructField("p", st.StringType())])
    )

    def predicate(name: str, operator: str = "=") -> dict[str, Any]:
        operands = [{"column": name}, {"type": "string", "value": "A"}]
        return {"operator": operator, "operands": operands}

    null = {"operator": "IS_NULL", "operands": [{"column": "c"}]}
    both = {"operator": "OR", "operands": [predicate("p"), predicate("c")]}
    negated = {"operator": "NOT", "operands": [predicate("c", "STARTS_WITH")]}
    accepted, _ = push_predicates(
        [predicate("c"), predicate("p"), predicate("c", "<>"), null, both, negated], schema
    )
    assert accepted == [False, True, False, True, False, False]


def test_filters_of_pyspark_on_collated_fields_are_never_pushed():
    kind = st.StructType([st.StructField("a", LOWER), st.StructField("b", st.StringType())])
    schema = sink_schema(st.StructType([st.StructField("s", kind)]))
    assert translate_filter(EqualTo(("s", "b"), "A"), schema) is not None
    assert translate_filter(EqualTo(("s", "a"), "A"), schema) is None
