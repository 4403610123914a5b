"""Bodies in the memory of a device, which the processor does not read.

pyarrow encodes and decodes columns of a fixed width without looking at values. So it gets a mapping
of the same size in place of a body, and its addresses are replaced by those of the device.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, cast

import pyarrow as pa

from ..errors import InvalidDataError
from ..formats.arrow.checker import MessageChecker
from ..formats.arrow.decoding import BufferFile
from ..formats.arrow.encoder import EncodedMessage, MessageEncoder
from ..formats.arrow.message import read_batch_table
from ..protocol.devices import DeviceBody
from ..protocol.memory import ALIGNMENT, DeviceSpan
from ..protocol.regions import DeviceHandles
from .array_layout import UNKNOWN, ArrayLayout
from .device import Device
from .device_batch import DeviceBatch, Residence
from .device_region import DeviceRegion
from .imports import with_null_count
from .pinned import HostRegistrations
from .pool import BlockPool, Returnable

PROTECTION = mmap.PROT_READ
"""The access to the mapping. Nobody needs any; a wrong read finds zeros instead of a fault."""
_SMALLEST = 1 << 20


def _map_nothing(nbytes: int) -> pa.Buffer:
    """Return addresses of which no memory is used."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    return pa.py_buffer(mmap.mmap(-1, nbytes, flags=flags, prot=PROTECTION))


