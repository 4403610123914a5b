"""Connected TCP sockets of clients: to the first address of a name that answers.

A command connects before it imports the transport, which takes longer, so that it fails at once
where nothing listens. The transport takes that connection over when it connects to the address.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import time
from collections import deque
from collections.abc import Generator
from itertools import chain, zip_longest
from typing import Any

from ..errors import ConnectError, UriError
from ..protocol.uri import TCP_PORT, DataUri

_ATTEMPT_SECONDS = 0.25
"""The time that an address has to answer before the next one is tried as well (RFC 8305)."""

_early: dict[tuple[str, int], socket.socket] = {}


def open_socket(uri: DataUri, timeout: float) -> socket.socket:
    """Return a socket that is connected to the address of a URI, within `timeout` seconds.

    Raises `ConnectError` if the connection fails, and `UriError` if the URI has no host.
    """
    if not uri.host:
        raise UriError(f"{uri.redacted()}: a {uri.scheme} address needs a host")
    address = _address_of(uri)
    early = _early.pop(address, None)
    if early is not None:
        if _is_open(early):
            return early
        early.close()
    try:
        return _connect_first(_resolve(*address), timeout)
    except TimeoutError:
        raise ConnectError(
            f"cannot connect to {uri.address}: no answer within {timeout:g} s"
        ) from None
    except OSError as error:
        raise ConnectError(f"cannot connect to {uri.address}: {error.strerror or error}") from None


@contextlib.contextmanager
def connected_early(uri: DataUri, timeout: float) -> Generator[None]:
    """Connect to an address for the first `open_socket` in the context; raises like it."""
    address = _address_of(uri)
    _early[address] = open_socket(uri, timeout)
    try:
        yield
    finally:
        unused = _early.pop(address, None)
        if unused is not None:
            unused.close()


def _is_open(sock: socket.socket) -> bool:
    """Return whether the other end has not closed a connection, or has sent something before."""
    try:
        return bool(sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except BlockingIOError:
        return True
    except OSError:
        return False


def _address_of(uri: DataUri) -> tuple[str, int]:
    return uri.host, TCP_PORT if uri.port is None else uri.port


def _resolve(host: str, port: int) -> deque[tuple[int, Any]]:
    """Return the families and addresses of a name: its two families in turns, the first first."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    first = [(family, address) for family, _, _, _, address in found if family == found[0][0]]
    other = [(family, address) for family, _, _, _, address in found if family != found[0][0]]
    return deque(each for each in chain(*zip_longest(first, other)) if each is not None)


def _connect_first(addresses: deque[tuple[int, Any]], timeout: float) -> socket.socket:
    """Return a blocking socket that is connected to the first address that answers.

    Raises the error of the last address that refused, and `TimeoutError` if none answers in time.
    """
    deadline = time.monotonic() + timeout
    pending: dict[int, socket.socket] = {}
    failure: OSError | None = None
    poll = select.poll()
    try:
        while addresses or pending:
            if addresses:
                family, address = addresses.popleft()
                try:
                    sock = socket.socket(family, socket.SOCK_STREAM)
                except OSError as error:  # The host lacks the family, or has no descriptor left.
                    failure = error
                    continue
                sock.setblocking(False)
                code = sock.connect_ex(address)
                if code not in (0, errno.EINPROGRESS):
                    failure = OSError(code, os.strerror(code))
                    sock.close()
                    continue
                pending[sock.fileno()] = sock
                poll.register(sock, select.POLLOUT)
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            ready = poll.poll(1000 * (min(left, _ATTEMPT_SECONDS) if addresses else left))
            for descriptor, _ in ready:
                code = pending[descriptor].getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if not code:
                    connected = pending.pop(descriptor)
                    connected.setblocking(True)
                    return connected
                failure = OSError(code, os.strerror(code))
                poll.unregister(descriptor)
                pending.pop(descriptor).close()
        raise failure or TimeoutError
    finally:
        for sock in pending.values():
            sock.close()
