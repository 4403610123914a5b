"""Other readers of Parquet agree on drawn columns of every type, but for those of the docs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from helpers.catalog import read_dataset
from helpers.package import ROOT
from helpers.parquet_drawing import draw_columns, list_files, plain_values, write_columns
from helpers.parquet_files import edit_schema
from helpers.parquet_kinds import make_valid_files
from splitarrow.formats.parquet.schema import CONVERTED
from splitarrow.server.catalog.files.file_types import open_file

Read = Callable[[Path], Any]
_PAGE = ROOT / "docs" / "guide" / "parquet.md"
VALID = make_valid_files()
NESTED = ("incorrect_map_schema", "repeated_no_annotation", "old_list_structure")
_HEADING = "| duckdb 2.0 | Spark 4.3 | files |"


def make_files() -> dict[str, bytes]:
    """Return the files of all types, and those that only some writers write."""
    files = list_files()
    files["DECIMAL(18, 2) on INT64 without ConvertedType"] = edit_schema(
        files["DECIMAL(18, 2) on INT64"],
        {"c": lambda element: {n: v for n, v in element.items() if n != CONVERTED}},
    )
    return files | {f"file like {name}": file for name, (file, _) in VALID.items()}


def compare(folder: Path, files: Mapping[str, bytes], read: Read) -> dict[str, str]:
    """Return what another reader does for each file for which it does not agree."""
    found: dict[str, str] = {}
    for number, (name, file) in enumerate(files.items()):
        path = folder / f"{number}.parquet"
        path.write_bytes(file)
        ours = read_dataset(open_file(path)).table
        try:
            other = read(path)
        except Exception:  # each reader has errors of its own
            found[name] = "refused"
            continue
        if plain_columns(other) != plain_columns(ours):
            found[name] = "other values"
    return found


def plain_columns(table: Any) -> list[list[Any]]:
    columns = [plain_values(column.combine_chunks()) for column in table.columns]
    return [[parse_uuid(value) for value in column] for column in columns]


def parse_uuid(value: Any) -> Any:
    """Return the bytes of a UUID in text."""
    if isinstance(value, str) and len(value) == 36 and value.count("-") == 4:
        return UUID(value).bytes
    return value


def list_differences(column: int) -> Mapping[str, str]:
    """Return a column of the table in the docs, without the files on which a reader agrees."""
    text = _PAGE.read_text().partition(_HEADING)[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]
    return {
        name: row[column] for row in rows if row[column] != "agrees" for name in row[2].split("; ")
    }


def test_duckdb_agrees_but_for_the_list(tmp_path):
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as connection:
        connection.execute("set timezone = 'UTC'")

        def read(path: Path) -> Any:
            return connection.sql(f"select * from read_parquet('{path}')").to_arrow_table()

        assert compare(tmp_path, make_files(), read) == list_differences(0)


def test_spark_agrees_but_for_the_list(spark, tmp_path):
    """The columns on which it agrees are in one file, because each file takes a job."""
    differences = list_differences(1)
    columns = draw_columns()
    agreed = {name: column for name, column in columns.items() if name not in differences}
    files = {name: file for name, file in make_files().items() if name in differences}
    files |= {name: VALID[name][0] for name in NESTED}
    files["all others"] = write_columns(agreed)

    def read(path: Path) -> Any:
        frame = spark.read.parquet(str(path))
        # Spark exports no null geometry to Arrow.
        return frame.selectExpr(
            *(
                f"st_asbinary(`{field.name}`)"
                if "geo" in field.dataType.typeName()
                else f"`{field.name}`"
                for field in frame.schema
            )
        ).toArrow()

    spark.conf.set("spark.sql.geospatial.enabled", "true")
    assert compare(tmp_path, files, read) == differences
