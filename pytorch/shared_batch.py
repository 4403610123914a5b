"""Passing a batch from a loader's worker to the trainer, without a copy where that is possible.

The trainer has a connection to each worker that holds batches in use.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import sys
import threading
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import pyarrow as pa

from ..errors import ConnectionLostError, DatasetError, ExhaustedError, SplitArrowError
from ..protocol.memory import ALIGNMENT
from ..transport.memory.mapped_region import REGIONS, MappedRegion
from .mapped_tensors import (
    HELD,
    MAX_MESSAGE,
    MappedPlace,
    MessageKind,
    build_tensor,
    find_place,
    unpack_message,
)
from .tensors import torch

_KEPT_REGIONS = 8
"""The regions of a worker that stay mapped although no tensor is in them: the next batch may be."""
_MAX_RELEASED = 512
"""The number of batches in one message."""
_MAX_DESCRIPTORS = 2
_RETRY_SECONDS = 0.05
_MAX_HELD = 64
"""The batches that a worker holds at most. Each may need three descriptors of the process."""


class _KeptRegion:
    """Keeps a mapped region alive. A weak reference to it never returns a region that is ending."""

    __slots__ = ("__weakref__", "region")

    def __init__(self, region: MappedRegion) -> None:
        self.region = region


class _Use:
    """The use of a batch: it ends with the last tensor. Each buffer of the tensors refers to it."""

    __slots__ = ("_connection", "_number")

    def __init__(self, connection: WorkerConnection, number: int) -> None:
        self._connection = connection
        self._number = number

    def __del__(self) -> None:
        self._connection.release(self._number)


class WorkerConnection:
    """The connection to one worker. Raises `ConnectionLostError` if the worker has ended."""

    def __init__(self, address: str, releases: _Releases) -> None:
        self._releases = releases
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._regions: weakref.WeakValueDictionary[int, _KeptRegion] = weakref.WeakValueDictionary()
        self._recent: deque[_KeptRegion] = deque(maxlen=_KEPT_REGIONS)
        self.address = address
        """The address of the worker."""
        self.is_closed = False
        """Whether the worker has ended."""
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        """The socket. The connection owns it."""
        try:
            self.socket.connect(address)
        except OSError as error:
            self.socket.close()
            raise _worker_ended(error) from None

    def receive(self, number: int, places: Sequence[MappedPlace]) -> list[Any]:
        """Return the tensors of a batch. It is released when the last of them is gone.

        Raises `ConnectionLostError` if the worker has ended. Raises `ExhaustedError` if the batch
        must be copied, and the host has no memory left.
        """
        use = _Use(self, number)
        try:
            regions = {place.region: self._find(place) for place in places}
            return [
                build_tensor(_span(regions[place.region], place.offset, place, use), place)
                for place in places
            ]
        except SplitArrowError:  # such as that of a file that is being changed
            return self._receive_copy(number, places, use)

    def _find(self, place: MappedPlace) -> _KeptRegion:
        """Return a region of the worker, which is mapped if it is not mapped yet."""
        kept = self._regions.get(place.region)
        if kept is None:
            _, descriptors = self._request(MessageKind.REGION.pack(place.region))
            if not descriptors:
                raise DatasetError("the file of a region is being changed by another process")
            kept = _KeptRegion(MappedRegion(descriptors[0], place.size, *descriptors[1:]))
            self._regions[place.region] = kept
        if kept not in self._recent:
            self._recent.append(kept)
        return kept

    def _receive_copy(self, number: int, places: Sequence[MappedPlace], use: _Use) -> list[Any]:
        """Return the tensors of a batch whose region cannot be passed."""
        numbers, descriptors = self._request(MessageKind.COPY.pack(number))
        if not descriptors:
            raise ExhaustedError("a worker of the loader has no memory to copy a batch to")
        size, *offsets = numbers
        kept = _KeptRegion(MappedRegion(descriptors[0], size))
        return [
            build_tensor(_span(kept, offset, place, use), place)
            for offset, place in zip(offsets, places, strict=True)
        ]

    def _request(self, message: bytes) -> tuple[tuple[int, ...], list[int]]:
        """Send a message; return the numbers and the descriptors of the response."""
        with self._lock:
            try:
                self.socket.send(message, socket.MSG_NOSIGNAL)
                response, descriptors, *_ = socket.recv_fds(
                    self.socket, MAX_MESSAGE, _MAX_DESCRIPTORS
                )
            except OSError as error:
                raise _worker_ended(error) from None
            except BaseException:  # PyTorch raises in this thread when a worker is killed
                self._shut_down()
                raise
        if not response:
            raise _worker_ended(None)
        _, numbers = unpack_message(response)
        return numbers, descriptors

    def release(self, number: int) -> None:
        """Release a batch soon. Safe in finalizers, on any thread."""
        if self._process == os.getpid() and not self.is_closed:
            self._releases.add(self, number)

    def send_releases(self, numbers: Sequence[int]) -> bool:
        """Release batches, without waiting; return whether the worker got the message."""
        try:
            flags = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
            self.socket.send(MessageKind.RELEASE.pack(*numbers), flags)
        except BlockingIOError:
            return False
        except OSError:
            pass  # the worker has ended, and the server has freed its leases
        return True

    def _shut_down(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection. Regions stay mapped as long as tensors are in them."""
        self.is_closed = True
        self._shut_down()  # ends a request of another thread
        with self._lock:
            self.socket.close()
            self._recent.clear()


