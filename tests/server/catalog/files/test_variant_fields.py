"""Fields of Variant columns as columns, in folders of files and in published datasets."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import splitarrow
from helpers.catalog import read_dataset
from helpers.files import write_stream
from helpers.publication import publish
from splitarrow import variant
from splitarrow.errors import NotFoundError, UsageError
from splitarrow.filters import encode_filter
from splitarrow.publication.column_ranges import RangeTracker
from splitarrow.publication.version_store import VersionStore
from splitarrow.server.catalog.files.directory import DirectoryDataset
from splitarrow.server.catalog.files.file_types import open_file
from splitarrow.server.catalog.object_cache import ObjectCache
from splitarrow.server.catalog.published import PublishedDataset

INT32 = pa.struct([("n", pa.int32()), ("at", pa.struct([("x", pa.float64())]))])
INT64 = pa.struct([("n", pa.int64()), ("at", pa.struct([("x", pa.string())]))])
ROWS: list[Any] = [{"n": row, "at": {"x": row / 4}, "rest": "y" * (row % 7)} for row in range(120)]
ROWS[5], ROWS[50], ROWS[90] = None, "text", {"n": "text", "at": [1]}
NUMBERS: list[Any] = [None if row in (5, 50, 90) else row for row in range(120)]
FIELDS = {"n": pa.int64(), "at": None, "at.x": pa.float64()}


def make_table(rows: list[Any], first: int = 0, **options: Any) -> pa.Table:
    make: Any = pa.table
    schema = pa.schema([pa.field("id", pa.int64()), variant.field("v", **options)])
    return make([range(first, first + len(rows)), variant.from_python(rows)], schema=schema)


def write_arrow(path: Path, table: pa.Table) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, 40)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of files of 40 rows: shredded in two ways, and not at all."""
    for number, data_type in enumerate((INT32, INT64, None)):
        table = make_table(ROWS[number * 40 : number * 40 + 40], number * 40)
        path = tmp_path / f"part={number}" / "file.parquet"
        path.parent.mkdir()
        shred = {} if data_type is None else {"v": data_type}
        variant.write_parquet(table, path, shred=shred, row_group_size=10)
    return tmp_path


