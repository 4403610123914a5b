"""The peers: pyarrow.flight, plain sockets, and copies in memory."""

from __future__ import annotations

import mmap
import os
import socket
import struct
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from ... import serve
from ...errors import ConnectionLostError, InvalidDataError
from ..datasets import BatchFile
from ..options import Validate
from .backend import CA_MARK, Consumer, make_certificates, missing_package, write_parquet

_TICKET = b"benchmark"


class FlightBackend:
    """pyarrow.flight: ``DoGet`` of a table whose buffers are the mapped file."""

    in_process = False
    baseline: str | None = None

    def __init__(self, name: str = "flight", *, tls: bool = False, parquet: bool = False) -> None:
        self.name = name
        self._tls = tls
        self._parquet = parquet
        self.summary = "pyarrow.flight, DoGet: C++ server and client over gRPC"
        if tls:
            self.summary += " with TLS"
        if parquet:
            self.summary += ", of a Parquet file"

    def unavailable_reason(self) -> str | None:
        """Return why pyarrow.flight cannot run, or None if it can."""
        try:
            import pyarrow.flight  # noqa: F401  # pyright: ignore[reportUnusedImport]
        except ImportError:
            return "this build of pyarrow has no Flight"
        return missing_package() if self._tls else None

    @contextmanager
    def serve(self, dataset: BatchFile) -> Generator[str]:
        """Serve the file; see `Backend.serve`."""
        from pyarrow import flight

        location, mark = "grpc://localhost", ""
        security: dict[str, Any] = {}
        if self._tls:
            paths = make_certificates(Path(dataset.path).parent, self.name)
            certificate = (paths.chain.read_bytes(), paths.key.read_bytes())
            security = {"tls_certificates": [certificate]}
            location, mark = "grpc+tls://localhost", f"{CA_MARK}{paths.authority}"
        open_stream = self._open_parquet if self._parquet else self._open_table
        with open_stream(dataset) as make_stream:

            class Server(flight.FlightServerBase):
                def do_get(
                    self, context: flight.ServerCallContext, ticket: flight.Ticket
                ) -> flight.FlightDataStream:
                    return make_stream()

            with Server(f"{location}:0", **security) as server:
                yield f"{location}:{server.port}{mark}"

    @contextmanager
    def _open_table(self, dataset: BatchFile) -> Generator[Any]:
        from pyarrow import flight

        with pa.memory_map(dataset.path) as source:
            table = pa.ipc.open_file(source).read_all()
            yield lambda: flight.RecordBatchStream(table)

    @contextmanager
    def _open_parquet(self, dataset: BatchFile) -> Generator[Any]:
        from pyarrow import dataset as datasets
        from pyarrow import flight

        rows = datasets.dataset(write_parquet(dataset, self.name))
        yield lambda: flight.RecordBatchStream(
            rows.scanner(batch_size=dataset.batch_rows).to_reader()
        )

    def read(self, address: str, consumer: Consumer, *, validate: Validate | None = None) -> None:
        """Read all batches. Flight does not validate them; see `Backend.read`."""
        read_flight(address, consumer, _TICKET)


def read_flight(address: str, consumer: Consumer, ticket: bytes | None) -> None:
    """Read all batches with a client of pyarrow.flight.

    Without a ticket, the client asks the server for that of its first dataset.
    """
    from pyarrow import flight

    uri, _, authority = address.partition(CA_MARK)
    security: dict[str, Any] = {}
    if authority:
        security = {"tls_root_certs": Path(authority).read_bytes()}
    with flight.connect(uri, **security) as client:
        if ticket is None:
            (info, *_) = client.list_flights()
            ticket = info.endpoints[0].ticket.ticket
        reader = client.do_get(flight.Ticket(ticket))
        if consumer.reads_table:
            consumer.consume_table(reader.read_all())
        else:
            batches = (chunk.data for chunk in reader)
            consumer.consume_batches(batches)  # pyright: ignore[reportArgumentType]