class StandIn:
    """Addresses for the buffers of one batch."""

    def __init__(self, columns: Sequence[ArrayLayout], type_code: int) -> None:
        buffers = [buffer for column in columns for buffer in column.list_buffers()]
        size = sum(-(-buffer.size // ALIGNMENT) * ALIGNMENT for buffer in buffers)
        self._memory = _map_nothing(max(size, 1))
        self._type_code = type_code
        self._end = 0
        self._places: list[tuple[int, pa.Buffer]] = []
        """Where each buffer of the device begins in the mapping, in order."""
        self.columns = [column.move(self._place) for column in columns]
        """The columns, with buffers in the mapping."""

    def _place(self, buffer: pa.Buffer) -> pa.Buffer:
        begin, self._end = self._end, self._end + -(-buffer.size // ALIGNMENT) * ALIGNMENT
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
    """Return the message of a batch whose body, without copies, stays in the memory of a device."""
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
    types = pa.types

    def is_fixed(leaf: Any) -> bool:
        if types.is_interval(leaf):
            return False  # pyarrow has no arrays of them
        return (
            types.is_primitive(leaf) or types.is_decimal(leaf) or types.is_fixed_size_binary(leaf)
        )

    return all(map(is_fixed, _list_leaves(kind)))


def _list_leaves(kind: Any) -> Iterator[Any]:
    """Yield the types in structs and lists of a fixed size, without extensions."""
    if isinstance(kind, pa.BaseExtensionType):
        yield from _list_leaves(kind.storage_type)
    elif pa.types.is_struct(kind):
        for index in range(kind.num_fields):
            yield from _list_leaves(kind.field(index).type)
    elif pa.types.is_fixed_size_list(kind):
        yield from _list_leaves(kind.value_type)
    else:
        yield kind


def can_decode_on_device(schema: pa.Schema, *, fully: bool) -> bool:
    """Return whether nothing has to be read of the values of a stream, to validate them.

    Offsets, indices and UTF-8 have to be read. They exclude all columns but those of a fixed width.
    """
    kinds = [field.type for field in schema]
    return all(map(has_fixed_width, kinds)) and not (fully and any(map(_has_range, kinds)))


class BodyDecoder:
    """Makes the record batches of one stream.

    If it validates fully, it counts the nulls too, in copies of the validities on the host.
    """

    def __init__(self, schema: pa.Schema, device: Device, *, validates: bool, fully: bool) -> None:
        self._schema = schema
        self._device = device
        self._validates = validates
        self._fully = fully
        self._checker = MessageChecker(schema, {})
        self._checked_metadata = b""
        self._stand_in = pa.py_buffer(b"")

    def accepts(self, metadata: bytes) -> bool:
        """Return whether a message is a record batch that is not compressed, without extras.

        pyarrow would count nulls whose number is not declared.

        Raises `ProtocolError` if it is malformed.
        """
        if metadata == self._checked_metadata:
            return True
        table = read_batch_table(metadata)
        return (
            table.dictionary_id is None
            and table.codec is None
            and not table.has_custom_metadata
            and UNKNOWN not in table.nodes[1::2]
        )

    def decode(
        self,
        metadata: bytes,
        nbytes: int,
        locate: Callable[[int], int],
        blocks: Sequence[Returnable],
        *,
        is_shared: bool = False,
    ) -> DeviceBatch:
        """Return the record batch of an accepted message, whose body has `nbytes` bytes.

        Raises `ProtocolError`, `InvalidDataError` or `pyarrow.ArrowInvalid` if the message does not
        fit its schema or its body, or nulls are not where it declares them.
        """
        if metadata != self._checked_metadata:
            self._checker.check_parts(metadata, nbytes, _read_nothing)
            self._checked_metadata = metadata
        body = self._find_stand_in(nbytes)
        file = BufferFile()
        file.add(metadata, body)
        message = pa.ipc.read_message(pa.PythonFile(cast(Any, file), mode="r"))
        batch = pa.ipc.read_record_batch(message, self._schema)
        if self._validates:
            batch.validate()
        device, owner = self._device, tuple(blocks)
        ready = device.record()

        def place(buffer: pa.Buffer) -> pa.Buffer:
            address = locate(buffer.address - body.address)
            return pa.foreign_buffer(address, buffer.size, (owner, ready))

        columns = [ArrayLayout.of(column).move(place) for column in batch.columns]
        residence = Residence(device, blocks, ready, is_shared=is_shared)
        if self._fully:
            for field, column in zip(self._schema, columns, strict=True):
                _count_nulls(field.name, column, device)
        return DeviceBatch(batch.schema, columns, batch.num_rows, residence)

    def _find_stand_in(self, nbytes: int) -> pa.Buffer:
        """Return addresses for a body. All bodies share them, because nobody reads there."""
        if nbytes > self._stand_in.size:
            self._stand_in = _map_nothing(max(nbytes, _SMALLEST))
        return self._stand_in.slice(0, nbytes)


def _read_nothing(offset: int) -> int:
    raise AssertionError(f"offset {offset} of a body that is not compressed was to be read")


def _count_nulls(name: str, column: ArrayLayout, device: Device) -> None:
    """Compare the nulls that a column declares with its validity, which is copied to the host."""
    if column.null_count and column.buffers[0] is not None:
        counted = with_null_count(replace(column, null_count=UNKNOWN, children=()), device)
        if counted.null_count != column.null_count:
            raise InvalidDataError(
                f"the column {name!r} declares {column.null_count} nulls, and its validity has "
                f"{counted.null_count}"
            )
    for child in column.children:
        _count_nulls(name, child, device)


def _has_range(kind: Any) -> bool:
    """Return whether a type of fixed width does not allow every value."""
    types = pa.types
    return any(
        types.is_decimal(leaf) or types.is_date64(leaf) or types.is_time(leaf)
        for leaf in _list_leaves(kind)
    )


class DeviceBodies:
    """Allocates the bodies that a transport receives on a device; see `DeviceAllocator`."""

    def __init__(self, device: Device, pool: BlockPool, registrations: HostRegistrations) -> None:
        self.device = device
        self.register = registrations.add
        """Page-locks memory that a transport has mapped; see `DeviceAllocator.register`."""
        self._pool = pool
        self._shares, self._has_requested = True, False

    @property
    def type_code(self) -> int:
        """The type of the memory, as in DLPack."""
        return self.device.type_code

    def allocate(self, nbytes: int) -> DeviceBody:
        """Return memory for a body, once the device has ended what it did with it before."""
        block = self._pool.acquire(nbytes)
        # The transport does not wait for the queue of the device, as copies would.
        self.device.record().wait()
        return DeviceBody(block.address, nbytes, block)

    def can_share(self, process: int) -> bool:
        """Return whether to request memory of the device from a server in a process."""
        if self._shares and (process != os.getpid() or self.device.opens_own_exports):
            self._has_requested = True
            return True
        return False

    def stop_sharing(self) -> bool:
        """Request no such memory any more; return whether it was requested before."""
        requested, self._shares, self._has_requested = self._has_requested, False, False
        return requested

    def open_region(self, handles: DeviceHandles, connection: int) -> DeviceRegion:
        """Return the memory of the device that a server on this host has announced."""
        return DeviceRegion(self.device, handles, connection)

    def current(self) -> AbstractContextManager[None]:
        """Return a context in which libraries that this thread calls use the device."""
        return self.device.current()
