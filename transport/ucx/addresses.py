"""Socket addresses: from and to the C structures of the library, and their reach."""

from __future__ import annotations

import ipaddress
import socket
import struct
from typing import Any

from .ffi import ffi

_IPV4 = struct.Struct("=H2s4s8x")
_IPV6 = struct.Struct("=H2s4x16sI")
_DISCARD_PORT = 9


def resolve(host: str, port: int) -> tuple[str, int]:
    """Return the first address of a host, as text, and the port.

    Raises
    ------
    OSError
        If the name cannot be resolved.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return str(found[0][4][0]), port


def pack(host: str, port: int) -> bytes:
    """Return an address as a ``sockaddr``."""
    address, _, scope = host.partition("%")
    parsed = ipaddress.ip_address(address)
    number = port.to_bytes(2, "big")
    if parsed.version == 4:
        return _IPV4.pack(socket.AF_INET, number, parsed.packed)
    scope_id = socket.if_nametoindex(scope) if scope else 0
    return _IPV6.pack(socket.AF_INET6, number, parsed.packed, scope_id)


def unpack(storage: Any) -> tuple[str, int]:
    """Return the host and the port of a ``sockaddr_storage``; ("?", 0) for another family."""
    data = bytes(ffi.buffer(ffi.addressof(storage)))
    (family,) = struct.unpack_from("=H", data)
    if family == socket.AF_INET:
        _, port, packed = _IPV4.unpack_from(data)
        return str(ipaddress.IPv4Address(packed)), int.from_bytes(port, "big")
    if family == socket.AF_INET6:
        _, port, packed, _ = _IPV6.unpack_from(data)
        return str(ipaddress.IPv6Address(packed)), int.from_bytes(port, "big")
    return "?", 0


def format_address(host: str, port: int) -> str:
    """Return an address for logs and errors."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_local(host: str) -> bool:
    """Return whether an address belongs to this host."""
    address = _parse(host)
    if address.is_loopback:
        return True
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((host, _DISCARD_PORT))  # chooses a route, and sends nothing
            return probe.getsockname()[0].partition("%")[0] == str(address)
    except OSError:
        return False


def is_loopback(host: str) -> bool:
    """Return whether an address is on the loopback, which other hosts cannot reach."""
    return _parse(host).is_loopback


def _parse(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    address = ipaddress.ip_address(host.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address
