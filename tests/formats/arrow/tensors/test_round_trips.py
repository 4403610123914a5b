"""A tensor that was encoded decodes to an equal one, without copies of its values."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.tensors import (
    KINDS,
    dense_values,
    encapsulate_tensor,
    encode,
    make_source,
    make_tensor,
    sample_array,
)
from splitarrow.errors import LimitError, UsageError
from splitarrow.formats.arrow.tensors import (
    SparseTensor,
    Tensor,
    convert_to_tensor,
    decode_tensor,
    scan_tensors,
)
from splitarrow.formats.arrow.tensors.files import read_npy_header, write_npy_header

TYPES = [
    *("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"),
    *("?", "c8", "c16", "M8[D]", "M8[ns]", "m8[25ms]"),
]


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    """Draw an array of any type, shape, order, byte order and stepping."""
    dtype = np.dtype(draw(st.sampled_from(TYPES)))
    if draw(st.booleans()):
        dtype = dtype.newbyteorder(">" if draw(st.booleans()) else "<")
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=4)))
    count = int(np.prod(shape))
    numbers = np.arange(count * dtype.itemsize, dtype="u1").reshape(count, dtype.itemsize)
    if dtype.kind in "fcb":
        array = np.arange(count).astype(dtype).reshape(shape)
    else:
        array = np.ascontiguousarray(numbers).view(dtype).reshape(shape)
    array = array.transpose(draw(st.permutations(range(len(shape)))))
    steps = draw(st.tuples(*(st.sampled_from([1, 1, 2, -1]) for _ in shape)))
    return array[tuple(slice(None, None, step) for step in steps)]


def assert_same(result: Any, array: Any) -> None:
    """Check values, shape and type; the byte order may differ."""
    assert result.dtype == array.dtype.newbyteorder("=")
    assert result.shape == array.shape
    np.testing.assert_array_equal(result, array)


@given(arrays(), st.none() | st.text(max_size=8))
@settings(max_examples=150)
def test_every_dense_array_round_trips(array: Any, name: str | None) -> None:
    tensor = make_tensor(array, name)
    decoded = decode_tensor(*encode(tensor))
    assert isinstance(decoded, Tensor)
    assert decoded.name == name
    assert (decoded.shape, decoded.ndim, decoded.size) == (array.shape, array.ndim, array.size)
    result = decoded.to_numpy()
    assert_same(result, array)
    assert not result.flags.writeable
    assert result.strides == decoded.strides or not result.size or 1 in result.shape
    # pyarrow reads what is written here, in either framing, and the other way round.
    for legacy in (False, True):
        file = encapsulate_tensor(tensor, legacy=legacy)
        theirs = pa.ipc.read_tensor(pa.BufferReader(file))
        assert_same(theirs.to_numpy(), decoded.to_arrow().to_numpy())
    sink = pa.BufferOutputStream()
    pa.ipc.write_tensor(theirs, sink)
    written = sink.getvalue().to_pybytes()
    (message,) = scan_tensors(lambda at, nbytes: written[at : at + nbytes], len(written))
    body = pa.py_buffer(written[message.body_offset :][: message.layout.body_length])
    again = decode_tensor(message.metadata, body)
    assert isinstance(again, Tensor)
    assert_same(again.to_numpy(), theirs.to_numpy())


@given(arrays())
@settings(max_examples=60)
def test_npy_files_hold_every_dense_array(array: Any) -> None:
    tensor = make_tensor(array)
    assert isinstance(tensor, Tensor)
    header, values = write_npy_header(tensor)
    file = header + values.tobytes()
    assert len(header) % 64 == 0
    found = read_npy_header(file)
    assert found.data_offset == len(header)
    assert len(file) - len(header) == found.layout.body_length
    assert_same(np.load(io.BytesIO(file)), array)


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_pyarrow_round_trip(kind: str) -> None:
    source = make_source(kind)
    decoded = decode_tensor(*encode(make_tensor(source, "t")))
    expected = source if kind == "dense" else source.to_tensor().to_numpy()
    np.testing.assert_array_equal(dense_values(decoded), expected)
    if isinstance(decoded, SparseTensor):
        assert decoded.kind == kind
        assert decoded.to_arrow().equals(source)
        assert decoded.non_zero_length == source.non_zero_length
    assert decoded.dim_names == (("x", "", "z") if kind == "coo" else ())


@pytest.mark.parametrize("kind", KINDS)
def test_foreign_byte_order_is_swapped(kind: str) -> None:
    tensor = make_tensor(make_source(kind))
    foreign = swap(tensor)
    decoded = decode_tensor(*foreign, swap_bytes=True)
    np.testing.assert_array_equal(dense_values(decoded), dense_values(tensor))
    with pytest.raises(LimitError, match="the other byte order; the limit for swapping is 8"):
        decode_tensor(*foreign, swap_bytes=True, max_swapped_bytes=8)


def swap(tensor: Any) -> tuple[bytes, pa.Buffer]:
    """Return the message of a tensor whose buffers have the other byte order."""
    metadata, body = encode(tensor)
    swapped = np.array(memoryview(body))
    width = 4 if isinstance(tensor, Tensor) else 8
    swapped = swapped.view(f"u{width}").byteswap()
    return metadata, pa.py_buffer(swapped.tobytes())


def test_arrays_without_gaps_are_not_copied() -> None:
    array = np.arange(24.0).reshape(2, 3, 4)
    for each in (array, array.T, array.transpose(1, 2, 0), array[1], np.float64(3) + array[:0]):
        tensor = make_tensor(each)
        assert isinstance(tensor, Tensor)
        assert np.shares_memory(tensor.to_numpy(), each) or not each.size
        assert tensor.strides == each.strides or not each.size
    for each in (array[:, :2], array[..., ::-1], np.broadcast_to(array[0, 0], (5, 4))):
        tensor = make_tensor(each)
        assert isinstance(tensor, Tensor)
        assert not np.shares_memory(tensor.to_numpy(), each)
        assert tensor.nbytes == tensor.layout.data.length


def test_received_memory_is_shared() -> None:
    metadata, body = encode(make_tensor(np.arange(6, dtype="i4").reshape(2, 3)))
    decoded = decode_tensor(metadata, body)
    assert isinstance(decoded, Tensor)
    assert np.shares_memory(decoded.to_numpy(), np.asarray(memoryview(body)))
    assert np.from_dlpack(decoded).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert np.asarray(decoded).sum() == 15
    assert np.array(decoded, dtype="f4").dtype == "f4"
    assert repr(decoded) == "<splitarrow.Tensor: int32, 2 × 3, 24 bytes>"


@pytest.mark.parametrize("kind", ["coo", "csr", "csc"])
def test_scipy_arrays_round_trip(kind: str) -> None:
    sparse = pytest.importorskip("scipy.sparse")
    array = sample_array((30, 40))
    for dtype in ("f8", "f4", "i2", "?"):
        source = sparse.coo_array(array.astype(dtype)).asformat(kind)
        metadata, body = encode(make_tensor(source))
        decoded = decode_tensor(metadata, body)
        assert isinstance(decoded, SparseTensor)
        result = decoded.to_scipy()
        assert (result.format, result.dtype, result.shape) == (kind, source.dtype, source.shape)
        assert (result != source).nnz == 0
        assert np.shares_memory(result.data, np.asarray(memoryview(body)))
        if kind != "coo":
            assert np.shares_memory(result.indices, np.asarray(memoryview(body)))
        assert (result @ np.ones(40)).sum() == pytest.approx(array.astype(dtype).sum())


def test_other_formats_of_scipy_become_csr() -> None:
    sparse = pytest.importorskip("scipy.sparse")
    array = sample_array((6, 8))
    for kind in ("bsr", "dok", "lil"):
        tensor = make_tensor(sparse.coo_matrix(array).asformat(kind))
        assert isinstance(tensor, SparseTensor)
        assert tensor.kind == "csr"
        np.testing.assert_array_equal(tensor.to_dense(), array)


def test_unsorted_matrices_are_sorted() -> None:
    sparse = pytest.importorskip("scipy.sparse")
    source = sparse.csr_array(
        (np.array([1.0, 2, 3]), np.array([2, 0, 1]), np.array([0, 2, 3])), shape=(2, 3)
    )
    tensor = make_tensor(source)
    assert isinstance(tensor, SparseTensor)
    assert tensor.index_arrays[1].tolist() == [0, 2, 1]
    assert tensor.to_dense().tolist() == [[2, 0, 1], [0, 3, 0]]


def test_csf_in_any_order_of_dimensions_round_trips() -> None:
    values, indptr = np.array([[1.0], [2.0]]), [np.array([0, 1, 2])]
    indices = [np.array([0, 2]), np.array([1, 0])]
    make: Any = pa.SparseCSFTensor.from_numpy
    source = make(values, indptr, indices, (2, 3), axis_order=[1, 0])
    tensor = make_tensor(source)
    assert isinstance(tensor, SparseTensor)
    assert tensor.to_dense().tolist() == [[0, 0, 2], [1, 0, 0]]
    assert tensor.to_arrow().equals(source)
    with pytest.raises(UsageError, match="no arrays in CSF format"):
        tensor.to_scipy()


def test_what_tensors_cannot_hold_is_refused() -> None:
    sparse = pytest.importorskip("scipy.sparse")
    for array, problem in (
        (np.array(["a"]), "values of the type <U1"),
        (np.array([object()]), "values of the type object"),
        (np.zeros(2, [("a", "i4")]), "values of the type"),
        (np.zeros(2, "g"), "values of the type float128"),
        (np.ma.array([1, 2], mask=np.array([False, True])), "masked array"),
        (
            sparse.csr_array(np.array([[1j]])),
            "sparse tensor cannot have values of the type complex",
        ),
        (np.zeros((1,) * 64, "c8"), "65 dimensions"),
    ):
        with pytest.raises(UsageError, match=problem):
            convert_to_tensor(array)
    for other in ([1, 2], {"a": 1}, "x", 3.5, None, pa.array([1])):
        assert convert_to_tensor(other) is None


def test_wrong_indices_of_pyarrow_are_refused() -> None:
    source: Any = pa.SparseCSRMatrix
    with pytest.raises(UsageError, match="indices: item 1 is 9; expected 0 to 2"):
        convert_to_tensor(
            source.from_numpy(np.ones((2, 1)), np.array([0, 1, 2]), np.array([0, 9]), (2, 3))
        )


def test_expansion_is_limited() -> None:
    tensor = make_tensor(make_source("coo"))
    assert isinstance(tensor, SparseTensor)
    with pytest.raises(LimitError, match="480 bytes with its zeros; the limit is 479"):
        tensor.to_dense(max_bytes=479)
