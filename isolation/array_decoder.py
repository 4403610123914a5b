"""Decoding of the arrays of a stream from a stranger, in child processes.

Each child serves one stream at a time. A pool keeps idle children for the next streams.
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from typing import Any, NamedTuple

import pyarrow as pa

from ..errors import InvalidDataError, LimitError, SplitArrowError
from ..formats.vortex.decoder import prepare_message, read_dtype_message, require_library
from ..formats.vortex.message import DEFAULT_LIMITS, Message, VortexLimits, encode_message
from .child import (
    RESULT_COLUMN,
    Packet,
    PacketKind,
    check_sealed,
    map_memory,
    receive_packet,
    send_packet,
    store,
)

_START_SECONDS = 60.0
_END_SECONDS = 5.0
_SCRIPT = "from splitarrow.isolation.child import main; main()"


class ProcessLimits(NamedTuple):
    """The resources that decoding may take."""

    memory_bytes: int
    """The memory of the child beyond that after its start, in bytes."""
    result_bytes: int
    """The largest Arrow array, in bytes."""
    seconds: int = 1
    """The CPU time that any array may take, in seconds. It is rounded up to whole seconds since the
    start of the child."""
    bytes_per_second: int = 64 << 20
    """The slowest rate of decoding, in bytes of declared rows per second of further CPU time. A
    byte of input counts as four."""
    wall_seconds: float = 120.0
    """The longest time that an array may take, in seconds, however busy the machine is."""


class DecoderProcess:
    """A child process that decodes arrays; raises `OSError` if it cannot be started."""

    def __init__(self, limits: ProcessLimits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._is_ready = False
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-c", _SCRIPT, str(theirs.fileno())]
            command += map(str, (limits.memory_bytes, limits.seconds, limits.bytes_per_second))
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,  # the library prints each panic
                    env=environment,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,  # Ctrl-C ends the parent, whose end ends the child
                )
            except BaseException:
                ours.close()
                raise
        self._connection = ours

    @property
    def pid(self) -> int:
        """The process ID of the child."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the child still decodes."""
        return self._connection.fileno() >= 0 and self._process.poll() is None

    def decode(
        self,
        dtype_parts: list[bytes],
        message: Message,
        declared_bytes: int,
        data_type: Any = None,
    ) -> pa.Array[Any]:
        """Decode an array message that has passed the checks.

        `declared_bytes` is the smallest size of its rows in Arrow. The library chooses the type if
        `data_type` is None. Raises `InvalidDataError` if the library refuses the message or the
        child ends, and `LimitError` if the array needs more memory or time than the limits allow.
        """
        schema = b"" if data_type is None else _serialize(data_type)
        parts = [*dtype_parts, schema, *encode_message(message)]
        dtype_bytes = sum(map(len, dtype_parts))
        rows = message.header.row_count
        numbers = dtype_bytes, len(schema), rows, declared_bytes, self._limits.result_bytes
        with self._lock:
            descriptor = store(parts)
            try:
                reply = self._exchange(Packet(PacketKind.DECODE, numbers, descriptor=descriptor))
            finally:
                os.close(descriptor)
        if reply.kind is PacketKind.DECODED:
            return _read_result(reply.descriptor, rows, data_type)
        if reply.kind is PacketKind.TOO_LARGE:
            raise LimitError(reply.text)
        raise InvalidDataError(reply.text or "the decoder process sent no reason")

    def close(self) -> None:
        """End the child. Idempotent."""
        self._connection.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def abandon(self) -> None:
        """Forget the child, which belongs to the parent of this process, after a fork."""
        self._connection.close()
        self._process.returncode = 0  # it is not a child of this process

    def _exchange(self, request: Packet) -> Packet:
        try:
            if not self._is_ready:
                self._connection.settimeout(_START_SECONDS)
                ready = receive_packet(self._connection)
                if ready is None or ready.kind is not PacketKind.READY:
                    raise self._end("the decoder process did not start")
                self._is_ready = True
            self._connection.settimeout(self._limits.wall_seconds)
            send_packet(self._connection, request)
            reply = receive_packet(self._connection)
        except TimeoutError:
            self._process.kill()
            raise self._end(
                f"the decoder process did not answer within {self._limits.wall_seconds:g} seconds"
            ) from None
        except OSError as error:
            raise self._end(f"the decoder process is gone: {error}") from None
        if reply is None:
            raise self._end("the decoder process ended")
        return reply

    def _end(self, problem: str) -> SplitArrowError:
        """End the child, and return the error for the way in which it ended."""
        self.close()
        status = self._process.returncode
        if status == -signal.SIGXCPU:
            return LimitError(
                "the array was not decoded within the time that its size allows; the decoder "
                "process was ended"
            )
        if status in (-signal.SIGABRT, -signal.SIGKILL):
            return LimitError(
                f"{problem} ({signal.Signals(-status).name}): the array probably takes more than "
                f"the {self._limits.memory_bytes} bytes of memory that the limits allow"
            )
        how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        return InvalidDataError(f"{problem} ({how})")


