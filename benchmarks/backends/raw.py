"""The ceiling: the same bodies over a plain socket, each behind its size, decoded by nobody.

A frame is the size of the body and its rows, both uint64, then the body; a size of 0 ends the
stream. Large bodies leave by ``sendfile`` and are received into one aligned buffer; small ones
are sent and received many at a time.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

import pyarrow as pa

from ...errors import ConnectionLostError, InvalidDataError
from ..consumer import Consumer
from ..dataset import Dataset

_HEADER = struct.Struct("<QQ")
_LARGE = 32 << 10
_GROUP_BYTES = 512 << 10
_STAGING_BYTES = 1 << 20


class Raw:
    """Python sockets, without a protocol worth the name."""

    name = "raw"
    summary = "plain Python sockets, the bodies alone, not decoded: the ceiling of TCP"
    in_process = False

    def unavailable(self) -> str | None:
        """Return None: it can always run."""
        return None

    @contextmanager
    def serve(self, dataset: Dataset) -> Generator[str]:
        """Serve the file, one thread for each client; see `Backend.serve`."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            offsets = dataset.body_offsets()

            def accept() -> None:
                while True:
                    try:
                        client, _ = listener.accept()
                    except OSError:
                        return  # closed
                    threading.Thread(
                        target=_send_file, args=(client, dataset, offsets), daemon=True
                    ).start()

            thread = threading.Thread(target=accept, daemon=True)
            thread.start()
            try:
                yield f"127.0.0.1:{listener.getsockname()[1]}"
            finally:
                listener.shutdown(socket.SHUT_RDWR)
                thread.join()

    def read(self, address: str, consumer: Consumer, *, validate: str | None = None) -> None:
        """Receive all bodies. They are counted, not consumed; see `Backend.read`."""
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port))) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            bodies = _Bodies(consumer)
            if consumer.dataset.batch_bytes >= _LARGE:
                bodies.receive_large(sock)
            else:
                bodies.receive_small(sock)


def _send_file(client: socket.socket, dataset: Dataset, offsets: list[int]) -> None:
    header = _HEADER.pack(dataset.batch_bytes, dataset.batch_rows)
    with client, open(dataset.path, "rb") as file:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            if dataset.batch_bytes >= _LARGE:
                for offset in offsets:
                    client.sendall(header, socket.MSG_MORE)
                    end = offset + dataset.batch_bytes
                    while offset < end:
                        offset += os.sendfile(client.fileno(), file.fileno(), offset, end - offset)
            else:
                _send_small(client, file.fileno(), dataset.batch_bytes, header, offsets)
            client.sendall(_HEADER.pack(0, 0))
        except ConnectionError:
            pass  # the client left


def _send_small(
    client: socket.socket, descriptor: int, nbytes: int, header: bytes, offsets: list[int]
) -> None:
    group = max(1, _GROUP_BYTES // nbytes)
    with mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) as data, memoryview(data) as view:
        for begin in range(0, len(offsets), group):
            parts: list[bytes | memoryview] = []
            for offset in offsets[begin : begin + group]:
                parts += (header, view[offset : offset + nbytes])
            client.sendall(b"".join(parts))
            parts.clear()


class _Bodies:
    """Receives bodies and counts them; keeps them where the consumer wants the whole."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._kept: list[pa.Buffer] = []
        self._expected: pa.Buffer | None = None
        if consumer.check:
            self._expected = pa.memory_map(consumer.dataset.path).read_buffer()
            self._offsets = consumer.dataset.body_offsets()

    def receive_large(self, sock: socket.socket) -> None:
        """Receive each body in one piece, with the header that follows it."""
        header = memoryview(bytearray(_HEADER.size))
        _receive_exactly(sock, header)
        nbytes, rows = _HEADER.unpack(header)
        buffer = None
        while nbytes:
            if buffer is None or buffer.size != nbytes + _HEADER.size or self._consumer.whole:
                buffer = pa.allocate_buffer(nbytes + _HEADER.size)
            view = memoryview(buffer).cast("B")
            _receive_exactly(sock, view)
            self._count(buffer, 0, nbytes, rows)
            nbytes, rows = _HEADER.unpack_from(view, nbytes)

    def receive_small(self, sock: socket.socket) -> None:
        """Receive as many bodies as one read brings."""
        consumer = self._consumer
        unpack, head = _HEADER.unpack_from, _HEADER.size
        slow = consumer.whole or consumer.check
        buffer = pa.allocate_buffer(_STAGING_BYTES)
        view = memoryview(buffer).cast("B")
        end = 0
        while True:
            got = sock.recv_into(view[end:])
            if not got:
                raise ConnectionLostError("the server closed the connection")
            end += got
            begin = 0
            while end - begin >= head:
                nbytes, rows = unpack(view, begin)
                if not nbytes:
                    return
                if end - begin - head < nbytes:
                    break
                if slow or not consumer.batches:
                    self._count(buffer, begin + head, nbytes, rows)
                else:
                    consumer.rows += rows
                    consumer.batches += 1
                begin += head + nbytes
            rest = bytes(view[begin:end])
            if consumer.whole:
                buffer = pa.allocate_buffer(_STAGING_BYTES)
                view = memoryview(buffer).cast("B")
            view[: len(rest)] = rest
            end = len(rest)

    def _count(self, buffer: pa.Buffer, begin: int, nbytes: int, rows: int) -> None:
        consumer = self._consumer
        if consumer.first_at is None:
            consumer.first_at = time.monotonic()
        if self._expected is not None:
            expected = self._expected.slice(self._offsets[consumer.batches], nbytes)
            if not buffer.slice(begin, nbytes).equals(expected):
                raise InvalidDataError(f"body {consumer.batches} differs from the file's")
        if consumer.whole:
            self._kept.append(buffer.slice(begin, nbytes))
        consumer.rows += rows
        consumer.batches += 1


def _receive_exactly(sock: socket.socket, view: memoryview) -> None:
    done = 0
    while done < view.nbytes:
        got = sock.recv_into(view[done:])
        if not got:
            raise ConnectionLostError("the server closed the connection")
        done += got
