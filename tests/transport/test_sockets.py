"""A channel over a socket: what came before an error is not lost."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from splitarrow.errors import ConnectionLostError, ProtocolError, StallError
from splitarrow.protocol.frames import Incoming, TaggedReceived, Untagged
from splitarrow.protocol.limits import Limits
from splitarrow.transport import aio, blocking
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


BODY = 1 << 20


def half_a_body() -> tuple[SocketChannel, socket.socket]:
    """Return a channel over TCP that has received half of a large body, and its peer."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        ours, _ = server.accept()
    channel = SocketChannel(ours, Limits(), server=False, peer="peer", is_local=True)
    theirs.sendall(PREFACE + HEADER.pack(1, BODY, 7) + bytes(BODY // 2))
    while channel.bytes_received < BODY // 2:
        assert channel.receive_some() == []
    return channel, theirs


def test_a_large_body_that_trickles_in_has_not_stalled() -> None:
    channel, theirs = half_a_body()

    def trickle() -> None:
        for _ in range(16):
            theirs.sendall(bytes(BODY // 32))
            time.sleep(0.05)  # all of it takes longer than the timeout

    with theirs, ThreadPoolExecutor(1) as pool:
        sent = pool.submit(trickle)
        (frame,) = blocking.receive(channel, 0.4)
        sent.result()
    assert isinstance(frame, TaggedReceived)
    assert (frame.tag, frame.body.nbytes) == (7, BODY)
    channel.close()


def test_silence_within_a_large_body_is_noticed_in_time() -> None:
    channel, theirs = half_a_body()
    with theirs:
        theirs.sendall(bytes(1000))  # too little to be woken for
        begun = time.monotonic()
        with pytest.raises(StallError):
            blocking.receive(channel, 0.5)
        assert 0.5 <= time.monotonic() - begun < 5
    channel.close()


async def test_silence_within_a_large_body_is_noticed_by_the_other_driver() -> None:
    channel, theirs = half_a_body()
    with theirs:
        theirs.sendall(bytes(1000))
        with pytest.raises(StallError):
            await aio.receive(channel, 0.5)
    channel.close()


def test_a_cut_within_a_large_body_is_noticed_at_once() -> None:
    channel, theirs = half_a_body()
    theirs.sendall(bytes(1000))
    theirs.close()
    with pytest.raises(ConnectionLostError):
        blocking.receive(channel, 30)
    channel.close()
