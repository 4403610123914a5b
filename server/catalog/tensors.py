"""Tensors as datasets: a schema without fields, then one message for each tensor.

docs/wire.md describes the messages under "Tensors".
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import flatbuffers

from ...errors import InvalidRequestError, RemoteError, remote_error
from ...fbs import arrow_generated as fbs
from ...formats.arrow.custom_metadata import finish_message, write_pairs
from ...formats.arrow.encoder import MessageEncoder
from ...formats.arrow.tensors import AnyTensor, encode_tensor
from ...formats.arrow.tensors.labels import (
    CONTENT,
    CONTENT_KEY,
    TENSOR_SCHEMA,
    Labels,
)
from ...formats.arrow.tensors.layout import AnyLayout, SparseLayout, find_type_name
from ...protocol.request import Request
from ...protocol.splitter import SourceMessage
from .batch_ranges import BatchRanges
from .dataset import (
    Encoding,
    FixedDataset,
    GeneratorSource,
    Measures,
    MessageGroups,
)

MAX_DESCRIPTIONS = 64
"""The largest number of tensors of a dataset that are described to clients."""


def make_schema_message(*, is_big_endian: bool) -> SourceMessage:
    """Return the first message of a stream of tensors."""
    if is_big_endian == (sys.byteorder == "big"):
        return SourceMessage(*MessageEncoder(TENSOR_SCHEMA).schema_message)
    builder: Any = flatbuffers.Builder(128)
    pairs = write_pairs(builder, [(CONTENT_KEY, CONTENT)])
    fbs.SchemaStartFieldsVector(builder, 0)
    fields = builder.EndVector()
    fbs.SchemaStart(builder)
    endianness = fbs.Endianness.Big if is_big_endian else fbs.Endianness.Little
    fbs.SchemaAddEndianness(builder, endianness)
    fbs.SchemaAddFields(builder, fields)
    fbs.SchemaAddCustomMetadata(builder, pairs)
    schema = fbs.SchemaEnd(builder)
    version, kind = fbs.MetadataVersion.V5, fbs.MessageHeader.Schema
    return SourceMessage(finish_message(builder, version, kind, schema), None)


def check_tensor_request(request: Request) -> None:
    """Check that a request selects whole tensors.

    Raises `InvalidRequestError` if it selects columns or rows, or compresses.
    """
    compression = None if request.compression == "none" else request.compression
    refused = {
        "columns": request.columns,
        "filter": request.filter,
        "limit": request.limit,
        "offset": request.offset,
        "rows": request.rows,
        "batch_rows": request.batch_rows,
        "compression": compression,
    }
    given = [name for name, value in refused.items() if value is not None]
    if given:
        raise InvalidRequestError(
            f"the dataset holds tensors, which have no rows and columns; leave {', '.join(given)} "
            "out, and select tensors with batches",
            stream=request.dataset,
        )


def select_tensors(request: Request, tensors: Sequence[Any]) -> Sequence[Any]:
    """Return the tensors that a request is for, as its ranges of batches select them.

    Raises `InvalidRequestError` if one does not exist.
    """
    ranges = request.batch_ranges
    if ranges is None:
        return tensors
    first, end = ranges[-1]
    if end > len(tensors):
        raise InvalidRequestError(
            f"there are no tensors {first}:{end}; there are {len(tensors)}, counted from 0",
            stream=request.dataset,
        )
    return BatchRanges(ranges).select(tensors)


def describe_tensor(layout: AnyLayout, labels: Labels) -> dict[str, Any]:
    """Return the description of a tensor for clients, in JSON."""
    is_complex = labels.is_complex
    description: dict[str, Any] = {
        "kind": layout.kind if isinstance(layout, SparseLayout) else "dense",
        "dtype": labels.dtype or find_type_name(layout.type),
        "shape": layout.shape[:-1] if is_complex else layout.shape,
    }
    if labels.name is not None:
        description["name"] = labels.name
    if layout.dim_names:
        description["dim_names"] = layout.dim_names
    if isinstance(layout, SparseLayout):
        description["non_zero_length"] = layout.non_zero_length
    return description


def describe_tensors(pairs: Sequence[tuple[AnyLayout, Labels]]) -> dict[str, Any]:
    """Return the number and descriptions of tensors, of which each has a layout and labels."""
    described = [describe_tensor(*pair) for pair in pairs[:MAX_DESCRIPTIONS]]
    return {"tensor_count": len(pairs), "tensors": described}


def refuse_counting(request: Request) -> RemoteError:
    """Return the error for a request to count rows, which tensors do not have."""
    return remote_error(
        "FAILED_PRECONDITION", "tensors have no rows to count", stream=request.dataset
    )


def refuse_do_get(request: Request) -> RemoteError:
    """Return the error for a request of tensors by DoGet, whose clients expect record batches."""
    return remote_error(
        "UNIMPLEMENTED",
        f"the dataset {request.dataset!r} holds tensors, which DoGet cannot carry; read it with "
        "splitarrow.open(URI).read_tensor() or splitarrow fetch -o FILE.npy, over tcp, shm or ucx",
        stream=request.dataset,
    )


class TensorDataset(FixedDataset):
    """Tensors in memory, which the caller keeps unchanged."""

    def __init__(self, tensors: Sequence[AnyTensor]) -> None:
        super().__init__(TENSOR_SCHEMA, None, sum(tensor.nbytes for tensor in tensors))
        self._tensors = list(tensors)
        layout = self._tensors[0].layout
        if len(self._tensors) != 1:
            self._kind = f"{len(self._tensors)} tensors"
        else:
            self._kind = f"{layout.kind} tensor" if isinstance(layout, SparseLayout) else "tensor"

    @property
    def app_metadata(self) -> Mapping[str, Any]:
        """The descriptions of the tensors."""
        return describe_tensors([(tensor.layout, tensor.labels) for tensor in self._tensors])

    def open(self, request: Request, encoding: Encoding) -> GeneratorSource:
        """Open the tensors for one reader; see `ServedDataset.open`."""
        del encoding
        self.check_request(request)
        check_tensor_request(request)
        selected = select_tensors(request, self._tensors)
        return GeneratorSource(encode_tensors(selected), blocking=False)

    def measure_batches(self, request: Request, encoding: Encoding) -> Measures:
        """Refuse: tensors have no rows."""
        del encoding
        raise refuse_counting(request)


def encode_tensors(tensors: Iterable[AnyTensor]) -> MessageGroups:
    """Yield the messages of a stream of tensors, one tensor in each group."""
    yield [make_schema_message(is_big_endian=False)]
    for tensor in tensors:
        yield [SourceMessage(*encode_tensor(tensor))]
