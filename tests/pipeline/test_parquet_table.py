"""The types of two pages, docs/guide/parquet.md and docs/spark-types.md."""

from __future__ import annotations

import re
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
_SPARK_PAGE = ROOT / "docs" / "spark-types.md"
# What `fetch` writes, where it is another type than the one that was read.
REWRITTEN = {
    "INT96": "TIMESTAMP(MICROS, local)",
    "unknown logical type 99": "INT(64, true)",
    "DECIMAL(9, 2) on INT32": "DECIMAL(9, 2) on FIXED_LEN_BYTE_ARRAY(4)",
    "DECIMAL(18, 2) on INT64": "DECIMAL(18, 2) on FIXED_LEN_BYTE_ARRAY(8)",
    "DECIMAL(90, 2) on BYTE_ARRAY": "BYTE_ARRAY",
}


def read_cells(page: Path, heading: str) -> list[list[str]]:
    """Return the cells of the rows of the table with a heading."""
    text = page.read_text().partition(heading)[2]
    lines = text.partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def list_rows() -> list[list[str]]:
    """Return the cells of the table's rows, one for each type."""
    rows: list[list[str]] = []
    for cells in read_cells(_PAGE, "| Parquet | Arrow | Spark"):
        names, *types = (cell.split("; ") for cell in cells)
        types = [each * len(names) if len(each) == 1 else each for each in types]
        for name, *row in zip(names, *types, strict=True):
            zones = ("UTC", "local") if ", any)" in name else ("",)
            rows += [[name.replace("any", zone), *row] for zone in zones]
    return rows


def list_spark_types() -> dict[str, str]:
    """Return what Spark writes for its types, by their names without parameters."""
    found: dict[str, str] = {}
    for row in read_cells(_SPARK_PAGE, "| Spark | Arrow, as the sink writes it |"):
        kinds = [cell.strip("`").partition("(")[0] for cell in row[0].split(", ")]
        written = row[2].partition(";")[0]
        texts = re.split(r", (?=INT|DOUBLE)", written) if len(kinds) == 2 else [written]
        found |= dict(zip(kinds, texts, strict=False))
    return found


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
    """Return the schema in Arrow, and the cells of each row, and what `fetch` writes."""
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
            REFUSED if spark[field.name] is None else f"`{spark[field.name].simpleString()}`",
            nodes[field.name],
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
    listed = [[*row, REWRITTEN.get(row[0], row[0])] for row in list_rows()]
    assert sorted(listed) == sorted(rows)
    assert {row[0] for row in rows} == set(list_columns())


@pytest.mark.slow
def test_spark_writes_what_its_page_states(spark, tmp_path):
    schema, _ = read_table(tmp_path)
    found = spark_written(spark, schema, tmp_path)
    listed = list_spark_types()
    for name, kind in spark_types(schema).items():
        if kind is not None:
            stated = listed[kind.simpleString().partition("(")[0]]
            if kind.typeName() == "decimal":
                digits = kind.precision
                physical = "INT32" if digits < 10 else "INT64" if digits < 19 else "FIXED_LEN"
                assert f"on {physical}" in stated
                assert f"{kind.scale}) on {physical}" in found[name]
            else:
                assert found[name] == stated, name
