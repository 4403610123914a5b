"""Record batches from bodies in the memory of a device, which the processor does not read.

pyarrow decodes a message of columns of fixed width without looking at values. So it gets a mapping
of the same size instead of the body, and the addresses that it returns are replaced by those of the
device.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import pyarrow as pa

from ..errors import InvalidDataError
from ..formats.arrow.buffer_file import BufferFile
from ..formats.arrow.checker import MessageChecker
from ..formats.arrow.message import read_batch_table
from . import stand_in
from .array_layout import ArrayLayout
from .device import Device
from .device_batch import DeviceBatch, Residence
from .imported_arrays import with_null_count
from .pool import Returnable
from .stand_in import has_fixed_width

_UNKNOWN = -1
_SMALLEST = 1 << 20


def can_decode_on_device(schema: pa.Schema, *, fully: bool) -> bool:
    """Return whether nothing has to be read of the values of a stream, to validate them.

    Parameters
    ----------
    schema : pyarrow.Schema
        The schema. Offsets, indices and UTF-8 have to be read, and so they exclude all columns but
        those of a fixed width.
    fully : bool
        Whether values are validated, which excludes the types that do not allow every value.
    """
    kinds = [field.type for field in schema]
    return all(map(has_fixed_width, kinds)) and not (fully and any(map(_has_range, kinds)))


class BodyDecoder:
    """Makes the record batches of one stream.

    Parameters
    ----------
    schema : pyarrow.Schema
        The schema, for which `can_decode_on_device` returns True.
    device : Device
        The device.
    validates : bool
        Whether the sizes of buffers are checked.
    fully : bool
        Whether the nulls are counted too, in copies of the validities on the host.
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

        Raises
        ------
        ProtocolError
            If it is malformed.
        """
        if metadata == self._checked_metadata:
            return True
        table = read_batch_table(metadata)
        return (
            table.dictionary_id is None
            and table.codec is None
            and not table.has_custom_metadata
            and _UNKNOWN not in table.nodes[1::2]
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
        """Return the record batch of a message that `accepts` accepts.

        Parameters
        ----------
        metadata : bytes
            The message.
        nbytes : int
            The size of its body in bytes.
        locate : callable
            Returns the address on the device of an offset in the body.
        blocks : sequence of Block
            The memory, which the batch keeps.
        is_shared : bool
            Whether other processes have the memory, too.

        Raises
        ------
        ProtocolError, InvalidDataError, pyarrow.ArrowInvalid
            If the message does not fit its schema or its body, or nulls are not where it says.
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
            size = max(nbytes, _SMALLEST)
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            self._stand_in = pa.py_buffer(
                mmap.mmap(-1, size, flags=flags, prot=stand_in.PROTECTION)
            )
        return self._stand_in.slice(0, nbytes)


def _read_nothing(offset: int) -> int:
    raise AssertionError(f"offset {offset} of a body that is not compressed was to be read")


def _count_nulls(name: str, column: ArrayLayout, device: Device) -> None:
    """Compare the nulls that a column declares with its validity, which is copied to the host."""
    if column.null_count and column.buffers[0] is not None:
        counted = with_null_count(replace(column, null_count=_UNKNOWN, children=()), device)
        if counted.null_count != column.null_count:
            raise InvalidDataError(
                f"the column {name!r} declares {column.null_count} nulls, and its validity has "
                f"{counted.null_count}"
            )
    for child in column.children:
        _count_nulls(name, child, device)


def _has_range(kind: Any) -> bool:
    """Return whether a type of fixed width does not allow every value."""
    if isinstance(kind, pa.BaseExtensionType):
        return _has_range(kind.storage_type)
    types = pa.types
    if types.is_struct(kind):
        return any(_has_range(kind.field(index).type) for index in range(kind.num_fields))
    if types.is_fixed_size_list(kind):
        return _has_range(kind.value_type)
    return types.is_decimal(kind) or types.is_date64(kind) or types.is_time(kind)
