"""Files like those of parquet-testing are served with their values, or refused with one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.flight as fl
import pytest

import splitarrow
from helpers.catalog import read_dataset
from helpers.parquet_kinds import make_invalid_files, make_misplaced, make_valid_files
from helpers.parquet_pages import Chunk, data_page, leaf, write_pages
from helpers.sources import encode_filter
from splitarrow.cli.output_formats import open_sink
from splitarrow.errors import SplitArrowError
from splitarrow.formats.parquet.schema import Physical
from splitarrow.formats.parquet.thrift import Type, Value
from splitarrow.server.catalog.files.file_types import open_file

VALID = make_valid_files()
MISPLACED = make_misplaced()
INVALID = make_invalid_files()


def read(folder: Path, file: bytes, **request: Any) -> Any:
    path = folder / "x.parquet"
    path.write_bytes(file)
    table = read_dataset(open_file(path), **request).table
    table.validate(full=True)
    return table


@pytest.mark.parametrize("name", VALID)
def test_a_valid_file_has_its_values_in_every_request(tmp_path, name):
    file, expected = VALID[name]
    whole = read(tmp_path, file)
    assert whole.to_pydict() == expected
    last = whole.schema.names[-1]
    assert read(tmp_path, file, columns=(last,)).equals(whole.select([last]), check_metadata=True)
    assert read(tmp_path, file, limit=1).equals(whole.slice(0, 1), check_metadata=True)
    if not pa.types.is_nested(whole.schema.field(last).type):
        is_valid: Any = pc.field(last).is_valid()
        kept = read(tmp_path, file, filter=encode_filter(is_valid, whole.schema))
        assert kept.equals(whole.filter(whole[last].is_valid()), check_metadata=True)
    written = tmp_path / "written.parquet"
    sink = open_sink(".parquet", written, whole.schema)
    for batch in whole.to_batches():
        sink.write(batch)
    sink.close()
    assert read_dataset(open_file(written)).table.to_pydict() == expected


@pytest.mark.parametrize("name", MISPLACED)
def test_a_misplaced_annotation_costs_only_the_column(tmp_path, name):
    file, values, mark = MISPLACED[name]
    table = read(tmp_path, file)
    assert table.to_pydict() == {"a": values, "b": [1, 2]}
    assert (table.schema.field("a").metadata or {})[b"PARQUET:logical_type"] == mark.encode()


@pytest.mark.parametrize("name", INVALID)
def test_an_invalid_file_is_refused_with_one_line(tmp_path, name):
    file, problem = INVALID[name]
    with pytest.raises(SplitArrowError) as caught:
        read(tmp_path, file)
    assert problem in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.slow
def test_a_daemon_survives_all_files(tmp_path, daemon):
    files = {**{name: file for name, (file, _) in VALID.items()}}
    files |= {name: file for name, (file, _) in INVALID.items()}
    datasets: dict[str, Path] = {}
    for number in range(len(files)):
        datasets[f"f{number}"] = tmp_path / f"{number}.parquet"
        datasets[f"f{number}"].write_bytes(VALID["checksums"][0])
    served = daemon(datasets, control="grpc://127.0.0.1:0")
    for number, file in enumerate(files.values()):
        (tmp_path / f"{number}.parquet").write_bytes(file)
    with splitarrow.connect(served.control_uri) as client, fl.connect(served.control_uri) as plain:
        for number, name in enumerate(files):
            if name in VALID:
                with client.read(f"f{number}") as stream:
                    table: Any = stream.read_all()
                assert table.to_pydict() == VALID[name][1], name
                ticket = fl.Ticket(f"f{number}".encode())
                assert plain.do_get(ticket).read_all().to_pydict() == VALID[name][1], name
                continue
            with pytest.raises(SplitArrowError), client.read(f"f{number}") as stream:
                stream.read_all()
    assert served.is_running


@pytest.mark.parametrize(
    ("physical", "size"), [(Physical.INT32, 4), (Physical.DOUBLE, 8), (Physical.BOOLEAN, 1)]
)
@pytest.mark.parametrize("fields", [(1, 2), (5, 6)])
def test_statistics_of_the_wrong_size_are_not_used(tmp_path, physical, size, fields):
    """pyarrow ends the process over them."""
    refused = 0
    for wrong in (size, size - 1, size + 1):
        bounds = {number: Value(Type.BINARY, bytes(wrong)) for number in fields}
        page = data_page(2, bytes(16))
        chunk = Chunk("a", physical, [page], 2, extra={12: Value(Type.STRUCT, bounds)})
        file = write_pages([leaf("a", physical)], [chunk], 2)
        data_type = {1: pa.bool_(), 4: pa.int32(), 8: pa.float64()}[size]
        expression = pc.field("a") >= pa.scalar(0).cast(data_type)
        encoded = encode_filter(expression, pa.schema([("a", data_type)]))
        try:
            assert len(read(tmp_path, file, filter=encoded)) == 2
        except SplitArrowError:
            refused += 1
            assert wrong != size
    assert refused < 3


def test_a_row_group_has_the_columns_of_the_schema(tmp_path):
    chunk = Chunk("a", Physical.INT32, [data_page(2, bytes(8))], 2)
    file = write_pages([leaf("a", Physical.INT32), leaf("b", Physical.INT32)], [chunk], 2)
    with pytest.raises(SplitArrowError, match="has 1 columns, but the schema has 2"):
        read(tmp_path, file)