class DoGetBackend:
    """splitarrow's control plane, and a client of pyarrow.flight that plans and reads."""

    name = "splitarrow-do-get"
    summary = "splitarrow's control plane, DoGet: the client of pyarrow.flight"
    in_process = False
    baseline: str | None = "flight"

    def unavailable_reason(self) -> str | None:
        """Return why pyarrow.flight cannot run, or None if it can."""
        return FlightBackend().unavailable_reason()

    @contextmanager
    def serve(self, dataset: BatchFile) -> Generator[str]:
        """Serve the file; see `Backend.serve`."""
        with serve({"benchmark": dataset.path}, control="grpc://127.0.0.1:0") as server:
            yield str(server.control_uri)

    def read(self, address: str, consumer: Consumer, *, validate: Validate | None = None) -> None:
        """Read all batches. Flight does not validate them; see `Backend.read`."""
        read_flight(address, consumer, ticket=None)


class MemcpyBackend:
    """Copies each body from the mapped file to the same buffer."""

    name = "memcpy"
    summary = "no transport: each body is copied once, from the mapped file to one buffer"
    in_process = True
    baseline: str | None = None

    def __init__(self) -> None:
        self._source: memoryview | None = None
        self._offsets: list[int] = []

    def unavailable_reason(self) -> str | None:
        """Return None: this backend can always run."""
        return None

    @contextmanager
    def serve(self, dataset: BatchFile) -> Generator[str]:
        """Map the file; see `Backend.serve`."""
        with pa.memory_map(dataset.path) as file:
            self._source = memoryview(file.read_buffer()).cast("B")
            self._offsets = dataset.body_offsets()
            try:
                yield dataset.path
            finally:
                self._source = None

    def read(self, address: str, consumer: Consumer, *, validate: Validate | None = None) -> None:
        """Copy all bodies. The consumer only counts them; see `Backend.read`."""
        source = self._source
        assert source is not None, "serve() is active"
        nbytes = consumer.dataset.batch_bytes
        target = memoryview(pa.allocate_buffer(nbytes)).cast("B")
        for offset in self._offsets:
            target[:] = source[offset : offset + nbytes]
            if not consumer.batches:
                consumer.first_at = time.monotonic()
            consumer.batches += 1
        consumer.rows = consumer.batches * consumer.dataset.batch_rows


_HEADER = struct.Struct("<QQ")
_END = _HEADER.pack(0, 0)
_LARGE_BODY_BYTES = 32 << 10
"""The size from which a body is sent on its own."""
_SEND_BYTES = 512 << 10
_RECEIVE_BYTES = 1 << 20


