"""A process that attacks the listeners of a daemon, with its own code for each protocol.

    python -m helpers.hostile_reader ATTACK URI

It prints a line once it has done its worst, and ends when its standard input does.
"""

from __future__ import annotations

import random
import socket
import ssl
import struct
import sys
from collections.abc import Callable
from contextlib import suppress

from helpers.shm_peers import PREFACE, RawClient
from splitarrow.protocol.uri import DataUri

_SECONDS = 0.2
"""How long a server may be silent before the next attack."""
_CONNECTIONS = 40


def free_foreign_leases(uri: str) -> None:
    """Free leases of others, repeatedly, on ten connections."""
    for number in range(10):
        with RawClient(uri) as client:
            client.request()
            _, held = client.read_stream()
            draw = random.Random(number)
            with suppress(OSError):
                for _ in range(100):
                    client.free([*held, *(draw.getrandbits(64) for _ in range(100))])
            assert client.is_closed(), "1,000 bad frees close a connection"


def hoard_leases(uri: str) -> None:
    """Request streams, free nothing, and stay connected."""
    hoard = [RawClient(uri) for _ in range(_CONNECTIONS)]
    for client in hoard:
        client.request()
    for client in hoard:
        with suppress(EOFError, AssertionError, TimeoutError, ConnectionError):
            client.read_stream()
    _wait()


def _connect(uri: str) -> socket.socket:
    address = DataUri.parse(uri)
    return socket.create_connection((address.host, address.port), timeout=10)


def _say(uri: str, data: bytes) -> None:
    """Send bytes, and wait until the server closes the connection or says nothing more."""
    with suppress(OSError), _connect(uri) as client:
        _exchange(client, data)


def _exchange(client: socket.socket, data: bytes) -> None:
    client.settimeout(_SECONDS)
    client.sendall(data)
    while client.recv(1 << 16):
        pass


def _record(kind: int, payload: bytes, version: int = 0x0303, length: int | None = None) -> bytes:
    """Return a record of TLS."""
    return struct.pack(">BHH", kind, version, len(payload) if length is None else length) + payload


def _hello() -> bytes:
    """Return the first record of an honest client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def send_tls_records(uri: str) -> None:
    """Send malformed records: before, in and after the handshake."""
    draw, hello = random.Random(1), _hello()
    for data in (
        draw.randbytes(1 << 20),
        _record(22, hello[5:], length=0xFFFF),
        _record(22, b"\1\xff\xff\xff" + draw.randbytes(1 << 14)),
        _record(22, b"") * 100_000,
        _record(21, b"\1\0") * 100_000,
        _record(20, b"\1") * 100_000,
        _record(23, draw.randbytes(1 << 14)) * 100,
        b"".join(_record(22, hello[place : place + 1]) for place in range(5, len(hello))),
        hello + hello,
        hello + _record(23, draw.randbytes(500)),
        *(bytes([*hello[:at], hello[at] ^ 1, *hello[at + 1 :]]) for at in range(0, len(hello), 9)),
    ):
        _say(uri, data)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    for data in (draw.randbytes(1 << 16), _record(23, draw.randbytes(1 << 14)), PREFACE):
        with suppress(OSError):
            client = context.wrap_socket(_connect(uri))
            # Past the encryption, on the same connection.
            with socket.socket(fileno=client.detach()) as plain:
                _exchange(plain, data)


def send_noise(uri: str) -> None:
    """Send random and almost regular bytes to a port of UCX, whose messages begin with a length."""
    draw = random.Random(2)
    for size in (0, 1, 24, 500, 1 << 16, 1 << 31, (1 << 63) + 5, (1 << 64) - 1):
        for fill in (b"\0" * 4096, draw.randbytes(1 << 16)):
            _say(uri, struct.pack("<Q", size) + fill)


ATTACKS: dict[str, Callable[[str], None]] = {
    each.__name__: each
    for each in (free_foreign_leases, hoard_leases, send_tls_records, send_noise)
}


def _wait() -> None:
    print("done", flush=True)
    sys.stdin.read()


def main() -> None:
    """Run one attack."""
    ATTACKS[sys.argv[1]](sys.argv[2])
    _wait()


if __name__ == "__main__":
    main()
