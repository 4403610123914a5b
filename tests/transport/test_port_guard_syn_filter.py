"""The filter that lets a listening socket ignore new clients."""

from __future__ import annotations

import ctypes
import select
import socket
import struct
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from splitarrow.transport.port_guard import set_admitted_share


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=0.2)


def test_new_clients_are_ignored_and_connections_go_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        set_admitted_share(listener, 1 - 1e-8)
        with connect(port) as client, listener.accept()[0] as server:
            set_admitted_share(listener, 0)
            with pytest.raises(TimeoutError):
                connect(port)
            server.sendall(b"x" * 100_000)  # the connection has inherited the filter
            assert client.recv(100_000, socket.MSG_WAITALL) == b"x" * 100_000
            set_admitted_share(listener, 1)
            connect(port).close()


def test_a_part_of_the_clients_is_admitted() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listener, ExitStack() as clients:
        set_admitted_share(listener, 0.5)
        pending = select.poll()
        for _ in range(60):
            client = clients.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
            pending.register(client, select.POLLOUT)
        # Ignored clients try again after a second.
        assert 10 < len(pending.poll(200)) < 50


class Program:
    """A program of the kernel's packet filter, taken from the call that attaches it."""

    def setsockopt(self, level: int, option: int, value: Any) -> None:
        assert (level, option) == (socket.SOL_SOCKET, 26)  # SO_ATTACH_FILTER
        count, address = struct.unpack("@HP", value)
        self.instructions = list(struct.iter_unpack("@HBBI", ctypes.string_at(address, 8 * count)))

    def run(self, packet: bytes, random: int) -> int:
        """Return the bytes of a packet to keep: 0 drops it."""
        accumulator = at = 0
        while True:
            code, if_true, if_false, operand = self.instructions[at]
            at += 1
            if code == 0x30:
                accumulator = packet[operand]
            elif code == 0x20:
                assert operand == 0xFFFFF000 + 56  # a random number
                accumulator = random
            elif code == 0x54:
                accumulator &= operand
            elif code == 0x15:
                at += if_true if accumulator == operand else if_false
            elif code == 0x35:
                at += if_true if accumulator >= operand else if_false
            else:
                assert code == 0x06
                return operand


@pytest.mark.parametrize(
    ("share", "least"),
    [(0.0, 2**32 - 1), (0.25, 3 * 2**30), (0.5, 2**31), (1 - 2**-32, 1), (1 - 1e-12, 0)],
)
def test_a_syn_is_admitted_if_a_random_number_is_large_enough(share: float, least: int) -> None:
    program: Any = Program()
    set_admitted_share(program, share)
    for flags, admits in ((0x02, False), (0xC2, False), (0x10, True), (0x18, True), (0x00, True)):
        packet = bytearray(b"\xff" * 20)
        packet[13] = flags
        for number in (0, least - 1, least, 2**32 - 1):
            kept = program.run(packet, max(number, 0))
            expected = admits or max(number, 0) >= least
            assert kept == (0xFFFFFFFF if expected else 0), (flags, number)


@pytest.mark.parametrize("share", [1, 1.0, 2.0])
def test_no_filter_is_left_where_all_clients_are_admitted(share: float) -> None:
    calls: list[tuple[int, int]] = []
    listener: Any = SimpleNamespace(setsockopt=lambda *call: calls.append(call[:2]))
    set_admitted_share(listener, share)
    assert calls == [(socket.SOL_SOCKET, 27)]  # SO_DETACH_FILTER
