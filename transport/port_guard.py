"""Limits for the connections of a port that a library accepts by itself.

The guard counts the connections of each client. In a flood, it attaches a filter of the kernel to
the listening socket, which then ignores a part of the new clients.
"""

from __future__ import annotations

import ctypes
import ipaddress
import os
import resource
import socket
import stat
import struct
import time
from collections.abc import Callable, Container, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

Address = tuple[bytes, int]
"""An address and a port; see `make_address`."""

_KEEP_ALIVE = {
    socket.TCP_KEEPIDLE: 15,
    socket.TCP_KEEPINTVL: 5,
    socket.TCP_KEEPCNT: 3,
    socket.TCP_USER_TIMEOUT: 30_000,
}
"""The options by which the kernel ends a connection whose host has been gone for 30 s."""
_CALM_INTERVAL_SECONDS, _FLOOD_INTERVAL_SECONDS = 0.25, 0.1
_MIN_SHARE = 1 / 4096
_MAX_SHARE_OF_TIME = 0.02
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
_INSTRUCTION = struct.Struct("@HBBI")
_PROGRAM = struct.Struct("@HP")
# Instructions of classic BPF (linux/filter.h).
_LOAD_BYTE, _LOAD_WORD, _AND = 0x30, 0x20, 0x54
_JUMP_EQUAL, _JUMP_GREATER_EQUAL, _RETURN = 0x15, 0x35, 0x06
_FLAGS_OFFSET, _SYN = 13, 0x02
_RANDOM = 0xFFFFF000 + 56
_WHOLE_PACKET = 0xFFFFFFFF


def set_admitted_share(listener: socket.socket, share: float) -> None:
    """Let a listening TCP socket admit a random part of its new clients.

    Its connections are not affected, although they inherit the filter: they get no SYN. A share of
    1 removes the filter.

    Raises `OSError` if the kernel does not support filters, or there is none to remove.
    """
    if share >= 1:
        listener.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
        return
    least = min(int((1 - share) * (1 << 32)), (1 << 32) - 1)
    instructions = [
        (_LOAD_BYTE, 0, 0, _FLAGS_OFFSET),
        (_AND, 0, 0, _SYN),
        (_JUMP_EQUAL, 3, 0, 0),
        (_LOAD_WORD, 0, 0, _RANDOM),
        (_JUMP_GREATER_EQUAL, 1, 0, least),
        (_RETURN, 0, 0, 0),
        (_RETURN, 0, 0, _WHOLE_PACKET),
    ]
    code = b"".join(_INSTRUCTION.pack(*instruction) for instruction in instructions)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = _PROGRAM.pack(len(instructions), ctypes.addressof(buffer))
    listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


class _Connection(NamedTuple):
    """A connected socket of this process."""

    descriptor: int
    inode: int
    peer: Address


def make_address(host: str, port: int) -> Address:
    """Return an address that is equal for all ways to write it.

    Examples
    --------
    >>> make_address("::ffff:127.0.0.1", 7) == make_address("::ffff:7f00:1", 7)
    True
    """
    return ipaddress.ip_address(host.partition("%")[0]).packed, port


