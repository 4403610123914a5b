"""Peers that implement docs/wire.md with their own code and may violate the protocol."""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from helpers.streams import ipc_stream, split_messages
from splitarrow.formats.arrow.message import read_batch_layout
from splitarrow.protocol.uri import DataUri

PREFACE = b"SPLTARW\x01"
HEADER = struct.Struct("<B7xQQ")
WANT, FREE = (1 << 40) + 1, (1 << 40) + 2
HANDLE = bytes(range(16))
SEAL, SHRINK, GROW, WRITE, FUTURE_WRITE = 1, 2, 4, 8, 16
SEALED = SEAL | SHRINK | GROW | WRITE
F_ADD_SEALS = 1033

Span = tuple[int, int]


def untagged(payload: bytes) -> bytes:
    return HEADER.pack(0, len(payload), 0) + payload


def tagged(tag: int, payload: bytes) -> bytes:
    return HEADER.pack(1, len(payload), tag) + payload


def message(sequence: int, metadata: bytes) -> bytes:
    return untagged(struct.pack("<BI", 1, sequence) + metadata)


def end(count: int) -> bytes:
    return untagged(struct.pack("<BI", 0, count))


def span_list(
    spans: Sequence[Span], *, total: int | None = None, count: int | None = None
) -> bytes:
    """Return the payload of a remote body."""
    flat = [number for span in spans for number in span]
    head = (sum(flat[1::2]) if total is None else total, len(spans) if count is None else count)
    return struct.pack(f"<{2 + len(flat)}Q", head[0] & ((1 << 64) - 1), head[1], *flat)


def remote_body(sequence: int, payload: bytes) -> bytes:
    """Return the frame of a remote body."""
    return tagged(1 << 56 | sequence, payload)


def announcement(size: int, handle: bytes = HANDLE) -> bytes:
    """Return the frame that announces a region."""
    return tagged(WANT, handle + struct.pack("<Q", size))


def sealed_memory(data: bytes, seals: int = SEALED) -> int:
    """Return a descriptor of memory that has the given seals."""
    descriptor = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(descriptor, data)
    fcntl.fcntl(descriptor, F_ADD_SEALS, seals)
    return descriptor


class Sample(NamedTuple):
    """A record batch, and the parts of its messages."""

    batch: pa.RecordBatch
    schema: bytes
    metadata: bytes
    body: bytes
    buffers: list[Span]

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> Sample:
        first, second = split_messages(ipc_stream([batch], batch.schema))
        assert second.body is not None
        body = b"".join(bytes(part) for part in second.body)
        buffers = [
            (offset, length) if length else (0, 0)
            for offset, length in read_batch_layout(second.metadata).buffers
        ]
        return cls(batch, bytes(first.metadata), bytes(second.metadata), body, buffers)


class WithDescriptors(NamedTuple):
    """Bytes to send together with descriptors. The server closes those when it is closed."""

    payload: bytes
    descriptors: tuple[int, ...]


Step = bytes | WithDescriptors | Callable[[], object]
"""A step of a scripted server: bytes to send, or a function to call."""


@dataclass
class Frame:
    """A received frame."""

    kind: int
    tag: int
    payload: bytes
    descriptors: list[int]


