"""Tensors on the command line: files, listings, previews and refusals."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import splitarrow
from helpers.cli import Run

MATRIX = np.asfortranarray(np.arange(12.0).reshape(3, 4))


@pytest.fixture(scope="module")
def server() -> Iterator[splitarrow.Server]:
    sources = {
        "m": MATRIX,
        "two": [MATRIX, np.array([True, False])],
        "coo": pa.SparseCOOTensor.from_dense_numpy(np.eye(3), dim_names=["r", "c"]),
        "table": pa.table({"n": [1]}),
    }
    with splitarrow.serve(sources, control="grpc://127.0.0.1:0") as running:
        yield running


def test_fetch_writes_files(run: Run, server: splitarrow.Server, tmp_path: Path) -> None:
    uri = server.control_uri or ""
    done = run("fetch", uri, "m", "-o", "m.npy")
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("m: 1 tensor, ")
    result = np.load(tmp_path / "m.npy", mmap_mode="r")
    assert result.flags.f_contiguous
    np.testing.assert_array_equal(result, MATRIX)
    assert run("fetch", uri, "m", "-o", "m.tensor").returncode == 0
    with pa.OSFile(str(tmp_path / "m.tensor"), "rb") as file:
        np.testing.assert_array_equal(pa.ipc.read_tensor(file).to_numpy(), MATRIX)
    assert run("fetch", uri, "two", "-o", "two.tensor").returncode == 0
    assert run("fetch", server.uri("two"), "--batches", "1:2", "-o", "b.npy").returncode == 0
    assert np.load(tmp_path / "b.npy").tolist() == [True, False]
    again = splitarrow.serve({"again": tmp_path / "two.tensor"})
    with again, splitarrow.open(again.uri("again")) as stream:
        shapes = [tensor.shape for tensor in stream.tensors()]
    assert shapes == [(3, 4), (2,)]


def test_fetch_refuses_what_a_format_cannot_hold(
    run: Run, server: splitarrow.Server, tmp_path: Path
) -> None:
    for name, output, problem in (
        ("two", "x.npy", "x.npy: a .npy file holds one tensor"),
        ("coo", "x.npy", "cannot hold a sparse tensor; use .tensor"),
        ("m", "x.parquet", "x.parquet: the dataset holds tensors; write to"),
        ("m", "-", "-: the dataset holds tensors"),
        ("table", "x.npy", "x.npy: the dataset holds record batches, not tensors"),
        ("table", "x.tensor", "holds record batches"),
    ):
        done = run("fetch", server.control_uri or "", name, "-o", output)
        assert done.returncode == 2
        assert problem in done.stderr
        assert done.stderr.count("\n") == 1
    assert os.listdir(tmp_path) == []


def test_listings_describe_tensors(run: Run, server: splitarrow.Server) -> None:
    uri = server.control_uri or ""
    listing = run("ls", uri).stdout
    assert "tensor: float64 3 × 4" in listing
    assert "coo tensor: float64 3 × 3, 3 values" in listing
    info = run("info", uri, "coo").stdout
    assert "r, c" in info
    assert "rows" not in info
    (described,) = json.loads(run("info", uri, "coo", "--json").stdout)["tensors"]
    assert (described["kind"], described["shape"]) == ("coo", [3, 3])
    preview = run("fetch", uri, "two").stdout
    assert "0.0, 1.0, 2.0" in preview
    assert "True, False" in preview


@pytest.mark.parametrize("name", ["a.npy", "a.tensor"])
def test_commands_take_files_of_tensors(run: Run, tmp_path: Path, name: str) -> None:
    np.save(tmp_path / "a.npy", MATRIX)
    assert run("convert", "a.npy", "a.tensor").returncode == 0
    for command in ("schema", "stats"):
        done = run(command, name)
        assert done.returncode == 0, done.stderr
        assert "dense" in done.stdout
        assert "3 × 4" in done.stdout
        (described,) = json.loads(run(command, name, "--json").stdout)["tensors"]
        assert (described["kind"], described["shape"], described["bytes"]) == ("dense", [3, 4], 96)
    for command in ("head", "cat"):
        done = run(command, name)
        assert done.returncode == 2
        assert f"{name} holds tensors, which have no rows or columns" in done.stderr
        assert done.stdout == ""
    assert run("convert", name, "b.npy").returncode == 0
    np.testing.assert_array_equal(np.load(tmp_path / "b.npy"), MATRIX)
