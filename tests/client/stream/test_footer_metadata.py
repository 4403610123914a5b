"""The custom metadata of a file's footer reaches the reader, and the files that `fetch` writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

import splitarrow
from splitarrow.cli.app import run as run_here

FOOTER = {b"author": b"me", b"": b"", b"\xff": b"\0\xfe"}
TABLE = pa.table({"n": [1, 2, 3], "m": [4, 5, 6]})


def write(path: Path, footer: Any = FOOTER, table: pa.Table = TABLE) -> Path:
    with pa.OSFile(str(path), "wb") as sink:
        writer: Any = pa.ipc.new_file
        with writer(sink, table.schema, metadata=footer) as file:
            file.write_table(table)
    return path


@pytest.mark.parametrize("scheme", ["tcp", "shm", "inproc"])
@pytest.mark.parametrize(
    "selection", [{}, {"columns": ["m"]}, {"batch_rows": 2}, {"compression": "zstd"}, {"limit": 0}]
)
async def test_a_stream_has_it(tmp_path: Path, scheme: str, selection: dict[str, Any]) -> None:
    path = write(tmp_path / "x.arrow")
    listen = ["tcp://127.0.0.1:0", "shm://", "inproc://"]
    with splitarrow.serve({"x": path}, listen=listen) as server:
        uri = server.uri("x", scheme)
        with splitarrow.open(uri, **selection) as stream:
            assert stream.footer_metadata == FOOTER
            assert stream.schema.metadata is None
            stream.read_all()
        async with splitarrow.aio.open(uri, **selection) as asynchronous:
            assert asynchronous.footer_metadata == FOOTER


def test_the_metadata_stream_of_a_pair_has_it(tmp_path: Path) -> None:
    path = write(tmp_path / "x.arrow")
    listen = [f"tcp://127.0.0.1:0?stream={stream}" for stream in ("metadata", "body")]
    with splitarrow.serve({"x": path}, listen=listen) as server:
        uris = [server.uri("x", stream=stream) for stream in ("metadata", "body")]
        with splitarrow.open(uris) as stream:
            assert stream.footer_metadata == FOOTER
            assert stream.read_all() == TABLE


async def test_a_dataset_has_it(tmp_path: Path) -> None:
    path = write(tmp_path / "x.arrow")
    with splitarrow.serve({"x": path}, control="grpc://127.0.0.1:0") as server:
        control = server.control_uri or ""
        with splitarrow.connect(control) as client:
            for transport in ("tcp", "flight"):
                with client.read("x", transport=transport) as stream:
                    assert stream.footer_metadata == FOOTER
        async with splitarrow.aio.connect(control) as client, client.read("x") as asynchronous:
            assert asynchronous.footer_metadata == FOOTER
        with flight.FlightClient(control) as other:
            assert other.do_get(flight.Ticket(b"x")).read_all() == TABLE


@pytest.mark.parametrize("footer", [None, {}, {b"k": bytes(1 << 20)}])
def test_a_stream_without_it(tmp_path: Path, footer: Any) -> None:
    path = write(tmp_path / "x.arrow", footer)
    with (
        splitarrow.serve({"x": path}, listen=["tcp://127.0.0.1:0"]) as server,
        splitarrow.open(server.uri("x")) as stream,
    ):
        assert stream.footer_metadata is None
        assert stream.read_all() == TABLE


def test_several_files_have_none_together(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    for name in ("a", "b"):
        write(tmp_path / "x" / f"{name}.arrow")
    with (
        splitarrow.serve({"x": tmp_path / "x"}, control="grpc://127.0.0.1:0") as server,
        splitarrow.connect(server.control_uri or "") as client,
        client.read("x") as stream,
    ):
        assert stream.footer_metadata is None
        assert stream.read_all().num_rows == 6


@pytest.mark.parametrize("footer", [None, FOOTER])
def test_fetch_writes_it(tmp_path: Path, footer: Any) -> None:
    path, got = write(tmp_path / "x.arrow", footer), tmp_path / "got.arrow"
    with splitarrow.serve({"x": path}, listen=["tcp://127.0.0.1:0"]) as server:
        for output in (got, tmp_path / "got.arrows", tmp_path / "got.parquet"):
            assert run_here(["fetch", server.uri("x"), "-o", str(output), "--quiet"]) == 0
    reader: Any = pa.ipc.open_file(got.read_bytes())
    assert reader.metadata == footer
    assert reader.read_all() == TABLE