class _Releases:
    """Sends the releases of all workers, and notices when a worker ends: one thread."""

    def __init__(self) -> None:
        self._start_empty()

    def _start_empty(self) -> None:
        self._lock = threading.Lock()
        self._connections: dict[str, WorkerConnection] = {}
        self._released: deque[tuple[WorkerConnection, int]] = deque()
        self._epoll: select.epoll | None = None
        self._wake = -1

    def connect(self, address: str) -> WorkerConnection:
        """Return the connection to a worker, which is opened if there is none."""
        with self._lock:
            connection = self._connections.get(address)
            if connection is None:
                epoll = self._start()
                connection = self._connections[address] = WorkerConnection(address, self)
                epoll.register(connection.socket, select.EPOLLRDHUP)
            return connection

    def _start(self) -> select.epoll:
        if self._epoll is None:
            self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self._epoll = select.epoll()
            self._epoll.register(self._wake, select.EPOLLIN)
            threading.Thread(
                target=self._run, args=(self._epoll,), name="splitarrow-releases", daemon=True
            ).start()
        return self._epoll

    def add(self, connection: WorkerConnection, number: int) -> None:
        """Release a batch soon. Safe in finalizers, on any thread."""
        self._released.append((connection, number))
        os.eventfd_write(self._wake, 1)

    def _run(self, epoll: select.epoll) -> None:
        is_late = False
        while True:
            for descriptor, _ in epoll.poll(_RETRY_SECONDS if is_late else None):
                if descriptor == self._wake:
                    os.eventfd_read(descriptor)
                else:
                    self._remove(epoll, descriptor)
            is_late = not self._send()

    def _send(self) -> bool:
        """Send the releases; return whether all workers got theirs."""
        waiting: dict[WorkerConnection, list[int]] = {}
        while self._released:
            connection, number = self._released.popleft()
            waiting.setdefault(connection, []).append(number)
        is_done = True
        for connection, numbers in waiting.items():
            for begin in range(0, len(numbers), _MAX_RELEASED):
                part = numbers[begin : begin + _MAX_RELEASED]
                if not connection.send_releases(part):
                    is_done = False
                    self._released.extend((connection, number) for number in part)
        return is_done

    def _remove(self, epoll: select.epoll, descriptor: int) -> None:
        """Close the connection to a worker that has ended."""
        with self._lock:
            for connection in list(self._connections.values()):
                if connection.socket.fileno() == descriptor:
                    del self._connections[connection.address]
                    epoll.unregister(descriptor)
                    connection.close()

    def after_fork(self) -> None:
        """Start anew in a forked process, which does not release what its parent uses."""
        for connection in self._connections.values():
            connection.socket.close()
        if self._epoll is not None:
            self._epoll.close()
            os.close(self._wake)
        self._start_empty()


_RELEASES = _Releases()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_RELEASES.after_fork)


def _span(kept: _KeptRegion, offset: int, place: MappedPlace, use: _Use) -> pa.Buffer:
    return kept.region.buffer(offset, place.nbytes, (use, kept))


