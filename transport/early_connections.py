"""TCP connections that are made before the transport is imported, which takes longer.

A command connects first, so that it fails at once where nothing listens. The transport takes the
connection over when it connects to the address.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Generator

from ..errors import ConnectError, UriError
from ..protocol.uri import TCP_PORT, DataUri

_early: dict[tuple[str, int], socket.socket] = {}


def open_socket(uri: DataUri, timeout: float) -> socket.socket:
    """Return a socket that is connected to the address of a URI, within `timeout` seconds.

    Raises `ConnectError` if the connection fails, and `UriError` if the URI has no host.
    """
    if not uri.host:
        raise UriError(f"{uri.redacted()}: a {uri.scheme} address needs a host")
    address = _address_of(uri)
    if address in _early:
        return _early.pop(address)
    try:
        return socket.create_connection(address, timeout=timeout)
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


def _address_of(uri: DataUri) -> tuple[str, int]:
    return uri.host, TCP_PORT if uri.port is None else uri.port
