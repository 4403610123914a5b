"""The child process, which decodes arrays within limits that the kernel enforces."""

from __future__ import annotations

import math
import mmap
import os
import resource
import socket
import sys
import time
from typing import Any

import pyarrow as pa

from ..errors import SplitArrowError
from ..formats.arrow.encoder import MessageEncoder
from ..formats.arrow.framing import encapsulate
from ..formats.vortex.decoding import call_library, convert_to_arrow, import_library
from .channel import (
    RESULT_COLUMN,
    Kind,
    Packet,
    map_memory,
    receive_packet,
    send_packet,
    store,
)

_FIXED_MEMORY = 256 << 20
_DESCRIPTORS = 64


def serve(descriptor: int, memory_bytes: int, seconds: int, bytes_per_second: int) -> None:
    """Decode arrays until the parent is gone.

    Parameters
    ----------
    descriptor : int
        The socket to the parent.
    memory_bytes : int
        The memory that decoding may take, in bytes.
    seconds : int
        The CPU time that any array may take, in seconds.
    bytes_per_second : int
        The slowest rate of decoding, in bytes of declared rows per second of further CPU
        time. A byte of input counts as four.
    """
    connection = socket.socket(fileno=descriptor)
    decode = import_library("vortex.serde").decode_ipc_array_buffers
    _limit(memory_bytes)
    send_packet(connection, Packet(Kind.READY))
    while (request := receive_packet(connection)) is not None:
        reply = _decode(decode, request, seconds, bytes_per_second)
        send_packet(connection, reply)
        if reply.descriptor >= 0:
            os.close(reply.descriptor)


def _limit(memory_bytes: int) -> None:
    """Let the kernel end this process instead of others, and bound what it takes."""
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
                Kind.TOO_LARGE,
                text=f"the array has {size} bytes once decoded; the limit is {max_bytes}",
            )
        return Packet(Kind.DECODED, descriptor=_write(batch))
    except SplitArrowError as error:
        return Packet(Kind.REFUSED, text=error.message)
    except MemoryError:
        return Packet(Kind.TOO_LARGE, text="the array takes more memory than the limits allow")
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        return Packet(Kind.REFUSED, text=f"the array cannot be decoded: {error}")
    finally:
        os.close(request.descriptor)


def _read_type(schema: memoryview) -> Any:
    """Return the type that the result shall have; None if the library chooses it."""
    return pa.ipc.read_schema(pa.py_buffer(schema)).field(0).type if schema.nbytes else None


def _write(batch: pa.RecordBatch) -> int:
    """Write a batch as an Arrow IPC stream into sealed memory, and return its descriptor."""
    encoder = MessageEncoder(batch.schema)
    pieces: list[Any] = []
    for message in (encoder.schema_message, *encoder.encode(batch)):
        pieces += [encapsulate(message.metadata), *(message.body or ())]
    return store(pieces, is_sealed=True)


def main() -> None:
    """Run the child, whose parameters are its arguments."""
    serve(*map(int, sys.argv[1:5]))
