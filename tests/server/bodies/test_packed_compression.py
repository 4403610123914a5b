"""The compression `auto` over real connections: a slow link, and the loopback."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress

import numpy as np
import pyarrow as pa
import pytest

import splitarrow
from splitarrow.server.bodies import packed
from splitarrow.server.bodies.packed import CompressionChoice

CHUNK = 64 << 10


@contextmanager
def slow_link(port: int, bytes_per_second: float) -> Generator[int]:
    """Relay one connection to a port of this host, with a token bucket for what it answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, CHUNK)

        def relay() -> None:
            with suppress(OSError):
                client, _ = listener.accept()
                with client, socket.socket() as server:
                    server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, CHUNK)
                    server.connect(("127.0.0.1", port))
                    back = threading.Thread(target=forward, args=(client, server))
                    back.start()
                    started, passed = time.monotonic(), 0
                    while data := server.recv(CHUNK):
                        client.sendall(data)
                        passed += len(data)
                        wait = passed / bytes_per_second - (time.monotonic() - started)
                        threading.Event().wait(max(wait, 0))
                    client.shutdown(socket.SHUT_RDWR)
                    back.join()

        thread = threading.Thread(target=relay)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


def forward(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(CHUNK):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def make_table(batches: int) -> pa.Table:
    # 512 KiB, which LZ4 makes three times smaller. If they shrank much more, the stream would be
    # over before anybody could see what it has chosen.
    numbers = pa.array(np.random.default_rng(1).integers(0, 100, 1 << 16))
    batch = pa.record_batch({"n": numbers})
    return pa.Table.from_batches([batch] * batches)


@pytest.mark.slow
def test_a_slow_link_is_compressed_and_status_shows_it() -> None:
    table = make_table(40)  # 20 MiB
    control = "grpc://127.0.0.1:0"
    with (
        splitarrow.serve({"t": table}, compression="auto", control=control) as server,
        splitarrow.connect(server.control_uri or "") as client,
    ):
        uri = server.uri("t")
        port = int(uri.partition("?")[0].rpartition(":")[2])
        seconds: dict[str, float] = {}
        received: dict[str, int] = {}
        for compression in ("none", "auto"):
            with slow_link(port, 16e6) as relay:
                started = time.perf_counter()
                here = uri.replace(f":{port}", f":{relay}")
                with splitarrow.open(here, compression=compression) as stream:
                    batches: list[pa.RecordBatch] = []
                    shown: set[str] = set()
                    for batch in stream:
                        batches.append(batch)
                        running = client.status()["streams"]
                        shown.update(each["compression"] for each in running)
                    assert bool(shown & {"lz4", "zstd"}) == (compression == "auto")
                    assert pa.Table.from_batches(batches).equals(table)
                    received[compression] = stream.bytes_received
                seconds[compression] = time.perf_counter() - started
    assert received["auto"] < 0.6 * received["none"]
    assert seconds["auto"] < 0.8 * seconds["none"]


def test_messages_arrive_equal_whatever_is_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A choice that always compresses, over messages of every size."""

    class Always(CompressionChoice):
        def __init__(self) -> None:
            super().__init__()
            self.codec = "lz4"

        def record(self, *_: object, **__: object) -> None: ...

    monkeypatch.setattr(packed, "CompressionChoice", Always)
    table = pa.table(
        {"n": range(100_000), "s": [f"name {n % 7}" for n in range(100_000)]}
    ).combine_chunks()
    words = table.append_column("d", table["s"].dictionary_encode())
    for batch_rows in (10, 1000, 100_000):
        part = words.slice(0, 50 * batch_rows)
        served = pa.Table.from_batches(part.to_batches(batch_rows))
        with splitarrow.serve({"t": served}, compression="auto") as server:
            with splitarrow.open(server.uri("t")) as stream:
                assert stream.read_all().equals(served)
            with splitarrow.open(server.uri("t"), compression="none") as stream:
                assert stream.read_all().equals(served)
