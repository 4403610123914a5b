"""Tensors arrive equal on every transport, in the server's memory where there is shared memory."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pyarrow as pa
import pytest

import splitarrow
from helpers.tensors import KINDS, dense_values, encapsulate_tensor, make_source, make_tensor
from helpers.waiting import wait_until
from splitarrow.errors import InvalidDataError, InvalidRequestError, LimitError, UsageError
from splitarrow.formats.arrow.tensors import scan_tensors

ARRAY = np.arange(60_000, dtype="f4").reshape(200, 300)


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, Any]:
    """Datasets of tensors: in memory and in files."""
    np.save(tmp_path / "rows.npy", ARRAY)
    np.save(tmp_path / "columns.npy", np.asfortranarray(ARRAY))
    np.save(tmp_path / "big.npy", ARRAY.astype(">f4"))
    (tmp_path / "many").mkdir()
    np.save(tmp_path / "many" / "a.npy", ARRAY)
    files = b"".join(encapsulate_tensor(make_tensor(make_source(kind), kind)) for kind in KINDS)
    (tmp_path / "many" / "b.tensor").write_bytes(files)
    names = ("rows.npy", "columns.npy", "big.npy", "many")
    return {
        "list": [ARRAY.T, ARRAY[:, ::-1], np.array([True, False]), np.array(2 - 1j)],
        **{kind: make_source(kind) for kind in KINDS},
        **{name.partition(".")[0]: tmp_path / name for name in names},
        "table": pa.table({"n": [1, 2]}),
    }


@pytest.fixture
def server(address: str, sources: dict[str, Any]) -> Iterator[splitarrow.Server]:
    """A server of these datasets on the transport, over one connection and over two."""
    listen = [address, f"{address}?stream=metadata", f"{address}?stream=body"]
    with splitarrow.serve(sources, listen=listen) as running:
        yield running


def read_all(uri: Any, **options: Any) -> list[Any]:
    """Return the tensors of a dataset."""
    with splitarrow.open(uri, **options) as stream:
        return list(stream.tensors())


def test_dense_arrays_arrive_equal(server: splitarrow.Server, scheme: str) -> None:
    for name in ("rows", "columns", "big"):
        with splitarrow.open(server.uri(name, scheme)) as stream:
            tensor: Any = stream.read_tensor()
            assert stream.is_exhausted
        result = tensor.to_numpy()
        assert (result.dtype, tensor.name) == (np.dtype("f4"), name)
        np.testing.assert_array_equal(result, ARRAY)
        assert not result.flags.writeable
        assert tensor.strides == ((4, 800) if name == "columns" else (1200, 4))
        assert np.from_dlpack(tensor).sum() == ARRAY.sum()
    results = [tensor.to_numpy() for tensor in read_all(server.uri("list", scheme))]
    expected = [ARRAY.T, ARRAY[:, ::-1], np.array([True, False]), np.array(2 - 1j)]
    for result, array in zip(results, expected, strict=True):
        assert result.dtype == array.dtype
        np.testing.assert_array_equal(result, array)


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_arrive_equal(server: splitarrow.Server, scheme: str, kind: str) -> None:
    source = make_source(kind)
    with splitarrow.open(server.uri(kind, scheme)) as stream:
        tensor = stream.read_tensor()
    expected = source if kind == "dense" else source.to_tensor().to_numpy()
    np.testing.assert_array_equal(dense_values(tensor), expected)


def test_folders_and_pairs_of_streams(server: splitarrow.Server, scheme: str) -> None:
    pair = [server.uri("many", scheme, stream) for stream in ("metadata", "body")]
    for uri in (server.uri("many", scheme), pair):
        tensors = read_all(uri)
        assert [tensor.name for tensor in tensors] == ["a", *KINDS]
        np.testing.assert_array_equal(tensors[0].to_numpy(), ARRAY)
    selected = read_all(server.uri("many", scheme), batches=(2, 4))
    assert [tensor.name for tensor in selected] == ["coo", "csr"]
    with pytest.raises(InvalidRequestError, match="there are no tensors 5:7; there are 6"):
        read_all(server.uri("many", scheme), batches=(5, 7))


def test_async_streams_read_tensors(server: splitarrow.Server, scheme: str) -> None:
    async def read() -> None:
        async with splitarrow.aio.open(server.uri("rows", scheme)) as stream:
            tensor = await stream.read_tensor()
            np.testing.assert_array_equal(tensor.to_numpy(), ARRAY)
        async with splitarrow.aio.open(server.uri("many", scheme)) as stream:
            assert [tensor.name async for tensor in stream.tensors()] == ["a", *KINDS]
        async with splitarrow.aio.open(server.uri("list", scheme)) as stream:
            with pytest.raises(UsageError, match="several tensors"):
                await stream.read_tensor()
        async with splitarrow.aio.open(server.uri("table", scheme)) as stream:
            with pytest.raises(UsageError, match="holds record batches, not tensors"):
                await stream.read_tensor()

    anyio.run(read)


def test_the_wrong_way_of_reading_is_named(server: splitarrow.Server, scheme: str) -> None:
    with splitarrow.open(server.uri("rows", scheme)) as stream:
        with pytest.raises(UsageError, match=r"use read_tensor\(\) or tensors\(\)"):
            next(stream)
        with pytest.raises(UsageError, match="'rows' holds tensors, not record batches"):
            stream.read_all()
        np.testing.assert_array_equal(stream.read_tensor().to_numpy(), ARRAY)  # nothing is lost
    with splitarrow.open(server.uri("table", scheme)) as stream:
        with pytest.raises(UsageError, match=r"use read_all\(\)"):
            stream.read_tensor()
        with pytest.raises(UsageError, match="not tensors"):
            stream.tensors()
        assert stream.read_all().num_rows == 2
    with (
        splitarrow.open(server.uri("list", scheme)) as stream,
        pytest.raises(UsageError, match=r"several tensors; iterate over tensors\(\)"),
    ):
        stream.read_tensor()
    for selection in ({"columns": ["a"]}, {"limit": 3}, {"compression": "zstd"}, {"rows": (0, 1)}):
        with pytest.raises((InvalidRequestError, splitarrow.errors.RemoteError)):
            read_all(server.uri("rows", scheme), **selection)


def test_leases_last_as_long_as_arrays(server: splitarrow.Server, scheme: str) -> None:
    if scheme != "shm":
        pytest.skip("only shared memory is leased")
    with splitarrow.open(server.uri("rows", scheme)) as stream:
        array = stream.read_tensor().to_numpy()
    assert server.stats()["leased_bytes"] == ARRAY.nbytes
    part = array[5:7]
    del array
    gc.collect()
    assert server.stats()["leases"] == 1
    np.testing.assert_array_equal(part, ARRAY[5:7])
    del part
    wait_until(lambda: server.stats()["leases"] == 0)


def test_large_arrays_are_swapped_within_the_limit(server: splitarrow.Server, scheme: str) -> None:
    with pytest.raises(LimitError, match="the other byte order"):
        read_all(server.uri("big", scheme), max_decoded_bytes=1000)


def test_wrong_indices_do_not_arrive(address: str, scheme: str, tmp_path: Path) -> None:
    data = bytearray(encapsulate_tensor(make_tensor(make_source("csr"))))
    (message,) = scan_tensors(lambda at, nbytes: bytes(data[at : at + nbytes]), len(data))
    indices = message.body_offset + message.layout.buffers[1].offset
    data[indices : indices + 8] = (1 << 40).to_bytes(8, "little")
    path = tmp_path / "x.tensor"
    path.write_bytes(data)
    with splitarrow.serve({"bad": path}, listen=[address]) as server:
        with pytest.raises(InvalidDataError, match="expected 0 to"):
            read_all(server.uri("bad", scheme))
        assert read_all(server.uri("bad", scheme), validate="off")[0].kind == "csr"
