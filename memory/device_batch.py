"""Record batches in the memory of a device."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa

from ..errors import SplitArrowError, UsageError
from ..formats.arrow.numpy_arrays import column_to_numpy, columns_to_numpy, require_numpy
from ..formats.text import describe_as_html, describe_object, format_count
from .array_layout import ArrayLayout
from .device import Device, Event
from .imports import with_null_count
from .interfaces import (
    LEGACY_DEFAULT_STREAM,
    PER_THREAD_DEFAULT_STREAM,
    DeviceCapsules,
    array_interface,
    device_capsules,
    dlpack_capsule,
)
from .pool import PoolBlock, Returnable

_NO_SYNCHRONIZATION = -1
_GAP_BYTES = 4096
"""The unused memory between buffers that is copied with them, rather than in several copies."""


class Residence:
    """Where the buffers of a batch are, and when they are there: after the event `ready`.

    The blocks return to their pool when the batch and all that was made of it are gone. Exports of
    shared memory are read-only.
    """

    def __init__(
        self,
        device: Device,
        blocks: Sequence[Returnable],
        ready: Event,
        *,
        is_shared: bool = False,
    ) -> None:
        self.device = device
        self.is_shared = is_shared
        self.ready = ready
        self._streams: set[int] = set()
        self._is_unknown = False
        self._blocks: list[tuple[int, int]] = []
        """The beginning and the end of each block, without references to the blocks."""
        for block in blocks:
            block.on_return = self._end_use
            if isinstance(block, PoolBlock):
                self._blocks.append((block.address, block.address + block.nbytes))

    def hand_over(self, stream: int) -> None:
        """Make a consumer's stream wait for the copies, and remember that it uses the memory."""
        if stream != _NO_SYNCHRONIZATION:
            self.ready.delay(stream)
            self._streams.add(stream)
        # Another thread, which may drop the memory, has another per-thread stream.
        if stream in (_NO_SYNCHRONIZATION, PER_THREAD_DEFAULT_STREAM):
            self._is_unknown = True

    def export(self) -> None:
        """Remember that streams use the memory that only the consumer knows."""
        self._is_unknown = True

    def fetch(self, arrays: Sequence[ArrayLayout]) -> list[Any]:
        """Return copies of arrays in host memory, once the copies to the device have ended.

        Buffers that are close to each other in a block are copied at once.
        """
        self.ready.wait()
        copies: list[tuple[int, pa.Buffer]] = []
        for begin, end in self._join(buffer for array in arrays for buffer in array.list_buffers()):
            target = pa.allocate_buffer(end - begin)
            self.device.copy_out(target.address, begin, end - begin)
            copies.append((begin, target))
        begins = [begin for begin, _ in copies]

        def place(buffer: pa.Buffer) -> pa.Buffer:
            begin, target = copies[bisect_right(begins, buffer.address) - 1]
            return target.slice(buffer.address - begin, buffer.size)

        return [array.move(place).to_array() for array in arrays]

    def _join(self, buffers: Iterable[pa.Buffer]) -> list[tuple[int, int]]:
        """Return the areas to copy, in the order of their addresses."""
        areas: list[tuple[int, int]] = []
        limit = 0
        for begin, end in sorted({(each.address, each.address + each.size) for each in buffers}):
            if areas and begin <= max(areas[-1][1], min(areas[-1][1] + _GAP_BYTES, limit)):
                areas[-1] = (areas[-1][0], max(areas[-1][1], end))
                continue
            areas.append((begin, end))
            ends = (last for first, last in self._blocks if first <= begin < last)
            limit = next(ends, 0)
        return areas

    def _end_use(self) -> Callable[[], None] | None:
        """Return how to wait, before the memory is used again, until nothing uses it any more."""
        device = self.device
        if self._is_unknown:
            return device.synchronize
        try:
            ends = [device.record_stream(stream) for stream in self._streams]
        except SplitArrowError:  # a consumer captures a graph
            return device.synchronize
        if not ends:
            return None

        def wait() -> None:
            for end in ends:
                device.wait_for(end)

        return wait


