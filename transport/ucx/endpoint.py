"""Endpoints of UCX: the connection itself, made by either side.

UCX refuses a connection whose two sides differ in their mode of error handling. Here the client
asks for it, and a server takes what its client chose. Either way the socket that made the
connection stays open beside the lanes, and tells of a peer that has died.
"""

from __future__ import annotations

from typing import Any

from .library import OK, ffi, ucp
from .worker import Worker, on_error

_FIELD_ERROR_MODE, _FIELD_ERROR_HANDLER = 1 << 1, 1 << 2
_FIELD_SOCKADDR, _FIELD_FLAGS, _FIELD_REQUEST = 1 << 4, 1 << 5, 1 << 6
_CLIENT_SERVER = 1
_ERROR_MODE_PEER = 1
_QUERY_TRANSPORTS = 1 << 3
_MOST_LANES = 16


def connect(worker: Worker, sockaddr: bytes) -> tuple[int, Any]:
    """Begin a connection to a listener; return a status and the endpoint."""
    params = _params(worker)
    address = ffi.from_buffer(sockaddr)
    params.field_mask |= _FIELD_FLAGS | _FIELD_SOCKADDR | _FIELD_ERROR_MODE
    params.err_mode = _ERROR_MODE_PEER
    params.flags = _CLIENT_SERVER
    params.sockaddr.addr = address
    params.sockaddr.addrlen = len(sockaddr)
    return _create(worker, params)


def accept(worker: Worker, request: Any) -> tuple[int, Any]:
    """Take a client that waits at a listener; return a status and the endpoint."""
    params = _params(worker)
    params.field_mask |= _FIELD_REQUEST
    params.conn_request = request
    return _create(worker, params)


def _params(worker: Worker) -> Any:
    params = ffi.new("ucp_ep_params_t *")
    params.field_mask = _FIELD_ERROR_HANDLER
    params.err_handler.cb = on_error
    params.err_handler.arg = worker.argument
    return params


def _create(worker: Worker, params: Any) -> tuple[int, Any]:
    made = ffi.new("ucp_ep_h *")
    status = ucp.ucp_ep_create(worker.handle, params, made)
    return status, made[0] if status == OK else None


def lanes(endpoint: Any) -> list[str]:
    """Return the lanes of an endpoint, such as ``posix/memory``, each once."""
    entries = ffi.new("ucp_transport_entry_t[]", _MOST_LANES)
    attributes = ffi.new("ucp_ep_attr_t *")
    attributes.field_mask = _QUERY_TRANSPORTS
    attributes.transports.entries = entries
    attributes.transports.num_entries = _MOST_LANES
    attributes.transports.entry_size = ffi.sizeof("ucp_transport_entry_t")
    if ucp.ucp_ep_query(endpoint, attributes) != OK:
        return []
    found = [
        f"{ffi.string(entry.transport_name).decode()}/{ffi.string(entry.device_name).decode()}"
        for entry in entries[0 : attributes.transports.num_entries]
    ]
    # The socket that made the connection is listed too, without a device: it carries nothing.
    return [lane for lane in dict.fromkeys(found) if not lane.endswith("/")]
