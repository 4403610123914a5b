"""Socket addresses, as the library takes and gives them."""

from __future__ import annotations

import ipaddress
import socket
import struct
from typing import Any

from .library import ffi

_V4 = struct.Struct("=H2s4s8x")
_V6 = struct.Struct("=H2s4x16sI")


def resolve(host: str, port: int, *, passive: bool = False) -> tuple[str, int]:
    """Return the first address of a host, as text, and the port.

    Raises
    ------
    OSError
        If the name is unknown.
    """
    flags = socket.AI_PASSIVE if passive else 0
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    return str(found[0][4][0]), port


def pack(host: str, port: int) -> bytes:
    """Return an address as a ``sockaddr``."""
    address, _, scope = host.partition("%")
    parsed = ipaddress.ip_address(address)
    number = port.to_bytes(2, "big")
    if parsed.version == 4:
        return _V4.pack(socket.AF_INET, number, parsed.packed)
    return _V6.pack(
        socket.AF_INET6, number, parsed.packed, socket.if_nametoindex(scope) if scope else 0
    )


def unpack(storage: Any) -> tuple[str, int]:
    """Return the host and the port of a ``sockaddr_storage``."""
    data = bytes(ffi.buffer(ffi.addressof(storage)))
    (family,) = struct.unpack_from("=H", data)
    if family == socket.AF_INET:
        _, port, packed = _V4.unpack_from(data)
        return str(ipaddress.IPv4Address(packed)), int.from_bytes(port, "big")
    if family == socket.AF_INET6:
        _, port, packed, _ = _V6.unpack_from(data)
        return str(ipaddress.IPv6Address(packed)), int.from_bytes(port, "big")
    return "?", 0


def shown(host: str, port: int) -> str:
    """Return an address for logs and errors."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_local(host: str) -> bool:
    """Tell whether an address is one of this host's."""
    address = ipaddress.ip_address(host.partition("%")[0])
    address = getattr(address, "ipv4_mapped", None) or address
    if address.is_loopback:
        return True
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))  # nothing is sent: it only picks the way
            return probe.getsockname()[0].partition("%")[0] == str(address)
    except OSError:
        return False


def is_loopback(host: str) -> bool:
    """Tell whether an address is on the loopback, which no other host reaches."""
    address = ipaddress.ip_address(host.partition("%")[0])
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback
