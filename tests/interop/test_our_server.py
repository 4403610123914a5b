"""Our server and a reader that was made from the wire document alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import splitarrow
from helpers.arrow_data import make_arrays_of_all_types, make_batches
from helpers.wire_reader import WireError, ipc_stream, read


def received(*uris: str) -> pa.Table:
    return pa.ipc.open_stream(ipc_stream(read(*uris))).read_all()


def write_file(path: Path, table: pa.Table, compression: Any = None) -> Path:
    options = pa.ipc.IpcWriteOptions(compression=compression, unify_dictionaries=True)
    with pa.ipc.new_file(str(path), table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=1000)
    return path


def some_table() -> pa.Table:
    arrays = make_arrays_of_all_types()
    names = ["int64", "string", "list", "dictionary by int8", "string_view", "struct"]
    return pa.concat_tables([pa.table([arrays[n] for n in names], names=names)] * 900)


def test_flights_arrive(vega_test_data: Path) -> None:
    path = vega_test_data / "flights-200k.arrow"
    expected = pa.ipc.open_file(str(path)).read_all()
    with splitarrow.serve({"flights": path}, listen=["tcp://127.0.0.1:0"], control=None) as server:
        assert received(server.uri("flights", scheme="tcp")) == expected


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_a_file_arrives(tmp_path: Path, compression: str | None) -> None:
    table = some_table()
    path = write_file(tmp_path / "some.arrow", table, compression)
    with splitarrow.serve({"a name, with %": path}, listen=["tcp://127.0.0.1:0"]) as server:
        assert received(server.uri("a name, with %", scheme="tcp")) == table


def test_a_table_in_memory_arrives() -> None:
    table = some_table()
    with splitarrow.serve({"t": table}, listen=["tcp://127.0.0.1:0"]) as server:
        assert received(server.uri("t", scheme="tcp")) == table


@pytest.mark.parametrize("name", ["dictionary by int8", "list of dictionary", "null", "map"])
def test_slices_and_empty_batches_arrive(name: str) -> None:
    batches = make_batches(make_arrays_of_all_types()[name])
    table = pa.Table.from_batches(batches)
    with splitarrow.serve({"t": table}, listen=["tcp://127.0.0.1:0"]) as server:
        assert received(server.uri("t", scheme="tcp")).to_pylist() == table.to_pylist()


def test_metadata_and_bodies_arrive_over_two_connections(tmp_path: Path) -> None:
    table = some_table()
    path = write_file(tmp_path / "some.arrow", table)
    listen = ["tcp://127.0.0.1:0?stream=metadata", "tcp://127.0.0.1:0?stream=body"]
    with splitarrow.serve({"t": path}, listen=listen) as server:
        uris = [server.uri("t", scheme="tcp", stream=stream) for stream in ("metadata", "body")]
        assert received(*uris) == table


def test_two_servers_share_a_stream(tmp_path: Path) -> None:
    table = some_table()
    path = write_file(tmp_path / "some.arrow", table)
    with (
        splitarrow.serve({"t": path}, listen=["tcp://127.0.0.1:0?stream=metadata"]) as one,
        splitarrow.serve({"t": path}, listen=["tcp://127.0.0.1:0?stream=body"]) as other,
    ):
        uris = [one.uri("t", stream="metadata"), other.uri("t", stream="body")]
        assert received(*uris) == table


def test_an_unknown_name_is_a_failure_with_its_code() -> None:
    with splitarrow.serve({"flights": some_table()}, listen=["tcp://127.0.0.1:0"]) as server:
        uri = server.uri("flights", scheme="tcp")
        with pytest.raises(WireError, match="NOT_FOUND"):
            read(uri.replace("ticket=flights", "ticket=flihgts"))
        assert read(uri)
