"""Decoding of the arrays of a stream from a stranger."""

from __future__ import annotations

import atexit
import os
from collections import deque
from typing import Any

import pyarrow as pa

from ..errors import SplitArrowError
from ..formats.vortex.decoding import prepare_message, read_dtype_message, require_library
from ..formats.vortex.limits import DEFAULT_LIMITS, VortexLimits
from ..formats.vortex.message import Message
from .decoder_process import DecoderProcess, ProcessLimits

_MAX_IDLE = 2


class ProcessPool:
    """Decoder processes that wait for their next stream.

    A process serves one stream at a time. It is ended after it has failed, and reused otherwise,
    because a new one takes some tenths of a second.
    """

    def __init__(self) -> None:
        self._idle: deque[tuple[ProcessLimits, DecoderProcess]] = deque()

    def take(self, limits: ProcessLimits) -> DecoderProcess:
        """Return a process with these limits, which the caller returns with `put`.

        Raises
        ------
        OSError
            If no process can be started.
        """
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

    Parameters
    ----------
    dtype : Message
        The dtype message, with which the stream begins.
    limits : VortexLimits
        Bounds what messages declare.
    process_limits : ProcessLimits, optional
        Bounds the child. By default, its arrays may have ``limits.decoded_bytes``, and its memory
        twice as many.
    pool : ProcessPool
        Provides the child.

    Attributes
    ----------
    dtype : DType
        The type of all arrays.

    Raises
    ------
    InvalidDataError, LimitError
        If the dtype is malformed or exceeds a limit.
    MissingExtraError
        If vortex-data is not installed.
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

    def decode_arrow(self, message: Message, data_type: Any = None) -> pa.Array[Any]:
        """Check and decode an array message, and return it as an Arrow array.

        The array is in memory of its own, which no process can change. Its values are those that
        the child decoded. They are not validated.

        Parameters
        ----------
        message : Message
            The message.
        data_type : pyarrow.DataType, optional
            The type of the Arrow array. By default, the library chooses it.

        Raises
        ------
        InvalidDataError
            If the message does not pass the checks, the library cannot decode it, or the child
            ends.
        LimitError
            If the message exceeds a limit, or decoding it takes too much memory or time.
        """
        checked, prepared = prepare_message(message, self.dtype, self._limits)
        if self._process is None:
            self._process = self._pool.take(self._process_limits)
        try:
            return self._process.decode(
                self._dtype_parts, prepared, checked.declared_bytes, data_type
            )
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
