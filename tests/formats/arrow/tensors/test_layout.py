"""Every impossible tensor is refused with the field and the place, before its body is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from helpers.tensors import encapsulate_tensor, encode, make_source, make_tensor
from splitarrow.errors import InvalidDataError, LimitError, ProtocolError
from splitarrow.formats.arrow.encoder import MessageEncoder
from splitarrow.formats.arrow.message import BufferSpan
from splitarrow.formats.arrow.tensors import (
    SparseTensor,
    check_tensor_message,
    decode_tensor,
    read_tensor_buffers,
    read_tensor_layout,
    scan_tensors,
)
from splitarrow.formats.arrow.tensors.encoding import encode_metadata
from splitarrow.formats.arrow.tensors.files import is_tensor_head
from splitarrow.formats.arrow.tensors.labels import NO_LABELS, TENSOR_SCHEMA, Labels
from splitarrow.formats.arrow.tensors.layout import CooLayout, CsfLayout, CsxLayout, TensorLayout

BIG = 1 << 62


def dense(**changes: Any) -> bytes:
    """Return the metadata of a matrix of 2 × 3 float64, with changes."""
    layout = TensorLayout(pa.float64(), (2, 3), (24, 8), (), BufferSpan(0, 48), 48)
    return encode_metadata(replace(layout, **changes), NO_LABELS)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"shape": (-1, 3)}, r"shape\[0\] is -1"),
        ({"shape": (2, 3, 1)}, "strides has 2 items; expected one for each of 3"),
        ({"shape": (BIG, BIG), "strides": ()}, "larger than 2"),
        ({"shape": (0, BIG), "strides": (0, 0)}, "larger than 2"),
        ({"shape": (3, 3)}, r"strides \(24, 8\) has 72 bytes; its buffer has 48"),
        ({"shape": (BIG, 3)}, "bytes; its buffer has 48"),
        ({"strides": (-24, 8)}, r"strides\[0\] is -24"),
        ({"strides": (0, 8)}, r"strides\[0\] is 0, so that values overlap"),
        ({"strides": (8, 8)}, "values overlap"),
        ({"strides": (24, 4)}, r"strides\[1\] is 4, so that values overlap; expected at least 8"),
        ({"strides": (BIG, 8)}, "its buffer has 48"),
        ({"data": BufferSpan(8, 48)}, "is outside the body of 48 bytes"),
        ({"data": BufferSpan(-8, 48)}, "is outside the body"),
        ({"data": BufferSpan(0, 40)}, "its buffer has 40"),
        ({"data": BufferSpan(BIG * 2 - 1, 48)}, "is outside the body"),
        ({"shape": (1,) * 65, "strides": ()}, "65 dimensions; the limit is 64"),
        ({"dim_names": ("x" * 5000, "")}, "the name of dimension 0 has 5000 bytes"),
    ],
)
def test_impossible_dense_tensors_are_refused(changes: dict[str, Any], problem: str) -> None:
    refusal = LimitError if "limit" in problem or "5000" in problem else InvalidDataError
    with pytest.raises(refusal, match=problem):
        read_tensor_layout(dense(**changes))


def test_possible_dense_tensors_are_accepted() -> None:
    for changes in (
        {},
        {"strides": (8, 16)},
        {"shape": (0, 1 << 59), "strides": (0, 0)},
        {"shape": (2, 1), "strides": (40, 0)},
        {"shape": (), "strides": ()},
        {"strides": (32, 8), "data": BufferSpan(0, 56), "body_length": 56},
    ):
        layout = read_tensor_layout(dense(**changes))
        assert layout.buffers == tuple(read_tensor_buffers(dense(**changes)))
    assert read_tensor_layout(dense(strides=())) == read_tensor_layout(dense())


def change_index(kind: str, **changes: Any) -> bytes:
    """Return the metadata of a sparse tensor with changes of its index or of itself."""
    tensor = make_tensor(make_source(kind))
    assert isinstance(tensor, SparseTensor)
    layout = tensor.layout
    own = {name: value for name, value in changes.items() if hasattr(layout, name)}
    of_index = {name: value for name, value in changes.items() if name not in own}
    index: Any = replace(layout.index, **of_index)
    return encode_metadata(replace(layout, index=index, **own), NO_LABELS)


@pytest.mark.parametrize(
    ("kind", "changes", "problem"),
    [
        ("coo", {"non_zero_length": -1}, "non_zero_length is -1"),
        ("coo", {"non_zero_length": 10}, "data has 72 bytes; 10 values of double need 80"),
        ("coo", {"strides": (8, 8)}, r"indicesStrides\[0\] is 8, so that values overlap"),
        ("coo", {"indices": BufferSpan(0, 8)}, "its buffer has 8"),
        ("coo", {"indices": BufferSpan(BIG, 216)}, "is outside the body"),
        ("coo", {"shape": (3, 4), "dim_names": (), "strides": (1 << 40, 8)}, "its buffer has 216"),
        ("csr", {"shape": (4, 5, 6)}, "has 3 dimensions; expected 2"),
        ("csr", {"shape": (5, 5)}, "indptrBuffer has 40 bytes; 6 values"),
        ("csc", {"indices": BufferSpan(64, 8)}, "indicesBuffer has 8 bytes"),
        ("csc", {"indices": BufferSpan(32, 24)}, "overlap at offset"),
        ("csf", {"axis_order": (0, 1, 1)}, "expected each dimension once"),
        ("csf", {"axis_order": (0, 1)}, "axisOrder has 2 dimensions; expected 3"),
        ("csf", {"indptr": (BufferSpan(0, 8),)}, "indptrBuffers has 1 buffers; expected 2"),
        ("csf", {"non_zero_length": 1 << 40}, "data has"),
    ],
)
def test_impossible_sparse_tensors_are_refused(
    kind: str, changes: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InvalidDataError, match=problem):
        check_tensor_message(change_index(kind, **changes))


def patch_body(kind: str, buffer: int, numbers: Sequence[int]) -> tuple[bytes, pa.Buffer]:
    """Return a sparse tensor with other numbers at the begin of one of its buffers."""
    tensor = make_tensor(make_source(kind))
    metadata, body = encode(tensor)
    patched = bytearray(body)
    at = read_tensor_layout(metadata).buffers[buffer].offset
    patched[at : at + 8 * len(numbers)] = np.array(numbers, "i8").tobytes()
    return metadata, pa.py_buffer(patched)


@pytest.mark.parametrize(
    ("kind", "buffer", "numbers", "problem"),
    [
        ("coo", 0, [3], "the indices of dimension 0: item 0 is 3; expected 0 to 2"),
        ("coo", 0, [-1], "item 0 is -1"),
        ("coo", 0, [1, 0], "not sorted and distinct at value 1, although isCanonical"),
        ("csr", 0, [1], "indptr covers 1 to 3; expected 0 to 3"),
        ("csr", 0, [0, 2, 1], "indptr decreases at 2"),
        ("csr", 0, [0, 1 << 40], "indptr decreases at 2"),
        ("csr", 1, [5], "indices: item 0 is 5; expected 0 to 4"),
        ("csc", 1, [4], "indices: item 0 is 4; expected 0 to 3"),
        ("csf", 0, [0, 9, 5], r"indptr\[0\]"),
        ("csf", 2, [1, 0], r"indices\[0\] is not sorted and distinct at 1"),
        ("csf", 3, [1, 0], r"indices\[1\] is not sorted and distinct at 1"),
        ("csf", 4, [7], r"indices\[2\]: item 0 is 7; expected 0 to 4"),
    ],
)
def test_wrong_indices_are_refused(
    kind: str, buffer: int, numbers: Sequence[int], problem: str
) -> None:
    metadata, body = patch_body(kind, buffer, numbers)
    check_tensor_message(metadata)
    with pytest.raises(InvalidDataError, match=problem):
        check_tensor_message(metadata, body)
    assert isinstance(decode_tensor(metadata, body, check_values=False), SparseTensor)


def test_indices_within_a_row_are_sorted() -> None:
    index = CsxLayout("row", pa.int64(), BufferSpan(0, 24), pa.int64(), BufferSpan(64, 24))
    tensor = make_tensor(pa.SparseCSRMatrix.from_dense_numpy(np.array([[0, 1.0, 1], [1, 0, 0]])))
    assert isinstance(tensor, SparseTensor)
    metadata, body = encode(tensor)
    tensor = decode_tensor(metadata, body)
    assert isinstance(tensor, SparseTensor)
    assert tensor.layout.index == index
    swapped = bytearray(body)
    swapped[64:80] = np.array([2, 1]).tobytes()
    with pytest.raises(InvalidDataError, match="indices is not sorted at 1"):
        decode_tensor(metadata, pa.py_buffer(swapped))


def test_other_messages_and_values_are_refused() -> None:
    schema = MessageEncoder(pa.schema([])).schema_message.metadata
    with pytest.raises(InvalidDataError, match="received a SCHEMA message; expected a tensor"):
        read_tensor_layout(schema)
    with pytest.raises(ProtocolError, match="not an Arrow IPC message"):
        read_tensor_layout(b"12345678" * 4)
    with pytest.raises(InvalidDataError, match="the body of the tensor has 8 bytes"):
        decode_tensor(dense(), pa.py_buffer(bytes(8)))


@pytest.mark.parametrize(
    ("labels", "changes", "problem"),
    [
        (Labels(dtype="string"), {}, "the unknown type 'string'"),
        (Labels(dtype="bool"), {}, "labeled bool, which is stored as uint8; it has double"),
        (Labels(dtype="complex128"), {}, "its last dimension must be 2"),
        (Labels(dtype="complex128"), {"shape": (3, 2), "strides": (8, 24)}, "must be 2"),
        (Labels("n" * 2000), {}, "the name of the tensor has 2000 characters"),
    ],
)
def test_wrong_labels_are_refused(labels: Labels, changes: dict[str, Any], problem: str) -> None:
    layout = read_tensor_layout(dense())
    metadata = encode_metadata(replace(layout, **changes), labels)
    with pytest.raises(InvalidDataError, match=problem):
        check_tensor_message(metadata)


def test_booleans_are_0_or_1() -> None:
    tensor = make_tensor(np.array([True, False]))
    metadata, _ = encode(tensor)
    decoded = decode_tensor(metadata, pa.py_buffer(bytes([1, 2] + [0] * 6)))
    with pytest.raises(InvalidDataError, match="other than 0 and 1"):
        decoded.to_numpy()


def scan(data: bytes) -> list[Any]:
    """Return the tensors in the bytes of a file."""
    return list(scan_tensors(lambda at, nbytes: data[at : at + nbytes], len(data)))


def test_files_hold_several_tensors() -> None:
    first, second = make_tensor(np.arange(3), "a"), make_tensor(make_source("csf"), "b")
    sink = pa.BufferOutputStream()
    pa.ipc.write_tensor(pa.Tensor.from_numpy(np.arange(5, dtype="i1")), sink)
    parts = [
        sink.getvalue().to_pybytes(),
        encapsulate_tensor(first),
        encapsulate_tensor(second, legacy=True),
    ]
    padded = b"".join(part + bytes(-len(part) % 64) for part in parts)
    end = b"\xff\xff\xff\xff\0\0\0\0"
    for data in (padded, padded + end, padded + bytes(4), padded + end + bytes(40)):
        found = scan(data)
        assert [message.labels.name for message in found] == [None, "a", "b"]
        assert [message.layout.shape for message in found] == [(5,), (3,), (3, 4, 5)]
    schema = MessageEncoder(TENSOR_SCHEMA).schema_message.metadata
    prefix = b"\xff\xff\xff\xff" + len(schema).to_bytes(4, "little")
    found = scan(prefix + schema + encapsulate_tensor(first))
    assert [message.is_big_endian for message in found] == [False]
    assert is_tensor_head(prefix + schema)
    assert is_tensor_head(padded)
    assert not is_tensor_head(b"\x93NUMPY")
    assert not is_tensor_head(padded[:20])


def test_damaged_files_are_refused() -> None:
    data = encapsulate_tensor(make_tensor(np.arange(100)))
    for end, problem in (
        (6, "the message at byte 0: it is truncated"),
        (100, "its metadata ends at byte"),
        (400, "its body ends at byte"),
    ):
        with pytest.raises(InvalidDataError, match=problem):
            scan(data[:end])
    with pytest.raises(InvalidDataError, match="72 bytes follow its end marker"):
        scan(data + b"\xff\xff\xff\xff" + bytes(4 + 72))
    table = pa.BufferOutputStream()
    pa.ipc.new_stream(table, pa.schema([("a", pa.int8())])).close()
    with pytest.raises(InvalidDataError, match="the schema announces no tensors"):
        scan(table.getvalue().to_pybytes())
    with pytest.raises(LimitError, match="its metadata has 1073741824 bytes"):
        scan((1 << 30).to_bytes(4, "little") + bytes(64))


def test_kinds_have_their_index() -> None:
    for kind, index_type in (("coo", CooLayout), ("csc", CsxLayout), ("csf", CsfLayout)):
        tensor = make_tensor(make_source(kind))
        assert isinstance(tensor, SparseTensor)
        assert isinstance(tensor.layout.index, index_type)
