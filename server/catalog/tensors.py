"""Tensors in memory as datasets."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import pyarrow as pa

from ...formats.arrow.tensors import AnyTensor, encode_tensor
from ...formats.arrow.tensors.labels import TENSOR_SCHEMA, Labels
from ...formats.arrow.tensors.layout import AnyLayout, SparseLayout
from ...protocol.request import Request
from ...protocol.splitter import SourceMessage
from .dataset import Encoding, Shard
from .messages.generator_source import GeneratorSource, MessageGroups
from .messages.tensor_messages import (
    check_tensor_request,
    make_schema_message,
    refuse_counting,
    select_tensors,
)
from .query.request_checks import check_version, select_shards


class TensorDataset:
    """Tensors in memory, which the caller keeps unchanged. See `Dataset`.

    Parameters
    ----------
    tensors : sequence of Tensor or SparseTensor
        The tensors, in the order of the stream; at least one.
    """

    def __init__(self, tensors: Sequence[AnyTensor]) -> None:
        self._tensors = list(tensors)
        self.schema: pa.Schema = TENSOR_SCHEMA
        self.rows: int | None = None
        self.nbytes: int | None = sum(tensor.nbytes for tensor in tensors)
        self.version: str = uuid.uuid4().hex
        self.kind = describe_kind(self.list_tensors())
        """The type of the data: ``tensor``, ``csr tensor``, ``3 tensors``."""

    @property
    def shards(self) -> tuple[Shard, ...]:
        """All tensors as a single shard."""
        return (Shard(self.rows, self.nbytes),)

    def list_tensors(self) -> list[tuple[AnyLayout, Labels]]:
        """Return the layout and the labels of each tensor."""
        return [(tensor.layout, tensor.labels) for tensor in self._tensors]

    def open(self, request: Request, encoding: Encoding) -> GeneratorSource:
        """Open the tensors for one reader; see `Dataset.open`."""
        del encoding
        check_version(request, self.version)
        select_shards(request, self.shards)
        check_tensor_request(request)
        selected = select_tensors(request, self._tensors)
        return GeneratorSource(_encode_groups(selected), blocking=False)

    def count_rows(self, request: Request, encoding: Encoding) -> list[int]:
        """Refuse: tensors have no rows."""
        del encoding
        raise refuse_counting(request)

    def close(self) -> None:
        """Drop the tensors. Open sources stay usable."""
        self._tensors = []


def describe_kind(tensors: Sequence[tuple[AnyLayout, Labels]]) -> str:
    """Return the type of a dataset of tensors."""
    if len(tensors) != 1:
        return f"{len(tensors)} tensors"
    layout, _ = tensors[0]
    return f"{layout.kind} tensor" if isinstance(layout, SparseLayout) else "tensor"


def _encode_groups(tensors: Sequence[AnyTensor]) -> MessageGroups:
    yield [make_schema_message(is_big_endian=False)]
    for tensor in tensors:
        yield [SourceMessage(*encode_tensor(tensor))]
