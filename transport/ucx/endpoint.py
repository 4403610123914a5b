"""UCX endpoints: either side's handle of a connection, and the socket addresses that they use.

UCX refuses a connection whose two sides differ in their error handling mode. Here the client asks
for error handling, and the server adopts the client's mode. In both cases the socket that made the
connection stays open beside the lanes and reports a peer that has died.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from typing import Any

from .context import Reach
from .ffi import OK, ffi, ucp
from .worker import Worker, on_error

_IPV4 = struct.Struct("=H2s4s8x")
_IPV6 = struct.Struct("=H2s4x16sI")
_DISCARD_PORT = 9
_FIELD_ERROR_MODE, _FIELD_ERROR_HANDLER = 1 << 1, 1 << 2
_FIELD_SOCKADDR, _FIELD_FLAGS, _FIELD_REQUEST = 1 << 4, 1 << 5, 1 << 6
_CLIENT_SERVER = 1
_ERROR_MODE_PEER = 1
_QUERY_TRANSPORTS = 1 << 3
_MAX_LANES = 16


def resolve_address(host: str, port: int) -> str:
    """Return the first address of a host; raise `OSError` if its name cannot be resolved."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return str(found[0][4][0])


def pack_address(host: str, port: int) -> bytes:
    """Return an address as a ``sockaddr``."""
    address, _, scope = host.partition("%")
    parsed = ipaddress.ip_address(address)
    number = port.to_bytes(2, "big")
    if parsed.version == 4:
        return _IPV4.pack(socket.AF_INET, number, parsed.packed)
    scope_id = socket.if_nametoindex(scope) if scope else 0
    return _IPV6.pack(socket.AF_INET6, number, parsed.packed, scope_id)


def unpack_address(storage: Any) -> tuple[str, int]:
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


def find_reach(host: str) -> Reach:
    """Return where an address is, as this network namespace sees it."""
    if is_loopback_address(host):
        return Reach.LOOPBACK
    return Reach.HOST if _is_own_address(_parse_address(host), host) else Reach.NETWORK


def _is_own_address(address: ipaddress.IPv4Address | ipaddress.IPv6Address, host: str) -> bool:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((host, _DISCARD_PORT))  # chooses a route, and sends nothing
            return probe.getsockname()[0].partition("%")[0] == str(address)
    except OSError:
        return False


def is_loopback_address(host: str) -> bool:
    """Return whether an address is on the loopback, which other hosts cannot reach."""
    return _parse_address(host).is_loopback


def _parse_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    address = ipaddress.ip_address(host.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address


def connect_endpoint(worker: Worker, sockaddr: bytes) -> tuple[int, Any]:
    """Start to connect to a listener; return a status and, if it is OK, the endpoint."""
    params = _params(worker)
    address = ffi.from_buffer(sockaddr)
    params.field_mask |= _FIELD_FLAGS | _FIELD_SOCKADDR | _FIELD_ERROR_MODE
    params.err_mode = _ERROR_MODE_PEER
    params.flags = _CLIENT_SERVER
    params.sockaddr.addr = address
    params.sockaddr.addrlen = len(sockaddr)
    return _create(worker, params)


def accept_endpoint(worker: Worker, connection_request: Any) -> tuple[int, Any]:
    """Accept a client of a listener; return a status and, if it is OK, the endpoint."""
    params = _params(worker)
    params.field_mask |= _FIELD_REQUEST
    params.conn_request = connection_request
    return _create(worker, params)


def _params(worker: Worker) -> Any:
    params = ffi.new("ucp_ep_params_t *")
    params.field_mask = _FIELD_ERROR_HANDLER
    params.err_handler.cb = on_error
    params.err_handler.arg = worker.callback_argument
    return params


def _create(worker: Worker, params: Any) -> tuple[int, Any]:
    created = ffi.new("ucp_ep_h *")
    status = ucp.ucp_ep_create(worker.handle, params, created)
    return status, created[0] if status == OK else None


def list_lanes(endpoint: Any) -> list[str]:
    """Return the lanes of an endpoint, such as ``posix/memory``, without duplicates."""
    entries = ffi.new("ucp_transport_entry_t[]", _MAX_LANES)
    attributes = ffi.new("ucp_ep_attr_t *")
    attributes.field_mask = _QUERY_TRANSPORTS
    attributes.transports.entries = entries
    attributes.transports.num_entries = _MAX_LANES
    attributes.transports.entry_size = ffi.sizeof("ucp_transport_entry_t")
    if ucp.ucp_ep_query(endpoint, attributes) != OK:
        return []
    lanes = [
        f"{ffi.string(entry.transport_name).decode()}/{ffi.string(entry.device_name).decode()}"
        for entry in entries[0 : attributes.transports.num_entries]
    ]
    # The socket that made the connection is listed without a device. It carries no messages.
    return [lane for lane in dict.fromkeys(lanes) if not lane.endswith("/")]
