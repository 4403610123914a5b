"""UCX endpoints: either side's handle of a connection.

UCX refuses a connection whose two sides differ in their error handling mode. Here the client asks
for error handling, and the server adopts the client's mode. In both cases the socket that made the
connection stays open beside the lanes and reports a peer that has died.
"""

from __future__ import annotations

from typing import Any

from .ffi import OK, ffi, ucp
from .worker import Worker, on_error

_FIELD_ERROR_MODE, _FIELD_ERROR_HANDLER = 1 << 1, 1 << 2
_FIELD_SOCKADDR, _FIELD_FLAGS, _FIELD_REQUEST = 1 << 4, 1 << 5, 1 << 6
_CLIENT_SERVER = 1
_ERROR_MODE_PEER = 1
_QUERY_TRANSPORTS = 1 << 3
_MAX_LANES = 16


def connect(worker: Worker, sockaddr: bytes) -> tuple[int, Any]:
    """Start to connect to a listener; return a status and, if it is OK, the endpoint."""
    params = _params(worker)
    address = ffi.from_buffer(sockaddr)
    params.field_mask |= _FIELD_FLAGS | _FIELD_SOCKADDR | _FIELD_ERROR_MODE
    params.err_mode = _ERROR_MODE_PEER
    params.flags = _CLIENT_SERVER
    params.sockaddr.addr = address
    params.sockaddr.addrlen = len(sockaddr)
    return _create(worker, params)


def accept(worker: Worker, connection_request: Any) -> tuple[int, Any]:
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