class DeviceColumn:
    """A column in the memory of a device.

    PyTorch, CuPy and JAX take it without a copy: ``torch.from_dlpack(batch["x"])``. That works for
    integers and floating-point numbers without nulls, and for lists of them of a fixed size. All
    other columns are exported with the whole batch, by Arrow's C device interface.
    """

    def __init__(self, name: str, array: ArrayLayout, residence: Residence) -> None:
        self._name = name
        self._array = array
        self._residence = residence

    @property
    def type(self) -> pa.DataType:
        """The type."""
        return self._array.type

    @property
    def null_count(self) -> int:
        """The number of nulls."""
        return self._array.null_count

    @property
    def device(self) -> str:
        """The name of the device: ``cuda:0``."""
        return self._residence.device.name

    def __len__(self) -> int:
        return self._array.length

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the type and the number of the device, as DLPack counts them."""
        device = self._residence.device
        return device.type_code, device.index

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """Return a DLPack capsule. The consumer's stream waits for the copies to the device.

        Raises `BufferError` if a copy, or another device, is requested. Raises `UsageError` if the
        column has nulls, or is not one of numbers or of lists of them of a fixed size.
        """
        if copy or (dl_device is not None and tuple(dl_device) != self.__dlpack_device__()):
            raise BufferError(f"a column on {self.device} is exported there, without a copy")
        self._check_numbers()
        capsule = dlpack_capsule(
            self._array,
            self._residence.device,
            max_version,
            is_read_only=self._residence.is_shared,
        )
        self._residence.hand_over(LEGACY_DEFAULT_STREAM if stream is None else stream)
        return capsule

    def to_numpy(self) -> Any:
        """Return a copy in host memory as a NumPy array; see `DeviceBatch.to_numpy`."""
        require_numpy()
        (array,) = self._residence.fetch([self._array])
        return column_to_numpy(array)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The column for libraries that know this interface of Numba, of version 3."""
        if self._residence.device.name.partition(":")[0] != "cuda":
            raise AttributeError("__cuda_array_interface__")
        self._check_numbers()
        interface = array_interface(self._array, is_read_only=self._residence.is_shared)
        self._residence.hand_over(LEGACY_DEFAULT_STREAM)
        return {**interface, "stream": LEGACY_DEFAULT_STREAM}

    def _check_numbers(self) -> None:
        array = self._array
        while pa.types.is_fixed_size_list(array.storage_type) and not array.null_count:
            array = array.children[0]
        kind = array.type
        if array.null_count or not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
            reason = f"{array.null_count} nulls" if array.null_count else f"the type {kind}"
            raise UsageError(
                f"the column {self._name!r} has {reason}; only numbers without nulls can leave as "
                "an array, all else through __arrow_c_device_array__ of the batch"
            )
        if not array.is_aligned:
            raise UsageError(
                f"the column {self._name!r} does not begin at a multiple of the size of {kind}, "
                "which arrays of other libraries have to; take a copy by to_arrow() of the batch"
            )

    def __repr__(self) -> str:
        rows = format_count(len(self), "row")
        return f"<splitarrow.DeviceColumn {self._name!r}: {self.type}, {rows}>"


