"""Every file of parquet-testing is read with its expected values, or refused with one line."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers.catalog import DEFAULTS, read_dataset
from helpers.wkb import DIMENSIONS, ReferenceReader
from splitarrow.errors import ExhaustedError, SplitArrowError
from splitarrow.server.catalog.files.file_types import open_file

SHARED = Path(__file__).parents[5] / "shared" / "testdata" / "parquet-testing"
ROOT = Path(os.environ.get("PARQUET_TEST_DATA", SHARED))
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|nan|NaN)")


def files_in(folder: str) -> list[Any]:
    found = sorted((ROOT / folder).rglob("*.parquet"))
    return [pytest.param(path, id=str(path.relative_to(ROOT / folder))) for path in found]


def largest_column(path: Path) -> int:
    """Return the size of the largest column in a row group, decoded, in bytes."""
    metadata: Any = pq.read_metadata(path)
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    return max(
        group.column(index).total_uncompressed_size
        for group in groups
        for index in range(group.num_columns)
    )


def read_whole(path: Path) -> Any:
    """Return the table of a file; raise `SplitArrowError` if it is refused."""
    return read_dataset(open_file(path)).table


@pytest.mark.parametrize("path", files_in("data"))
def test_a_valid_file_is_read_as_pyarrow_does_where_that_is_right(path):
    try:
        table = read_whole(path)
    except ExhaustedError:
        assert largest_column(path) > DEFAULTS.budget.parquet_bytes
        return
    except SplitArrowError:
        with pytest.raises((pa.ArrowException, OSError, ValueError)):
            pq.ParquetFile(path, page_checksum_verification=True).read()
        return
    table.validate(full=True)
    plain = pq.ParquetFile(path, coerce_int96_timestamp_unit="us")
    assert table.num_rows == plain.metadata.num_rows
    assert table.schema.names == plain.schema_arrow.names
    expected = plain.read()
    for index, field in enumerate(table.schema):
        if expected.schema.field(index).type == field.type and not _has_map(field.type):
            assert table.column(index).equals(expected.column(index)), field.name


@pytest.mark.parametrize("path", files_in("bad_data"))
def test_an_invalid_file_is_refused(path):
    with pytest.raises(SplitArrowError) as caught:
        read_whole(path)
    assert caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("path", files_in("data/geospatial"))
def test_geometries_are_those_of_their_text(path):
    table = read_whole(path)
    if "wkt" not in table.schema.names:
        return
    for text, value in zip(table["wkt"].to_pylist(), table[-1].to_pylist(), strict=True):
        assert (text is None) == (value is None)
        if text is None:
            continue
        reader = ReferenceReader(value, 16)
        flavor = reader.read() // 1000
        numbers = [float(number) for number in _NUMBER.findall(text)]
        names = {0: (0, 1), 1: (0, 1, 2), 2: (0, 1, 3), 3: (0, 1, 2, 3)}[flavor]
        for index, name in enumerate(names):
            column = [each for each in numbers[index :: DIMENSIONS[flavor]] if each == each]
            expected = (min(column), max(column)) if column else None
            found = reader.bounds.get(name)
            assert found == (expected if expected is None else pytest.approx(expected)), text


def _has_map(data_type: Any) -> bool:
    if isinstance(data_type, pa.MapType):
        return True
    return any(_has_map(data_type.field(index).type) for index in range(data_type.num_fields))