def _worker_ended(error: OSError | None) -> ConnectionLostError:
    reason = f": {error.strerror}" if error is not None else ""
    return ConnectionLostError(f"a worker of the loader has ended before its batch arrived{reason}")


class _Place(NamedTuple):
    """The place of a tensor in the memory of its batch."""

    offset: int
    """The first byte."""
    end: int
    """The byte after the last."""
    dtype: Any
    """The type of the tensor."""
    shape: tuple[int, ...]
    """The shape of the tensor."""


_Places = dict[str, _Place | list[_Place]]
"""The places of tensors, and of lists of tensors, by name."""


def _has_tensors(value: Any) -> bool:
    """Return whether a value is a tensor, or a list of tensors alone."""
    is_list = isinstance(value, list)
    return all(isinstance(each, torch.Tensor) for each in (value if is_list else [value]))


def _list_tensors(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


class SharedBatch(dict[str, Any]):
    """A dict of tensors that other processes of the loader can use. It arrives as a plain dict.

    Tensors outside of regions are copied into shared memory, those of lists as well: one of their
    own for each would take a descriptor each.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._mapped: dict[str, MappedPlace] = {}
        if HELD.count < _MAX_HELD:
            found = {name: find_place(value) for name, value in values.items()}
            self._mapped = {name: place for name, place in found.items() if place is not None}
        self._places: _Places = {}
        end = 0
        for name, value in values.items():
            if name in self._mapped or not _has_tensors(value):
                continue
            places: list[_Place] = []
            for tensor in _list_tensors(value):
                begin = -(-end // ALIGNMENT) * ALIGNMENT
                end = begin + tensor.numel() * tensor.element_size()
                places.append(_Place(begin, end, tensor.dtype, tuple(tensor.shape)))
            self._places[name] = places if isinstance(value, list) else places[0]
        self._memory = torch.empty(end, dtype=torch.uint8).share_memory_() if end else None
        super().__init__(_unpack(self._memory, self._places, values))
        for name in self._places:
            for copy, tensor in zip(
                _list_tensors(self[name]), _list_tensors(values[name]), strict=True
            ):
                copy.copy_(tensor)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpack, (self._memory, self._places, self._without(self._places))

    def __copy__(self) -> SharedBatch:
        """Return the batch itself: PyTorch copies each batch, and converts what is in the copy."""
        return self

    def _without(self, names: Mapping[str, Any]) -> dict[str, Any]:
        """Return all values, with None in place of those that have a place elsewhere."""
        return {name: None if name in names else value for name, value in self.items()}

    def reduce_for_process(self) -> tuple[Any, ...]:
        """Return what `__reduce__` returns, for another process of the loader.

        This process holds the tensors in regions until that process has dropped them.
        """
        if not self._mapped:
            return self.__reduce__()
        tensors = [self[name] for name in self._mapped]
        address, number = HELD.hold(tensors, list(self._mapped.values()))
        others = self._without({**self._places, **self._mapped})
        return _receive, (address, number, self._mapped, self._memory, self._places, others)


ForkingPickler.register(SharedBatch, SharedBatch.reduce_for_process)


def pass_regions() -> None:
    """Let this process pass tensors in regions that it maps from now on to other processes."""
    if sys.platform == "linux":
        REGIONS.open()


def _receive(
    address: str,
    number: int,
    mapped: Mapping[str, MappedPlace],
    memory: Any,
    places: _Places,
    others: Mapping[str, Any],
) -> dict[str, Any]:
    """Return a batch that a worker has sent.

    Tensors in regions are in the memory of the daemon, which must not be written to. The worker
    holds the leases until the last of them is gone.
    """
    tensors = _RELEASES.connect(address).receive(number, list(mapped.values()))
    return _unpack(memory, places, {**others, **dict(zip(mapped, tensors, strict=True))})


def _unpack(memory: Any, places: _Places, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values, with the tensors at their places in the memory, in the same order."""
    result = dict(values)
    for name, place in places.items():
        if isinstance(place, list):
            result[name] = [_view(memory, each) for each in place]
        else:
            result[name] = _view(memory, place)
    return result


def _view(memory: Any, place: _Place) -> Any:
    """Return the tensor at a place in the memory."""
    if place.end == place.offset:
        return torch.empty(place.shape, dtype=place.dtype)
    return memory[place.offset : place.end].view(place.dtype).reshape(place.shape)
