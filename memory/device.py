"""Devices: what the copying of record batches needs of one, and CUDA through cuda-bindings.

The bindings are imported at the first use of CUDA.
"""

from __future__ import annotations

import functools
import mmap
import weakref
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from typing import Any, Protocol

from ..errors import MissingExtraError, SplitArrowError, UsageError, install_hint

CUDA, CUDA_MANAGED = 2, 13
"""The types of CUDA's memory, as in DLPack."""


class Event(Protocol):
    """A point in the work of a device."""

    @property
    def handle(self) -> int:
        """The address of the native event (``cudaEvent_t *``), for Arrow's C device interface."""
        ...

    def is_done(self) -> bool:
        """Return whether the device has reached it."""
        ...

    def wait(self) -> None:
        """Wait until the device has reached it."""
        ...

    def delay(self, stream: int) -> None:
        """Make a consumer's stream wait for it, without waiting here."""
        ...


class Device(Protocol):
    """A device with memory of its own, and one queue of copies."""

    @property
    def name(self) -> str:
        """Its name, as PyTorch writes it: ``cuda:0``."""
        ...

    @property
    def index(self) -> int:
        """Its number."""
        ...

    @property
    def type_code(self) -> int:
        """Its type: the same number in DLPack and in Arrow's C device interface; 2 is CUDA."""
        ...

    def activate(self) -> None:
        """Make it the device of libraries that this thread calls from now on."""
        ...

    def current(self) -> AbstractContextManager[None]:
        """Return a context in which it is the device of libraries that this thread calls."""
        ...

    def allocate(self, nbytes: int) -> int:
        """Return the address of new memory, which is aligned to 64 bytes or more.

        Raises `MemoryError` if the device has not enough memory.
        """
        ...

    def free(self, address: int) -> None:
        """Free memory that `allocate` returned, once the device does not use it any more."""
        ...

    @property
    def uuid(self) -> bytes:
        """The 16 bytes that identify it among all devices."""
        ...

    @property
    def opens_own_exports(self) -> bool:
        """Whether a process can open what it has exported itself."""
        ...

    def find_allocation(self, address: int) -> tuple[int, int]:
        """Return the beginning and the size of the allocation that contains an address."""
        ...

    def export_allocation(self, address: int) -> bytes:
        """Return the handle by which other processes open an allocation, in 64 bytes.

        Raises `SplitArrowError` if they cannot.
        """
        ...

    def open_allocation(self, handle: bytes, nbytes: int) -> int:
        """Return the address of an allocation of another process.

        Raises `SplitArrowError` if the handle is not valid on this host, or the allocation is
        smaller.
        """
        ...

    def close_allocation(self, address: int) -> None:
        """Undo `open_allocation`."""
        ...

    def is_page_locked(self, address: int) -> bool:
        """Return whether the device copies from an address of the host without the processor."""
        ...

    def register_host(self, address: int, nbytes: int) -> None:
        """Page-lock memory of the host that is mapped for reading, from the beginning of a page.

        Raises `SplitArrowError`, `MemoryError` if that is not possible.
        """
        ...

    def unregister_host(self, address: int) -> None:
        """Undo `register_host`."""
        ...

    def copy_in(self, target: int, source: int, nbytes: int) -> None:
        """Queue a copy from host memory at `source` to memory of the device at `target`."""
        ...

    def copy_within(self, target: int, source: int, nbytes: int) -> None:
        """Queue a copy from memory of the device to other memory of it."""
        ...

    def copy_out(self, target: int, source: int, nbytes: int) -> None:
        """Copy from memory of the device at `source` to host memory at `target`, and wait."""
        ...

    def record(self) -> Event:
        """Return an event after all copies that were queued so far."""
        ...

    def record_stream(self, stream: int) -> Event:
        """Return an event after all work that a consumer has queued to its stream so far."""
        ...

    def wait_for(self, event: Event) -> None:
        """Let copies that are queued from now on wait for an event."""
        ...

    def synchronize(self) -> None:
        """Wait for all work of the device, of all streams."""
        ...


@functools.cache
def load_runtime() -> Any:
    """Return the module ``cuda.bindings.runtime``.

    Raises `MissingExtraError` if cuda-bindings is not installed. Raises `UsageError` if there is no
    CUDA device, or its driver is too old.
    """
    try:
        runtime: Any = import_module("cuda.bindings.runtime")
    except ImportError:
        raise MissingExtraError(f"CUDA memory needs cuda-bindings: {install_hint('gpu')}") from None
    error, count = runtime.cudaGetDeviceCount()
    if error or not count:
        reason = "there is no device" if not error else _explain(runtime, error)
        raise UsageError(
            f"CUDA memory cannot be used on this host: {reason}; it needs an NVIDIA GPU and a "
            "driver of CUDA 12 or newer"
        )
    return runtime


