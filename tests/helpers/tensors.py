"""Tensors for tests, and their messages as bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from splitarrow.formats.arrow.tensors import (
    AnyTensor,
    SparseTensor,
    convert_to_tensor,
    encode_tensor,
    write_message,
)

KINDS = ("dense", "coo", "csr", "csc", "csf")
"""The kinds of tensors."""


def join(parts: Any) -> bytes:
    """Return the bytes of the parts of a body or a file."""
    return b"".join(memoryview(part).cast("B") for part in parts if memoryview(part).nbytes)


def sample_array(shape: tuple[int, ...] = (3, 4, 5)) -> Any:
    """Return an array most of whose values are 0."""
    array = np.zeros(shape)
    array.reshape(-1)[::7] = np.arange(1, len(array.reshape(-1)[::7]) + 1)
    return array


def make_source(kind: str) -> Any:
    """Return an array of a kind: of NumPy, or a sparse tensor of pyarrow."""
    array = sample_array()
    match kind:
        case "coo":
            return pa.SparseCOOTensor.from_dense_numpy(array, dim_names=["x", "", "z"])
        case "csr":
            return pa.SparseCSRMatrix.from_dense_numpy(array[0])
        case "csc":
            return pa.SparseCSCMatrix.from_dense_numpy(array[1])
        case "csf":
            return pa.SparseCSFTensor.from_dense_numpy(array)
        case _:
            return array.astype("f4")


def make_tensor(source: Any, name: str | None = None) -> AnyTensor:
    """Return a tensor of an array."""
    tensor = convert_to_tensor(source, name)
    assert tensor is not None
    return tensor


def encode(tensor: AnyTensor) -> tuple[bytes, pa.Buffer]:
    """Return the metadata and the body of a tensor's message."""
    message = encode_tensor(tensor)
    return message.metadata, pa.py_buffer(join(message.body))


def encapsulate_tensor(tensor: AnyTensor, *, legacy: bool = False) -> bytes:
    """Return the message of a tensor as a file contains it."""
    return join(write_message(encode_tensor(tensor, legacy=legacy), legacy=legacy))


def dense_values(tensor: AnyTensor) -> Any:
    """Return all values of a tensor."""
    return tensor.to_dense() if isinstance(tensor, SparseTensor) else tensor.to_numpy()
