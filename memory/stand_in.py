"""Host addresses in place of a device's, by which pyarrow encodes arrays that it cannot touch.

pyarrow writes a message of arrays of fixed width without looking at their values. So it gets arrays
of the same structure in a mapping that nobody reads, and the parts of the body that it returns are
replaced by those of the device.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence

import pyarrow as pa

from ..errors import InvalidDataError
from ..formats.arrow.encoded_message import EncodedMessage
from ..formats.arrow.encoder import MessageEncoder
from ..protocol.memory import DeviceSpan
from .array_layout import ArrayLayout

PROTECTION = mmap.PROT_READ
"""The access to the mapping. Nobody needs any; a wrong read finds zeros instead of a fault."""
_ALIGNMENT = 64


class StandIn:
    """Addresses for the buffers of one batch.

    Parameters
    ----------
    columns : sequence of ArrayLayout
        The columns, in the memory of a device.
    type_code : int
        The type of that memory, as in DLPack.
    """

    def __init__(self, columns: Sequence[ArrayLayout], type_code: int) -> None:
        buffers = [buffer for column in columns for buffer in column.list_buffers()]
        size = sum(-(-buffer.size // _ALIGNMENT) * _ALIGNMENT for buffer in buffers)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._memory = pa.py_buffer(mmap.mmap(-1, max(size, 1), flags=flags, prot=PROTECTION))
        self._type_code = type_code
        self._end = 0
        self._places: list[tuple[int, pa.Buffer]] = []
        """Where each buffer of the device begins in the mapping, in order."""
        self.columns = [column.move(self._place) for column in columns]
        """The columns, with buffers in the mapping."""

    def _place(self, buffer: pa.Buffer) -> pa.Buffer:
        begin, self._end = self._end, self._end + -(-buffer.size // _ALIGNMENT) * _ALIGNMENT
        self._places.append((begin, buffer))
        return self._memory.slice(begin, buffer.size)

    def find(self, part: pa.Buffer) -> DeviceSpan | None:
        """Return the memory of the device for a part of the mapping; None for other memory."""
        offset = part.address - self._memory.address
        for begin, buffer in self._places:
            if begin <= offset and offset + part.size <= begin + buffer.size:
                address = buffer.address + offset - begin
                return DeviceSpan(address, part.size, self._type_code, buffer)
        return None


def encode_on_device(
    encoder: MessageEncoder,
    schema: pa.Schema,
    columns: Sequence[ArrayLayout],
    type_code: int,
    padding: DeviceSpan,
) -> EncodedMessage:
    """Return the message of a batch whose body stays in the memory of a device.

    Parameters
    ----------
    encoder : MessageEncoder
        The encoder of the stream, without compression.
    schema : pyarrow.Schema
        The schema of the batch.
    columns : sequence of ArrayLayout
        The columns, of types with a fixed width (`has_fixed_width`), with known null counts.
    type_code : int
        The type of the memory, as in DLPack.
    padding : DeviceSpan
        Zeros in the same memory, to go between buffers: at least 64 bytes.

    Raises
    ------
    InvalidDataError
        If pyarrow made a copy of a buffer, which is not the memory of the device.
    """
    stand_in = StandIn(columns, type_code)
    arrays = [column.to_array() for column in stand_in.columns]
    (message,) = encoder.encode(pa.RecordBatch.from_arrays(arrays, schema=schema))
    parts: list[DeviceSpan] = []
    for part in message.body or ():
        if isinstance(part, pa.Buffer) and (span := stand_in.find(part)) is not None:
            parts.append(span)
        elif len(part) <= padding.nbytes and not any(memoryview(part)):
            parts.append(padding.slice(len(part)))
        else:
            raise InvalidDataError("a batch on a device was not encoded in place")
    return message._replace(body=parts)


def has_fixed_width(kind: pa.DataType) -> bool:
    """Return whether arrays of a type have no buffers but validities and values of one width."""
    if isinstance(kind, pa.BaseExtensionType):
        return has_fixed_width(kind.storage_type)
    types = pa.types
    if types.is_struct(kind):
        return all(has_fixed_width(kind.field(index).type) for index in range(kind.num_fields))
    if types.is_fixed_size_list(kind):
        return has_fixed_width(kind.value_type)
    if types.is_interval(kind):
        return False  # pyarrow has no arrays of them
    return types.is_primitive(kind) or types.is_decimal(kind) or types.is_fixed_size_binary(kind)
