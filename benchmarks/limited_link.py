"""A link of a given speed: a process that forwards connections to a server."""

from __future__ import annotations

import multiprocessing
import socket
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

_CHUNK_BYTES = 256 << 10
_BURST_SECONDS = 0.002
"""What the link may fall behind and make up for, which is less than a switch buffers."""


class TokenBucket:
    """Says how long to wait before more bytes may pass.

    `now` is the time, in seconds.
    """

    def __init__(self, bytes_per_second: float, now: float) -> None:
        self._rate = bytes_per_second
        self._free_at = now

    def take(self, nbytes: int, now: float) -> float:
        """Record bytes that pass; return the seconds until the link is free again."""
        begins = max(self._free_at, now - _BURST_SECONDS)
        self._free_at = begins + nbytes / self._rate
        return max(0.0, self._free_at - now)


@contextmanager
def limited_link(host: str, port: int, bytes_per_second: float) -> Generator[int]:
    """Forward a port of this host to a server, at a limited speed towards the client."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_run, args=(host, port, bytes_per_second, theirs), daemon=True)
    process.start()
    try:
        yield ours.recv()
    finally:
        process.kill()
        process.join()
        process.close()


def _run(host: str, port: int, bytes_per_second: float, connection: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection.send(listener.getsockname()[1])
        while True:
            client = listener.accept()[0]
            server = socket.create_connection((host, port))
            for source, target, rate in (
                (server, client, bytes_per_second),
                (client, server, float("inf")),
            ):
                target.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=_forward, args=(source, target, rate), daemon=True).start()


def _forward(source: socket.socket, target: socket.socket, rate: float) -> None:
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    bucket = TokenBucket(rate, time.monotonic())
    try:
        while count := source.recv_into(buffer):
            target.sendall(buffer[:count])
            time.sleep(bucket.take(count, time.monotonic()))
        target.shutdown(socket.SHUT_WR)
    except OSError:
        return  # one side has closed its connection