def call(function: str, *args: Any) -> Any:
    """Call a function of the CUDA runtime, and return its result, if it has one.

    Raises `MemoryError` if there is not enough memory. Raises `SplitArrowError` if the call fails
    in another way.
    """
    runtime = load_runtime()
    error, *results = getattr(runtime, function)(*args)
    if not error:
        return results[0] if results else None
    if error == runtime.cudaError_t.cudaErrorMemoryAllocation:
        raise MemoryError(_explain(runtime, error))
    raise SplitArrowError(f"CUDA failed in {function}: {_explain(runtime, error)}")


def call_driver(function: str, *args: Any) -> Any:
    """Call a function of the CUDA driver, and return its result, or a tuple of several.

    Raises `SplitArrowError` if the call fails.
    """
    load_runtime()  # which initializes the driver
    driver: Any = import_module("cuda.bindings.driver")
    error, *results = getattr(driver, function)(*args)
    if not error:
        return tuple(results) if len(results) > 1 else next(iter(results), None)
    text: bytes = driver.cuGetErrorString(error)[1] or b"unknown error"
    raise SplitArrowError(f"CUDA failed in {function}: {text.decode(errors='replace')}")


def _explain(runtime: Any, error: Any) -> str:
    text: bytes = runtime.cudaGetErrorString(error)[1]
    return text.decode(errors="replace")


def allocate_pinned(nbytes: int) -> int:
    """Return the address of new page-locked memory, which all devices can read."""
    flags = load_runtime().cudaHostAllocPortable
    return int(call("cudaHostAlloc", nbytes, flags))


def free_pinned(address: int) -> None:
    """Free page-locked memory."""
    call("cudaFreeHost", address)


def find_pointer_device(address: int) -> tuple[int, int]:
    """Return the type of the memory at an address, as in DLPack, and the number of its device."""
    runtime = load_runtime()
    attributes = call("cudaPointerGetAttributes", address)
    is_managed = attributes.type == runtime.cudaMemoryType.cudaMemoryTypeManaged
    return CUDA_MANAGED if is_managed else CUDA, int(attributes.device)


class CudaEvent:
    """An event of a CUDA device; see `Event`."""

    def __init__(self, device: CudaDevice, stream: int) -> None:
        self._device = device
        runtime = load_runtime()
        with device.current():
            flags = runtime.cudaEventDisableTiming
            self._event = call("cudaEventCreateWithFlags", flags)
            weakref.finalize(self, call, "cudaEventDestroy", self._event).atexit = False
            call("cudaEventRecord", self._event, stream)

    @property
    def handle(self) -> int:
        """The address of the ``cudaEvent_t``; it is valid as long as this object."""
        return int(self._event.getPtr())

    def is_done(self) -> bool:
        """Return whether the device has reached it."""
        runtime = load_runtime()
        (error,) = runtime.cudaEventQuery(self._event)
        if error and error != runtime.cudaError_t.cudaErrorNotReady:
            raise SplitArrowError(f"CUDA failed in cudaEventQuery: {_explain(runtime, error)}")
        return not error

    def wait(self) -> None:
        """Wait until the device has reached it."""
        call("cudaEventSynchronize", self._event)

    def delay(self, stream: int) -> None:
        """Make a stream wait for it."""
        with self._device.current():
            call("cudaStreamWaitEvent", stream, self._event, 0)


