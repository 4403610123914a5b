"""The child process, which decodes arrays within limits that the kernel enforces.

It exchanges packets with its parent over a socket. Large contents travel in sealed memory.
"""

from __future__ import annotations

import array
import fcntl
import math
import mmap
import os
import resource
import socket
import struct
import sys
import time
from collections.abc import Iterable
from enum import IntEnum
from typing import Any, NamedTuple

import pyarrow as pa

from ..errors import InvalidDataError, SplitArrowError
from ..formats.arrow.encoder import MessageEncoder
from ..formats.arrow.message import encapsulate
from ..formats.vortex.decoder import call_library, convert_to_arrow, import_library

_HEADER = struct.Struct("<BI5Q")
_MAX_TEXT_BYTES = 64 << 10
RESULT_COLUMN = "array"
"""The only column of a result."""
_F_ADD_SEALS = 1033
_F_GET_SEALS = 1034
_SEAL_SEAL, _SEAL_SHRINK, _SEAL_GROW, _SEAL_WRITE = 1, 2, 4, 8
_SEALS = _SEAL_SEAL | _SEAL_SHRINK | _SEAL_GROW | _SEAL_WRITE
_MAX_IOVECS = 512


class PacketKind(IntEnum):
    """The type of a packet."""

    READY = 0
    """The child has started."""
    DECODE = 1
    """A request to decode the array message in the memory."""
    DECODED = 2
    """The result is in the memory, as an Arrow IPC stream of one batch with one column."""
    REFUSED = 3
    """The library refused the array; the text has the reason."""
    TOO_LARGE = 4
    """The result is larger than the limit; the text has the reason."""


class Packet(NamedTuple):
    """A packet between the two processes."""

    kind: PacketKind
    """The type of the packet."""
    numbers: tuple[int, ...] = (0, 0, 0, 0, 0)
    """The parameters of a request: the size of the dtype message in bytes, that of the schema of
    the result after it (0 if the library chooses), the number of rows, the smallest size of the
    rows in bytes, and the largest size of the result in bytes."""
    text: str = ""
    """The reason of a refusal."""
    descriptor: int = -1
    """The memory; -1 if there is none. The receiver owns it."""


def send_packet(connection: socket.socket, packet: Packet) -> None:
    """Send a packet. Its descriptor stays open. Raises `OSError` if the other process is gone."""
    text = packet.text.encode(errors="replace")[:_MAX_TEXT_BYTES]
    data = _HEADER.pack(packet.kind, len(text), *packet.numbers) + text
    sent = socket.send_fds(
        connection, [data], [packet.descriptor] if packet.descriptor >= 0 else []
    )
    connection.sendall(data[sent:])


