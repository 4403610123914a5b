"""A channel over a socket: what came before an error is not lost."""

from __future__ import annotations

import socket
import time

import pytest

from splitarrow.errors import ConnectionLostError, ProtocolError
from splitarrow.protocol.frames import Incoming, Untagged
from splitarrow.protocol.limits import Limits
from splitarrow.transport.framing import HEADER, PREFACE
from splitarrow.transport.sockets import SocketChannel


def received(data: bytes, error: type[Exception]) -> list[Incoming]:
    """Return the frames that a reader gets of `data`, and see that `error` follows."""
    ours, theirs = socket.socketpair()
    channel = SocketChannel(ours, Limits(), server=False, peer="peer", is_local=True)
    frames: list[Incoming] = []
    deadline = time.monotonic() + 10

    def receive_all() -> None:
        while time.monotonic() < deadline:
            frames.extend(channel.receive_some())

    with theirs:
        theirs.sendall(data)
        theirs.shutdown(socket.SHUT_WR)
        try:
            with pytest.raises(error):
                receive_all()
        finally:
            channel.close()
    return frames


def untagged(payload: bytes) -> bytes:
    return HEADER.pack(0, len(payload), 0) + payload


def test_frames_before_garbage_arrive() -> None:
    data = PREFACE + untagged(b"one") + untagged(b"two") + b"\xff" * 64
    assert received(data, ProtocolError) == [Untagged(b"one"), Untagged(b"two")]


def test_frames_before_the_end_arrive() -> None:
    data = PREFACE + untagged(b"one") + untagged(b"two")[:-1]
    assert received(data, ConnectionLostError) == [Untagged(b"one")]
