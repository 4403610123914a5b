"""What a server accepts as tensors, and what it refuses."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight
import pytest

import splitarrow
from helpers.tensors import encapsulate_tensor, make_source, make_tensor
from splitarrow.errors import DatasetError, RemoteError, UsageError
from splitarrow.server.catalog.catalog import open_dataset


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with an array and with two tensors in one file."""
    np.save(tmp_path / "a.npy", np.arange(6.0).reshape(2, 3))
    two = encapsulate_tensor(make_tensor(np.arange(3), "x"))
    two += encapsulate_tensor(make_tensor(make_source("csc")), legacy=True)
    (tmp_path / "b").write_bytes(two)
    return tmp_path


def test_kinds_are_named(folder: Path) -> None:
    sparse = pytest.importorskip("scipy.sparse")
    for source, kind in (
        (np.ones(3), "tensor"),
        (np.float32(3), "tensor"),
        (pa.Tensor.from_numpy(np.ones(3)), "tensor"),
        (sparse.eye_array(3, format="csc"), "csc tensor"),
        ([np.ones(3), make_source("coo")], "2 tensors"),
        (folder / "a.npy", "npy file"),
        (folder / "b", "tensor file"),
        (folder, "mixed directory"),
    ):
        dataset = open_dataset(source)
        assert dataset.kind == kind
        assert dataset.rows is None
        assert dataset.nbytes
        assert len(dataset.schema) == 0
        dataset.close()


def test_refusals(tmp_path: Path) -> None:
    for source, problem in (
        (np.array(["a"]), "values of the type <U1"),
        ([np.ones(3), "x"], "cannot serve an object of the type list"),
    ):
        with pytest.raises(UsageError, match=problem):
            open_dataset(source)
    path = tmp_path / "x.npy"
    np.save(path, np.array([None], object), allow_pickle=True)
    with pytest.raises(DatasetError, match="values of the type object"):
        open_dataset(path)
    np.save(path, np.ones(100))
    whole = path.read_bytes()
    for data, problem in (
        (whole[:-8], "needs 928 bytes; the file has 920"),
        (whole + b"x", "needs 928 bytes; the file has 929"),
        (whole[:40], "the header of the .npy file is malformed"),
        (whole.replace(b"(100,)", b"(-10,)"), "it declares the shape"),
        (whole.replace(b"'<f8'", b"'<zz'"), "malformed"),
        (whole.replace(b"(100,)", b"[[[[[["), "malformed"),
        (b"\x93NUMPY\x09\x00" + whole[8:], "version 9"),
    ):
        path.write_bytes(data)
        with pytest.raises(DatasetError, match=problem):
            open_dataset(path)


def test_folders_have_one_content_and_one_byte_order(folder: Path) -> None:
    with splitarrow.serve({"d": folder}) as server:
        np.save(folder / "c.npy", np.ones(3, ">f8"))
        with pytest.raises(RemoteError, match="another byte order"):
            splitarrow.open(server.uri("d"))
        (folder / "c.npy").unlink()
        with pa.OSFile(str(folder / "e.arrow"), "wb") as file:
            pa.ipc.new_file(file, pa.schema([])).close()
        with pytest.raises(RemoteError, match="has no tensors, but"):
            splitarrow.open(server.uri("d"))


def test_changed_files_are_read_anew(folder: Path) -> None:
    with splitarrow.serve({"a": folder / "a.npy"}) as server:
        with splitarrow.open(server.uri("a")) as stream:
            assert stream.read_tensor().shape == (2, 3)
        np.save(folder / "new.npy", np.ones(5))
        os.replace(folder / "new.npy", folder / "a.npy")
        with splitarrow.open(server.uri("a")) as stream:
            assert stream.read_tensor().shape == (5,)


@pytest.fixture
def server(folder: Path) -> Iterator[splitarrow.Server]:
    """A server of tensors with a control plane."""
    sources: dict[str, Any] = {
        "m": np.ones((2, 3), "f4"),
        "d": folder,
        "csf": pa.SparseCSFTensor.from_dense_numpy(np.eye(3), dim_names=["r", "c"]),
        "z": np.ones(3, "c8"),
        "t": pa.table({"n": [1]}),
    }
    with splitarrow.serve(sources, control="grpc://127.0.0.1:0") as running:
        yield running


def test_the_control_plane_describes_tensors(server: splitarrow.Server) -> None:
    with splitarrow.connect(server.control_uri or "") as client:
        (info,) = client.info("m").tensors
        assert (info.kind, info.dtype, info.shape) == ("dense", "float32", (2, 3))
        (info,) = client.info("csf").tensors
        assert (info.kind, info.non_zero_length, info.dim_names) == ("csf", 3, ("r", "c"))
        assert str(info) == "csf float64 3 × 3, 3 values"
        (info,) = client.info("z").tensors
        assert str(info) == "complex64 3"
        assert [each.name for each in client.info("d").tensors] == ["a", "x", None]
        assert client.info("t").tensors == ()
        tensor: Any = client["m"].read_tensor()
        assert tensor.to_numpy().sum() == 6
        with client.read("d") as stream:
            assert [tensor.name for tensor in stream.tensors()] == ["a", "x", None]
            assert stream.is_exhausted
        with client.read("d") as stream, pytest.raises(UsageError, match="'d' holds tensors"):
            stream.read_all()
        with pytest.raises(RemoteError, match="no rows to count"):
            client.count_rows("m")
        with pytest.raises(RemoteError, match="DoGet cannot carry"):
            client.read("m", transport="flight")


def test_stock_flight_clients_are_refused_clearly(server: splitarrow.Server) -> None:
    with pyarrow.flight.connect(server.control_uri or "") as client:
        info = client.get_flight_info(pyarrow.flight.FlightDescriptor.for_path("m"))
        assert info.schema.metadata == {b"splitarrow:content": b"tensor"}
        assert info.total_bytes == 24
        with pytest.raises(pa.ArrowNotImplementedError, match="read_tensor"):
            client.do_get(info.endpoints[0].ticket).read_all()


async def test_the_async_client_reads_tensors(server: splitarrow.Server) -> None:
    async with splitarrow.aio.connect(server.control_uri or "") as client:
        async with client.read("d") as stream:
            assert [tensor.name async for tensor in stream.tensors()] == ["a", "x", None]
        dataset = await client.dataset("m")
        assert (await dataset.read_tensor()).shape == (2, 3)