def receive_packet(connection: socket.socket) -> Packet | None:
    """Return the next packet; None if the other process is gone."""
    room = socket.CMSG_SPACE(array.array("i").itemsize)
    data, ancillary, _, _ = connection.recvmsg(_HEADER.size, room, socket.MSG_CMSG_CLOEXEC)
    descriptors = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(content[: len(content) // 4 * 4])
    descriptor = descriptors[0] if descriptors else -1
    try:
        data += _receive_rest(connection, _HEADER.size - len(data)) if data else b""
        if len(data) < _HEADER.size:
            raise EOFError
        kind, length, *numbers = _HEADER.unpack(data)
        text = _receive_rest(connection, min(length, _MAX_TEXT_BYTES))
        return Packet(PacketKind(kind), tuple(numbers), text.decode(errors="replace"), descriptor)
    except (EOFError, ValueError, ConnectionError):
        if descriptor >= 0:
            os.close(descriptor)
        return None


def _receive_rest(connection: socket.socket, nbytes: int) -> bytes:
    data = b""
    while len(data) < nbytes:
        piece = connection.recv(nbytes - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


def store(pieces: Iterable[Any], *, is_sealed: bool = False) -> int:
    """Write bytes into new memory, and return its descriptor, which the caller closes."""
    descriptor = os.memfd_create("splitarrow", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        views = [memoryview(piece).cast("B") for piece in pieces]
        views = [view for view in views if view.nbytes]
        while views:
            written = os.writev(descriptor, views[:_MAX_IOVECS])
            while views and written >= views[0].nbytes:
                written -= views.pop(0).nbytes
            if written:
                views[0] = views[0][written:]
        if is_sealed:
            fcntl.fcntl(descriptor, _F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def map_memory(descriptor: int) -> Any:
    """Map memory of the other process read-only; raises `ValueError` if it is empty."""
    return mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)


def check_sealed(descriptor: int) -> None:
    """Check that the other process cannot change or truncate memory any more."""
    if fcntl.fcntl(descriptor, _F_GET_SEALS) & _SEALS != _SEALS:
        raise InvalidDataError("the decoder process returned memory that is not sealed")


_FIXED_MEMORY = 256 << 20
_DESCRIPTORS = 64


def serve(descriptor: int, memory_bytes: int, seconds: int, bytes_per_second: int) -> None:
    """Decode arrays until the parent is gone; `array_decoder.ProcessLimits` has the limits."""
    connection = socket.socket(fileno=descriptor)
    decode = import_library("vortex.serde").decode_ipc_array_buffers
    _limit(memory_bytes)
    send_packet(connection, Packet(PacketKind.READY))
    while (request := receive_packet(connection)) is not None:
        reply = _decode(decode, request, seconds, bytes_per_second)
        send_packet(connection, reply)
        if reply.descriptor >= 0:
            os.close(reply.descriptor)


def _limit(memory_bytes: int) -> None:
    """Bound the resources of this process, and let the kernel end it before others."""
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")
    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * mmap.PAGESIZE
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (_DESCRIPTORS, _DESCRIPTORS))
    most = used + memory_bytes + _FIXED_MEMORY
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _allow_seconds(seconds: float) -> None:
    """Let the kernel end this process after some more CPU time."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    until = math.ceil(time.process_time() + seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (until, hard))


def _decode(decode: Any, request: Packet, seconds: int, bytes_per_second: int) -> Packet:
    dtype_bytes, schema_bytes, rows, declared_bytes, max_bytes = request.numbers
    try:
        data = memoryview(map_memory(request.descriptor))
        # Rows count, because a body of a few bytes can have billions of equal ones.
        _allow_seconds(seconds + (4 * data.nbytes + declared_bytes) / bytes_per_second)
        schema, body = data[dtype_bytes:][:schema_bytes], data[dtype_bytes + schema_bytes :]
        array = call_library(lambda: decode([body], [data[:dtype_bytes]]))
        found = convert_to_arrow(array, rows, _read_type(schema))
        batch = pa.RecordBatch.from_arrays([found], [RESULT_COLUMN])
        size = pa.ipc.get_record_batch_size(batch)
        if size > max_bytes:
            return Packet(
                PacketKind.TOO_LARGE,
                text=f"the array has {size} bytes once decoded; the limit is {max_bytes}",
            )
        return Packet(PacketKind.DECODED, descriptor=_write(batch))
    except SplitArrowError as error:
        return Packet(PacketKind.REFUSED, text=error.message)
    except MemoryError:
        return Packet(
            PacketKind.TOO_LARGE, text="the array takes more memory than the limits allow"
        )
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        return Packet(PacketKind.REFUSED, text=f"the array cannot be decoded: {error}")
    finally:
        os.close(request.descriptor)


def _read_type(schema: memoryview) -> Any:
    """Return the requested type of the result; None if the library chooses it."""
    return pa.ipc.read_schema(pa.py_buffer(schema)).field(0).type if schema.nbytes else None


def _write(batch: pa.RecordBatch) -> int:
    """Write a batch as an Arrow IPC stream into sealed memory, and return its descriptor."""
    encoder = MessageEncoder(batch.schema)
    pieces: list[Any] = []
    for message in (encoder.schema_message, *encoder.encode(batch)):
        pieces += [encapsulate(message.metadata), *(message.body or ())]
    return store(pieces, is_sealed=True)


def main() -> None:
    """Run the child with the parameters in its arguments."""
    serve(*map(int, sys.argv[1:5]))
