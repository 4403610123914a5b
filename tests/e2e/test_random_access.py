"""Rows and record batches by their numbers, over every kind of dataset and transport."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

import splitarrow
from splitarrow.client.dataset.client import Client
from splitarrow.errors import SplitArrowError
from splitarrow.publication.version_store import VersionStore

pytestmark = pytest.mark.slow
SIZES = [7, 0, 13, 1, 29, 50]
ROWS = sum(SIZES)
NAMES = ["file", "packed", "stream", "replaced", "parquet", "folder", "published", "table"]
RANGES = [(0, ROWS), (0, 0), (ROWS, ROWS), (6, 9), (7, 8), (19, 51), (99, 100)]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"filter": "n < 40", "columns": ["n"]},
    {"limit": 2},
    {"batch_rows": 4, "parallel": 3},
]


def make_batches(words: Callable[[int], list[str]], *, plain: bool = False) -> list[Any]:
    batches: list[pa.RecordBatch] = []
    begin = 0
    for number, size in enumerate(SIZES):
        values = pa.array(words(number))
        indices = pa.array([row % len(values) for row in range(size)], pa.int8())
        column: Any = pa.DictionaryArray.from_arrays(indices, values)
        numbers = pa.array(range(begin, begin + size), pa.int64())
        column = column.dictionary_decode() if plain else column
        batches.append(pa.record_batch([numbers, column], names=["n", "w"]))
        begin += size
    return batches


def write(path: Path, new: Callable[..., Any], batches: list[Any], codec: Any = None) -> Path:
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True, compression=codec)
    with new(str(path), batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return path


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("data")
    growing = make_batches(lambda number: [f"w{k}" for k in range(number + 1)])
    replaced = make_batches(lambda number: [f"v{number}{k}" for k in range(3)])
    plain = make_batches(lambda number: ["a", "b"], plain=True)
    table = pa.Table.from_batches(plain)
    (folder / "parts").mkdir()
    write(folder / "parts/a.arrow", pa.ipc.new_file, plain[:3])
    write(folder / "parts/b.arrow", pa.ipc.new_file, plain[3:])
    parquet.write_table(table, folder / "x.parquet", row_group_size=9)
    store = VersionStore(folder / "published")
    halves = enumerate((plain[:3], plain[3:]))
    shards = [store.write_shard("j", f"{k}.arrow", table.schema, part) for k, part in halves]
    store.commit("j", table.schema, shards, append=False)
    datasets: dict[str, Any] = {
        "file": write(folder / "file.arrow", pa.ipc.new_file, growing),
        "packed": write(folder / "packed.arrow", pa.ipc.new_file, growing, "zstd"),
        "stream": write(folder / "stream.arrows", pa.ipc.new_stream, growing),
        "replaced": write(folder / "replaced.arrows", pa.ipc.new_stream, replaced),
        "parquet": folder / "x.parquet",
        "folder": folder / "parts",
        "published": folder / "published",
        "table": table,
    }
    with (
        splitarrow.serve(
            datasets, listen=["tcp://127.0.0.1:0", "shm://"], control="grpc://127.0.0.1:0"
        ) as server,
        splitarrow.connect(server.control_uri or "") as client,
    ):
        assert isinstance(client, Client)
        yield client


def read(client: Client, name: str, **options: Any) -> list[dict[str, Any]]:
    return client.read(name, **options).read_all().to_pylist()


def count_batches(client: Client, name: str) -> int:
    """Return the number of stored record batches or row groups."""
    for count in range(1, ROWS):
        try:
            client.read(name, batches=(0, count)).close()
        except SplitArrowError:
            return count - 1
    return ROWS


@pytest.mark.parametrize("transport", ["tcp", "shm", "flight"])
@pytest.mark.parametrize("name", NAMES)
def test_ranges_are_slices_of_the_whole(client: Client, name: str, transport: str) -> None:
    whole = read(client, name, transport=transport)
    assert [row["n"] for row in whole] == list(range(ROWS))
    for index, (begin, end) in enumerate(RANGES):
        options = OPTIONS[index % len(OPTIONS)]
        expected = whole[begin:end]
        if "filter" in options:
            expected = [{"n": row["n"]} for row in expected if row["n"] < 40]
        expected = expected[: options.get("limit")]
        got = read(client, name, rows=(begin, end), transport=transport, **options)
        assert got == expected, (begin, end, options)
    count = count_batches(client, name)
    halves = [(0, 1), (1, count)]
    got = [read(client, name, batches=span, transport=transport) for span in halves]
    assert got[0] + got[1] == whole
    assert got[0]
    assert got[1]
    single = [
        read(client, name, batches=(number, number + 1), transport=transport)
        for number in range(count)
    ]
    others = [(number, number + 1) for number in range(0, count, 2)]
    expected = [row for number in range(0, count, 2) for row in single[number]]
    for options in OPTIONS:
        rows = expected
        if "filter" in options:
            rows = [{"n": row["n"]} for row in rows if row["n"] < 40]
        found = read(client, name, batches=others, transport=transport, **options)
        assert found == rows[: options.get("limit")], options


@pytest.mark.parametrize("span", [(0, ROWS + 1), (101, 101), (-1, 5), (5, 3), (1 << 62, 1 << 63)])
@pytest.mark.parametrize("kind", ["rows", "batches"])
def test_ranges_that_do_not_exist_are_refused(
    client: Client, kind: str, span: tuple[int, int]
) -> None:
    for name in NAMES:
        with pytest.raises(SplitArrowError, match=r"\d"):
            read(client, name, **{kind: span})