class PortGuard:
    """Disconnects the peers of a port that are silent for too long, or too many.

    While there are too many, the port admits a part of its new clients only. A peer has
    `handshake_seconds` to become an accepted one. A limit of None is none. With `keeps_alive`, the
    kernel ends the connections of hosts that are gone.

    Raises `OSError` if the process has no descriptors left.

    """

    def __init__(
        self,
        port: int,
        *,
        handshake_seconds: float | None = None,
        max_connections: int | None = None,
        keeps_alive: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._port = port
        self._handshake_seconds = handshake_seconds
        self._max_connections = max_connections
        self._keeps_alive = keeps_alive
        self._clock = clock
        self._since: dict[int, float] = {}
        self._other_inodes: set[int] = set()
        self._listeners: dict[int, int] = {}
        self._share = 1.0
        self._next_check = 0.0
        # Without free descriptors, a descriptor can still be duplicated onto this one.
        self._slot = os.open(os.devnull, os.O_RDONLY)
        self._null = os.open(os.devnull, os.O_RDONLY)

    @property
    def seconds_to_check(self) -> float:
        """The time until the next check is due, in seconds."""
        return max(0.0, self._next_check - self._clock())

    def check_if_due(self, accepted: Container[Address] = ()) -> int:
        """Disconnect the peers beyond the limits, if a check is due; return how many."""
        started = self._clock()
        if started < self._next_check:
            return 0
        waiting = [each for each in self._connections() if each.peer not in accepted]
        since = {each.inode: self._since.get(each.inode, started) for each in waiting}
        self._since = since
        waiting.sort(key=lambda each: since[each.inode])
        limit = len(waiting) if self._max_connections is None else self._max_connections
        surplus = max(0, len(waiting) - limit)
        rest = waiting[surplus:]
        excess = {*waiting[:surplus], *filter(self._is_late, rest)}
        for connection in excess:
            self._disconnect(connection)
        self._adjust_share(is_flooded=surplus > 0)
        self._next_check = self._clock() + self._pause(self._clock() - started)
        return len(excess)

    def _pause(self, duration: float) -> float:
        """Return the time until the next check, after one that took `duration` seconds."""
        interval = _CALM_INTERVAL_SECONDS if self._share == 1 else _FLOOD_INTERVAL_SECONDS
        if self._handshake_seconds is not None:
            interval = min(interval, max(self._handshake_seconds / 4, 0.05))
        return max(interval, duration / _MAX_SHARE_OF_TIME)

    def _is_late(self, connection: _Connection) -> bool:
        age = self._clock() - self._since[connection.inode]
        return self._handshake_seconds is not None and age >= self._handshake_seconds

    def _adjust_share(self, *, is_flooded: bool) -> None:
        """Admit fewer new clients in a flood, and more again after it."""
        share = self._share / 4 if is_flooded else self._share * 1.25
        share = min(1.0, max(share, _MIN_SHARE))
        if share == self._share:
            return
        self._share = share
        for descriptor, inode in self._listeners.items():
            sock = self._duplicate(descriptor)
            if sock is None:
                continue
            with suppress(OSError):  # a kernel without filters, or a listener that was closed
                if os.fstat(sock.fileno()).st_ino == inode:
                    set_admitted_share(sock, share)
            self._release(sock)

    def _connections(self) -> Iterator[_Connection]:
        known = self._other_inodes
        others: set[int] = set()
        for descriptor in _open_descriptors():
            try:
                status = os.fstat(descriptor)
            except OSError:
                continue  # closed meanwhile
            inode = status.st_ino
            if not stat.S_ISSOCK(status.st_mode):
                continue
            peer = None if inode in known else self._peer(descriptor)
            if peer is None:
                others.add(inode)
            else:
                yield _Connection(descriptor, inode, peer)
        self._other_inodes = others

    def _peer(self, descriptor: int) -> Address | None:
        """Return the peer of a socket, or None if it is not a connection of the port."""
        sock = self._duplicate(descriptor)
        if sock is None:
            return None
        try:
            is_inet = sock.family in (socket.AF_INET, socket.AF_INET6)
            if not is_inet or sock.getsockname()[1] != self._port:
                return None
            if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                if self._keeps_alive and descriptor not in self._listeners:
                    _keep_alive(sock)  # connections inherit the options
                self._listeners[descriptor] = os.fstat(sock.fileno()).st_ino
                return None
            return make_address(*sock.getpeername()[:2])
        except OSError:
            return None  # disconnected
        finally:
            self._release(sock)

    def _disconnect(self, connection: _Connection) -> None:
        with self._socket_of(connection) as sock, suppress(OSError):
            if sock is not None:
                sock.shutdown(socket.SHUT_RDWR)

    @contextmanager
    def _socket_of(self, connection: _Connection) -> Generator[socket.socket | None]:
        """Provide the socket of a connection; None if the library has closed it."""
        sock = self._duplicate(connection.descriptor)
        if sock is None:
            yield None
            return
        try:
            # Another socket may have the descriptor of one that was closed.
            yield sock if os.fstat(sock.fileno()).st_ino == connection.inode else None
        finally:
            self._release(sock)

    def _duplicate(self, descriptor: int) -> socket.socket | None:
        try:
            os.dup2(descriptor, self._slot, inheritable=False)
            return socket.socket(fileno=self._slot)
        except OSError:
            return None

    def _release(self, sock: socket.socket) -> None:
        sock.detach()
        os.dup2(self._null, self._slot, inheritable=False)

    def close(self) -> None:
        """Close the guard's descriptors. Idempotent."""
        for name in ("_slot", "_null"):
            descriptor = getattr(self, name)
            setattr(self, name, -1)
            if descriptor >= 0:
                os.close(descriptor)


def _keep_alive(sock: socket.socket) -> None:
    """Let the kernel detect that the host at the other end of a connection is gone."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEP_ALIVE.items():
        sock.setsockopt(socket.IPPROTO_TCP, option, value)


def _open_descriptors() -> Iterable[int]:
    """Return the numbers of open descriptors, and maybe of some that are not."""
    try:
        return [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:  # Every number below the limit is in use.
        return range(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
