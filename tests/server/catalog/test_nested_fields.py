"""Fields of structs as columns, in datasets of every kind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyarrow import feather, orc

import splitarrow
from helpers.catalog import read_dataset
from helpers.files import write_file, write_parquet, write_stream
from helpers.publication import publish
from helpers.vortex_messages import encode_arrow, make_file
from helpers.vortex_messages import write_stream as write_vortex_stream
from splitarrow.errors import DatasetError, ExhaustedError, NotFoundError
from splitarrow.publication.version_store import VersionStore
from splitarrow.server.catalog.catalog import open_dataset
from splitarrow.server.catalog.dataset import Budget, Encoding
from splitarrow.server.catalog.tables import TableDataset

ROWS = 60
COLUMNS = ["st.inner.y", "a", "st.x", "st.inner.t"]


def make_struct(fields: dict[str, Any], step: int) -> Any:
    """Return structs, of which every `step`-th is null, although its fields have values."""
    mask = pa.array([row % step == 1 for row in range(ROWS)])
    arrays: Any = [pa.array(values) for values in fields.values()]
    return pa.StructArray.from_arrays(arrays, list(fields), mask=mask)


def make_table() -> pa.Table:
    inner = make_struct(
        {
            "y": [row / 2 for row in range(ROWS)],
            "t": [None if row % 4 == 3 else f"row {row}" for row in range(ROWS)],
        },
        3,
    )
    whole = make_struct({"s": ["s" * (row % 5) for row in range(ROWS)], "inner": inner}, 5)
    arrays: Any = [pa.array(range(ROWS)), *(whole.field(name) for name in ("s", "inner"))]
    mask = pa.array([row % 5 == 1 for row in range(ROWS)])
    whole = pa.StructArray.from_arrays(arrays, ["x", "s", "inner"], mask=mask)
    return pa.table({"a": pa.array(range(ROWS)), "st": whole})


TABLE = make_table()


def flatten(table: pa.Table, columns: list[str]) -> pa.Table:
    """Return fields of structs as pyarrow flattens them."""
    while set(columns) - set(table.column_names):
        table = table.flatten()
    return table.select(columns)


PARTS = [TABLE.take(list(range(*span))) for span in ((0, 25), (25, ROWS))]


def write_all(folder: Path) -> dict[str, Any]:
    """Write the table in every form that a dataset can have."""
    batches = [batch for part in PARTS for batch in part.to_batches()]
    write_file(folder / "t.arrow", batches, TABLE.schema)
    write_file(folder / "t.zstd.arrow", batches, TABLE.schema, compression="zstd")
    write_stream(folder / "t.arrows", batches, TABLE.schema)
    feather.write_feather(TABLE, str(folder / "t.feather"), compression="lz4", chunksize=25)
    write_parquet(folder / "t.parquet", TABLE, row_group_size=25)
    orc.write_table(TABLE, folder / "t.orc")
    lines = "".join(f"{json.dumps(row)}\n" for row in TABLE.to_pylist())
    (folder / "t.jsonl").write_text(lines)
    (folder / "t.vortex").write_bytes(make_file(TABLE))
    dtype, array = encode_arrow(TABLE.combine_chunks().to_batches()[0].to_struct_array())
    (folder / "t.vortexs").write_bytes(write_vortex_stream(dtype, array))
    for kind in ("hive", "mixed", "store"):
        (folder / kind).mkdir()
    for number, part in enumerate(PARTS):
        (folder / "hive" / f"p={number}").mkdir()
        write_parquet(folder / "hive" / f"p={number}" / "t.parquet", part)
    write_parquet(folder / "mixed" / "0.parquet", PARTS[0])
    orc.write_table(PARTS[1], folder / "mixed" / "1.orc")
    write_file(folder / "arrows-0.arrow", PARTS[0].to_batches(), TABLE.schema)
    write_file(folder / "arrows-1.arrow", PARTS[1].to_batches(), TABLE.schema)
    for part in PARTS:
        write_deltalake(folder / "delta", part, mode="append")
    publish(VersionStore(folder / "published"), "job", *PARTS)
    publish(VersionStore(f"file://{folder}/store/published"), "job", *PARTS)
    names = ["t.arrow", "t.zstd.arrow", "t.arrows", "t.feather", "t.parquet", "t.orc", "t.jsonl"]
    names += ["t.vortex", "t.vortexs", "hive", "mixed", "arrows-*.arrow", "delta", "published"]
    data: dict[str, Any] = {name.replace("*", "n"): folder / name for name in names}
    data |= {"objects": f"file://{folder}/t.parquet", "remote": f"file://{folder}/store/published"}
    return data | {"table": TABLE, "batches": [b for part in PARTS for b in part.to_batches()]}


KINDS = [
    *("t.arrow", "t.zstd.arrow", "t.arrows", "t.feather", "t.parquet", "t.orc", "t.jsonl"),
    *("t.vortex", "t.vortexs", "hive", "mixed", "arrows-n.arrow", "delta", "published"),
    *("objects", "remote", "table", "batches"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[splitarrow.Server]:
    """A server of the table in every form."""
    folder = tmp_path_factory.mktemp("nested")
    data = write_all(folder)
    assert sorted(data) == sorted(KINDS)
    with splitarrow.serve(
        data,
        listen=["tcp://127.0.0.1:0", "shm://"],
        control="grpc://127.0.0.1:0",
        object_cache=folder / "cache",
    ) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: splitarrow.Server) -> Iterator[splitarrow.Client]:
    """A client of the control plane."""
    assert server.control_uri is not None
    with splitarrow.connect(server.control_uri) as connected:
        yield connected


def sort(table: pa.Table) -> pa.Table:
    """Sort rows: the files of a Delta table have random names."""
    return table.sort_by("a").combine_chunks()


@pytest.mark.parametrize("transport", ["tcp", "shm", "flight"])
@pytest.mark.parametrize("kind", KINDS)
def test_fields_are_those_that_pyarrow_flattens(
    client: splitarrow.Client, kind: str, transport: str
) -> None:
    with client.read(kind, columns=COLUMNS, transport=transport) as stream:
        table = stream.read_all()
    table.validate(full=True)
    expected = flatten(TABLE, COLUMNS)
    assert sort(table).equals(sort(expected))
    assert table.schema.field("st.x").nullable
    assert client.info(kind).schema.names[:2] == ["a", "st"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_rest_of_a_request_applies_to_fields(client: splitarrow.Client, kind: str) -> None:
    whole = client.read(kind).read_all()
    columns = ["st", "st.inner", "st.s"]
    expected = flatten(whole, ["st.s", "st.inner"]).add_column(0, "st", whole["st"])
    for first, end in ((0, ROWS), (7, 41), (30, 31), (26, 26)):
        part = client.read(kind, columns=columns, rows=(first, end), batch_rows=9).read_all()
        assert part.equals(expected.select(columns).slice(first, end - first))
    part = client.read(kind, columns=["st.s", "a"], filter="a >= 24", limit=9).read_all()
    numbers: list[Any] = whole["a"].to_pylist()
    kept = [each for each in numbers if each >= 24][:9]
    rows = [row for row in flatten(whole, ["st.s", "a"]).to_pylist() if row["a"] in kept]
    assert part.to_pylist() == rows
    counts = client.count_rows(kind, filter="a >= 24")
    assert sum(sum(each) for each in counts.values()) == ROWS - 24
    shard: dict[str, Any] = {} if len(counts) == 1 else {"shards": [0]}
    rows = next(iter(client.count_rows(kind).values()))[0]
    part = client.read(kind, columns="st.x", batches=(0, 1), **shard).read_all()
    assert part.equals(flatten(whole, ["st.x"]).slice(0, rows))


def test_fields_can_be_read_as_vortex_and_from_a_reader_of_batches(
    server: splitarrow.Server,
) -> None:
    uri = server.uri("t.parquet", "tcp")
    with splitarrow.open(uri, columns="st.x", format="vortex") as stream:
        assert stream.format == "vortex"
        assert stream.read_all().equals(flatten(TABLE, ["st.x"]))
    with (
        splitarrow.serve({"once": TABLE.to_reader()}, listen=["tcp://127.0.0.1:0"]) as once,
        splitarrow.open(once.uri("once"), columns=["st.x"]) as stream,
    ):
        assert stream.read_all().equals(flatten(TABLE, ["st.x"]))


def find_chunk(path: Path, column: str) -> tuple[int, int]:
    """Return the place of the pages of a column in the first row group of a Parquet file."""
    row_group = pq.read_metadata(path).row_group(0)
    for index in range(row_group.num_columns):
        chunk = row_group.column(index)
        if chunk.path_in_schema == column:
            first = chunk.dictionary_page_offset or chunk.data_page_offset
            return first, chunk.total_compressed_size
    raise AssertionError(column)


@pytest.mark.parametrize("kind", ["parquet", "hive", "delta"])
def test_other_fields_of_a_parquet_file_are_not_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "p=1" / "t.parquet"
    path.parent.mkdir()
    if kind == "delta":
        write_deltalake(tmp_path / "delta", TABLE)
        (path,) = (tmp_path / "delta").glob("*.parquet")
    else:
        write_parquet(path, TABLE)
    for column in ("st.s", "st.inner.t"):
        offset, nbytes = find_chunk(path, column)
        with path.open("r+b") as file:
            file.seek(offset)
            file.write(b"\xff" * nbytes)
    location = {"parquet": path, "hive": tmp_path, "delta": tmp_path / "delta"}[kind]
    dataset = open_dataset(location)
    columns = ["st.x", "st.inner.y", "a"]
    assert read_dataset(dataset, columns=tuple(columns)).table.equals(flatten(TABLE, columns))
    for column in ("st.s", "st.inner", "st"):
        with pytest.raises(DatasetError):
            read_dataset(dataset, columns=(column,))


def test_other_fields_of_an_orc_file_are_not_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orc.write_table(TABLE, tmp_path / "t.orc")
    dataset = open_dataset(tmp_path / "t.orc")
    decoded: list[Any] = []
    read_stripe = orc.ORCFile.read_stripe

    def record(file: Any, *args: Any, **options: Any) -> Any:
        decoded.append(read_stripe(file, *args, **options).schema)
        return read_stripe(file, *args, **options)

    monkeypatch.setattr(orc.ORCFile, "read_stripe", record)
    assert read_dataset(dataset, columns=("st.x",)).table.equals(flatten(TABLE, ["st.x"]))
    assert decoded == [pa.schema([("st", pa.struct([("x", pa.int64())]))])]


def test_only_the_fields_that_are_read_count_towards_the_limit(tmp_path: Path) -> None:
    large = pa.array([np.random.default_rng(1).bytes(40_000), b"x" * 40_000])
    struct: Any = pa.StructArray.from_arrays([pa.array([1, 2]), large], ["x", "large"])
    pq.write_table(pa.table({"st": struct}), tmp_path / "t.parquet")
    for dataset in map(open_dataset, (tmp_path / "t.parquet", tmp_path)):
        encoding = Encoding(budget=Budget(parquet_bytes=50_000))
        table = read_dataset(dataset, encoding=encoding, columns=("st.x",)).table
        assert table.to_pydict() == {"st.x": [1, 2]}
        with pytest.raises(ExhaustedError, match=r"the column 'st\.large' has"):
            read_dataset(dataset, encoding=encoding, columns=("st.large",))


@pytest.mark.parametrize("kind", ["table", "arrow", "parquet", "orc"])
def test_names_with_dots_take_precedence(tmp_path: Path, kind: str) -> None:
    def struct(*names: str) -> Any:
        columns: Any = [pa.array([f"{name}{row}" for row in (1, 2)]) for name in names]
        return pa.StructArray.from_arrays(columns, list(names), mask=pa.array([False, True]))

    table = pa.table(
        {
            "a": struct("b", "c", "d.e", "f"),
            "a.b": ["own", "own"],
            "a.g": struct("h"),
            "g": struct("k.l", "k"),
        }
    )
    data: Any = table
    if kind != "table":
        data = tmp_path / f"t.{kind}"
        {
            "arrow": lambda: write_file(data, table.to_batches(), table.schema),
            "parquet": lambda: pq.write_table(table, data),
            "orc": lambda: orc.write_table(table, data),
        }[kind]()
    dataset = TableDataset(table) if kind == "table" else open_dataset(data)
    expected = {
        "a.b": ["own", "own"],
        "a.c": ["c1", None],
        "a.d.e": ["d.e1", None],
        "a.g.h": ["h1", None],
        "g.k.l": ["k.l1", None],
        "g.k": ["k1", None],
    }
    assert read_dataset(dataset, columns=tuple(expected)).table.to_pydict() == expected
    with pytest.raises(NotFoundError, match=r"no column 'a\.g\.f': 'a\.g' has no field 'f'"):
        read_dataset(dataset, columns=("a.g.f",))


def test_fields_of_structs_in_a_delta_table_may_be_new_or_have_another_type(tmp_path: Path) -> None:
    small: Any = pa.StructArray.from_arrays([pa.array([1, 2], pa.int32())], ["x"])
    write_deltalake(tmp_path, pa.table({"n": [1, 2], "st": small}))
    arrays: Any = [pa.array([3], pa.int32()), pa.array(["y3"])]
    struct: Any = pa.StructArray.from_arrays(arrays, ["x", "y"])
    more = pa.table({"n": [3], "st": struct, "new": struct})
    write_deltalake(tmp_path, more, mode="append", schema_mode="merge")
    columns = ("n", "st.x", "st.y", "new.x")
    table = read_dataset(open_dataset(tmp_path), columns=columns).table.sort_by("n")
    assert table.to_pydict() == {
        "n": [1, 2, 3],
        "st.x": [1, 2, 3],
        "st.y": [None, None, "y3"],
        "new.x": [None, None, 3],
    }


def test_fields_keep_their_type_metadata_and_nullability() -> None:
    children = [
        pa.field("key", pa.dictionary(pa.int8(), pa.string()), nullable=False),
        pa.field("unit", pa.month_day_nano_interval(), metadata={"unit": "d"}),
        pa.field("many", pa.list_(pa.string())),
        pa.field("nothing", pa.null()),
    ]
    rows = [{"key": "k", "unit": (1, 2, 3), "many": ["m"], "nothing": None}] * 3
    for nullable in (False, True):
        field = pa.field("st", pa.struct(children), nullable=nullable)
        array = pa.array([rows[0], None if nullable else rows[1], rows[2]], field.type)
        table = pa.Table.from_arrays([array], schema=pa.schema([field], {"m": "1"}))
        columns = [f"st.{child.name}" for child in children]
        found = read_dataset(TableDataset(table), columns=tuple(columns)).table
        expected = flatten(table, columns)
        assert found.schema.equals(expected.schema, check_metadata=True)
        assert found.to_pylist() == expected.to_pylist()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("st.xx", "no column 'st.xx': 'st' has no field 'xx'; the nearest are 'st.x', 'st.s'"),
        ("str.x", "no column 'str.x'; the nearest is 'st'"),
        ("a.x", "no column 'a.x': 'a' has the type int64, which has no fields"),
    ],
)
def test_a_field_that_does_not_exist_is_refused_with_the_reason(
    client: splitarrow.Client, name: str, reason: str
) -> None:
    for kind in KINDS:
        with pytest.raises(NotFoundError) as raised:
            client.read(kind, columns=["a", name])
        assert raised.value.message == f"{reason} (dataset {kind!r})"
