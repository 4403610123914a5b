"""Record batches that travel as Vortex arrays equal those that travel as Arrow."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.flight as flight
import pytest
from hypothesis import given, settings

import splitarrow
from helpers.arrow_data import draw_batches, make_arrays_of_all_types, make_batches
from splitarrow.errors import (
    InvalidRequestError,
    NotFoundError,
    ProtocolError,
    RemoteError,
    UsageError,
)
from splitarrow.formats.vortex.encoder import ArrayEncoder
from splitarrow.formats.vortex.message import MessageKind, build_message, mark_schema
from splitarrow.protocol.messages import MetadataType
from splitarrow.protocol.splitter import SourceMessage, Splitter

ARRAYS = make_arrays_of_all_types()


def make_all_types() -> pa.Table:
    names = [name for name, array in ARRAYS.items() if len(array) == 5]
    batch = pa.record_batch([ARRAYS[name] for name in names], names=names)
    batch = batch.replace_schema_metadata({"k": "v"})
    return pa.Table.from_batches([batch, batch.slice(2, 2), batch.slice(5), batch])


def make_growing_dictionaries() -> pa.Table:
    texts = [["a"], ["a", "b"], ["zz", "a", None], [None], ["a", "b"]]
    batches = [
        pa.record_batch([pa.array(each, pa.string()).dictionary_encode()], names=["d"])
        for each in texts
    ]
    return pa.Table.from_batches([batches[0].slice(0, 0), *batches, batches[-1]])


def make_large() -> pa.Table:
    random = np.random.default_rng(7)
    batches: list[pa.RecordBatch] = []
    for _ in range(3):
        columns: list[Any] = [pa.array(random.normal(size=60_000)), pa.array(range(60_000))]
        columns.append(pa.array(["text"] * 60_000))
        batches.append(pa.record_batch(columns, names=["x", "n", "s"]))
    return pa.Table.from_batches(batches)


DATA = {
    "types": make_all_types(),
    "dictionaries": make_growing_dictionaries(),
    "large": make_large(),
    "no rows": make_all_types().slice(0, 0),
}


@pytest.fixture
def served(address: str) -> Iterator[splitarrow.Server]:
    """A server of tables on one transport, over one connection and over two."""
    listen = [address, f"{address}?stream=metadata", f"{address}?stream=body"]
    with splitarrow.serve(dict(DATA), listen=listen) as running:
        yield running


def check(stream: Any, table: pa.Table) -> None:
    assert stream.format == "vortex"
    assert stream.schema.equals(table.schema, check_metadata=True)
    batches = list(stream)
    assert [batch.num_rows for batch in batches] == [c.num_rows for c in table.to_batches()]
    for batch in batches:
        batch.validate(full=True)
    assert pa.Table.from_batches(batches, table.schema).equals(table)
    assert stream.rows_received == table.num_rows


def test_arrives_equal(served: splitarrow.Server, scheme: str) -> None:
    for name, table in DATA.items():
        with splitarrow.open(served.uri(name, scheme), format="vortex") as stream:
            check(stream, table)
    with splitarrow.open(served.uri("types", scheme), format="vortex", validate="full") as stream:
        check(stream, DATA["types"])
    pair = [served.uri("large", scheme, stream) for stream in ("metadata", "body")]
    with splitarrow.open(pair, format="vortex", prefetch_bytes=1 << 20) as stream:
        check(stream, DATA["large"])
    with splitarrow.open(served.uri("large", scheme), format="arrow") as stream:
        assert stream.format == "arrow"
        assert stream.read_all().equals(DATA["large"])


@pytest.mark.slow
def test_every_type_arrives_equal(address: str, scheme: str) -> None:
    tables = {name: pa.Table.from_batches(make_batches(each)) for name, each in ARRAYS.items()}
    with splitarrow.serve(dict(tables), listen=[address]) as server:
        for name, table in tables.items():
            with splitarrow.open(server.uri(name, scheme), format="vortex") as stream:
                check(stream, table)


async def test_async_arrives_equal(served: splitarrow.Server, scheme: str) -> None:
    uri = served.uri("large", scheme)
    async with splitarrow.aio.open(uri, format="vortex") as stream:
        assert stream.format == "vortex"
        assert (await stream.read_all()).equals(DATA["large"])
    async with splitarrow.aio.open(uri, format="vortex") as stream:
        assert [len(array) async for array in stream.arrays()] == [60_000] * 3
        assert stream.rows_received == 180_000


def test_arrays_arrive_undecoded(served: splitarrow.Server, scheme: str) -> None:
    table = DATA["large"]
    with splitarrow.open(served.uri("large", scheme), format="vortex") as stream:
        arrays = list(stream.arrays())
        assert stream.is_exhausted
        assert stream.bytes_received < table.nbytes
    assert sum(array.nbytes for array in arrays) < table.nbytes
    first = arrays[0].to_arrow_array(arrow_type=pa.struct(list(table.schema)))
    assert pa.RecordBatch.from_struct_array(first).equals(table.to_batches()[0])
    with (
        splitarrow.open(served.uri("large", scheme)) as stream,
        pytest.raises(UsageError, match="has the format 'arrow'"),
    ):
        stream.arrays()


def test_selections_are_those_of_arrow(served: splitarrow.Server, scheme: str) -> None:
    uri = served.uri("large", scheme)
    selections: list[dict[str, Any]] = [
        {"columns": ["s", "x"]},
        {"limit": 70_001, "batch_rows": 999},
        {"filter": (pc.field("n") < 40_000) & (pc.field("x") > 0.5)},
        {"rows": (59_990, 120_010), "columns": ["n"]},
        {"batches": (1, 2), "limit": 5},
        {"limit": 0},
    ]
    for selection in selections:
        with splitarrow.open(uri, **selection) as stream:
            expected = list(stream)
        with splitarrow.open(uri, format="vortex", **selection) as stream:
            assert list(stream) == expected
    with pytest.raises(NotFoundError, match="no column 'z'"):
        splitarrow.open(uri, format="vortex", columns=["z"])


def read(uri: str) -> None:
    with splitarrow.open(uri, format="vortex") as stream:
        stream.read_all()


def test_what_vortex_cannot_hold_is_refused(address: str, scheme: str) -> None:
    raw = pa.py_buffer((1 << 100).to_bytes(16, "little") * 2)
    digits = pa.Array.from_buffers(pa.decimal128(5, 2), 2, [None, raw])
    data = {"digits": pa.table({"price": digits}), "tensor": np.arange(4)}
    with splitarrow.serve(data, listen=[address]) as server:
        with pytest.raises(RemoteError, match=r"'vortex': .* cannot be encoded.*decimal\(5,2\)"):
            read(server.uri("digits", scheme))
        with pytest.raises(InvalidRequestError, match="holds tensors"):
            splitarrow.open(server.uri("tensor", scheme), format="vortex")
    with pytest.raises(UsageError, match="known are arrow, vortex"):
        splitarrow.open(f"{scheme}://x/y?want_data=1&ticket=z", format="parquet")


@pytest.fixture(scope="module")
def table_server() -> Iterator[splitarrow.Server]:
    """A server of a table that each example replaces, on all transports."""
    listen = ["tcp://127.0.0.1:0", "shm://", "ucx://127.0.0.1:0"]
    with splitarrow.serve({"first": DATA["large"]}, listen=listen) as running:
        yield running


def drawn_tables_arrive(
    server: splitarrow.Server, drawn: tuple[pa.Schema, list[pa.RecordBatch]]
) -> None:
    table = pa.Table.from_batches(drawn[1], drawn[0])
    server.add("drawn", table)
    try:
        for scheme, validate in (("tcp", "full"), ("shm", None), ("ucx", "cheap")):
            uri = server.uri("drawn", scheme)
            with splitarrow.open(uri, format="vortex", validate=validate) as stream:
                check(stream, table)
    finally:
        server.remove("drawn")


@given(drawn=draw_batches())
@settings(max_examples=8)
def test_drawn_tables_arrive(
    table_server: splitarrow.Server, drawn: tuple[pa.Schema, list[pa.RecordBatch]]
) -> None:
    drawn_tables_arrive(table_server, drawn)


@pytest.mark.long
@given(drawn=draw_batches())
@settings(max_examples=5000)
def test_5000_drawn_tables_arrive(
    table_server: splitarrow.Server, drawn: tuple[pa.Schema, list[pa.RecordBatch]]
) -> None:
    drawn_tables_arrive(table_server, drawn)


Scripted = Any


def make_frames(*messages: SourceMessage) -> list[Any]:
    splitter = Splitter()
    return [*splitter.split(messages), *splitter.end()]


def read_scripted(scripted: Scripted, *messages: SourceMessage) -> None:
    script = scripted(lambda _s, _m: make_frames(*messages), leave=False)
    with script as uri, splitarrow.open(uri) as stream:
        stream.read_all()


def vortex_message(kind: MessageKind, body: bytes, rows: int = 0) -> SourceMessage:
    message = build_message(kind, [body], row_count=rows, encodings=["vortex.struct"])
    return SourceMessage(message.metadata, [body], len(body), rows, MetadataType.VORTEX)


def test_a_server_that_breaks_the_rules_is_refused(
    scripted: Scripted, table: pa.Table, served: splitarrow.Server, scheme: str
) -> None:
    del served
    from helpers.streams import source_messages

    schema, *batches = source_messages(table)
    marked = SourceMessage(mark_schema(bytes(schema.metadata)), None)
    array = vortex_message(MessageKind.ARRAY, b"12345678", 1)
    cases: list[tuple[tuple[SourceMessage, ...], str]] = [
        ((schema, array), "VORTEX message in a stream in the format Arrow"),
        ((marked, array), "type ARRAY; expected DTYPE"),
        ((marked, vortex_message(MessageKind.DTYPE, b"garbage!")), "dtype"),
        ((marked, batches[1]), "record batch with 1 rows in a stream of Vortex"),
        ((marked, SourceMessage(b"garbage!", [], 0, 0, MetadataType.VORTEX)), "header"),
    ]
    for messages, problem in cases:
        with pytest.raises(ProtocolError, match=problem):
            read_scripted(scripted, *messages)


@contextmanager
def control_plane(tables: dict[str, Any]) -> Generator[tuple[splitarrow.Server, Any]]:
    listen = ["tcp://127.0.0.1:0"]
    with (
        splitarrow.serve(tables, listen=listen, control="grpc://127.0.0.1:0") as server,
        splitarrow.connect(server.control_uri or "") as client,
    ):
        yield server, client


def test_the_control_plane_passes_the_format_on() -> None:
    table = DATA["large"]
    with control_plane({"large": table}) as (server, client):
        with client.read("large", format="vortex") as stream:
            check(stream, table)
        with client.read("large", format="vortex") as stream:
            assert sum(map(len, stream.arrays())) == table.num_rows
        with client.read("large", format="vortex", transport="flight") as stream:
            assert stream.format == "arrow"
            assert stream.read_all().equals(table)
            with pytest.raises(UsageError, match="format 'arrow'"):
                stream.arrays()
        address = str(server.control_uri).replace("grpc://", "grpc+tcp://")
        with flight.connect(address) as stock:
            assert stock.do_get(flight.Ticket(b"large")).read_all().equals(table)
            ticket = flight.Ticket(b'{"dataset": "large", "format": "vortex"}')
            assert stock.do_get(ticket).read_all().equals(table)


def test_custom_metadata_and_the_footer_arrive(tmp_path: Path) -> None:
    batch = pa.record_batch({"n": [1, 2]})
    path = tmp_path / "data.arrow"
    new_file: Any = pa.ipc.new_file
    with path.open("wb") as file, new_file(file, batch.schema, metadata={"f": "g"}) as writer:
        for custom_metadata in (None, {"k": "v"}, None):
            writer.write_batch(batch, custom_metadata=custom_metadata)
    with (
        splitarrow.serve({"data": path}, listen=["tcp://127.0.0.1:0"]) as server,
        splitarrow.open(server.uri("data"), format="vortex") as stream,
    ):
        assert stream.footer_metadata == {b"f": b"g"}
        found = list(stream.batches_with_metadata())
    assert [each.batch for each in found] == [batch] * 3
    assert [each.custom_metadata for each in found] == [None, {b"k": b"v"}, None]


def test_a_dataset_is_compressed_once_while_the_cache_has_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoded: list[int] = []
    encode = ArrayEncoder.encode

    def count(self: ArrayEncoder, batch: pa.RecordBatch) -> Any:
        encoded.append(batch.num_rows)
        return encode(self, batch)

    monkeypatch.setattr(ArrayEncoder, "encode", count)
    table = DATA["large"]
    for cache, expected in ((1 << 30, 3), (0, 9)):
        encoded.clear()
        listen = ["tcp://127.0.0.1:0", "shm://"]
        with splitarrow.serve({"data": table}, listen=listen, vortex_cache=cache) as server:
            for scheme in ("tcp", "shm", "tcp"):
                with splitarrow.open(server.uri("data", scheme), format="vortex") as stream:
                    check(stream, table)
        assert len(encoded) == expected


def test_a_server_without_the_extra_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with splitarrow.serve({"data": DATA["large"]}, listen=["tcp://127.0.0.1:0"]) as server:
        monkeypatch.setitem(sys.modules, "vortex", None)
        with pytest.raises(RemoteError, match=r"the server cannot encode.*splitarrow\[vortex\]"):
            read(server.uri("data"))
        assert splitarrow.open(server.uri("data")).read_all() == DATA["large"]
