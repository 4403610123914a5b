"""Devices: what the copying of record batches needs of one, and CUDA through cuda-bindings.

The bindings are imported at the first use of CUDA.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import threading
import weakref
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, suppress
from importlib import import_module
from typing import Any, Protocol

from ..errors import MissingExtraError, SplitArrowError, UsageError, install_hint

CUDA, CUDA_MANAGED = 2, 13
"""The types of CUDA's memory, as in DLPack."""
_FORK = (
    "CUDA cannot be used in this process, because it was forked from one that had used CUDA; start "
    "it with the method spawn, as multiprocessing.get_context('spawn') does"
)


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
        """Free memory that `allocate` returned, after all copies that were queued so far."""
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
def _initialize() -> tuple[Any, int]:
    """Return the module ``cuda.bindings.driver``, and the process that has initialized CUDA."""
    try:
        driver: Any = import_module("cuda.bindings.driver")
    except ImportError:
        raise MissingExtraError(f"CUDA memory needs cuda-bindings: {install_hint('gpu')}") from None
    reason = "there is no device"
    try:
        (error,) = driver.cuInit(0)
        if not error:
            error, count = driver.cuDeviceGetCount()
            if count:
                return driver, os.getpid()
        if error:
            reason = _explain(driver, error)
    except RuntimeError as failure:  # there is no driver
        error, reason = None, str(failure)
    if error == driver.CUresult.CUDA_ERROR_NOT_INITIALIZED:
        raise UsageError(_FORK)
    raise UsageError(
        f"CUDA memory cannot be used on this host: {reason}; it needs an NVIDIA GPU and a driver "
        "of CUDA 12 or newer"
    )


def load_driver() -> Any:
    """Return the module ``cuda.bindings.driver``, once CUDA is initialized.

    Raises `MissingExtraError` if cuda-bindings is not installed. Raises `UsageError` if there is no
    CUDA device, or its driver is too old, or this process was forked from one that had initialized
    CUDA.
    """
    driver, process = _initialize()
    if process != os.getpid():
        raise UsageError(_FORK)
    return driver


def call(function: str, *args: Any) -> Any:
    """Call a function of the CUDA driver, and return its result, or a tuple of several.

    Raises `MemoryError` if there is not enough memory. Raises `SplitArrowError` if the call fails
    in another way.
    """
    driver = load_driver()
    error, *results = getattr(driver, function)(*args)
    if not error:
        return tuple(results) if len(results) > 1 else next(iter(results), None)
    if error == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
        raise MemoryError(_explain(driver, error))
    raise SplitArrowError(f"CUDA failed in {function}: {_explain(driver, error)}")


def _explain(driver: Any, error: Any) -> str:
    text: bytes = driver.cuGetErrorString(error)[1] or b"unknown error"
    return text.decode(errors="replace")


_thread = threading.local()
"""The context that `_use_context` has made current on this thread."""


