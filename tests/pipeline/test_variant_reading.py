"""Spark agrees on the Variants of Parquet files, but for the list in docs/guide/variant.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from helpers.variant_readers import (
    KINDS,
    Texts,
    compare_drawn,
    compare_golden_files,
    draw,
    list_differences,
    write,
)
from splitarrow import variant

LISTED = list_differences(2)


def test_spark_agrees_on_drawn_variants_but_for_the_list(spark, tmp_path):
    def read(path: Path, names: Sequence[str]) -> list[Texts]:
        frame = spark.read.parquet(str(path)).selectExpr(*(f"to_json(`{name}`)" for name in names))
        return [list(column) for column in zip(*frame.collect(), strict=True)]

    found = compare_drawn(tmp_path, read, LISTED)
    assert found == {name: text for name, text in LISTED.items() if isinstance(name, str)}


def test_spark_agrees_on_golden_files_but_for_the_list(spark, parquet_test_data, tmp_path):
    def read_files(paths: Sequence[Path]) -> list[Texts]:
        reader = spark.read
        if len(paths) > 1:  # a job for all; Spark would infer the type from the first file
            reader = reader.schema("var VARIANT")
        frame = reader.parquet(*map(str, paths))
        keys = "_metadata.file_name", "_metadata.row_index"
        texts: dict[str, Texts] = {path.name: [] for path in paths}
        for name, _, text in sorted(frame.selectExpr(*keys, "to_json(var)").collect()):
            texts[name].append(text)
        return list(texts.values())

    assert compare_golden_files(parquet_test_data, tmp_path, read_files, LISTED) == {}


@pytest.mark.parametrize("is_shredded", [False, True])
def test_spark_extracts_the_same_values_by_path(spark, tmp_path, is_shredded):
    types = {
        "boolean": "boolean",
        "int64": "bigint",
        "double": "double",
        "decimal16": "decimal(38, 20)",
        "string": "string",
        "date": "date",
        "timestamp_ntz": "timestamp_ntz",
        "binary": "binary",
    }
    path = tmp_path / "v.parquet"
    columns = draw(list(types))
    write(path, columns, is_shredded)
    gets = [f"variant_get(`{name}.document`, '$.a', '{text}')" for name, text in types.items()]
    found = spark.read.parquet(str(path)).selectExpr(*gets).collect()
    for name, values in zip(types, zip(*found, strict=True), strict=True):
        own = variant.get(columns[f"{name}.document"][0], "$.a", KINDS[name][0])
        assert list(values) == own.to_pylist(), name
