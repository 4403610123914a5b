"""Vortex files and streams that fetch and convert write."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings

from helpers.arrow_data import draw_batches
from splitarrow.cli.local_input import open_local, open_selection
from splitarrow.cli.output_formats import open_sink
from splitarrow.errors import UsageError
from splitarrow.server.catalog.files.file_types import open_file

SUFFIXES = [".vortex", ".vortexs"]


def write(path: Path, schema: pa.Schema, batches: list[pa.RecordBatch]) -> None:
    sink = open_sink(path.suffix, path, schema)
    try:
        for batch in batches:
            sink.write(batch)
        sink.close()
    except BaseException:
        sink.abort()
        raise


def read(path: Path) -> pa.Table:
    with open_local(str(path)) as dataset, open_selection(dataset, "t") as stream:
        return pa.Table.from_batches(list(stream), stream.schema)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_rows_are_read_again(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    table = pa.table({"n": range(5000), "s": [None if n % 3 else f"é {n}" for n in range(5000)]})
    batches = table.to_batches(max_chunksize=777)
    write(path, table.schema, [batches[0].slice(0, 0), *batches])
    assert read(path) == table
    if suffix == ".vortexs":
        assert open_file(path).rows == 5000
        assert len(read(path).to_batches()) == len(batches)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_empty_table_keeps_its_columns(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    schema = pa.schema([("n", pa.int8()), ("l", pa.list_(pa.string()))])
    write(path, schema, [])
    assert read(path) == schema.empty_table()


def values(table: pa.Table) -> list[Any]:
    return [column.to_pylist() for column in table.columns]


def check(path: Path, drawn: tuple[pa.Schema, list[pa.RecordBatch]]) -> None:
    schema, batches = drawn
    try:
        write(path, schema, batches)
    except UsageError as error:
        assert "duration" in str(error) or not schema.names, error  # noqa: PT017
        return
    assert values(read(path)) == values(pa.Table.from_batches(batches, schema))


@pytest.mark.parametrize("suffix", SUFFIXES)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=draw_batches())
def test_drawn_batches_keep_their_values(
    tmp_path: Path, suffix: str, drawn: tuple[pa.Schema, list[pa.RecordBatch]]
) -> None:
    check(tmp_path / f"x{suffix}", drawn)


@pytest.mark.long
@pytest.mark.parametrize("suffix", SUFFIXES)
@settings(max_examples=2000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=draw_batches())
def test_2000_drawn_batches_keep_their_values(
    tmp_path: Path, suffix: str, drawn: tuple[pa.Schema, list[pa.RecordBatch]]
) -> None:
    check(tmp_path / f"x{suffix}", drawn)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_column_that_vortex_cannot_have_is_named(tmp_path: Path, suffix: str) -> None:
    schema = pa.schema([("n", pa.int8()), ("took", pa.duration("s"))])
    with pytest.raises(UsageError, match=r"'took': Vortex has no type duration\[s\]; write to"):
        write(tmp_path / f"x{suffix}", schema, [])


NUL = pa.field("a\0b", pa.int8())
ENTRY = pa.struct([NUL, pa.field("a", pa.int8())])
TWICE: list[Any] = [pa.field("a", pa.int8()), pa.field("a", pa.string())]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    "field",
    [
        NUL,
        pa.field("s", ENTRY),
        pa.field("l", pa.list_(ENTRY)),
        pa.field("m", pa.map_(pa.int8(), ENTRY)),
    ],
    ids=lambda field: field.name,
)
def test_a_name_with_a_nul_is_refused(tmp_path: Path, suffix: str, field: Any) -> None:
    message = rf"the column {re.escape(repr(field.name))}: Vortex has no names with a NUL, as in "
    with pytest.raises(UsageError, match=message):
        write(tmp_path / f"x{suffix}", pa.schema([field]), [])


@pytest.mark.parametrize(
    ("schema", "repeated"),
    [
        (TWICE, "several columns are named 'a'"),
        ([("s", pa.struct(TWICE))], "several fields of 's' are named 'a'"),
        ([("s", pa.struct([("t", pa.struct(TWICE))]))], "several fields of 't' are named 'a'"),
    ],
)
def test_a_file_names_what_it_has_twice(tmp_path: Path, schema: Any, repeated: str) -> None:
    """A stream has the names in order, so that they may repeat."""
    empty = pa.schema(schema)
    with pytest.raises(UsageError, match=repeated):
        write(tmp_path / "x.vortex", empty, [])
    write(tmp_path / "x.vortexs", empty, [])
    assert read(tmp_path / "x.vortexs").schema == empty


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_value_that_vortex_refuses_is_an_error(tmp_path: Path, suffix: str) -> None:
    raw = pa.py_buffer((1 << 100).to_bytes(16, "little"))
    digits = pa.Array.from_buffers(pa.decimal128(5, 2), 1, [None, raw])
    batch = pa.record_batch([digits], names=["price"])
    with pytest.raises(UsageError, match=r"cannot store this data.*decimal\(5,2\)"):
        write(tmp_path / f"x{suffix}", batch.schema, [batch])


def test_an_aborted_file_ends_its_thread(tmp_path: Path) -> None:
    batch = pa.record_batch({"n": range(1000)})
    sink: Any = open_sink(".vortex", tmp_path / "x.vortex", batch.schema)
    sink.write(batch)
    sink.abort()
    assert not sink._thread.is_alive()
