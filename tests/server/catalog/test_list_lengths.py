"""The lengths of lists, in datasets of every kind and on several daemons."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyarrow import flight

import splitarrow
from helpers.cluster import StartDaemons, join_uris
from helpers.files import write_file, write_parquet, write_shards, write_stream
from helpers.publication import publish
from helpers.vortex_messages import make_file
from splitarrow.client.cluster.publication import publish_shards
from splitarrow.errors import DatasetError, InvalidRequestError, NotFoundError, RemoteError
from splitarrow.formats.arrow import lengths
from splitarrow.formats.arrow.lengths import decode_lengths
from splitarrow.protocol.request import Request
from splitarrow.publication.version_store import VersionStore
from splitarrow.server.catalog.catalog import open_dataset
from splitarrow.server.catalog.dataset import Encoding
from splitarrow.server.control.actions import ActionHandler

ROWS = 60
TOKENS = [None if row % 7 == 3 else [row] * (row % 5) for row in range(ROWS)]
TEXTS = [None if row % 4 == 1 else "ä" * (row % 3) for row in range(ROWS)]


def make_table() -> pa.Table:
    tokens: Any = pa.array(TOKENS, pa.list_(pa.int32()))
    mask = pa.array([row % 6 == 5 for row in range(ROWS)])
    numbers: Any = pa.array(range(ROWS))
    struct = pa.StructArray.from_arrays([tokens, numbers], ["a", "n"], mask=mask)
    return pa.table({"n": numbers, "tokens": tokens, "text": TEXTS, "st": struct})


TABLE = make_table()
BATCHES = [each for span in ((0, 25), (25, 35)) for each in TABLE.slice(*span).to_batches()]
VIEWS = pa.table(
    {
        "word": pa.array(["a word of more than twelve bytes"] * ROWS, pa.string_view()),
        "view": pa.array(TOKENS, pa.list_view(pa.int32())),
        "large": pa.array(TOKENS, pa.large_list(pa.int32())),
        "pair": pa.array([None if row % 9 == 1 else [row] * 2 for row in range(ROWS)]).cast(
            pa.list_(pa.int64(), 2)
        ),
    }
)
FILTERS = {
    None: [True] * ROWS,
    "n > 20 and n < 50 and n <> 33": [20 < row < 50 and row != 33 for row in range(ROWS)],
    "text is null and tokens is not null": [
        text is None and tokens is not None for text, tokens in zip(TEXTS, TOKENS, strict=True)
    ],
}


def write_all(folder: Path) -> dict[str, Any]:
    """Write the table in every form, in parts of 25 and 35 rows."""
    write_file(folder / "t.arrow", BATCHES)
    write_file(folder / "t.zstd.arrow", BATCHES, compression="zstd")
    write_stream(folder / "t.arrows", BATCHES)
    write_parquet(folder / "t.parquet", TABLE, row_group_size=25)
    (folder / "t.vortex").write_bytes(make_file(TABLE))
    for number, batch in enumerate(BATCHES):
        write_file(folder / "folder" / f"{number}.arrow", [batch])
        (folder / "hive" / f"p=a{'b' * number}").mkdir(parents=True)
        write_parquet(folder / "hive" / f"p=a{'b' * number}" / "t.parquet", pa.table(batch))
        write_deltalake(folder / "delta", pa.table(batch), mode="append")
    (folder / "published").mkdir()
    publish(VersionStore(folder / "published"), "job", *(pa.table(each) for each in BATCHES))
    names = [
        "t.arrow",
        "t.zstd.arrow",
        "t.arrows",
        "t.parquet",
        "t.vortex",
        "folder",
        "hive",
        "delta",
    ]
    write_file(folder / "views.arrow", VIEWS)
    data: dict[str, Any] = {name: folder / name for name in (*names, "published", "views.arrow")}
    return data | {"batches": BATCHES, "objects": f"file://{folder}/t.arrow"}


KINDS = [
    *("t.arrow", "t.zstd.arrow", "t.arrows", "t.parquet", "t.vortex"),
    *("folder", "hive", "delta", "published", "batches", "objects"),
]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[splitarrow.Client]:
    """A client of a server of the table in every form."""
    data = write_all(tmp_path_factory.mktemp("lists"))
    with (
        splitarrow.serve(data, control="grpc://127.0.0.1:0") as server,
        splitarrow.connect(server.control_uri or "") as connected,
    ):
        yield connected


def measure(values: list[Any]) -> list[int | None]:
    return [None if each is None else len(each) for each in values]


@pytest.mark.parametrize("kind", KINDS)
def test_there_is_a_length_for_each_row_that_is_counted(
    client: splitarrow.Client, kind: str
) -> None:
    columns = {
        "tokens": TOKENS,
        "text": [None if each is None else each.encode() for each in TEXTS],
        "st.a": [None if row % 6 == 5 else each for row, each in enumerate(TOKENS)],
    }
    for column, values in columns.items():
        for condition, is_selected in FILTERS.items():
            found = client.list_lengths(kind, column, filter=condition)
            counts = client.count_rows(kind, filter=condition)
            rows = {shard: [len(chunk) for chunk in each.chunks] for shard, each in found.items()}
            assert rows == counts
            assert {each.type for each in found.values()} == {pa.int32()}
            listed = [length for each in found.values() for length in each.to_pylist()]
            expected = [v for v, chosen in zip(values, is_selected, strict=True) if chosen]
            if kind == "delta":  # its files have random names
                assert sorted(map(str, listed)) == sorted(map(str, measure(expected)))
            else:
                assert listed == measure(expected)


@pytest.mark.parametrize("column", ["view", "large", "pair"])
def test_every_type_of_list_has_lengths(client: splitarrow.Client, column: str) -> None:
    (found,) = client.list_lengths("views.arrow", column).values()
    assert found.to_pylist() == measure(VIEWS[column].to_pylist())


def test_a_partition_column_has_lengths(client: splitarrow.Client) -> None:
    found = client.list_lengths("hive", "p")
    assert {n: each.to_pylist() for n, each in found.items()} == {0: [1] * 25, 1: [2] * 35}


def test_columns_without_lengths_are_refused(client: splitarrow.Client) -> None:
    with pytest.raises(NotFoundError, match="no column 'token'"):
        client.list_lengths("t.arrow", "token")
    for column, data_type in (("n", "int64"), ("st", "struct")):
        message = f"the values in '{column}' have the type {data_type}.*; only lists, strings and"
        with pytest.raises(InvalidRequestError, match=message):
            client.list_lengths("t.arrow", column)
    for columns, message in ((("n", "tokens"), "in 2 columns are requested"), (None, "no column")):
        body = Request("t.arrow", columns).ticket()
        with pytest.raises(InvalidRequestError, match=message):
            client.act("lengths", body, dataset="t.arrow")


def test_a_version_that_is_gone_is_refused(client: splitarrow.Client) -> None:
    version = client.info("published").version
    assert client.list_lengths("published", "tokens", version=version).keys() == {0, 1}
    with pytest.raises(RemoteError, match="has changed, or never had the version"):
        client.list_lengths("published", "tokens", version="9-x")


def read_bytes() -> int:
    """Return how many bytes this process has read."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["rchar"])