def test_fields_of_a_folder_are_those_of_all_files(folder: Path) -> None:
    dataset = DirectoryDataset(folder)
    columns = ("v.n", "part", "v.at.x", "id", "v.at")
    table = read_dataset(dataset, columns=columns).table
    assert table.column_names == list(columns)
    assert table["v.n"].type == pa.int64()
    assert table["v.n"].to_pylist() == NUMBERS
    assert table["part"].to_pylist() == [row // 40 for row in range(120)]
    texts = variant.to_json(table["v.at.x"]).to_pylist()  # double in one file, string in another
    assert texts == [None if each is None else json.dumps(each / 4) for each in NUMBERS]
    assert variant.to_json(table["v.at"])[90].as_py() == "[1]"
    every = read_dataset(dataset, columns=("id", "v", "part", "v.n", "v.at", "v.at.x")).table
    assert variant.to_json(every["v"])[7].as_py() == json.dumps(
        ROWS[7], separators=(",", ":"), sort_keys=True
    )
    assert every["v.n"].to_pylist() == NUMBERS
    with pytest.raises(NotFoundError, match=r"no column 'v\.rest'"):
        read_dataset(dataset, columns=("v.rest",))


@pytest.mark.parametrize(
    ("condition", "rows", "groups"),
    [
        (("v.n", ">=", 118), [118, 119], [[], [], [0, 1, 2, 3]]),
        (("v.n", "==", 33), [33], [[3], [], [0, 1, 2, 3]]),
        ([("v.n", "<", 45), ("id", ">", 38)], [39, 40, 41, 42, 43, 44], [[3], [0], [0, 1, 2, 3]]),
        ([("v.n", "==", 77), ("part", "==", 1)], [77], [[3]]),
    ],
    ids=str,
)
def test_a_filter_on_a_field_skips_row_groups_of_a_folder(
    folder: Path, condition: Any, rows: Any, groups: Any, selected: list[list[int]]
) -> None:
    with splitarrow.serve({"v": folder}, control="grpc://127.0.0.1:0") as server:
        assert server.control_uri is not None
        with splitarrow.connect(server.control_uri) as client:
            found = client.read("v", columns=["id"], filter=condition).read_all()
    assert found["id"].to_pylist() == rows
    assert sorted(selected) == sorted(groups)


def read_bytes() -> int:
    """Return the bytes that this process has read."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("rchar"))


def test_only_the_chunks_of_a_field_are_read(tmp_path: Path) -> None:
    draw = random.Random(1)
    for number in range(2):
        rows = [{"n": row, "rest": draw.randbytes(400).hex()} for row in range(3000)]
        path = tmp_path / f"{number}.parquet"
        variant.write_parquet(make_table(rows), path, shred={"v": INT64}, compression="none")
    chunks = 0
    for path in tmp_path.iterdir():
        group: Any = pq.read_metadata(path).row_group(0)
        leaves = [group.column(index) for index in range(group.num_columns)]
        part = "v.typed_value.n."
        chunks += sum(each.total_compressed_size for each in leaves if part in each.path_in_schema)
    dataset = DirectoryDataset(tmp_path)
    total = sum(path.stat().st_size for path in tmp_path.iterdir())
    before = read_bytes()
    assert read_dataset(dataset, columns=("v.n",)).table["v.n"].to_pylist() == [*range(3000)] * 2
    read = read_bytes() - before
    assert chunks <= read < chunks + 150_000 < total / 20


@pytest.mark.parametrize("kind", ["file", "stream", "folder", "published", "one shard", "table"])
def test_described_fields_of_arrow_data_are_columns(tmp_path: Path, kind: str) -> None:
    tables = [make_table(ROWS[at : at + 40], at, fields=FIELDS) for at in (0, 40, 80)]
    if kind == "published":
        publish(VersionStore(tmp_path), "job", *tables)
    elif kind == "one shard":
        publish(VersionStore(tmp_path), "job", pa.concat_tables(tables))
    elif kind == "stream":
        write_stream(tmp_path / "0.arrow", pa.concat_tables(tables))
    elif kind != "table":
        parts = [pa.concat_tables(tables)] if kind == "file" else tables
        for number, part in enumerate(parts):
            write_arrow(tmp_path / f"{number}.arrow", part)
    data: Any = tmp_path / "0.arrow" if kind in ("file", "stream") else tmp_path
    data = pa.concat_tables(tables) if kind == "table" else data
    with splitarrow.serve({"v": data}, control="grpc://127.0.0.1:0") as server:
        assert server.control_uri is not None
        with splitarrow.connect(server.control_uri) as client:
            whole = client.read("v").read_all()
            fields = client.read("v", columns=["v.at.x", "v.n", "v.at"]).read_all()
            everything = client.read("v", columns=["id", "v", "v.n", "v.at", "v.at.x"]).read_all()
            found = client.read("v", filter="v.n > 42 and id < 45").read_all()
            first = client.read("v", columns=["v.n"], limit=2, filter=("v.n", ">", 3)).read_all()
    assert whole.column_names == found.column_names == ["id", "v"]
    assert fields.schema.names == ["v.at.x", "v.n", "v.at"]
    assert fields["v.n"].to_pylist() == everything["v.n"].to_pylist() == NUMBERS
    assert fields["v.at.x"].to_pylist() == [n if n is None else n / 4 for n in NUMBERS]
    assert variant.to_python(fields["v.at"])[:1] == [{"x": 0.0}]
    assert found["id"].to_pylist() == [43, 44]
    assert first["v.n"].to_pylist() == [4, 6]


def test_shards_are_skipped_by_the_ranges_of_fields(location: str, tmp_path: Path) -> None:
    store = VersionStore(location)
    tables = [make_table(ROWS[at : at + 40], at, fields=FIELDS) for at in (0, 40, 80)]
    publish(store, "job", *tables)
    manifest = store.load()
    assert manifest is not None
    ranges = [shard.columns["v.n"] for shard in manifest.shards]
    assert [(each.minimum, each.maximum, each.nulls) for each in ranges] == [
        (0, 39, 1), (40, 79, 1), (80, 119, 1),
    ]  # fmt: skip
    store.storage.delete([shard.path for shard in manifest.shards[:2]])
    dataset = PublishedDataset(location, ObjectCache(tmp_path / "cache", 1 << 30))
    text = encode_filter(("v.n", ">", 117), dataset.schema)
    for columns in (("id",), ("v.n", "id"), None):
        table = read_dataset(dataset, columns=columns, filter=text).table
        assert table["id"].to_pylist() == [118, 119]


def test_ranges_of_fields_ignore_values_of_other_types() -> None:
    rows = [{"d": Decimal("1.25"), "s": "b"}, {"d": 3, "s": 7}, {"d": "9"}, None]
    fields = {"d": pa.decimal128(9, 2), "s": pa.string(), "o": None}
    table = make_table(rows, fields=fields)
    tracker = RangeTracker(table.schema)
    for batch in table.to_batches():
        tracker.add(batch)
    found = {
        name: (each.minimum, each.maximum, each.nulls) for name, each in tracker.ranges().items()
    }
    assert found == {
        "id": (0, 3, 0),
        "v": (None, None, 0),
        "v.d": ("1.25", "3.00", 2),
        "v.s": ("b", "b", 3),
    }


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"a..b": pa.int64()}, "not the name of a field"),
        ({"": pa.int64()}, "not the name of a field"),
        ({"a": pa.uint8()}, "cannot be uint8"),
        ({"a": pa.list_(pa.int8())}, "cannot be list"),
        ({f"a{number}": None for number in range(1001)}, "at most 1000"),
    ],
    ids=range(5),
)
def test_a_description_is_checked(fields: Any, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        variant.field("v", fields=fields)


@pytest.mark.parametrize(
    "text", ["[", "[1]", '{"a": 7}', '{"": "int64"}', '{"a.": "int64"}', "[" * 99999, '{"n": []}']
)
def test_a_malformed_description_is_ignored(tmp_path: Path, text: str) -> None:
    described: Any = variant.field("v", fields=FIELDS)
    key = next(key for key in described.metadata if b"splitarrow" in key)
    described = described.with_metadata({**described.metadata, key: text.encode()})
    table = make_table(ROWS)
    table = table.cast(pa.schema([table.schema.field(0), described]))
    write_arrow(tmp_path / "v.arrow", table)
    dataset = open_file(tmp_path / "v.arrow")
    assert read_dataset(dataset, columns=("id",)).table.num_rows == 120
    with pytest.raises(NotFoundError):
        read_dataset(dataset, columns=("v.n",))