class Wire:
    """One end of a connection: received frames, and the descriptors that came with them."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._data = bytearray()
        self._descriptors: deque[int] = deque()

    def take(self, nbytes: int) -> bytes:
        """Return the next bytes; raise EOFError at the end."""
        while len(self._data) < nbytes:
            data, descriptors, _, _ = socket.recv_fds(self.sock, 1 << 16, 16)
            self._descriptors.extend(descriptors)
            if not data:
                raise EOFError
            self._data += data
        taken = bytes(self._data[:nbytes])
        del self._data[:nbytes]
        return taken

    def frame(self) -> Frame:
        """Return the next frame; raise EOFError at the end."""
        kind, length, tag = HEADER.unpack(self.take(HEADER.size))
        payload = self.take(length)
        descriptors: list[int] = []
        if kind and not tag >> 56 and tag >> 32:
            while self._descriptors:
                descriptors.append(self._descriptors.popleft())
        return Frame(kind, tag, payload, descriptors)

    def close(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.popleft())
        self.sock.close()


class ScriptedServer:
    """A server that accepts one request, follows a script, and then waits for the reader to leave.

    Parameters
    ----------
    folder : Path or None
        The folder of its socket; None to listen on TCP.
    steps : sequence of Step
        The steps after the request.
    handle : bytes or None
        The ``remote_handle`` of its URI.
    free_data : int or None
        The tag of its URI.
    """

    def __init__(
        self,
        folder: Path | None,
        steps: Sequence[Step],
        *,
        handle: bytes | None = HANDLE,
        free_data: int | None = FREE,
    ) -> None:
        self.frees: list[list[int]] = []
        """The offsets of each ``free_data`` message."""
        self.left = threading.Event()
        """Whether the reader has closed the connection."""
        self._steps = steps
        tags = f"want_data={WANT}" + ("" if free_data is None else f"&free_data={free_data}")
        if folder is None:
            self._listener = socket.create_server(("127.0.0.1", 0))
            uri = DataUri.parse(f"tcp://127.0.0.1:{self._listener.getsockname()[1]}?{tags}")
        else:
            path = folder / "scripted.sock"
            path.unlink(missing_ok=True)
            self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._listener.bind(str(path))
            self._listener.listen(4)
            uri = DataUri.parse(f"shm://{path}?{tags}")
        self.uri = str(uri.replace(remote_handle=handle, ticket=b"data"))
        self._stop = threading.Event()
        self._connection: socket.socket | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not select.select([self._listener], [], [], 0.02)[0]:
            if self._stop.is_set():
                return
        sock, _ = self._listener.accept()
        sock.settimeout(20)
        self._connection = sock
        wire = Wire(sock)
        try:
            assert wire.take(8) == PREFACE
            assert wire.frame().tag == WANT
            sock.sendall(PREFACE)
            for step in self._steps:
                self._do(sock, step)
            while True:
                frame = wire.frame()
                assert frame.tag == FREE
                count = len(frame.payload) // 8
                self.frees.append(list(struct.unpack(f"<{count}Q", frame.payload)))
        except (EOFError, ConnectionError, TimeoutError):
            self.left.set()
        finally:
            wire.close()

    def _do(self, sock: socket.socket, step: Step) -> None:
        if isinstance(step, bytes):
            sock.sendall(step)
        elif isinstance(step, WithDescriptors):
            if step.descriptors:
                numbers = array.array("i", step.descriptors)
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)]
                sent = sock.sendmsg([step.payload], rights)
                assert sent == len(step.payload)
            else:
                sock.sendall(step.payload)
        else:
            step()

    def close(self) -> None:
        self._stop.set()
        if self._connection is not None:
            with contextlib.suppress(OSError):  # the reader is gone already
                self._connection.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        carried = {
            d for step in self._steps if isinstance(step, WithDescriptors) for d in step.descriptors
        }
        for descriptor in carried:
            os.close(descriptor)

    def __enter__(self) -> ScriptedServer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class RawClient:
    """A reader that can send any bytes."""

    def __init__(self, uri: str) -> None:
        self.uri = DataUri.parse(uri)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(20)
        sock.connect(self.uri.path)
        self.wire = Wire(sock)
        self.send(PREFACE)
        assert self.wire.take(8) == PREFACE

    def send(self, data: bytes) -> None:
        self.wire.sock.sendall(data)

    def request(self, ticket: bytes | None = None) -> None:
        self.send(tagged(self.uri.require_want_data(), ticket or self.uri.ticket or b""))

    def free(self, offsets: Sequence[int]) -> None:
        assert self.uri.free_data is not None
        self.send(tagged(self.uri.free_data, struct.pack(f"<{len(offsets)}Q", *offsets)))

    def read_stream(self) -> tuple[list[int], list[int]]:
        """Read a stream to its end; return its descriptors and leased offsets."""
        descriptors: list[int] = []
        offsets: list[int] = []
        while True:
            frame = self.wire.frame()
            if not frame.kind:
                assert frame.payload[0] in (0, 1), frame.payload
                if frame.payload[0] == 0:
                    return descriptors, offsets
            elif frame.tag == self.uri.want_data:
                descriptors += frame.descriptors
            else:
                spans = struct.iter_unpack("<QQ", frame.payload[16:])
                offsets += [offset for offset, length in spans if length]

    def is_closed(self) -> bool:
        """Wait for the server to close the connection; return whether it did in time."""
        try:
            while True:
                self.wire.frame()
        except (EOFError, ConnectionError):
            return True
        except TimeoutError:
            return False

    def close(self) -> None:
        self.wire.close()

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
