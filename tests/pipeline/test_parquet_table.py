"""The table of docs/guide/parquet.md: Parquet to Arrow, to Spark, and to Parquet again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import types as st

from helpers.package import ROOT
from helpers.parquet_files import footer_of
from helpers.parquet_types import describe, list_columns, write_columns
from splitarrow.cli.output_formats import open_sink
from splitarrow.errors import InvalidDataError
from splitarrow.formats.parquet.footer import Footer
from splitarrow.pipeline.types import spark_type
from splitarrow.server.catalog.files.file_types import open_file

REFUSED = "refused"
_PAGE = ROOT / "docs" / "guide" / "parquet.md"


def list_rows() -> list[list[str]]:
    """Return the cells of the table's rows."""
    text = _PAGE.read_text().partition("| Parquet | Arrow | written by")[2]
    lines = text.partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def spark_types(schema: Any) -> dict[str, Any]:
    """Return the Spark type of each column that Spark can hold."""
    found: dict[str, Any] = {}
    for field in schema:
        try:
            found[field.name] = spark_type(field.type, field.name)
        except InvalidDataError:
            found[field.name] = None
    return found


def read_table(folder: Path) -> tuple[Any, list[list[str]]]:
    """Return the schema in Arrow, and the first four cells of each row as they are."""
    path = folder / "all.parquet"
    path.write_bytes(write_columns())
    schema = open_file(path).schema
    written = folder / "written.parquet"
    open_sink(".parquet", written, schema).close()
    nodes = {
        node.name: describe(node)
        for node in Footer.parse(footer_of(written.read_bytes())).root.children
    }
    spark = spark_types(schema)
    rows = [
        [
            field.name,
            f"`{field.type}`",
            nodes[field.name],
            REFUSED if spark[field.name] is None else f"`{spark[field.name].simpleString()}`",
        ]
        for field in schema
    ]
    return schema, rows


def spark_written(spark: Any, schema: Any, folder: Path) -> dict[str, str]:
    """Return what Spark writes for each column that it can hold."""
    types = {name: each for name, each in spark_types(schema).items() if each is not None}
    written: dict[str, str] = {}
    for kind in types.values():
        if kind.simpleString() not in written:
            written[kind.simpleString()] = write_empty(spark, kind, folder / f"{len(written)}")
    return {name: written[kind.simpleString()] for name, kind in types.items()}


def write_empty(spark: Any, kind: Any, folder: Path) -> str:
    """Return what Spark writes for a column of a type."""
    frame = spark.createDataFrame([], st.StructType([st.StructField("c", kind)]))
    try:
        frame.coalesce(1).write.parquet(str(folder))
    except AnalysisException:  # Spark cannot write the type
        return REFUSED
    (file,) = folder.glob("*.parquet")
    (node,) = Footer.parse(footer_of(file.read_bytes())).root.children
    return describe(node)


def test_the_table_lists_every_type_as_it_is_read_and_written(tmp_path):
    _, rows = read_table(tmp_path)
    assert [row[:4] for row in list_rows()] == rows
    assert {row[0] for row in rows} == set(list_columns())


@pytest.mark.slow
def test_spark_writes_what_the_table_states(spark, tmp_path):
    schema, _ = read_table(tmp_path)
    found = spark_written(spark, schema, tmp_path)
    assert {row[0]: row[4] for row in list_rows()} == {
        name: found.get(name, REFUSED) for name in schema.names
    }
