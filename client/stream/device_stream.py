"""Streams whose record batches land in the memory of a device, and the argument ``memory``.

The package `memory` is imported only if a read gives the argument.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ...formats.text import describe_as_html, describe_object
from .batch_stream import AsyncContext, BatchStream

if TYPE_CHECKING:
    from ...memory.device_batch import DeviceBatch
    from ...memory.device_memory import DeviceCopier, DeviceMemory


class DeviceFacts:
    """A stream of batches in the memory of a device, and what receives them."""

    def __init__(self, source: Any, memory: DeviceMemory) -> None:
        self.source = source
        self.device = memory.device.name
        """The name of the device: ``cuda:0``."""
        self._copier: DeviceCopier = memory.open_copier()

    @property
    def schema(self) -> pa.Schema:
        """The schema of the stream."""
        return self.source.schema

    @property
    def is_exhausted(self) -> bool:
        """Whether the stream was read to its end, and has closed itself."""
        return self.source.is_exhausted

    def close(self) -> None:
        """Close the stream. Batches that were returned stay valid. Idempotent."""
        self.source.close()
        self._copier.close()


class DeviceStream(DeviceFacts):
    """A stream of record batches in the memory of a device.

    `splitarrow.open` and `Client.read` return it for ``memory="cuda:0"``. It is a context manager
    and an iterator of `DeviceBatch`. While one batch is copied to the device, the next one arrives.

    Parameters
    ----------
    source : BatchStream
        The stream that receives the batches into host memory. It is closed with this one, and its
        errors are those of this one.
    memory : DeviceMemory
        The memory of the device.
    """

    @property
    def transport(self) -> str:
        """The transport, as the attribute of `Stream` and `DatasetStream`."""
        transport: str = getattr(self.source, "transport", "")
        return transport

    def __iter__(self) -> Iterator[DeviceBatch]:
        return self

    def __next__(self) -> DeviceBatch:
        """Return the next record batch, whose copy to the device may still run.

        Raises `LimitError` if the batches that the consumer holds have spent the budget of the
        memory. Raises `SplitArrowError` as the other streams raise.
        """
        try:
            batch: Any = next(self.source)
        except StopIteration:
            self._copier.close()
            raise
        return self._copier.copy(batch) if isinstance(batch, pa.RecordBatch) else batch

    def __enter__(self) -> DeviceStream:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return describe_object("DeviceStream", self.schema, self._facts())

    def _repr_html_(self) -> str:
        return describe_as_html("DeviceStream", self.schema, self._facts())

    def _facts(self) -> list[str]:
        return ["read to its end" if self.is_exhausted else "open", self.transport, self.device]


class AsyncDeviceStream(DeviceFacts, AsyncContext):
    """The asynchronous form of `DeviceStream`, for asyncio and trio.

    Parameters
    ----------
    source : AsyncBatchStream
        The stream that receives the batches into host memory, which is entered with this one.
    memory : DeviceMemory
        The memory of the device.
    """

    def __aiter__(self) -> AsyncIterator[DeviceBatch]:
        return self

    async def __anext__(self) -> DeviceBatch:
        """Return the next record batch; see `DeviceStream`."""
        batch: Any = await anext(self.source)
        return self._copier.copy(batch) if isinstance(batch, pa.RecordBatch) else batch

    async def __aenter__(self) -> AsyncDeviceStream:
        await self.source.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.source.__aexit__(*error)
        self._copier.close()


def wrap_for_device(stream: Any, memory: Any) -> Any:
    """Return a stream whose batches land in the memory of a device, if `memory` names one.

    Otherwise, return `stream`, which receives into the host memory of `find_allocator`.
    """
    if memory is None:
        return stream
    from ...memory.device_memory import DeviceMemory, select_memory

    selected = select_memory(memory)
    if not isinstance(selected, DeviceMemory):
        return stream
    if isinstance(stream, BatchStream):
        return DeviceStream(stream, selected)
    return AsyncDeviceStream(stream, selected)