class DeviceBatch:
    """A record batch in the memory of a device.

    A stream opened with ``memory="cuda:0"`` yields such batches. cuDF and other libraries take one
    through Arrow's C device interface, and arrays of its columns through DLPack.

    The copies to the device may still run. Consumers that take the data through these interfaces
    wait for them on the device. The memory is used again after the batch, and all that was made of
    it, are gone.
    """

    def __init__(
        self, schema: pa.Schema, columns: list[ArrayLayout], num_rows: int, residence: Residence
    ) -> None:
        self.schema = schema
        """The schema."""
        self.num_rows = num_rows
        """The number of rows."""
        self._columns = columns
        self._residence = residence

    @property
    def device(self) -> str:
        """The name of the device: ``cuda:0``."""
        return self._residence.device.name

    @property
    def is_aligned(self) -> bool:
        """Whether all numbers begin at a multiple of their size, as arrays have to."""
        return all(column.is_aligned for column in self._columns)

    @property
    def layouts(self) -> list[ArrayLayout]:
        """The structure of the columns, and the addresses of their buffers."""
        return self._columns

    def export(self, name: str, array: ArrayLayout) -> DeviceColumn:
        """Return an array in the memory of this batch as a column, to export it by DLPack.

        Parameters
        ----------
        name : str
            What errors call it.
        array : ArrayLayout
            Any array whose buffers are those of the batch, or parts of them.
        """
        return DeviceColumn(name, array, self._residence)

    def __len__(self) -> int:
        return self.num_rows

    def __getitem__(self, name: str) -> DeviceColumn:
        """Return a column by its name; raise `KeyError` unless exactly one column has it."""
        index = self.schema.get_field_index(name)
        if index < 0:
            raise KeyError(f"no column, or more than one, is called {name!r}")
        return DeviceColumn(name, self._columns[index], self._residence)

    def slice(self, offset: int = 0, length: int | None = None) -> DeviceBatch:
        """Return some of the rows, in the same memory.

        Parameters
        ----------
        offset : int
            The first row, a multiple of 8.
        length : int, optional
            The number of rows. `None` takes the rest.

        Raises
        ------
        UsageError
            If the rows begin within a byte of a bitmap.
        """
        if offset % 8:
            raise UsageError(
                f"the rows of a batch on a device cannot begin at {offset}; expected a multiple "
                "of 8"
            )
        offset = min(offset, self.num_rows)
        rest = self.num_rows - offset
        length = rest if length is None else min(length, rest)
        if length == self.num_rows:
            return self
        self._residence.ready.wait()
        device = self._residence.device
        columns = [
            with_null_count(column.slice(offset, length), device) for column in self._columns
        ]
        return DeviceBatch(self.schema, columns, length, self._residence)

    def get_total_buffer_size(self) -> int:
        """Return the size of the buffers in bytes."""
        return sum(buffer.size for column in self._columns for buffer in column.list_buffers())

    def wait(self) -> None:
        """Wait until the copies to the device have ended."""
        self._residence.ready.wait()

    def to_arrow(self) -> pa.RecordBatch:
        """Return a copy in host memory."""
        columns = self._residence.fetch(self._columns)
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def to_numpy(self) -> dict[str, Any]:
        """Return copies of all columns in host memory, as NumPy arrays by their names.

        Lists of a fixed size and tensors, of numbers without nulls, become arrays of more
        dimensions. For all else, pyarrow's ``to_numpy`` decides.

        Raises
        ------
        MissingExtraError
            If NumPy is not installed. Nothing was copied then.
        UsageError
            If several columns have one name.
        """
        require_numpy()
        return columns_to_numpy(self.to_arrow())

    def __arrow_c_schema__(self) -> object:
        """Export the schema through the Arrow C data interface."""
        return self.schema.__arrow_c_schema__()

    def __arrow_c_device_array__(self, requested_schema: object = None, **_: Any) -> DeviceCapsules:
        """Export the batch through the Arrow C device interface.

        The event in it happens after the copies. The device has to finish all its work before the
        memory is used again, because this interface does not say which streams use it.

        Raises `UsageError` if another schema is requested: casts would need the values.
        """
        if requested_schema is not None:
            requested = pa.Schema._import_from_c_capsule(requested_schema)
            if not requested.equals(self.schema):
                raise UsageError("a batch on a device is exported with its own schema only")
        residence = self._residence
        capsules = device_capsules(
            self.schema, self._columns, self.num_rows, residence.device, residence.ready
        )
        residence.export()
        return capsules

    def __repr__(self) -> str:
        return describe_object("DeviceBatch", self.schema, self._facts())

    def _repr_html_(self) -> str:
        return describe_as_html("DeviceBatch", self.schema, self._facts())

    def _facts(self) -> list[str]:
        return [self.device, format_count(self.num_rows, "row")]
