"""Shards as local files: what is written is what an inspection finds."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from splitarrow.errors import DatasetError, InvalidDataError
from splitarrow.filters.ranges import UNKNOWN, Range
from splitarrow.formats.parquet.geo.boxes import Box
from splitarrow.publication.column_ranges import find_range
from splitarrow.publication.manifest import ColumnRange, ShardEntry
from splitarrow.publication.shard_files import (
    check_shard_length,
    inspect_shard_file,
    write_shard_file,
)

TABLE = pa.table({"n": [3, 1, 2], "t": ["a", None, "b"]})


def test_the_entry_of_a_shard_describes_its_file(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    written = write_shard_file(path, TABLE.schema, TABLE.to_batches(max_chunksize=2))
    assert pa.ipc.open_file(str(path)).read_all() == TABLE
    assert inspect_shard_file(path) == (TABLE.schema, written)
    assert (written.path, written.rows) == ("a.arrow", 3)
    assert written.nbytes == path.stat().st_size
    assert written.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert {name: (c.minimum, c.maximum, c.nulls) for name, c in written.columns.items()} == {
        "n": (1, 3, 0),
        "t": ("a", "b", 1),
    }


def test_a_file_that_is_no_valid_shard_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    with pytest.raises(DatasetError, match=r"cannot write the shard .*x/a\.arrow"):
        write_shard_file(tmp_path / "x" / "a.arrow", TABLE.schema, [])
    path.write_bytes(b"no shard")
    with pytest.raises(DatasetError, match=r"a\.arrow is not a valid Arrow IPC file"):
        inspect_shard_file(path)
    invalid = pa.StringArray.from_buffers(
        1, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xff")
    )
    batch = pa.record_batch({"t": invalid})
    entry = write_shard_file(path, batch.schema.remove(0), [])
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    with pytest.raises(DatasetError, match=r"a\.arrow is not a valid Arrow IPC file"):
        inspect_shard_file(path)
    check_shard_length(entry, entry.nbytes, "here")
    with pytest.raises(DatasetError, match=rf"here/a\.arrow has 7 bytes, but .* {entry.nbytes}"):
        check_shard_length(entry, 7, "here")


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (ColumnRange(1, 3, 0), Range(1, 3, nulls=False, nan=False)),
        (ColumnRange(1, 3, 1), Range(1, 3, nulls=True, nan=False)),
        (ColumnRange(1, None, 0), UNKNOWN),
        (ColumnRange(None, 3, 0), UNKNOWN),
        (ColumnRange("a", "b", 0), UNKNOWN),
        (ColumnRange(None, None, 0, (0.0, 1.0, 2.0, 3.0)), Range(box=Box(0.0, 1.0, 2.0, 3.0))),
        (None, UNKNOWN),
    ],
)
def test_a_manifest_knows_the_range_of_a_column(
    column: ColumnRange | None, expected: Range
) -> None:
    columns = {} if column is None else {"n": column}
    shard = ShardEntry("a.arrow", 3, 100, "0" * 64, columns)
    assert find_range(shard.columns, pa.field("n", pa.int32())) == expected


@pytest.mark.parametrize(
    "wrong",
    [
        {"path": "../a"},
        {"path": "a\\b"},
        *({name: value} for name in ("rows", "nbytes") for value in (-1, 1 << 63, True, "1", 1.5)),
        {"sha256": "0" * 63},
        {"sha256": "G" * 64},
        {"ordinal": -7},
    ],
    ids=str,
)
def test_an_impossible_entry_is_refused_by_the_name_of_its_field(wrong: dict[str, Any]) -> None:
    right: dict[str, Any] = {"path": "a b", "rows": 0, "nbytes": (1 << 63) - 1, "sha256": "0" * 64}
    ShardEntry(**right)
    with pytest.raises(InvalidDataError, match=next(iter(wrong)).lstrip("n")):
        ShardEntry(**{**right, **wrong})
    if "rows" in wrong:
        with pytest.raises(InvalidDataError, match="nulls"):
            ColumnRange(None, None, wrong["rows"])