class CudaDevice:
    """A CUDA device, with a stream of its own for copies; see `Device`.

    Raises `UsageError` if it does not exist.
    """

    type_code = CUDA
    opens_own_exports = False

    def __init__(self, index: int) -> None:
        runtime = load_runtime()
        count = call("cudaGetDeviceCount")
        if not 0 <= index < count:
            raise UsageError(f"there is no device cuda:{index}; this host has {count}")
        self.index = index
        self.name = f"cuda:{index}"
        handle = call_driver("cuDeviceGet", index)
        self._context = call_driver("cuDevicePrimaryCtxRetain", handle)
        weakref.finalize(self, call_driver, "cuDevicePrimaryCtxRelease", handle).atexit = False
        with self.current():
            self._stream = call("cudaStreamCreateWithFlags", runtime.cudaStreamNonBlocking)
        weakref.finalize(self, call, "cudaStreamDestroy", self._stream).atexit = False

    def activate(self) -> None:
        """Make it the current device of this thread."""
        call("cudaSetDevice", self.index)

    @contextmanager
    def current(self) -> Generator[None]:
        """Make its primary context, which the runtime uses too, the current one for a while."""
        call_driver("cuCtxPushCurrent", self._context)
        try:
            yield
        finally:
            call_driver("cuCtxPopCurrent")

    def _call(self, function: str, *args: Any) -> Any:
        """Call a function of the runtime for this device; see `call`."""
        with self.current():
            return call(function, *args)

    def allocate(self, nbytes: int) -> int:
        """Return the address of new memory of the device."""
        return int(self._call("cudaMalloc", nbytes))

    def free(self, address: int) -> None:
        """Free memory of the device, after all work that may use it."""
        self._call("cudaFree", address)

    @property
    def uuid(self) -> bytes:
        """The UUID of the device."""
        return bytes(call("cudaGetDeviceProperties", self.index).uuid.bytes)

    def find_allocation(self, address: int) -> tuple[int, int]:
        """Return the beginning and the size of the allocation that contains an address."""
        with self.current():
            begin, nbytes = call_driver("cuMemGetAddressRange", address)
        return int(begin), int(nbytes)

    def export_allocation(self, address: int) -> bytes:
        """Return the handle of an allocation of ``cudaMalloc``, which begins at the address."""
        return bytes(self._call("cudaIpcGetMemHandle", address).reserved)

    def open_allocation(self, handle: bytes, nbytes: int) -> int:
        """Return the address of an allocation of another process."""
        runtime = load_runtime()
        opened = runtime.cudaIpcMemHandle_t()
        opened.reserved = handle
        flags = runtime.cudaIpcMemLazyEnablePeerAccess
        address = int(self._call("cudaIpcOpenMemHandle", opened, flags))
        try:
            begin, size = self.find_allocation(address)
            if not begin <= address <= address + nbytes <= begin + size:
                raise SplitArrowError(f"an allocation has {size} bytes; {nbytes} were announced")
        except SplitArrowError:
            self.close_allocation(address)
            raise
        return address

    def close_allocation(self, address: int) -> None:
        """Undo `open_allocation`."""
        self._call("cudaIpcCloseMemHandle", address)

    def is_page_locked(self, address: int) -> bool:
        """Return whether the driver knows an address of the host."""
        unknown = load_runtime().cudaMemoryType.cudaMemoryTypeUnregistered
        return bool(self._call("cudaPointerGetAttributes", address).type != unknown)

    def register_host(self, address: int, nbytes: int) -> None:
        """Page-lock memory of the host that is mapped for reading."""
        runtime = load_runtime()
        attribute = runtime.cudaDeviceAttr.cudaDevAttrHostRegisterReadOnlySupported
        if not call("cudaDeviceGetAttribute", attribute, self.index):
            raise SplitArrowError(f"{self.name} cannot page-lock memory that is mapped read-only")
        flags = (
            runtime.cudaHostRegisterReadOnly
            | runtime.cudaHostRegisterMapped
            | runtime.cudaHostRegisterPortable
        )
        size = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self._call("cudaHostRegister", address, size, flags)

    def unregister_host(self, address: int) -> None:
        """Undo `register_host`."""
        self._call("cudaHostUnregister", address)

    def copy_in(self, target: int, source: int, nbytes: int) -> None:
        """Queue a copy to the device. It is asynchronous if the source is page-locked."""
        kind = load_runtime().cudaMemcpyKind.cudaMemcpyHostToDevice
        self._call("cudaMemcpyAsync", target, source, nbytes, kind, self._stream)

    def copy_within(self, target: int, source: int, nbytes: int) -> None:
        """Queue a copy within the memory of the device."""
        kind = load_runtime().cudaMemcpyKind.cudaMemcpyDeviceToDevice
        self._call("cudaMemcpyAsync", target, source, nbytes, kind, self._stream)

    def copy_out(self, target: int, source: int, nbytes: int) -> None:
        """Copy from the device, and wait."""
        kind = load_runtime().cudaMemcpyKind.cudaMemcpyDeviceToHost
        with self.current():
            call("cudaMemcpyAsync", target, source, nbytes, kind, self._stream)
            call("cudaStreamSynchronize", self._stream)

    def record(self) -> CudaEvent:
        """Return an event after all copies queued so far."""
        return CudaEvent(self, self._stream)

    def record_stream(self, stream: int) -> CudaEvent:
        """Return an event after the present work of a consumer's stream."""
        return CudaEvent(self, stream)

    def wait_for(self, event: Any) -> None:
        """Let later copies wait for an event."""
        event.delay(self._stream)

    def synchronize(self) -> None:
        """Wait for all work of the device."""
        self._call("cudaDeviceSynchronize")