def _serialize(data_type: Any) -> bytes:
    return pa.schema([pa.field(RESULT_COLUMN, data_type)]).serialize().to_pybytes()


def _read_result(descriptor: int, rows: int, data_type: Any) -> pa.Array[Any]:
    try:
        check_sealed(descriptor)
        data: Any = map_memory(descriptor)
        with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
            found = reader.read_next_batch().column(0)
    except (OSError, ValueError, pa.ArrowException, StopIteration) as error:
        raise InvalidDataError(f"the decoder process sent no array: {error}") from None
    finally:
        os.close(descriptor)
    if len(found) != rows:
        raise InvalidDataError(f"the decoder process sent {len(found)} rows; expected {rows}")
    if data_type is not None and not found.type.equals(data_type):
        raise InvalidDataError(f"the decoder process sent the type {found.type}, not {data_type}")
    return found


_MAX_IDLE = 2


class ProcessPool:
    """Decoder processes that wait for their next stream.

    A process serves one stream at a time. It is ended after it has failed, and reused otherwise,
    because a new one takes some tenths of a second.
    """

    def __init__(self) -> None:
        self._idle: deque[tuple[ProcessLimits, DecoderProcess]] = deque()

    def take(self, limits: ProcessLimits) -> DecoderProcess:
        """Return a process with these limits, which the caller returns with `put`."""
        others: list[tuple[ProcessLimits, DecoderProcess]] = []
        process = None
        while process is None and (found := self._pop()) is not None:
            if found[0] == limits and found[1].is_alive:
                process = found[1]
            else:
                others.append(found)
        self._idle.extendleft(others)
        self._trim()
        return process or DecoderProcess(limits)

    def put(self, limits: ProcessLimits, process: DecoderProcess) -> None:
        """Keep a process for the next stream, unless it is broken or enough others wait."""
        self.add(limits, process)
        self._trim()

    def add(self, limits: ProcessLimits, process: DecoderProcess) -> None:
        """Keep a process without a lock or a system call, as finalizers need it."""
        self._idle.append((limits, process))

    def close(self) -> None:
        """End all processes that wait."""
        while (found := self._pop()) is not None:
            found[1].close()

    def forget(self) -> None:
        """Leave the processes to the parent of this process, after a fork."""
        while (found := self._pop()) is not None:
            found[1].abandon()

    def _pop(self) -> tuple[ProcessLimits, DecoderProcess] | None:
        """Return the process that has waited for the longest time."""
        try:
            return self._idle.popleft()
        except IndexError:
            return None

    def _trim(self) -> None:
        """End the processes that are broken or too many."""
        found: list[tuple[ProcessLimits, DecoderProcess]] = []
        while (next_one := self._pop()) is not None:
            found.append(next_one)
        kept = [pair for pair in found if pair[1].is_alive][-_MAX_IDLE:]
        for pair in found:
            if pair not in kept:
                pair[1].close()
        self._idle.extend(kept)


POOL = ProcessPool()
"""The decoder processes of this process."""
atexit.register(POOL.close)
os.register_at_fork(after_in_child=POOL.forget)


class IsolatedDecoder:
    """Decodes the arrays of one stream in a child process.

    Every message is checked in this process first. What the checks cannot bound happens in the
    child: if it crashes, hangs or takes too much memory, the kernel ends it, and the stream fails.

    The stream begins with the dtype message. By default, the arrays may have
    ``limits.decoded_bytes``, and the memory of the child twice as many.
    """

    def __init__(
        self,
        dtype: Message,
        limits: VortexLimits = DEFAULT_LIMITS,
        *,
        process_limits: ProcessLimits | None = None,
        pool: ProcessPool = POOL,
    ) -> None:
        require_library()
        self._limits = limits
        self._pool = pool
        self._process: DecoderProcess | None = None
        size = limits.decoded_bytes
        self._process_limits = process_limits or ProcessLimits(2 * size, size)
        self.dtype, self._dtype_parts = read_dtype_message(dtype, limits)
        """The type of all arrays, and the dtype message as the library reads it."""

    def decode_arrow(self, message: Message, data_type: Any = None) -> pa.Array[Any]:
        """Check and decode an array message, and return it as an Arrow array.

        The array is in memory of its own, which no process can change. Its values are not
        validated. The library chooses the type if `data_type` is None. Errors are those of the
        checks and of `DecoderProcess.decode`.
        """
        checked, prepared = prepare_message(message, self.dtype, self._limits)
        if self._process is None:
            self._process = self._pool.take(self._process_limits)
        try:
            declared = checked.declared_bytes
            return self._process.decode(self._dtype_parts, prepared, declared, data_type)
        except SplitArrowError:
            if not self._process.is_alive:
                self.close()
            raise

    def __del__(self) -> None:
        process = getattr(self, "_process", None)
        if process is not None:
            self._pool.add(self._process_limits, process)

    def close(self) -> None:
        """Return the child to the pool. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            self._pool.put(self._process_limits, process)