class RawSocketBackend:
    """Plain Python sockets and a minimal framing."""

    name = "raw"
    summary = "plain Python sockets, the bodies alone, not decoded: the ceiling of TCP"
    in_process = False
    baseline: str | None = "flight"

    def unavailable_reason(self) -> str | None:
        """Return None: this backend can always run."""
        return None

    @contextmanager
    def serve(self, dataset: BatchFile) -> Generator[str]:
        """Serve the file with one thread per client; see `Backend.serve`."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            # Timers that pace segments would lower the ceiling, as with BBR.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
            offsets = dataset.body_offsets()

            def accept() -> None:
                while True:
                    try:
                        client, _ = listener.accept()
                    except OSError:
                        return  # the listener was shut down
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

    def read(self, address: str, consumer: Consumer, *, validate: Validate | None = None) -> None:
        """Receive all bodies. The consumer only counts them; see `Backend.read`."""
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port))) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            receiver = _Receiver(consumer)
            if consumer.dataset.batch_bytes >= _LARGE_BODY_BYTES:
                receiver.receive_large_bodies(sock)
            else:
                receiver.receive_small_bodies(sock)


def _send_file(client: socket.socket, dataset: BatchFile, offsets: list[int]) -> None:
    header = _HEADER.pack(dataset.batch_bytes, dataset.batch_rows)
    with client, open(dataset.path, "rb") as file:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            if dataset.batch_bytes >= _LARGE_BODY_BYTES:
                for offset in offsets:
                    client.sendall(header, socket.MSG_MORE)
                    end = offset + dataset.batch_bytes
                    while offset < end:
                        offset += os.sendfile(client.fileno(), file.fileno(), offset, end - offset)
            else:
                _send_small_bodies(client, file.fileno(), dataset.batch_bytes, header, offsets)
            client.sendall(_END)
        except ConnectionError:
            pass  # the client has disconnected


def _send_small_bodies(
    client: socket.socket, descriptor: int, nbytes: int, header: bytes, offsets: list[int]
) -> None:
    group_size = max(1, _SEND_BYTES // nbytes)
    with mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) as data, memoryview(data) as view:
        for begin in range(0, len(offsets), group_size):
            buffers: list[bytes | memoryview] = []
            for offset in offsets[begin : begin + group_size]:
                buffers += (header, view[offset : offset + nbytes])
            client.sendall(b"".join(buffers))
            buffers.clear()  # the map cannot be closed while slices of it exist


class _Receiver:
    """Receives and counts bodies. It keeps them if the consumer wants a table."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._kept: list[pa.Buffer] = []
        self._file: pa.Buffer | None = None
        if consumer.check:
            self._file = pa.memory_map(consumer.dataset.path).read_buffer()
            self._offsets = consumer.dataset.body_offsets()

    def receive_large_bodies(self, sock: socket.socket) -> None:
        """Receive each body together with the header that follows it."""
        header = memoryview(bytearray(_HEADER.size))
        _receive_exactly(sock, header)
        nbytes, rows = _HEADER.unpack(header)
        buffer = None
        while nbytes:
            frame_bytes = nbytes + _HEADER.size
            if buffer is None or buffer.size != frame_bytes or self._consumer.reads_table:
                buffer = pa.allocate_buffer(frame_bytes)
            view = memoryview(buffer).cast("B")
            _receive_exactly(sock, view)
            self._count(buffer, 0, nbytes, rows)
            nbytes, rows = _HEADER.unpack_from(view, nbytes)

    def receive_small_bodies(self, sock: socket.socket) -> None:
        """Receive many bodies per system call."""
        consumer = self._consumer
        unpack, header_size = _HEADER.unpack_from, _HEADER.size
        inspects_bodies = consumer.reads_table or consumer.check
        buffer = pa.allocate_buffer(_RECEIVE_BYTES)
        view = memoryview(buffer).cast("B")
        end = 0
        while True:
            received = sock.recv_into(view[end:])
            if not received:
                raise ConnectionLostError("the server closed the connection before the end")
            end += received
            begin = 0
            while end - begin >= header_size:
                nbytes, rows = unpack(view, begin)
                if not nbytes:
                    return
                if end - begin - header_size < nbytes:
                    break
                if inspects_bodies or not consumer.batches:
                    self._count(buffer, begin + header_size, nbytes, rows)
                else:
                    consumer.rows += rows
                    consumer.batches += 1
                begin += header_size + nbytes
            incomplete = bytes(view[begin:end])
            if consumer.reads_table:
                buffer = pa.allocate_buffer(_RECEIVE_BYTES)
                view = memoryview(buffer).cast("B")
            view[: len(incomplete)] = incomplete
            end = len(incomplete)

    def _count(self, buffer: pa.Buffer, begin: int, nbytes: int, rows: int) -> None:
        consumer = self._consumer
        if consumer.first_at is None:
            consumer.first_at = time.monotonic()
        if self._file is not None:
            expected = self._file.slice(self._offsets[consumer.batches], nbytes)
            if not buffer.slice(begin, nbytes).equals(expected):
                raise InvalidDataError(f"body {consumer.batches} differs from that of the file")
        if consumer.reads_table:
            self._kept.append(buffer.slice(begin, nbytes))
        consumer.rows += rows
        consumer.batches += 1


def _receive_exactly(sock: socket.socket, view: memoryview) -> None:
    filled = 0
    while filled < view.nbytes:
        received = sock.recv_into(view[filled:])
        if not received:
            raise ConnectionLostError("the server closed the connection before the end")
        filled += received
