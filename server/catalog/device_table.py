"""Datasets in the memory of a device."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterator, Sequence

import pyarrow as pa

from ...errors import ExhaustedError, SplitArrowError, UsageError
from ...formats.arrow.encoder import MessageEncoder
from ...formats.arrow.schema import describe_difference
from ...memory.array_layout import ArrayLayout
from ...memory.device import Device
from ...memory.device_bodies import encode_on_device, has_fixed_width
from ...memory.device_region import DeviceExport
from ...memory.imports import DeviceData, copy_buffer, fetch_array, with_null_count
from ...protocol.memory import Allocator, DeviceSpan
from ...protocol.request import Request
from ...protocol.splitter import SourceMessage
from .dataset import Encoding, GeneratorSource, MessageGroups
from .messages.reencoding import Batches, encode_groups
from .selection import Selection
from .tables import SlicedDataset

BATCH_BYTES = 16 << 20
"""The approximate size in bytes of the slices that a batch is sent in."""
_PADDING_BYTES = 64
_log = logging.getLogger("splitarrow.memory")
_PAGEABLE_BYTES = 16 << 10
"""The size below which a buffer is copied to pageable memory."""


class DeviceTable(SlicedDataset):
    """Record batches in the memory of a device, which the caller keeps unchanged.

    A connection that can send from that memory gets the bodies of batches of fixed-width columns
    from there, and no processor reads them. Everything else is copied to host memory, a slice at a
    time.

    Slices are copied to `staging`. Raises `UsageError` if the schemas or the devices differ.
    """

    _kind = "device table"

    def __init__(self, parts: Sequence[DeviceData], staging: Allocator) -> None:
        first = parts[0]
        for number, part in enumerate(parts):
            if (difference := describe_difference(first.schema, part.schema)) is not None:
                raise UsageError(f"record batch {number} differs from the first one: {difference}")
            if (part.type_code, part.device.name) != (first.type_code, first.device.name):
                raise UsageError(
                    f"record batch {number} is on {part.device.name}, and the first one on "
                    f"{first.device.name}; serve the batches of each device separately"
                )
        nbytes = sum(part.nbytes for part in parts)
        super().__init__(first.schema, sum(part.num_rows for part in parts), nbytes)
        self._type_code = first.type_code
        self._device: Device = first.device
        self._staging = staging
        self._slices = [each for part in parts for each in _slice(part)]
        self._export: DeviceExport | str | None = None
        self._padding = _allocate_zeros(first.device, first.type_code)

    @property
    def device_type(self) -> int:
        """The type of the memory, as in DLPack."""
        return self._type_code

    def open(self, request: Request, encoding: Encoding) -> GeneratorSource:
        """Open the table for one reader; see `ServedDataset.open`.

        While it is read, `ExhaustedError` is raised if the budget of the host memory is spent.
        """
        selection = self._resolve(request, encoding)
        if self._type_code in encoding.devices and _is_unchanged(selection):
            groups = self._encode_on_device(self._select(selection), selection)
            return GeneratorSource(groups, blocking=False)
        batches = self._read_batches(selection.for_reading(self.schema))
        groups = encode_groups(selection, batches, "the device table")
        return GeneratorSource(groups, blocking=True)

    def export(self) -> DeviceExport | None:
        """Return what lets readers on this host open the memory; None if they cannot."""
        if self._export is None:
            buffers = [
                buffer
                for part in self._slices
                for column in part.columns
                for buffer in column.list_buffers()
            ]
            try:
                self._export = DeviceExport(self._device, self._type_code, buffers)
            except (SplitArrowError, MemoryError) as error:
                self._export = str(error)
                _log.debug("memory of %s is not shared: %s", self._device.name, error)
        return None if isinstance(self._export, str) else self._export

    def _encode_on_device(
        self, slices: Sequence[DeviceData], selection: Selection
    ) -> MessageGroups:
        """Yield messages whose bodies are in the memory of the device."""
        encoder = MessageEncoder(selection.schema)
        yield [SourceMessage(*encoder.schema_message)]
        for part in slices:
            columns = _select_columns(part, selection)
            message = encode_on_device(
                encoder, selection.schema, columns, self._type_code, self._padding
            )
            # The transport uses the device on this thread.
            self._device.activate()
            yield [SourceMessage(*message)]
        encoder.close()

    def _read_slices(self, slices: Sequence[DeviceData], selection: Selection) -> Batches:
        """Yield copies of slices in host memory."""
        dictionaries: dict[int, ArrayLayout] = {}
        for part in slices:
            columns = _select_columns(part, selection)
            arrays = [fetch_array(column, self._copy_to_host, dictionaries) for column in columns]
            yield pa.RecordBatch.from_arrays(arrays, schema=selection.schema), None

    def _copy_to_host(self, source: pa.Buffer) -> pa.Buffer:
        device = self._device
        if source.size < _PAGEABLE_BYTES:
            return copy_buffer(device, source)
        try:
            target = self._staging.allocate(source.size)
        except MemoryError as error:
            raise ExhaustedError(
                f"data of {device.name} cannot be copied to the host: {error}"
            ) from None
        device.copy_out(target.address, source.address, source.size)
        return target


def _is_unchanged(selection: Selection) -> bool:
    """Return whether the reader gets the slices as they are, in columns of fixed width."""
    return (
        selection.codec is None
        and selection.filter is None
        and selection.derivation is None
        and selection.limit is None
        and selection.batch_rows is None
        and not selection.offset
        and all(has_fixed_width(field.type) for field in selection.schema)
    )


def _select_columns(part: DeviceData, selection: Selection) -> list[ArrayLayout]:
    if selection.columns is None:
        return part.columns
    return [part.columns[index] for index in selection.columns]


def _slice(part: DeviceData) -> Iterator[DeviceData]:
    """Yield the slices of a batch, each at a multiple of 64 rows, where its bitmaps are aligned."""
    rows, nbytes = part.num_rows, part.nbytes
    step = rows
    if nbytes > BATCH_BYTES:
        step = max(BATCH_BYTES * rows // nbytes & ~63, 64)
    if step >= rows:
        yield part
        return
    for begin in range(0, rows, step):
        count = min(step, rows - begin)
        columns = [
            with_null_count(column.slice(begin, count), part.device) for column in part.columns
        ]
        yield DeviceData(part.schema, columns, count, part.device, part.type_code)


def _allocate_zeros(device: Device, type_code: int) -> DeviceSpan:
    zeros = pa.py_buffer(bytes(_PADDING_BYTES))
    address = device.allocate(_PADDING_BYTES)
    owner = _Owner()
    weakref.finalize(owner, device.free, address).atexit = False
    device.copy_in(address, zeros.address, _PADDING_BYTES)
    device.synchronize()
    return DeviceSpan(address, _PADDING_BYTES, type_code, owner)


class _Owner:
    """What keeps memory of a device allocated."""
