"""Features of Delta tables: those that a version really uses are implemented or refused."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

import splitarrow.variant as variant
from helpers.catalog import read_dataset
from helpers.deletion_vectors import Action, change_log, read_actions
from helpers.sources import encode_filter
from splitarrow.errors import DatasetError
from splitarrow.formats.parquet.variant.arrow_fields import is_variant_field
from splitarrow.server.catalog.catalog import open_dataset
from splitarrow.server.catalog.delta_features import find_unsupported_use


def write(location: Path, numbers: range, **options: Any) -> None:
    table = pa.table({"n": pa.array(numbers, pa.int64()), "t": [f"v{n}" for n in numbers]})
    write_deltalake(location, table, **options)


def protocol(*features: str, version: int = 3) -> Action:
    return {
        "protocol": {
            "minReaderVersion": version,
            "minWriterVersion": 7,
            "readerFeatures": list(features),
            "writerFeatures": list(features),
        }
    }


Fields = list[dict[str, Any]]


def change_metadata(table: Path, change: Callable[[Fields], object], **configuration: str) -> None:
    """Change the fields of the schema and the configuration of a table."""
    metadata = read_actions(table, "metaData")[-1]
    schema = json.loads(metadata["schemaString"])
    change(schema["fields"])
    changed = {"schemaString": json.dumps(schema), "configuration": configuration}
    change_log(table, {"metaData": {**metadata, **changed}})


def test_a_table_of_delta_rs_that_allows_deletion_vectors_is_served(tmp_path: Path) -> None:
    write(tmp_path, range(3), configuration={"delta.enableDeletionVectors": "true"})
    assert "deletionVectors" in read_actions(tmp_path, "protocol")[0]["readerFeatures"]
    dataset = open_dataset(tmp_path)
    assert read_dataset(dataset).rows == 3
    DeltaTable(tmp_path).delete("n = 1")
    assert read_dataset(dataset).table["n"].to_pylist() == [0, 2]


@pytest.mark.parametrize(
    "features",
    [
        ("variantType",),
        ("variantType-preview", "variantShredding-preview"),
        ("typeWidening",),
        ("typeWidening-preview",),
        ("columnMapping",),
        ("timestampNtz", "v2Checkpoint", "vacuumProtocolCheck", "deletionVectors"),
    ],
)
def test_features_that_no_column_uses_are_served(tmp_path: Path, features: tuple[str, ...]) -> None:
    write(tmp_path, range(3))
    change_log(tmp_path, protocol(*features))
    found = read_dataset(open_dataset(tmp_path)).table
    assert found.to_pylist() == [{"n": n, "t": f"v{n}"} for n in range(3)]


def test_unknown_reader_features_are_refused(tmp_path: Path) -> None:
    write(tmp_path, range(3))
    change_log(tmp_path, protocol("rowWings"))
    with pytest.raises(DatasetError, match=r"Delta table .*rowWings") as caught:
        open_dataset(tmp_path)
    assert "\n" not in str(caught.value)


def test_features_are_checked_without_deltalake() -> None:
    schema: dict[str, Any] = {"type": "struct", "fields": []}
    for version, features, use in (
        (3, {"rowWings", "catalogManaged"}, "the feature catalogManaged, rowWings"),
        (4, set[str](), "the reader version 4"),
        (3, {"typeWidening-preview"}, None),
    ):
        assert find_unsupported_use(version, features, {}, schema) == use


VARIANT = {"name": "v", "type": "variant", "nullable": True, "metadata": {}}


@pytest.mark.parametrize(
    "data_type",
    [
        {"type": "array", "elementType": "variant", "containsNull": True},
        {"type": "struct", "fields": [VARIANT]},
        {
            "type": "map",
            "keyType": "string",
            "valueType": {"type": "struct", "fields": [VARIANT]},
            "valueContainsNull": True,
        },
    ],
    ids=["list", "struct", "map"],
)
def test_variants_inside_of_columns_are_refused(tmp_path: Path, data_type: Any) -> None:
    write(tmp_path, range(3))
    change_log(tmp_path, protocol("variantType"))
    nested = {**VARIANT, "name": "x", "type": data_type}
    change_metadata(tmp_path, lambda fields: fields.extend([VARIANT, nested]))
    with pytest.raises(
        DatasetError, match=r"uses variantType \(a Variant inside of the column 'x'"
    ):
        open_dataset(tmp_path)


VALUES = [{"a": 1, "b": "x"}, None, [1, True], {"a": "text"}]


@pytest.mark.parametrize("annotated", [False, True])
@pytest.mark.parametrize("shredded", [False, True])
def test_variants_are_served(tmp_path: Path, annotated: bool, shredded: bool) -> None:
    write(tmp_path, range(2))
    change_log(tmp_path, protocol("variantType", "variantShredding-preview"))
    change_metadata(tmp_path, lambda fields: fields.append(VARIANT))
    variants = variant.from_python([*VALUES, 0])
    is_null = pa.array([False] * 4 + [True])
    variants = pa.StructArray.from_arrays(
        variants.flatten(), fields=list(variants.type), mask=is_null
    )
    data_type = variant.parse_type("struct<a: int64>") if shredded else None
    file = tmp_path / "variants.parquet"
    data = pa.table({"n": range(2, 7), "t": ["v"] * 5})
    if annotated:
        data = data.append_column(variant.field("v"), variants)
        variant.write_parquet(data, file, shred={"v": data_type} if shredded else None)
    else:
        column = variant.shred(variants, data_type) if shredded else variants
        pq.write_table(data.append_column("v", column), file)
    (add,) = read_actions(tmp_path, "add")
    change_log(tmp_path, {"add": {**add, "path": file.name, "size": file.stat().st_size}})
    dataset = open_dataset(tmp_path)
    assert is_variant_field(dataset.schema.field("v"))
    found = read_dataset(dataset).table.sort_by("n")
    assert variant.to_python(found["v"].combine_chunks()) == [None, None, *VALUES, None]
    row_filter = encode_filter(pc.field("n") > 4, pa.schema({"n": pa.int64()}))
    found = read_dataset(dataset, filter=row_filter, columns=("v",)).table
    assert variant.to_python(found["v"].combine_chunks()) == [{"a": "text"}, None]


def map_columns(fields: Fields, *names: str) -> None:
    for number, (field, name) in enumerate(zip(fields, names, strict=True), 1):
        field["metadata"] = {
            "delta.columnMapping.id": number,
            "delta.columnMapping.physicalName": name,
        }


def test_column_mapping_is_refused_where_names_differ(tmp_path: Path) -> None:
    write(tmp_path, range(3))
    mapping = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "2"}
    change_log(tmp_path, {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}})
    change_metadata(tmp_path, lambda fields: map_columns(fields, "n", "t"), **mapping)
    assert read_dataset(open_dataset(tmp_path)).rows == 3
    change_metadata(tmp_path, lambda fields: map_columns(fields, "n", "c2"), **mapping)
    reason = r"uses columnMapping \(the column 't' is 'c2' in the files\), which is not"
    with pytest.raises(DatasetError, match=reason):
        open_dataset(tmp_path)
    mapping["delta.columnMapping.mode"] = "id"
    change_metadata(tmp_path, lambda fields: map_columns(fields, "n", "t"), **mapping)
    with pytest.raises(DatasetError, match="uses columnMapping by id"):
        open_dataset(tmp_path)


def decimals(*texts: str) -> list[Decimal]:
    return [Decimal(text) for text in texts]


INT8, INT16, INT32, INT64 = ([-(1 << n), (1 << n) - 1] for n in (7, 15, 31, 63))
DAYS = [date(1, 1, 1), date(1582, 10, 15), date(2026, 2, 28), date(9999, 12, 31)]
FLOATS = [float(np.float32(0.1)), -0.0, 1.5, math.inf, 2.0**-149]
WIDENINGS: list[tuple[pa.DataType, list[Any], str, str, pa.DataType, list[Any]]] = [
    (pa.int8(), INT8, "byte", "short", pa.int16(), INT8),
    (pa.int8(), INT8, "byte", "long", pa.int64(), INT8),
    (pa.int16(), INT16, "short", "integer", pa.int32(), INT16),
    (pa.int32(), INT32, "integer", "long", pa.int64(), INT32),
    (pa.float32(), FLOATS, "float", "double", pa.float64(), FLOATS),
    (pa.int32(), INT32, "integer", "double", pa.float64(), INT32),
    (pa.int16(), INT16, "short", "decimal(10,0)", pa.decimal128(10, 0), INT16),
    (pa.int32(), INT32, "integer", "decimal(12,2)", pa.decimal128(12, 2), INT32),
    (pa.int64(), INT64, "long", "decimal(20,0)", pa.decimal128(20, 0), INT64),
    (pa.int64(), INT64, "long", "decimal(38,18)", pa.decimal128(38, 18), INT64),
    (
        pa.decimal128(6, 2),
        decimals("9999.99", "-0.01"),
        "decimal(6,2)",
        "decimal(10, 4)",
        pa.decimal128(10, 4),
        decimals("9999.9900", "-0.0100"),
    ),
    (
        pa.date32(),
        DAYS,
        "date",
        "timestamp_ntz",
        pa.timestamp("us"),
        [datetime(day.year, day.month, day.day) for day in DAYS],
    ),
]


@pytest.mark.parametrize("place", ["column", "list", "struct", "map"])
@pytest.mark.parametrize(
    ("old", "values", "old_name", "new_name", "new", "expected"),
    WIDENINGS,
    ids=[f"{case[2]} to {case[3]}" for case in WIDENINGS],
)
def test_a_widened_column_keeps_all_values(
    tmp_path: Path,
    old: pa.DataType,
    values: list[Any],
    old_name: str,
    new_name: str,
    new: pa.DataType,
    expected: list[Any],
    place: str,
) -> None:
    def nest(data_type: Any, items: list[Any]) -> Any:
        if place == "column":
            return pa.array([*items, None], data_type)
        if place == "list":
            return pa.array([items, None, []], pa.list_(data_type))
        if place == "struct":
            return pa.array([{"x": item} for item in items], pa.struct({"x": data_type}))
        return pa.array([[("k", items[0])]], pa.map_(pa.string(), data_type))

    write_deltalake(tmp_path, pa.table({"c": nest(old, values)}))
    features = ["timestampNtz"] if new_name == "timestamp_ntz" else []
    change_log(tmp_path, protocol("typeWidening", *features))
    change = {"fromType": old_name, "toType": new_name}
    if place in ("list", "map"):
        change["fieldPath"] = "element" if place == "list" else "value"

    def widen(fields: Fields) -> None:
        field = fields[0]
        if place == "column":
            field["type"] = new_name
        elif place == "struct":
            field = field["type"]["fields"][0]
            field["type"] = new_name
        else:
            field["type"]["elementType" if place == "list" else "valueType"] = new_name
        field["metadata"] = {"delta.typeChanges": [change]}

    change_metadata(tmp_path, widen)
    dataset = open_dataset(tmp_path)
    found = read_dataset(dataset).table["c"]
    wanted = nest(new, expected)
    assert found.type == dataset.schema.field("c").type
    assert found.to_pylist() == wanted.to_pylist()
    assert found.combine_chunks().cast(wanted.type).equals(wanted)
    if place == "column":
        row_filter = encode_filter(pc.field("c") == pa.scalar(expected[0], new), dataset.schema)
        assert read_dataset(dataset, filter=row_filter).table["c"].to_pylist() == [expected[0]]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("long", "integer"),
        ("long", "double"),
        ("double", "float"),
        ("integer", "decimal(9,0)"),
        ("long", "decimal(19,0)"),
        ("decimal(6,2)", "decimal(7,4)"),
        ("decimal(6,2)", "decimal(8,1)"),
        ("double", "decimal(38,0)"),
        ("date", "timestamp"),
        ("integer", "string"),
    ],
)
def test_other_changes_of_types_are_refused(tmp_path: Path, old: str, new: str) -> None:
    write(tmp_path, range(3))
    change_log(tmp_path, protocol("typeWidening"))
    change = {"delta.typeChanges": [{"fromType": old, "toType": new}]}
    change_metadata(tmp_path, lambda fields: fields[0].update(metadata=change))
    reason = re.escape(f"uses typeWidening of the column 'n' from {old} to {new}, which is not")
    with pytest.raises(DatasetError, match=reason):
        open_dataset(tmp_path)