@contextmanager
def _use_context(context: Any) -> Generator[None]:
    """Make a context current, and let calls pass while any thread captures a graph.

    In the mode `RELAXED`, calls that a capture of another thread forbids do not invalidate it.
    """
    if getattr(_thread, "context", None) is context:
        yield
        return
    outer = getattr(_thread, "context", None)
    call("cuCtxPushCurrent", context)
    mode = _exchange_capture_mode(load_driver().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
    _thread.context = context
    try:
        yield
    finally:
        _thread.context = outer
        if mode is not None:
            _exchange_capture_mode(mode)
        call("cuCtxPopCurrent")


def _exchange_capture_mode(mode: Any) -> Any:
    """Set the capture mode of this thread, and return the one before; None if there is none."""
    try:
        return call("cuThreadExchangeStreamCaptureMode", mode)
    except RuntimeError:  # the driver has no such function
        return None


def _release(device: CudaDevice, function: str, handle: Any) -> None:
    """Destroy an object. A forked child leaves it to its parent."""
    with suppress(SplitArrowError), device.current():
        call(function, handle)


def find_pointer_device(address: int) -> tuple[int, int]:
    """Return the type of the memory at an address, as in DLPack, and the number of its device."""
    attributes = load_driver().CUpointer_attribute
    is_managed = call("cuPointerGetAttribute", attributes.CU_POINTER_ATTRIBUTE_IS_MANAGED, address)
    device = call("cuPointerGetAttribute", attributes.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address)
    return CUDA_MANAGED if is_managed else CUDA, int(device)


def _find_active_device() -> int:
    """Return the number of a device that this process uses already; 0 if there is none.

    A context on another device would take some hundred megabytes of it.
    """
    if int(call("cuCtxGetCurrent")):
        return int(call("cuCtxGetDevice"))
    return next(filter(_is_active, range(call("cuDeviceGetCount"))), 0)


def _is_active(index: int) -> bool:
    """Return whether this process has the primary context of a device."""
    _, is_active = call("cuDevicePrimaryCtxGetState", index)
    return bool(is_active)


class PinnedHeap:
    """Page-locked memory, which all devices can read.

    It belongs to the context of a device that the process uses when the first block is allocated.
    """

    def __init__(self) -> None:
        self.check()
        self._device: CudaDevice | None = None

    def check(self) -> None:
        """Raise `UsageError` if this process cannot use CUDA."""
        load_driver()

    def synchronize(self) -> None:
        """Wait for all work of all devices that this process uses."""
        for index in range(call("cuDeviceGetCount")):
            if _is_active(index):
                context = call("cuDevicePrimaryCtxRetain", index)
                try:
                    with _use_context(context):
                        call("cuCtxSynchronize")
                finally:
                    call("cuDevicePrimaryCtxRelease", index)

    def allocate(self, nbytes: int) -> int:
        """Return the address of new memory; raise `MemoryError` if there is not enough."""
        if self._device is None:
            self._device = CudaDevice(_find_active_device())
        flags = load_driver().CU_MEMHOSTALLOC_PORTABLE
        with self._device.current():
            return int(call("cuMemHostAlloc", nbytes, flags))

    def free(self, address: int) -> None:
        """Free memory that `allocate` returned."""
        assert self._device is not None
        with self._device.current():
            call("cuMemFreeHost", address)


class CudaEvent:
    """An event of a CUDA device; see `Event`."""

    def __init__(self, device: CudaDevice, stream: Any) -> None:
        self._device = device
        with device.current():
            flags = load_driver().CUevent_flags.CU_EVENT_DISABLE_TIMING
            self._event = call("cuEventCreate", flags)
            self._release = weakref.finalize(self, _release, device, "cuEventDestroy", self._event)
            self._release.atexit = False
            call("cuEventRecord", self._event, stream)

    @property
    def handle(self) -> int:
        """The address of the ``cudaEvent_t``; it is valid as long as this object."""
        return int(self._event.getPtr())

    def is_done(self) -> bool:
        """Return whether the device has reached it."""
        if not self._release.alive:
            self.wait()
            return True
        driver = load_driver()
        with self._device.current():
            (error,) = driver.cuEventQuery(self._event)
        if error and error != driver.CUresult.CUDA_ERROR_NOT_READY:
            raise SplitArrowError(f"CUDA failed in cuEventQuery: {_explain(driver, error)}")
        return not error

    def wait(self) -> None:
        """Wait until the device has reached it."""
        if self._release.alive:
            with self._device.current():
                call("cuEventSynchronize", self._event)
        else:  # the event is garbage, and so is its user, whose finalizer waits
            self._device.synchronize()

    def delay(self, stream: Any) -> None:
        """Make a stream wait for it."""
        with self._device.current():
            call("cuStreamWaitEvent", stream, self._event, 0)


class CudaDevice:
    """A CUDA device, with a stream of its own for copies; see `Device`.

    Raises `UsageError` if it does not exist.
    """

    type_code = CUDA
    opens_own_exports = False

    def __init__(self, index: int) -> None:
        driver = load_driver()
        count = call("cuDeviceGetCount")
        if not 0 <= index < count:
            raise UsageError(f"there is no device cuda:{index}; this host has {count}")
        self.index = index
        self.name = f"cuda:{index}"
        self._device = call("cuDeviceGet", index)
        self.context = call("cuDevicePrimaryCtxRetain", self._device)
        """The primary context, which the CUDA runtime uses too."""
        with self.current():
            flags = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
            self._stream = call("cuStreamCreate", flags)
        weakref.finalize(
            self, _release_device, self._device, self.context, self._stream
        ).atexit = False

    def activate(self) -> None:
        """Make it the current device of this thread."""
        call("cuCtxSetCurrent", self.context)

    def current(self) -> AbstractContextManager[None]:
        """Make its context the current one for a while."""
        return _use_context(self.context)

    def _call(self, function: str, *args: Any) -> Any:
        """Call a function of the driver for this device; see `call`."""
        with self.current():
            return call(function, *args)

    def allocate(self, nbytes: int) -> int:
        """Return the address of new memory of the device."""
        return int(self._call("cuMemAlloc", nbytes))

    def free(self, address: int) -> None:
        """Free memory of the device, after the copies that were queued."""
        with self.current():
            call("cuStreamSynchronize", self._stream)
            call("cuMemFree", address)

    @property
    def uuid(self) -> bytes:
        """The UUID of the device, or of the MIG instance."""
        # Bindings of CUDA 13 have one name for both versions of the function.
        name = "cuDeviceGetUuid_v2"
        found = name if hasattr(load_driver(), name) else "cuDeviceGetUuid"
        return bytes(call(found, self._device).bytes)

    def find_allocation(self, address: int) -> tuple[int, int]:
        """Return the beginning and the size of the allocation that contains an address."""
        begin, nbytes = self._call("cuMemGetAddressRange", address)
        return int(begin), int(nbytes)

    def export_allocation(self, address: int) -> bytes:
        """Return the handle of an allocation of ``cudaMalloc``, which begins at the address."""
        # Newer bindings have no attribute for the bytes of a handle.
        size = load_driver().CU_IPC_HANDLE_SIZE
        return ctypes.string_at(self._call("cuIpcGetMemHandle", address).getPtr(), size)

    def open_allocation(self, handle: bytes, nbytes: int) -> int:
        """Return the address of an allocation of another process."""
        driver = load_driver()
        size = driver.CU_IPC_HANDLE_SIZE
        if len(handle) != size:
            raise SplitArrowError(f"a handle of an allocation has {len(handle)} bytes, not {size}")
        opened = driver.CUipcMemHandle()
        ctypes.memmove(opened.getPtr(), handle, size)
        flags = driver.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
        address = int(self._call("cuIpcOpenMemHandle", opened, flags))
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
        self._call("cuIpcCloseMemHandle", address)

    def is_page_locked(self, address: int) -> bool:
        """Return whether the driver knows an address of the host."""
        driver = load_driver()
        attribute = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
        with self.current():
            error, _ = driver.cuPointerGetAttribute(attribute, address)
        return not error

    def register_host(self, address: int, nbytes: int) -> None:
        """Page-lock memory of the host that is mapped for reading."""
        driver = load_driver()
        attributes = driver.CUdevice_attribute
        attribute = attributes.CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED
        if not call("cuDeviceGetAttribute", attribute, self._device):
            raise SplitArrowError(f"{self.name} cannot page-lock memory that is mapped read-only")
        flags = (
            driver.CU_MEMHOSTREGISTER_READ_ONLY
            | driver.CU_MEMHOSTREGISTER_DEVICEMAP
            | driver.CU_MEMHOSTREGISTER_PORTABLE
        )
        size = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self._call("cuMemHostRegister", address, size, flags)

    def unregister_host(self, address: int) -> None:
        """Undo `register_host`."""
        self._call("cuMemHostUnregister", address)

    def copy_in(self, target: int, source: int, nbytes: int) -> None:
        """Queue a copy to the device. It is asynchronous if the source is page-locked."""
        self._call("cuMemcpyHtoDAsync", target, source, nbytes, self._stream)

    def copy_within(self, target: int, source: int, nbytes: int) -> None:
        """Queue a copy within the memory of the device."""
        self._call("cuMemcpyDtoDAsync", target, source, nbytes, self._stream)

    def copy_out(self, target: int, source: int, nbytes: int) -> None:
        """Copy from the device, and wait."""
        with self.current():
            call("cuMemcpyDtoHAsync", target, source, nbytes, self._stream)
            call("cuStreamSynchronize", self._stream)

    def record(self) -> CudaEvent:
        """Return an event after all copies queued so far."""
        return CudaEvent(self, self._stream)

    def record_stream(self, stream: int) -> CudaEvent:
        """Return an event after the present work of a consumer's stream.

        Raises `SplitArrowError` if a graph of the stream's work is captured: the event would be
        part of it.
        """
        if self._call("cuStreamIsCapturing", stream):
            raise SplitArrowError(f"the work of a stream of {self.name} is captured as a graph")
        return CudaEvent(self, stream)

    def wait_for(self, event: Any) -> None:
        """Let later copies wait for an event."""
        event.delay(self._stream)

    def synchronize(self) -> None:
        """Wait for all work of the device."""
        self._call("cuCtxSynchronize")


def _release_device(device: Any, context: Any, stream: Any) -> None:
    with suppress(SplitArrowError):  # a forked child leaves it to its parent
        with _use_context(context):
            call("cuStreamDestroy", stream)
        call("cuDevicePrimaryCtxRelease", device)