@pytest.mark.parametrize("column", ["tokens", "text"])
def test_the_values_of_an_arrow_file_are_not_read(tmp_path: Path, column: str) -> None:
    values = {"tokens": pa.array([[0] * 50_000] * 100), "text": pa.array(["x" * 400_000] * 100)}
    path = write_file(tmp_path / "t.arrow", pa.table({"n": range(100), column: values[column]}))
    dataset = open_dataset(path)
    before = read_bytes()
    request = Request("t", (column,))
    (found,) = dataset.measure_batches(request, Encoding())
    assert found.to_pylist() == measure(values[column].to_pylist())
    assert read_bytes() - before < path.stat().st_size / 100


def test_decreasing_offsets_are_refused(tmp_path: Path) -> None:
    lists = pa.array([[1, 2], [3], [4]], pa.list_(pa.int8()))
    path = write_file(tmp_path / "t.arrow", pa.table({"tokens": lists}))
    offsets = pa.array([0, 2, 3, 4], pa.int32()).buffers()[1]
    assert offsets is not None
    damaged = pa.array([0, 3, 2, 4], pa.int32()).buffers()[1]
    assert damaged is not None
    data = path.read_bytes()
    assert data.count(offsets.to_pybytes()) == 1
    path.write_bytes(data.replace(offsets.to_pybytes(), damaged.to_pybytes()))
    dataset = open_dataset(path)
    with pytest.raises(DatasetError, match="has invalid data: the offsets of a list decrease"):
        list(dataset.measure_batches(Request("t", ("tokens",)), Encoding()))


def test_a_large_answer_is_sent_in_parts(
    client: splitarrow.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lengths, "MAX_LENGTHS", 10)
    found = client.list_lengths("published", "tokens")
    assert [length for each in found.values() for length in each.to_pylist()] == measure(TOKENS)
    with flight.FlightClient(client.uri) as stock:
        body = json.dumps({"dataset": "published", "columns": ["tokens"]}).encode()
        results: list[Any] = list(stock.do_action(flight.Action("lengths", body)))
    headers = [decode_lengths(result.body.to_pybytes())[0] for result in results]
    assert [header["shard"] for header in headers] == [0] * 3 + [1] * 4
    assert [header.get("rows") for header in headers] == [None, None, [25], *[None] * 3, [35]]


def test_an_older_server_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    initialize = ActionHandler.__init__

    def forget(self: ActionHandler, *arguments: Any) -> None:
        initialize(self, *arguments)
        del self._actions["lengths"]

    monkeypatch.setattr(ActionHandler, "__init__", forget)
    with (
        splitarrow.serve({"t": TABLE}, control="grpc://127.0.0.1:0") as server,
        splitarrow.connect(server.control_uri or "") as client,
        pytest.raises(RemoteError, match="is too old to list lengths; update it"),
    ):
        client.list_lengths("t", "tokens")


async def test_the_asynchronous_client_lists_lengths(client: splitarrow.Client) -> None:
    async with splitarrow.aio.connect(client.uri) as other:
        found = await other.list_lengths("t.arrow", "tokens", filter="n < 5")
    assert [chunk.to_pylist() for chunk in found[0].chunks] == [[0, 1, 2, None, 4], []]


@pytest.mark.slow
def test_a_cluster_lists_the_lengths_of_each_shard_once(
    daemons: StartDaemons, tmp_path: Path
) -> None:
    two = daemons(2)
    tables = [TABLE.slice(first, 10) for first in range(0, ROWS, 10)]
    publish_shards("lists", write_shards(tmp_path, tables), join_uris(*two), replicas=2, job="one")
    with splitarrow.connect(join_uris(*two)) as client:
        for _ in range(2):
            found = client.list_lengths("lists", "tokens", filter="n >= 15")
            assert list(found) == list(range(6))
            assert [len(each) for each in found.values()] == [0, 5, 10, 10, 10, 10]
            listed = [length for each in found.values() for length in each.to_pylist()]
            assert listed == measure(TOKENS[15:])
            two[0].kill()
        with pytest.raises(InvalidRequestError, match="the values in 'n' have the type int64"):
            client.list_lengths("lists", "n")
